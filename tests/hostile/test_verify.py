"""`verify` against whoever can change a download: what was added, linked, listed twice or stripped."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglectl import api
from tests.builders import STATED, call, drafter_folder

HASH = "0" * 64


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release, its key beside it."""
    pytest.importorskip("model_signing.verifying", exc_type=ImportError)
    parent = tmp_path_factory.mktemp("release")
    private, public = parent / "key.pem", parent / "key.pub"
    curve = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private)]
    for arguments in (curve, ["ec", "-in", str(private), "-pubout", "-out", str(public)]):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    folder = parent / "published"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        options = api.UploadOptions(dry_run=True, signer=str(private))
        for file in api.upload(str(drafter_folder(parent, card=STATED)), "org/drafter", options).plan.files:
            data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
            (folder / file.name).write_bytes(data)
    return parent


@pytest.fixture
def signed(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the signed release, and its public key beside it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.pub").write_bytes((release / "key.pub").read_bytes())
    folder = tmp_path / "download"
    folder.mkdir()
    for path in (release / "published").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


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
def test_a_file_that_was_added_is_a_difference(signed: Path, name: str) -> None:
    path = signed / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auto_map": {"AutoTokenizer": "x.X"}}))
    assert differing(signed) == {name: "unlisted"}
    done = call("verify", signed, "--public-key", "key.pub", "--json")
    assert (done.code, done.document["signature"]["judgement"]) == (1, "failed")
    assert f"{name} was not signed" in done.document["signature"]["how"]
    text = call("verify", signed, "--public-key", "key.pub").out
    assert "signature verified" not in text and "differs" in text
    for list_name in ("SHA256SUMS", "eaglectl.json"):
        (signed / list_name).unlink()
    assert call("verify", signed, "--public-key", "key.pub").code == 1


def test_a_name_that_is_no_text_is_a_difference(signed: Path) -> None:
    (signed / os.fsdecode(b"\xff.json")).write_text("{}")
    assert call("verify", signed, "--public-key", "key.pub").code == 1
    assert call("verify", signed, "--json").code == 1


def test_a_file_that_only_one_list_names_is_a_difference(signed: Path) -> None:
    (signed / "evil.json").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with (signed / "SHA256SUMS").open("a") as file:
        file.write(f"{empty}  evil.json\n")
    assert differing(signed, "--no-signature") == {"evil.json": "unlisted"}


def test_links_are_differences(signed: Path, tmp_path: Path) -> None:
    for name in ("config.json", "README.md"):
        (signed / name).rename(tmp_path / name)
    (signed / "config.json").symlink_to(tmp_path / "config.json")
    (tmp_path / "README.md").rename(signed / "card")
    (signed / "README.md").symlink_to("card")
    (signed / "extra").symlink_to(tmp_path)
    (signed / "nowhere").symlink_to("nowhere")
    assert differing(signed) == {
        "config.json": "differs",
        "README.md": "differs",
        "card": "unlisted",
        "extra": "unlisted",
        "nowhere": "unlisted",
    }
    assert call("verify", signed, "--public-key", "key.pub").code == 1


def test_a_signature_behind_a_link_is_missing(signed: Path, tmp_path: Path) -> None:
    (signed / "model.sig").rename(tmp_path / "model.sig")
    (signed / "model.sig").symlink_to(tmp_path / "model.sig")
    done = call("verify", signed, "--public-key", "key.pub", "--json")
    assert (done.code, done.document["signature"]["judgement"]) == (1, "missing")


def test_a_pipe_is_a_difference_and_is_not_opened(signed: Path) -> None:
    os.mkfifo(signed / "generation_config.json")
    (signed / "README.md").unlink()
    os.mkfifo(signed / "README.md")
    assert differing(signed) == {"generation_config.json": "unlisted", "README.md": "differs"}


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("is_first", [True, False])
def test_two_digests_of_one_name_are_a_difference(signed: Path, prefix: str, is_first: bool) -> None:
    sums = signed / "SHA256SUMS"
    other = f"{HASH}  {prefix}config.json\n"
    sums.write_text(other + sums.read_text() if is_first else sums.read_text() + other)
    assert differing(signed, "--no-signature") == {"config.json": "differs"}
    done = call("validate", signed, "--select", "EGL904", "--json")
    assert done.code == 1 and "2 digests for config.json" in done.out


def test_one_digest_stated_twice_is_none(signed: Path) -> None:
    sums = signed / "SHA256SUMS"
    sums.write_text(sums.read_text() * 2)
    assert differing(signed, "--no-signature") == {}


def test_a_record_with_two_entries_of_one_name_is_no_pass(signed: Path) -> None:
    record = signed / "eaglectl.json"
    text = record.read_text()
    record.write_text(
        text.replace(
            '"config.json": {', f'"config.json": {{"size": 1, "sha256": "{HASH}"}}, "config.json": {{', 1
        )
    )
    done = call("verify", signed, "--no-signature")
    assert done.code == 3 and "eaglectl.json" in done.err and "config.json" in done.err


def strip(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


@pytest.mark.parametrize("lists", [(), ("SHA256SUMS", "eaglectl.json")], ids=["lists", "no lists"])
def test_a_stripped_signature_is_a_difference_where_it_is_required(
    signed: Path, lists: tuple[str, ...]
) -> None:
    strip(signed, "model.sig", *lists)
    done = call("verify", signed, "--require-signature", "--json")
    assert (done.code, done.document["signature"]["judgement"]) == (1, "missing")
    assert "signature missing" in call("verify", signed, "--require-signature").out
    assert call("verify", signed, "--public-key", "key.pub").code == 1


def test_a_required_signature_of_nobody_is_not_looked_at(signed: Path) -> None:
    assert call("verify", signed, "--require-signature").code == 3
    assert call("verify", signed, "--require-signature", "--public-key", "key.pub").code == 0
    assert call("verify", signed, "--require-signature", "--no-signature").code == 2


def test_a_stripped_record_is_a_difference_where_it_is_required(signed: Path) -> None:
    strip(signed, "model.sig", "provenance.intoto.json", "SHA256SUMS")
    assert call("verify", signed, "--require-record").code == 0
    strip(signed, "eaglectl.json")
    assert call("verify", signed).code == 3
    done = call("verify", signed, "--require-record", "--json")
    assert done.code == 1 and done.document["files"][0]["judgement"] == "missing"


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "eaglectl.toml"
        path.write_text(f"[verify]\n{text}\n")
        return path

    return write


def test_the_policy_says_who_signs(signed: Path, policy: Callable[[str], Path]) -> None:
    policy('require-signature = true\npublic-key = "key.pub"')
    done = call("verify", signed, "--json")
    assert (done.code, done.document["signature"]["judgement"]) == (0, "verified")
    assert call("verify", signed, "--no-signature").code == 2
    strip(signed, "model.sig")
    assert call("verify", signed).code == 1


def test_the_key_of_a_policy_lies_beside_the_policy(
    signed: Path, policy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = policy('public-key = "key.pub"')
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert call("verify", signed).code == 0
    monkeypatch.chdir("/")
    assert call("verify", signed, "--policy", path).code == 0


def test_a_download_does_not_say_who_must_have_signed_it(
    signed: Path, policy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy('require-signature = true\npublic-key = "key.pub"')
    (signed / "eaglectl.toml").write_text("[verify]\nrequire-signature = false\n")
    strip(signed, "model.sig")
    monkeypatch.chdir(signed)
    document = call("verify", ".", "--json").document
    assert document["signature"]["judgement"] == "missing"


def test_a_record_is_required_by_the_policy(signed: Path, policy: Callable[[str], Path]) -> None:
    policy("require-record = true")
    strip(signed, "model.sig", "SHA256SUMS", "eaglectl.json")
    assert call("verify", signed).code == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("require-signatures = true", "did you mean require-signature"),
        ('require-signature = "yes"', "true or false"),
        ("public-key = 3", "a text"),
        ('public-key = ""', "a text"),
        ('identity = "me@example.com"', "belong together"),
        ('identity-provider = "https://example.com"', "belong together"),
        ('public-key = "k"\nidentity = "a"\nidentity-provider = "b"', "no other signer beside it"),
        ('public-key = "k"\ncertificate-chain = "c"', "no other signer beside it"),
        ('certificate-chain = ""', "a text, or no such key"),
    ],
)
def test_a_policy_that_is_wrong_is_usage(
    signed: Path, policy: Callable[[str], Path], text: str, says: str
) -> None:
    policy(text)
    done = call("verify", signed)
    assert done.code == 2 and says in done.err and "verify." in done.err
    assert call("validate", signed).code == 2


def test_thousands_of_added_files_are_counted(signed: Path) -> None:
    (signed / "sub").mkdir()
    for number in range(3000):
        (signed / f"sub/{number}").touch()
    out = call("verify", signed, "--no-signature").out
    assert "and 2,960 more" in out and len(out) < 10_000
    assert len(differing(signed, "--no-signature")) == 3000
