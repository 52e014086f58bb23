"""`upload` to the loopback Hub by the real client: one commit, nothing lost, and no token anywhere."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eaglectl.publishing import upload
from tests.builders import STATED, Outcome, call, contents, drafter_folder, write_safetensors
from tests.builders import drafter_tensors as tensors
from tests.conftest import FIXTURES
from tests.hub import Blob, Fault, LoopbackHub, Reply, Repo, Request, User, once, short_waits

huggingface_hub = pytest.importorskip("huggingface_hub")

TOKEN = "hf_" + "plantedSecret" * 3
NAME = "org/drafter"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/upload.schema.json").read_text())
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    with LoopbackHub() as found:
        found.users[TOKEN] = User("alice", ("org",))
        monkeypatch.setattr(constants, "ENDPOINT", found.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        client_waits = short_waits(monkeypatch)
        monkeypatch.setattr(upload, "PAUSE", 0.01)
        monkeypatch.chdir(tmp_path)
        yield found
        close_session()
    assert client_waits == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path, card=STATED)


def test_a_dry_run_shows_every_file_and_needs_no_token(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    config = (folder / "config.json").read_bytes()
    hub.add_repo(NAME, {"config.json": config, "old.safetensors": b"x"})
    done = call("upload", folder, NAME, "--dry-run", "--json")
    assert done.code == 0, done
    document = checked(done)
    changes = {file["name"]: file["change"] for file in document["files"]}
    assert changes == {
        "README.md": "new",
        "SHA256SUMS": "new",
        "config.json": "unchanged",
        "eaglectl.json": "new",
        "model.safetensors": "new",
    }
    assert (document["outcome"], document["commit"], document["only_there"]) == (
        "planned",
        None,
        ["old.safetensors"],
    )
    assert not [request for request in hub.requests if request.is_commit or request.is_blob]


def test_a_pull_request_is_the_default_and_holds_everything(hub: LoopbackHub, folder: Path) -> None:
    repo, before = hub.add_repo(NAME, {}), contents(folder)
    document = checked(call("upload", folder, NAME, "--json"))
    assert (document["outcome"], document["commit"]["pull_request"]) == ("published", "refs/pr/1")
    assert len(repo.log()) == 1 and len(repo.commits) == 2
    assert_holds(repo, folder, "refs/pr/1")
    assert contents(folder) == before
    assert document["download"] == f"hf download {NAME} --revision {repo.head('refs/pr/1')}"


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_trusted_publisher_needs_no_stored_token(
    is_trusted: bool, hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = pytest.importorskip("huggingface_hub.utils._auth")
    if not hasattr(auth, "_get_token_from_oidc"):
        pytest.skip("this client knows no trusted publishers; 1.19 and newer do")
    identity = "id_" + "plantedIdentity" * 3
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(auth, "_OIDC_TOKEN_CACHE", None)
    monkeypatch.setenv("HF_OIDC_RESOURCE", NAME)
    monkeypatch.setenv("HF_OIDC_ID_TOKEN", identity)
    if is_trusted:
        hub.trusted[identity, NAME] = TOKEN
    repo = hub.add_repo(NAME, {})
    done = call("-v", "upload", folder, NAME)
    assert TOKEN not in done.out + done.err and identity not in done.out + done.err
    if is_trusted:
        assert done.code == 0, done.err
        assert_holds(repo, folder, "refs/pr/1")
    else:
        assert done.code == 3 and not repo.pulls
        assert "trusted publisher" in done.err


def test_the_same_files_are_not_proposed_twice(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    assert call("upload", folder, NAME).code == 0
    again = call("upload", folder, NAME)
    assert (again.code, len(repo.pulls)) == (0, 1)
    assert "nothing to do" in again.out and "refs/pr/1" in again.out


def test_a_direct_commit_is_verified_and_then_tagged(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    document = checked(call("upload", folder, NAME, "--direct", "--tag", "v1", "--json"))
    assert document["tag"] == "v1" and repo.tags == {"v1": repo.head()}
    assert_holds(repo, folder, "main")
    order = [
        request.path.split("/")[5]
        for request in hub.requests
        if request.path.startswith(f"/api/models/{NAME}/") and len(request.path.split("/")) > 5
    ]
    assert order.index("commit") < len(order) - 1 - order[::-1].index("paths-info") < order.index("tag")


def test_the_same_content_is_nothing_to_do(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    assert call("upload", folder, NAME, "--direct").code == 0
    head, count = repo.head(), len(hub.requests)
    again = call("upload", folder, NAME, "--direct")
    assert (again.code, repo.head()) == (0, head)
    assert "nothing to do" in again.out
    assert not [
        request
        for request in hub.requests[count:]
        if request.method == "POST" and "paths-info" not in request.path
    ]


def test_what_was_published_and_downloaded_again_is_nothing_to_do(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    repo = hub.add_repo(NAME, {})
    assert call("upload", folder, NAME, "--direct").code == 0
    copy = downloaded(repo, tmp_path / "copy" / "drafter")
    assert call("verify", copy).code == 0
    assert checked(call("upload", copy, NAME, "--direct", "--json"))["outcome"] == "nothing-to-do"


def test_only_files_that_changed_are_sent(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    assert call("upload", folder, NAME, "--direct").code == 0
    (folder / "LICENSE").write_text("all of it\n")
    count = len(hub.requests)
    assert call("upload", folder, NAME, "--direct").code == 0
    assert not [request for request in hub.requests[count:] if request.is_blob]
    assert repo.files()["LICENSE"].data == b"all of it\n"


def test_a_new_repository_is_private_and_gets_a_commit(hub: LoopbackHub, folder: Path) -> None:
    document = checked(call("upload", folder, NAME, "--json", "--tag", "v1"))
    repo = hub.repos[NAME]
    assert (document["outcome"], repo.is_private, repo.pulls, repo.tags) == (
        "published",
        True,
        {},
        {"v1": repo.head()},
    )
    assert_holds(repo, folder, "main")


def test_a_new_repository_is_public_only_when_asked_for(hub: LoopbackHub, folder: Path) -> None:
    assert call("upload", folder, NAME, "--public").code == 0
    assert not hub.repos[NAME].is_private


def test_a_public_repository_is_not_taken_for_a_private_one(hub: LoopbackHub, folder: Path) -> None:
    hub.add_repo(NAME, {})
    assert "is public already" in refused(call("upload", folder, NAME, "--private"), 2)


def test_a_branch_may_be_named(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    repo.refs["next"] = repo.head()
    main = repo.head()
    assert call("upload", folder, NAME, "--direct", "--revision", "next").code == 0
    assert repo.head() == main
    assert_holds(repo, folder, "next")
    assert "no revision nowhere" in refused(call("upload", folder, NAME, "--revision", "nowhere"), 3)


def test_a_tag_waits_for_the_merge_of_a_pull_request(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    assert "not a release yet" in refused(call("upload", folder, NAME, "--tag", "v1"), 1)
    assert repo.pulls == {}
    assert call("upload", folder, NAME).code == 0
    repo.refs["main"] = repo.head("refs/pr/1")
    assert call("upload", folder, NAME, "--tag", "v1").code == 0
    assert repo.tags == {"v1": repo.head()}


def test_a_tag_is_never_moved(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    repo.tags["v1"] = before = repo.head()
    assert "a tag is never moved" in refused(call("upload", folder, NAME, "--direct", "--tag", "v1"), 1)
    assert (repo.head(), repo.tags) == (before, {"v1": before})


def test_a_tag_that_appears_in_between_is_not_moved(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    before = repo.head()
    hub.faults.append(
        once(
            lambda request, proceed: (
                repo.tags.update(v1=before) or proceed() if "/tag/" in request.path else None
            )
        )
    )
    message = refused(call("upload", folder, NAME, "--direct", "--tag", "v1"), 1)
    assert "never moved" in message and "is there and holds what was sent" in message
    assert repo.tags == {"v1": before}


# --- what must not be sent


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("pytorch_model.bin", b"PK", "EGL002"),
        ("optimizer.pt", b"PK", "EGL002"),
        ("modeling.py", b"import os", "EGL002"),
        (".env", b"A=1", "EGL005"),
        ("notes.log", b"hello", "EGL005"),
        ("README.md", b"by hf_" + b"a" * 34, "EGL115"),
        ("LICENSE", b"AKIA" + b"A" * 16, "EGL115"),
        ("README.md", b"from /home/bob/x", "EGL905"),
        ("NOTICE", b"from /home/bob/x", "NOTICE names /home/bob"),
        ("NOTICE", TOKEN.encode(), "EGL115"),
    ],
)
def test_what_must_not_be_sent_stops_the_upload(
    hub: LoopbackHub, folder: Path, name: str, data: bytes, says: str
) -> None:
    repo = hub.add_repo(NAME, {})
    (folder / name).write_bytes(data)
    assert says in refused(call("upload", folder, NAME, "--direct"), 1)
    assert len(repo.log()) == 1
    assert not [request for request in hub.requests if request.is_blob]


def test_the_metadata_of_the_weights_is_looked_at(hub: LoopbackHub, folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", tensors(), {"format": "pt", "from": "/home/bob/run7"})
    assert "metadata" in refused(call("upload", folder, NAME), 1)
    write_safetensors(
        folder / "model.safetensors", tensors(), {"format": "pt", "note": f"push with {'hf_' + 'b' * 34}"}
    )
    assert "a Hugging Face token" in refused(call("upload", folder, NAME), 1)


def test_a_link_that_leaves_the_folder_is_not_followed(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    (folder / "LICENSE").symlink_to(tmp_path / "secret")
    assert "LICENSE" in refused(call("upload", folder, NAME), 1)


def test_folders_and_hidden_files_of_the_hub_are_left_out(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    (folder / ".cache/huggingface").mkdir(parents=True)
    (folder / ".cache/huggingface/x").write_text("x")
    (folder / ".gitattributes").write_text("mine")
    document = checked(call("upload", folder, NAME, "--direct", "--json"))
    assert [one["name"] for one in document["not_sent"]] == [".gitattributes", ".cache/"]
    assert repo.files()[".gitattributes"].data != b"mine"


def test_a_drafter_that_is_broken_is_not_published(hub: LoopbackHub, folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", tensors(**{"fc.weight": None}))
    assert "must not be published" in refused(call("upload", folder, NAME), 1)
    assert not hub.requests


def test_a_policy_may_let_a_file_pass_and_ask_for_more(hub: LoopbackHub, folder: Path) -> None:
    hub.add_repo(NAME, {})
    policy = folder.parent / "release.toml"
    (folder / "notes.log").write_text("hello")
    policy.write_text('[allow]\nfiles = ["*.log"]\n')
    assert call("upload", folder, NAME, "--policy", policy, "--dry-run").code == 0
    policy.write_text('[allow]\nfiles = ["*.log"]\nlicences = ["mit"]\n')
    assert "EGL907" in refused(call("upload", folder, NAME, "--policy", policy, "--dry-run"), 1)


def test_a_signature_needs_its_package(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglectl.publishing.signature.find_spec", lambda name: None)
    assert "pip install '.[sign]'" in refused(call("upload", folder, NAME, "--sign", "key.pem"), 3)
    assert not hub.requests


def test_a_signature_over_other_files_is_not_left_behind(hub: LoopbackHub, folder: Path) -> None:
    hub.add_repo(NAME, {"model.sig": b"{}"})
    assert "has a model.sig over the files before" in refused(call("upload", folder, NAME), 1)


def test_a_signature_holds_for_what_is_downloaded(hub: LoopbackHub, folder: Path, tmp_path: Path) -> None:
    verifying = pytest.importorskip("model_signing.verifying", exc_type=ImportError)
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, kind = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(
        key.private_bytes(kind, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(key.public_key().public_bytes(kind, serialization.PublicFormat.SubjectPublicKeyInfo))
    repo = hub.add_repo(NAME, {})
    assert call("upload", folder, NAME, "--direct", "--sign", private).code == 0
    copy = downloaded(repo, tmp_path / "copy")
    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(copy, copy / "model.sig")
    again = checked(call("upload", folder, NAME, "--direct", "--sign", private, "--json"))
    assert (again["outcome"], len(repo.log())) == ("nothing-to-do", 2)


# --- faults


def on_commit(answer: Callable[[Callable[[], Reply]], Reply]) -> Fault:
    """A fault of the first request for a commit."""
    return once(lambda request, proceed: answer(proceed) if request.is_commit else None)


def after(status: int) -> Fault:
    """The commit takes effect, and the answer is an error."""
    return on_commit(lambda proceed: (proceed(), Reply(status))[1])


WHERE = pytest.mark.parametrize("where", ["--direct", "--pr"])


@WHERE
@pytest.mark.parametrize("status", [500, 502, 504, None])
def test_an_answer_that_was_lost_is_looked_for(
    hub: LoopbackHub, folder: Path, where: str, status: int | None
) -> None:
    repo = hub.add_repo(NAME, {})
    hub.faults.append(after(status) if status else on_commit(lambda proceed: replace(proceed(), cut=3)))
    document = checked(call("upload", folder, NAME, "--json", where))
    assert (document["outcome"], document["is_recovered"]) == ("published", True)
    assert len(repo.commits) == 2 and count(hub, "is_commit") == 1
    assert_holds(repo, folder, "main" if where == "--direct" else "refs/pr/1")


@WHERE
@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_commit_that_did_not_take_effect_is_not_asked_for_again(
    hub: LoopbackHub, folder: Path, where: str, status: int
) -> None:
    repo = hub.add_repo(NAME, {})
    hub.faults.append(on_commit(lambda proceed: Reply(status, {"Retry-After": "7"})))
    message = refused(call("upload", folder, NAME, where), 3)
    assert ("did not take effect" in message) == (status != 429) and ("7 seconds" in message) == (
        status == 429
    )
    assert (len(repo.commits), count(hub, "is_commit")) == (1, 1)
    assert call("upload", folder, NAME, where).code == 0
    assert len(repo.commits) == 2


def test_a_lost_commit_is_found_under_somebody_elses(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})

    def answer(proceed: Callable[[], Reply]) -> Reply:
        proceed()
        repo.commit({"NOTES.md": b"mine"})
        return Reply(500)

    hub.faults.append(on_commit(answer))
    document = checked(call("upload", folder, NAME, "--direct", "--json"))
    assert (document["is_recovered"], document["commit"]["oid"]) == (True, repo.log()[1].oid)


def test_a_head_that_moved_before_the_commit_stops_it(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    hub.faults.append(
        once(lambda request, proceed: repo.commit({"x": b"1"}) and proceed() if request.is_blob else None)
    )
    assert "moved" in refused(call("upload", folder, NAME, "--direct"), 1)
    assert (count(hub, "is_commit"), len(repo.log())) == (0, 2)


@WHERE
def test_a_head_that_moved_under_the_commit_stops_it(hub: LoopbackHub, folder: Path, where: str) -> None:
    repo = hub.add_repo(NAME, {})
    hub.faults.append(on_commit(lambda proceed: (repo.commit({"x": b"1"}), proceed())[1]))
    assert "moved" in refused(call("upload", folder, NAME, where), 1)
    assert (count(hub, "is_commit"), len(repo.log()), repo.pulls) == (1, 2, {})


@pytest.mark.parametrize("status", [429, 500, 503])
def test_blobs_and_reads_are_tried_again(hub: LoopbackHub, folder: Path, status: int) -> None:
    repo = hub.add_repo(NAME, {})
    for is_it in ("is_blob", "is_info"):
        hub.faults.append(
            once(lambda request, proceed, is_it=is_it: Reply(status) if getattr(request, is_it) else None)
        )
    for part in ("/preupload/", "/refs", "/paths-info/"):
        hub.faults.append(
            once(lambda request, proceed, part=part: Reply(status) if part in request.path else None)
        )
    assert call("upload", folder, NAME, "--direct").code == 0
    assert len(repo.log()) == 2
    assert_holds(repo, folder, "main")


def test_a_blob_that_is_cut_short_is_not_committed(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})

    def shorter(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        request.body = request.body[:-1] if request.is_blob else request.body
        return None

    hub.faults.append(shorter)
    assert "nothing was committed" in refused(call("upload", folder, NAME, "--direct"), 3)
    assert len(repo.log()) == 1


@WHERE
@pytest.mark.parametrize(
    ("data", "says"),
    [(b"short", "5 bytes there"), (None, "SHA-256"), (b"", "is not there")],
    ids=["truncated", "other bytes", "lost"],
)
def test_what_landed_otherwise_is_told_and_not_tagged(
    hub: LoopbackHub, folder: Path, where: str, data: bytes | None, says: str
) -> None:
    repo = hub.add_repo(NAME, {})
    right = (folder / "model.safetensors").read_bytes()

    def spoil(proceed: Callable[[], Reply]) -> Reply:
        answer = proceed()
        oid = json.loads(answer.body)["commitOid"] if isinstance(answer.body, bytes) else ""
        files = dict(repo.commits[oid].files)
        files["model.safetensors"] = Blob("model.safetensors", bytes(len(right)) if data is None else data)
        if data == b"":
            del files["model.safetensors"]
        repo.commits[oid] = replace(repo.commits[oid], files=files)
        return answer

    hub.faults.append(on_commit(spoil))
    done = call("upload", folder, NAME, where, "--json", *(["--tag", "v1"] if where == "--direct" else []))
    assert done.code == 1
    document = checked(done, 1)
    assert (document["outcome"], repo.tags) == ("mismatch", {})
    assert [one["name"] for one in document["mismatches"]] == ["model.safetensors"] and says in document[
        "mismatches"
    ][0]["how"]


def test_a_file_that_changes_on_the_way_is_not_committed(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglectl.publishing import files

    monkeypatch.setattr(files, "MAX_KEPT", 1000)
    repo = hub.add_repo(NAME, {})
    weights = folder / "model.safetensors"

    def change(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if request.is_blob:
            weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        return None

    hub.faults.append(change)
    assert "changed" in refused(call("upload", folder, NAME, "--direct"), 1)
    assert len(repo.log()) == 1


def test_a_card_that_the_hub_does_not_accept_is_told(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    answer = json.dumps({"errors": [{"message": "bad license"}], "warnings": []}).encode()
    hub.faults.append(
        lambda request, proceed: Reply(400, {}, answer) if request.path == "/api/validate-yaml" else None
    )
    assert "front matter of README.md" in refused(call("upload", folder, NAME, "--direct"), 1)
    assert (len(repo.log()), count(hub, "is_commit")) == (1, 0)


def test_a_token_that_may_not_write_is_told(hub: LoopbackHub, folder: Path) -> None:
    repo = hub.add_repo(NAME, {})
    hub.users[TOKEN] = User("alice", ("org",), can_write=False)
    assert "may not write" in refused(call("upload", folder, NAME, "--direct"), 3)
    assert "may not write" in refused(call("upload", folder, NAME, "--pr"), 3)
    assert "may not write" in refused(call("upload", folder, "org/other"), 3)
    assert (len(repo.commits), set(hub.repos)) == (1, {NAME})


def test_a_client_too_old_to_ask_for_the_right_to_write_is_used_all_the_same(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(self: object, repo_id: str, *, repo_type: str | None = None, token: str | None = None) -> None:
        raise AssertionError("it asks for the right to read alone")

    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", older)
    repo = hub.add_repo(NAME, {})
    hub.users[TOKEN] = User("alice", ("org",), can_write=False)
    assert "may not write" in refused(call("upload", folder, NAME, "--direct"), 3)
    assert len(repo.commits) == 1
    hub.users[TOKEN] = User("alice", ("org",))
    assert call("upload", folder, NAME, "--direct").code == 0
    assert_holds(repo, folder, "main")


def test_a_token_that_nobody_knows_is_told(hub: LoopbackHub, folder: Path) -> None:
    hub.add_repo(NAME, {})
    hub.users.clear()
    assert "token" in refused(call("upload", folder, NAME), 3)


def test_no_token_is_told_before_anything_is_asked(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "hf auth login" in refused(call("upload", folder, NAME), 3)
    assert not hub.requests


def test_offline_nothing_is_published(hub: LoopbackHub, folder: Path) -> None:
    assert "offline" in refused(call("--offline", "upload", folder, NAME), 3)
    assert call("--offline", "upload", folder, NAME, "--dry-run").code == 0
    assert not hub.requests


def test_a_hub_that_does_not_answer_is_told(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "did not answer" in refused(call("upload", folder, NAME), 3)


def test_a_repository_whose_making_lost_its_answer_is_used(hub: LoopbackHub, folder: Path) -> None:
    hub.faults.append(
        once(
            lambda request, proceed: (
                (proceed(), Reply(500))[1] if request.path == "/api/repos/create" else None
            )
        )
    )
    assert call("upload", folder, NAME).code == 0
    assert_holds(hub.repos[NAME], folder, "main")


@pytest.mark.parametrize("repo", ["drafter", "org/drafter@v1", "a/b/c", "/org/x", "org/../x"])
def test_a_name_that_is_none_is_usage(hub: LoopbackHub, folder: Path, repo: str) -> None:
    refused(call("upload", folder, repo), 2)
    assert not hub.requests


def test_a_folder_that_is_not_there_is_told(hub: LoopbackHub) -> None:
    assert "no such folder" in refused(call("upload", "nowhere", NAME), 3)


# --- the token

EVERYWHERE: dict[str, Fault | None] = {
    "none": None,
    "every answer echoes it": lambda request, proceed: Reply(
        400, {"X-Error-Message": f"bad {TOKEN}", "X-Request-Id": TOKEN}, json.dumps({"error": TOKEN}).encode()
    ),
    "every commit echoes it": lambda request, proceed: (
        Reply(500, {"X-Error-Message": TOKEN}, TOKEN.encode()) if request.is_commit else None
    ),
    "every answer is cut": lambda request, proceed: Reply(200, {}, b"{" + TOKEN.encode() + b"}" * 50, cut=20),
    "no answer is JSON": lambda request, proceed: Reply(
        200, {"Content-Type": "application/json"}, TOKEN.encode()
    ),
    "every write is refused": lambda request, proceed: (
        Reply(403, {"X-Error-Message": TOKEN}, TOKEN.encode()) if request.method == "POST" else None
    ),
}


@pytest.mark.parametrize("fault", EVERYWHERE)
@pytest.mark.parametrize("level", [[], ["-q"], ["-v"]], ids=["plain", "quiet", "verbose"])
def test_the_token_is_in_no_output(
    hub: LoopbackHub,
    folder: Path,
    level: list[str],
    fault: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub.add_repo(NAME, {})
    hub.faults += [found] if (found := EVERYWHERE[fault]) else []
    caplog.set_level(0)
    for more in (["--direct"], ["--json"], ["--direct", "--tag", "v1"]):
        done = call(*level, "upload", folder, NAME, *more)
        assert done.code in (0, 1, 3)
        assert TOKEN not in done.out + done.err
    told = capfd.readouterr()
    assert TOKEN not in told.out + told.err + caplog.text
    assert hub.leaks == []


def test_a_token_with_a_line_break_is_not_shown(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\x01 more")
    message = refused(call("upload", folder, NAME), 3)
    assert TOKEN not in message


def test_there_is_no_option_for_a_token(hub: LoopbackHub, folder: Path) -> None:
    done = call("upload", folder, NAME, "--token", TOKEN)
    assert (done.code, TOKEN in done.out) == (2, False)


def test_the_clients_own_debug_log_holds_no_token(hub: LoopbackHub, folder: Path, tmp_path: Path) -> None:
    import os

    hub.add_repo(NAME, {})
    hub.faults.append(after(500))
    given = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_DEBUG": "1",
        "HF_HUB_VERBOSITY": "debug",
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "hf"),
    }
    root = str(FIXTURES.parent)
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from eaglectl.cli import run; sys.exit(run(['-v',"
        f" 'upload', {str(folder)!r}, {NAME!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=given, check=False
    )
    assert TOKEN not in done.stdout + done.stderr
    if not huggingface_hub.__version__.startswith("1.0."):  # whose debug log stops at a body that is streamed
        assert done.returncode == 0, done.stderr


# --- helpers


def checked(done: Outcome, code: int = 0) -> dict[str, Any]:
    """The JSON document, which keeps its schema."""
    assert done.code == code, done
    SCHEMA.validate(done.document)
    return done.document


def refused(done: Outcome, code: int) -> str:
    """The last line of a call that must end with `code`; those before it are its steps."""
    assert done.code == code, done
    line = done.err.splitlines()[-1]
    assert line.startswith("eaglectl: ") and line.isprintable() and "Traceback" not in done.err, done.err
    return line.removeprefix("eaglectl: ")


def count(hub: LoopbackHub, kind: str) -> int:
    return sum(bool(getattr(request, kind)) for request in hub.requests)


def downloaded(repo: Repo, folder: Path, ref: str = "main") -> Path:
    folder.mkdir(parents=True)
    for name, blob in repo.files(ref).items():
        assert isinstance(blob.data, bytes)
        (folder / name).write_bytes(blob.data)
    return folder


def assert_holds(repo: Repo, folder: Path, ref: str) -> None:
    """The ref holds the folder's files, and a card, a record and checksums of exactly what is there."""
    files = repo.files(ref)
    for path in folder.iterdir():
        if path.name not in ("README.md", "eaglectl.json", "SHA256SUMS"):
            assert files[path.name].data == path.read_bytes()
    digests = {
        name: blob.sha256 for name, blob in files.items() if name not in (".gitattributes", "SHA256SUMS")
    }
    sums = bytes(files["SHA256SUMS"].data).decode()  # type: ignore[arg-type]
    assert dict(line.split("  ")[::-1] for line in sums.splitlines()) == digests
    recorded = json.loads(files["eaglectl.json"].data)["published"]["files"]  # type: ignore[arg-type]
    assert {name: one["sha256"] for name, one in recorded.items()} == {
        name: digest for name, digest in digests.items() if name != "eaglectl.json"
    }
