"""`verify` on a repository, without its weights, and of a folder against a repository's listing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import eaglectl
from tests.builders import STATED, call, drafter_folder
from tests.hub import LoopbackHub, Reply, Request, client_hub
from tests.test_verify import SCHEMA

WEIGHTS = "model.safetensors"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a download of a published drafter holds."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = eaglectl.upload(
        str(drafter_folder(tmp_path, card=STATED)), "org/drafter", eaglectl.UploadOptions(dry_run=True)
    )
    folder = tmp_path / "download"
    folder.mkdir()
    for file in done.plan.files:
        assert isinstance(file.content, bytes)
        (folder / file.name).write_bytes(file.content)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return folder


@pytest.fixture
def hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with the published drafter."""
    monkeypatch.chdir(tmp_path)
    with client_hub(monkeypatch, tmp_path) as running:
        running.add_repo("org/drafter", published)
        yield running


def differing(*arguments: str | Path) -> dict[str, tuple[str, str]]:
    """The judgement of each file that is not as published, and how it differs."""
    done = call("verify", *arguments, "--json")
    SCHEMA.validate(done.document)
    return {
        file["name"]: (file["judgement"], file["how"])
        for file in done.document["files"]
        if file["judgement"] != "same"
    }


def test_a_repository_is_verified_without_its_weights(hub: LoopbackHub) -> None:
    done = call("verify", "org/drafter", "--json")
    assert (done.code, done.document["verdict"]) == (0, "equal")
    SCHEMA.validate(done.document)
    by = {file["name"]: file["by"] for file in done.document["files"]}
    assert by[WEIGHTS] == ["lfs-sha256"] and by["config.json"] == ["sha256"]
    assert not [request for request in hub.requests if request.path.endswith(WEIGHTS)]
    assert not [request for request in hub.requests if request.is_elsewhere]
    text = call("verify", "org/drafter").out
    assert f"by the SHA-256 that the Hub lists: {WEIGHTS}" in text
    assert "by SHA-256: " in text


def test_a_revision_is_verified(hub: LoopbackHub) -> None:
    first = hub.repos["org/drafter"].head()
    hub.repos["org/drafter"].commit({"config.json": b"{}"})
    assert call("verify", f"org/drafter@{first}").code == 0
    assert set(differing("org/drafter")) == {"config.json"}
    assert call("verify", "org/drafter").code == 1


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "README.md", "eaglectl.json"])
def test_a_file_that_was_replaced_on_the_hub_is_named(hub: LoopbackHub, name: str) -> None:
    repo = hub.repos["org/drafter"]
    data = repo.files()[name].data
    assert isinstance(data, bytes)
    repo.commit({name: data + b"\n"})
    assert call("verify", "org/drafter").code == 1
    assert set(differing("org/drafter")) == {name}


def test_what_is_added_to_the_repository_in_a_folder_is_a_difference(hub: LoopbackHub) -> None:
    hub.repos["org/drafter"].commit({"code/modeling.py": b"import os"})
    assert {name: judgement for name, (judgement, _) in differing("org/drafter").items()} == {
        "code/modeling.py": "unlisted"
    }


def test_bytes_that_are_not_those_of_the_listing_are_no_pass(hub: LoopbackHub) -> None:
    """The listing says one thing, and what is sent as config.json is another of the same size."""

    def swap(request: Request, proceed: object) -> Reply | None:
        if request.path.endswith("/config.json") and request.method == "GET":
            reply = proceed()  # type: ignore[operator]
            return Reply(reply.status, reply.headers, reply.body.replace(b"llama", b"lLama"))
        return None

    hub.faults.append(swap)
    done = call("verify", "org/drafter")
    assert done.code in (1, 3) and "config.json" in done.out + done.err


def test_digests_of_tensors_alone_do_not_settle_a_repository(hub: LoopbackHub, tmp_path: Path) -> None:
    eaglectl.convert(str(tmp_path / "drafter"), tmp_path / "out")
    hub.add_repo("org/pushed", tmp_path / "out")
    done = call("verify", "org/pushed", "--json")
    assert (done.code, done.document["verdict"]) == (3, "could-not-look")
    assert differing("org/pushed")[WEIGHTS][0] == "not-looked"
    assert "download the repository, and verify that folder" in call("verify", "org/pushed").out
    assert call("verify", tmp_path / "out", "--against", "org/pushed").code == 0


def test_a_folder_is_verified_against_the_listing(hub: LoopbackHub, published: Path) -> None:
    for name in ("SHA256SUMS", "eaglectl.json"):
        assert (published / name).is_file()
    done = call("verify", published, "--against", "org/drafter", "--json")
    assert done.code == 0
    SCHEMA.validate(done.document)
    commit = hub.repos["org/drafter"].head()
    assert done.document["lists"] == ["SHA256SUMS", "eaglectl.json", f"org/drafter@{commit[:12]}"]
    by = {file["name"]: file["by"] for file in done.document["files"]}
    assert by[WEIGHTS] == ["sha256", "lfs-sha256"] and by["config.json"] == ["sha256", "git-id"]
    assert by["SHA256SUMS"] == ["git-id"]
    (only,) = {request.path.rpartition("/")[2] for request in hub.requests}
    assert only == "main"


def test_each_difference_from_the_listing_is_named(hub: LoopbackHub, tmp_path: Path) -> None:
    """A folder without lists of its own: the Hub's alone says what must be there."""
    folder = drafter_folder(tmp_path / "other", card=STATED)
    hub.add_repo("org/plain", folder)
    assert call("verify", folder, "--against", "org/plain").code == 0
    assert call("verify", folder).code == 3
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    config = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(config.replace(b"llama", b"lLama"))
    (folder / "added.txt").write_text("")
    found = differing(folder, "--against", "org/plain")
    assert {name: judgement for name, (judgement, _) in found.items()} == {
        WEIGHTS: "differs",
        "config.json": "differs",
        "added.txt": "unlisted",
    }
    assert "SHA-256" in found[WEIGHTS][1] and "git id" in found["config.json"][1]
    (folder / "config.json").unlink()
    assert differing(folder, "--against", "org/plain")["config.json"][0] == "missing"


def test_what_contradicts_itself_is_told(hub: LoopbackHub, published: Path) -> None:
    assert call("verify", "org/drafter", "--against", "org/drafter").code == 2
    assert call("verify", published, "--against", str(published)).code == 2
    assert call("verify", published, "--against", "org/nothing").code == 3
    done = call("--offline", "verify", published, "--against", "org/drafter")
    assert done.code == 3
    assert call("--offline", "verify", "org/drafter").code == 3
