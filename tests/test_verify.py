"""`eaglectl verify`: a folder against its own lists, file by file."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import eaglectl
from tests.builders import STATED, call, contents, drafter_folder
from tests.conftest import FIXTURES

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/verify.schema.json").read_text())
)
RECORD = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/provenance.schema.json").read_text())
)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a download of a published drafter holds."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    done = eaglectl.upload(
        str(drafter_folder(tmp_path, card=STATED)), "org/drafter", eaglectl.UploadOptions(dry_run=True)
    )
    folder = tmp_path / "download"
    folder.mkdir()
    for file in done.plan.files:
        assert isinstance(file.content, bytes)
        (folder / file.name).write_bytes(file.content)
    return folder


def test_what_was_published_is_equal(published: Path) -> None:
    before = contents(published)
    done = call("verify", published, "--json")
    assert done.code == 0
    SCHEMA.validate(done.document)
    assert done.document["lists"] == ["SHA256SUMS", "eaglectl.json"]
    assert contents(published) == before
    RECORD.validate(json.loads((published / "eaglectl.json").read_text()))


def edited(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    return change


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])


@pytest.mark.parametrize(
    ("change", "name", "judgement", "says"),
    [
        (edited("model.safetensors"), "model.safetensors", "differs", "SHA-256"),
        (edited("config.json"), "config.json", "differs", "SHA-256"),
        (edited("README.md"), "README.md", "differs", "SHA-256"),
        (cut, "model.safetensors", "differs", "SHA-256"),
        (lambda folder: (folder / "config.json").unlink(), "config.json", "missing", "not there"),
        (
            lambda folder: (folder / "model-2.safetensors").write_bytes(b"x"),
            "model-2.safetensors",
            "unlisted",
            "not in SHA256SUMS",
        ),
        (
            lambda folder: (folder / "modeling.py").write_bytes(b"x"),
            "modeling.py",
            "unlisted",
            "not in SHA256SUMS",
        ),
    ],
)
def test_each_difference_is_named(
    published: Path, change: Callable[[Path], None], name: str, judgement: str, says: str
) -> None:
    change(published)
    done = call("verify", published, "--json")
    assert done.code == 1
    SCHEMA.validate(done.document)
    wrong = [one for one in done.document["files"] if one["judgement"] != "same"]
    assert [(one["name"], one["judgement"]) for one in wrong] == [(name, judgement)] and says in wrong[0][
        "how"
    ]
    assert name in call("verify", published).out


def test_a_list_that_was_made_to_fit_is_caught_by_the_other(published: Path) -> None:
    from hashlib import sha256

    before = sha256((published / "config.json").read_bytes()).hexdigest()
    edited("config.json")(published)
    after = sha256((published / "config.json").read_bytes()).hexdigest()
    sums = published / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(before, after))
    assert call("verify", published).code == 1


@pytest.mark.parametrize("name", ["SHA256SUMS", "eaglectl.json"])
def test_one_list_is_enough(published: Path, name: str) -> None:
    (published / name).unlink()
    if name == "eaglectl.json":
        sums = published / "SHA256SUMS"
        sums.write_text(
            "".join(
                line for line in sums.read_text().splitlines(keepends=True) if "eaglectl.json" not in line
            )
        )
    assert call("verify", published).code == 0


def test_what_the_hubs_client_keeps_is_no_difference(published: Path) -> None:
    (published / ".gitattributes").write_text("*.safetensors filter=lfs")
    kept = published / ".cache/huggingface/download/config.json.metadata"
    kept.parent.mkdir(parents=True)
    kept.write_text("0" * 40)
    done = call("verify", published, "--json")
    assert (done.code, done.document["others"]) == (
        0,
        [".cache/huggingface/download/config.json.metadata", ".gitattributes"],
    )


@pytest.mark.parametrize(
    ("name", "is_kept"), [("a" * 40 + ".json", True), ("a" * 64 + ".json", True), ("config.json", False)]
)
def test_the_clients_list_of_a_commit_is_left_aside(published: Path, name: str, is_kept: bool) -> None:
    kept = published / ".cache/huggingface/trees" / name
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert call("verify", published).code == (0 if is_kept else 1)


def test_without_a_list_nothing_is_compared(tmp_path: Path) -> None:
    done = call("verify", drafter_folder(tmp_path))
    assert done.code == 3 and "nothing to compare with" in done.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SHA256SUMS", "hello"),
        ("SHA256SUMS", ""),
        ("eaglectl.json", "{"),
        ("eaglectl.json", '{"published": {"files": 3}}'),
    ],
)
def test_a_broken_list_is_no_pass(published: Path, name: str, text: str) -> None:
    (published / name).write_text(text)
    done = call("verify", published)
    assert done.code in (1, 3)
    assert done.code == 3 and name in done.err


def test_a_listed_name_that_leaves_the_folder_is_not_read(published: Path) -> None:
    (published / "SHA256SUMS").write_text(f"{'0' * 64}  ../drafter/config.json\n")
    done = call("verify", published, "--json")
    assert done.code == 1
    assert done.document["files"][0]["judgement"] == "missing"


def test_a_folder_that_is_not_there_is_told() -> None:
    assert call("verify", "nowhere").code == 3
