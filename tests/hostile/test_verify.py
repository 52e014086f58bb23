"""`verify` against whoever can change a download: what was added, linked, listed twice or stripped."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import eaglectl
from tests.builders import STATED, call, drafter_folder

HASH = "0" * 64


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `upload` publishes of a folder that has a model.sig."""
    parent = tmp_path_factory.mktemp("release")
    folder = parent / "published"
    folder.mkdir()
    drafter = drafter_folder(parent, card=STATED)
    (drafter / "model.sig").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        for file in eaglectl.upload(drafter, "org/drafter", eaglectl.UploadOptions(dry_run=True)).plan.files:
            data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
            (folder / file.name).write_bytes(data)
    return folder


@pytest.fixture
def download(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the release."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(release, tmp_path / "download")


def differing(folder: Path, *options: str) -> dict[str, str]:
    """The judgement of each file that is not as published."""
    document = call("verify", folder, "--json", *options).document
    return {file["name"]: file["judgement"] for file in document["files"] if file["judgement"] != "same"}


ADDED = [
    "hf_quant_config.json",
    "tokenizer_config.json",
    "adapter_config.json",
    "generation_config.json",
    "MODEL.SAFETENSORS",
    "Modeling.PY",
    "notes.txt",
    ".env",
    ".gitignore",
    "original/consolidated.00.pth",
    "a/b/c/config.json",
    "model/.metadata",
    "__pycache__/x.pyc",
    ".cache/x",
    ".cache/huggingface/modeling.py",
    ".cache/huggingface/download/modeling.py",
    ".git/config",
    "sub/.gitattributes",
    "sub/model.sig",
    "sub/SHA256SUMS",
    "a\nb.json",
]


@pytest.mark.parametrize("name", ADDED)
def test_a_file_that_was_added_is_a_difference(download: Path, name: str) -> None:
    path = download / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auto_map": {"AutoTokenizer": "x.X"}}))
    assert differing(download) == {name: "unlisted"}
    done = call("verify", download)
    assert done.code == 1 and "differs" in done.out


def test_a_name_that_is_no_text_is_a_difference(download: Path) -> None:
    (download / os.fsdecode(b"\xff.json")).write_text("{}")
    assert call("verify", download).code == 1
    assert call("verify", download, "--json").code == 1


def test_a_file_that_only_one_list_names_is_a_difference(download: Path) -> None:
    (download / "evil.json").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with (download / "SHA256SUMS").open("a") as file:
        file.write(f"{empty}  evil.json\n")
    assert differing(download) == {"evil.json": "unlisted"}


def test_links_are_differences(download: Path, tmp_path: Path) -> None:
    for name in ("config.json", "README.md"):
        (download / name).rename(tmp_path / name)
    (download / "config.json").symlink_to(tmp_path / "config.json")
    (tmp_path / "README.md").rename(download / "card")
    (download / "README.md").symlink_to("card")
    (download / "extra").symlink_to(tmp_path)
    (download / "nowhere").symlink_to("nowhere")
    assert differing(download) == {
        "config.json": "differs",
        "README.md": "differs",
        "card": "unlisted",
        "extra": "unlisted",
        "nowhere": "unlisted",
    }


def test_a_signature_is_not_looked_into_and_the_report_says_so(download: Path) -> None:
    done = call("verify", download)
    assert done.code == 0 and "model.sig was not looked into: `model_signing verify`" in done.out
    (download / "model.sig").unlink()
    assert call("verify", download).code == 0 and "model.sig" not in call("verify", download).out


def test_a_signature_behind_a_link_is_a_difference(download: Path, tmp_path: Path) -> None:
    (download / "model.sig").rename(tmp_path / "model.sig")
    (download / "model.sig").symlink_to(tmp_path / "model.sig")
    assert differing(download) == {"model.sig": "unlisted"}


def test_a_pipe_is_a_difference_and_is_not_opened(download: Path) -> None:
    os.mkfifo(download / "generation_config.json")
    (download / "README.md").unlink()
    os.mkfifo(download / "README.md")
    assert differing(download) == {"generation_config.json": "unlisted", "README.md": "differs"}


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("is_first", [True, False])
def test_two_digests_of_one_name_are_a_difference(download: Path, prefix: str, is_first: bool) -> None:
    sums = download / "SHA256SUMS"
    other = f"{HASH}  {prefix}config.json\n"
    sums.write_text(other + sums.read_text() if is_first else sums.read_text() + other)
    assert differing(download) == {"config.json": "differs"}
    done = call("validate", download, "--select", "EGL904", "--json")
    assert done.code == 1 and "2 digests for config.json" in done.out


def test_one_digest_stated_twice_is_none(download: Path) -> None:
    sums = download / "SHA256SUMS"
    sums.write_text(sums.read_text() * 2)
    assert differing(download) == {}


def test_a_record_with_two_entries_of_one_name_is_no_pass(download: Path) -> None:
    record = download / "eaglectl.json"
    text = record.read_text()
    record.write_text(
        text.replace(
            '"config.json": {', f'"config.json": {{"size": 1, "sha256": "{HASH}"}}, "config.json": {{', 1
        )
    )
    done = call("verify", download)
    assert done.code == 3 and "eaglectl.json" in done.err and "config.json" in done.err


def strip(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def test_a_stripped_record_is_a_difference_where_it_is_required(download: Path) -> None:
    strip(download, "model.sig", "SHA256SUMS")
    assert call("verify", download, "--require-record").code == 0
    strip(download, "eaglectl.json")
    assert call("verify", download).code == 3
    done = call("verify", download, "--require-record", "--json")
    assert done.code == 1 and done.document["files"][0]["judgement"] == "missing"


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "eaglectl.toml"
        path.write_text(f"[verify]\n{text}\n")
        return path

    return write


def test_a_download_does_not_say_what_is_required_of_it(
    download: Path, policy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy("require-record = true")
    (download / "eaglectl.toml").write_text("[verify]\nrequire-record = false\n")
    strip(download, "eaglectl.json")
    monkeypatch.chdir(download)
    files = call("verify", ".", "--json").document["files"]
    assert {file["name"]: file["judgement"] for file in files}["eaglectl.json"] == "missing"


def test_a_record_is_required_by_the_policy(download: Path, policy: Callable[[str], Path]) -> None:
    policy("require-record = true")
    strip(download, "model.sig", "SHA256SUMS", "eaglectl.json")
    assert call("verify", download).code == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("require-records = true", "require-records"),
        ('require-record = "yes"', "Expected `bool`"),
        ("require-signature = true", "require-signature"),
        ('public-key = "key.pub"', "public-key"),
    ],
)
def test_a_policy_that_is_wrong_is_usage(
    download: Path, policy: Callable[[str], Path], text: str, says: str
) -> None:
    policy(text)
    done = call("verify", download)
    assert done.code == 2 and says in done.err and "`$.verify" in done.err
    assert call("validate", download).code == 2


def test_thousands_of_added_files_are_counted(download: Path) -> None:
    (download / "sub").mkdir()
    for number in range(3000):
        (download / f"sub/{number}").touch()
    out = call("verify", download).out
    assert "and 2,960 more" in out and len(out) < 10_000
    assert len(differing(download)) == 3000
