"""`upload` to the loopback Hub by the real client: one commit, nothing lost, and no token anywhere."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.builders import (
    STATED,
    Outcome,
    call,
    contents,
    drafter_folder,
    drafter_tensors,
    on_a_terminal,
    safetensors_bytes,
)
from tests.conftest import FIXTURES
from tests.hub import PUBLISHER as TOKEN
from tests.hub import Fault, LoopbackHub, Reply, Repo, Request, User, assert_holds, once, publisher

huggingface_hub = pytest.importorskip("huggingface_hub")

NAME, WEIGHTS = "org/drafter", "model.safetensors"
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((FIXTURES.parent / "schemas/upload.schema.json").read_text())
)
# the target that STATED names is looked up before anything of the repository
TARGET_LISTING = "/api/models/example/target-8b/revision/main"


hub = publisher


@pytest.fixture
def repo(hub: LoopbackHub) -> Repo:
    return hub.add_repo(NAME, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafter_folder(tmp_path, card=STATED)


def test_a_dry_run_shows_every_file_and_needs_no_token(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    config = (folder / "config.json").read_bytes()
    hub.add_repo(NAME, {"config.json": config, "old.safetensors": b"x"})
    document = checked(call("upload", folder, NAME, "--dry-run", "--json"))
    changes = {file["name"]: file["change"] for file in document["files"]}
    assert changes.pop("config.json") == "unchanged" and set(changes.values()) == {"new"}
    assert set(changes) == {"README.md", "SHA256SUMS", "eaglectl.json", WEIGHTS}
    assert (document["outcome"], document["commit"]) == ("planned", None)
    assert document["only_there"] == ["old.safetensors"]
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
    is_trusted: bool, hub: LoopbackHub, repo: Repo, folder: Path, monkeypatch: pytest.MonkeyPatch
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
    done = call("-v", "upload", folder, NAME)
    assert TOKEN not in done.out + done.err and identity not in done.out + done.err
    if is_trusted:
        assert done.code == 0, done.err
        assert_holds(repo, folder, "refs/pr/1")
    else:
        assert done.code == 3 and not repo.pulls
        assert "trusted publisher" in done.err


def test_a_direct_commit_is_verified_and_then_tagged(hub: LoopbackHub, repo: Repo, folder: Path) -> None:
    document = checked(call("upload", folder, NAME, "--direct", "--tag", "v1", "--json"))
    assert document["tag"] == "v1" and repo.tags == {"v1": repo.head()}
    assert_holds(repo, folder, "main")
    paths = [request.path for request in hub.requests if request.path.startswith(f"/api/models/{NAME}/")]
    order = [path.split("/")[5] for path in paths if path.count("/") > 4]
    assert order.index("commit") < len(order) - 1 - order[::-1].index("paths-info") < order.index("tag")


def test_the_same_content_is_nothing_to_do(
    hub: LoopbackHub, repo: Repo, folder: Path, tmp_path: Path
) -> None:
    assert call("upload", folder, NAME, "--direct", "--tag", "v1").code == 0
    head, count = repo.head(), len(hub.requests)
    again = call("upload", folder, NAME, "--direct")
    assert (again.code, repo.head()) == (0, head) and "nothing-to-do: " in again.out
    posts = [request.path for request in hub.requests[count:] if request.method == "POST"]
    assert all("paths-info" in path for path in posts)
    # nor of what was downloaded again, and of other files only those that changed are sent
    copy = downloaded(repo, tmp_path / "copy" / "drafter")
    assert call("verify", copy).code == 0
    assert checked(call("upload", copy, NAME, "--direct", "--json"))["outcome"] == "nothing-to-do"
    count = len(hub.requests)
    (folder / "LICENSE").write_text("all of it\n")
    assert call("upload", folder, NAME, "--direct").code == 0
    assert not [request for request in hub.requests[count:] if request.is_blob]
    assert repo.files()["LICENSE"].data == b"all of it\n"


def test_a_new_repository_is_private_unless_asked_for_and_gets_a_commit(
    hub: LoopbackHub, folder: Path
) -> None:
    document = checked(call("upload", folder, NAME, "--json", "--tag", "v1"))
    repo = hub.repos[NAME]
    assert document["outcome"] == "published" and repo.is_private
    assert (repo.pulls, repo.tags) == ({}, {"v1": repo.head()})
    assert_holds(repo, folder, "main")
    assert call("upload", folder, "org/public", "--public").code == 0
    assert not hub.repos["org/public"].is_private


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--private",), 2, "is public already"),
        (("--revision", "nowhere"), 3, "no revision nowhere"),
        (("--tag", "v1"), 1, "not a release yet"),
        (("--direct", "--tag", ""), 2, "the name of a tag was expected"),
        (("--direct", "--tag", "old"), 1, "a tag is never moved"),
        (("--direct", "--message", TOKEN), 1, "--message holds the token"),
    ],
)
def test_what_does_not_fit_the_repository_is_refused(
    repo: Repo, folder: Path, options: tuple[str, ...], code: int, says: str
) -> None:
    repo.tags["old"] = before = repo.head()
    told = refused(call("upload", folder, NAME, *options), code)
    assert says in told and TOKEN not in told
    assert (len(repo.commits), repo.pulls, repo.tags) == (1, {}, {"old": before})


def test_a_branch_may_be_named_and_a_tag_waits_for_the_merge_of_a_pull_request(
    repo: Repo, folder: Path
) -> None:
    main = repo.refs["next"] = repo.head()
    assert call("upload", folder, NAME, "--direct", "--revision", "next").code == 0
    assert repo.head() == main
    assert_holds(repo, folder, "next")
    assert call("upload", folder, NAME).code == 0
    repo.refs["main"] = repo.head("refs/pr/1")
    assert call("upload", folder, NAME, "--tag", "v1").code == 0
    assert repo.tags == {"v1": repo.head()}


# --- the plan, its question and its message


def test_a_message_is_the_title_and_comes_before_what_was_checked(repo: Repo, folder: Path) -> None:
    assert call("upload", folder, NAME, "--direct", "--message", "Retrained\n\non more code").code == 0
    commit = repo.log()[0]
    assert commit.title == "Retrained"
    assert commit.description.startswith("on more code\n\nSHA256SUMS: sha256 ")
    (folder / "LICENSE").write_text("mine")
    assert call("upload", folder, NAME, "--direct", "--message", " \n").code == 0  # is none
    assert repo.log()[0].title.startswith("Upload with eaglectl ")


@pytest.fixture
def upload_process(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line in a process of its own."""
    root = str(FIXTURES.parent)
    own = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "PYTHONPATH": root}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    return [sys.executable, "-m", "eaglectl", "-v", "upload"]


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("answer", "options", "code", "is_asked"),
    [(b"\x04", (), 1, True), (b"y\n", (), 0, True), (b"n\n", ("--yes",), 0, False)],
)
def test_a_question_is_asked_on_a_terminal_alone(
    repo: Repo,
    folder: Path,
    upload_process: list[str],
    answer: bytes,
    options: tuple[str, ...],
    code: int,
    is_asked: bool,
) -> None:
    asked, text = on_a_terminal([*upload_process, str(folder), NAME, "--direct", *options], answer)
    assert (asked, len(repo.commits)) == (code, 2 - code), text
    assert (f"publish this to {NAME}? [y/N]" in text) == is_asked
    assert ("the plan was not confirmed; --yes asks no question" in text) == bool(code)


# --- what must not be sent


def weights(**metadata: str) -> bytes:
    return safetensors_bytes(drafter_tensors(), {"format": "pt", **metadata})


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("pytorch_model.bin", b"PK", "EGL002"),
        ("modeling.py", b"import os", "EGL002"),
        (".env", b"A=1", "EGL005"),
        ("README.md", b"by hf_" + b"a" * 34, "EGL115"),
        ("README.md", b"from /home/bob/x", "EGL905"),
        ("NOTICE", b"from /home/bob/x", "NOTICE names /home/bob"),
        ("NOTICE", TOKEN.encode(), "EGL115"),
        ("LICENSE", Path("/etc/hostname"), "LICENSE"),
        (WEIGHTS, weights(note="of /home/bob/run7"), "the metadata of the weights names /home/bob"),
        (WEIGHTS, weights(note=f"push with {'hf_' + 'b' * 34}"), "a Hugging Face token"),
        (WEIGHTS, weights(note=TOKEN), "EGL115"),
        (WEIGHTS, safetensors_bytes(drafter_tensors(**{"fc.weight": None})), "must not be published"),
    ],
)
def test_what_must_not_be_sent_stops_the_upload(
    hub: LoopbackHub, repo: Repo, folder: Path, name: str, data: bytes | Path, says: str
) -> None:
    if isinstance(data, Path):
        (folder / name).symlink_to(data)
    else:
        (folder / name).write_bytes(data)
    assert says in refused(call("upload", folder, NAME, "--direct"), 1)
    assert {request.path for request in hub.requests} <= {TARGET_LISTING}


def test_folders_and_hidden_files_of_the_hub_are_left_out(repo: Repo, folder: Path) -> None:
    (folder / ".cache/huggingface").mkdir(parents=True)
    (folder / ".cache/huggingface/x").write_text("x")
    (folder / ".gitattributes").write_text("mine")
    document = checked(call("upload", folder, NAME, "--direct", "--json"))
    assert [file["name"] for file in document["not_sent"]] == [".gitattributes", ".cache/"]
    assert repo.files()[".gitattributes"].data != b"mine"


@pytest.mark.usefixtures("hub")
def test_a_policy_may_let_a_file_pass_and_ask_for_more(folder: Path) -> None:
    policy = folder.parent / "release.toml"
    arguments = ("upload", folder, NAME, "--policy", policy, "--dry-run")
    (folder / "notes.log").write_text("hello")
    policy.write_text('[allow]\nfiles = ["*.log"]\n')
    assert call(*arguments).code == 0
    policy.write_text('[allow]\nfiles = ["*.log"]\nlicences = ["mit"]\n')
    assert "EGL907" in refused(call(*arguments), 1)


def test_a_signature_over_other_weights_does_not_stay(hub: LoopbackHub, folder: Path) -> None:
    hub.add_repo("org/signed", {"model.sig": b"{}"})
    assert "would not match these files" in refused(call("upload", folder, "org/signed"), 1)
    (folder / "model.sig").write_bytes(b"{}")
    assert call("upload", folder, NAME, "--direct").code == 0
    (folder / "README.md").write_text(STATED + "\nmore text\n")
    assert call("upload", folder, NAME, "--direct").code == 0
    (folder / "generation_config.json").write_text("{}")
    assert "would not match these files" in refused(call("upload", folder, NAME, "--direct"), 1)
    (folder / "model.sig").write_bytes(b'{"new": 1}')
    assert call("upload", folder, NAME, "--direct").code == 0


@pytest.mark.slow
def test_the_documented_signature_holds_for_what_is_downloaded(
    repo: Repo, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("model_signing", exc_type=ImportError)
    page = (FIXTURES.parent / "docs/publish.md").read_text()
    sign, verify = re.findall(r"^model_signing (.+)$", page.replace("\\\n", ""), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    folder.rename("my-drafter")
    curve = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "release.pem"]
    for arguments in (curve, ["ec", "-in", "release.pem", "-pubout", "-out", "release.pub"]):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def ending(line: str) -> int:
        command = [sys.executable, "-m", "model_signing", *shlex.split(line)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert ending(sign) == 0
    assert call("upload", "my-drafter", NAME, "--direct").code == 0
    copy = downloaded(repo, tmp_path / "my-download")
    assert ending(verify) == 0
    (copy / "config.json").write_text("{}")
    assert ending(verify) != 0


def test_the_first_word_of_an_upload_is_of_what_became_of_it(
    hub: LoopbackHub, repo: Repo, folder: Path
) -> None:
    assert call("upload", folder, NAME, "--dry-run").out.startswith("planned: ")
    hub.users[TOKEN] = User("alice", ("org",), can_write=False)
    assert call("upload", folder, NAME, "--pr").out == ""
    hub.users[TOKEN] = User("alice", ("org",))
    proposed = call("upload", folder, NAME, "--pr").out
    assert proposed.startswith("proposed: http") and "\n  target" in proposed
    assert call("upload", folder, NAME, "--direct", "-q").out.startswith("done: published: ")


def test_a_token_that_may_not_write_is_told(hub: LoopbackHub, repo: Repo, folder: Path) -> None:
    hub.users[TOKEN] = User("alice", ("org",), can_write=False)
    assert "may not write" in refused(call("upload", folder, NAME, "--direct"), 3)
    assert "may not write" in refused(call("upload", folder, NAME, "--pr"), 3)
    assert "may not write" in refused(call("upload", folder, "org/other"), 3)
    assert (len(repo.commits), set(hub.repos)) == (1, {NAME})
    hub.users.clear()
    assert "token" in refused(call("upload", folder, NAME), 3)


def test_offline_without_a_token_or_an_answer_nothing_is_published(
    hub: LoopbackHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "offline" in refused(call("--offline", "upload", folder, NAME), 3)
    assert call("--offline", "upload", folder, NAME, "--dry-run").code == 0
    assert not hub.requests
    monkeypatch.delenv("HF_TOKEN")
    assert "hf auth login" in refused(call("upload", folder, NAME), 3)
    assert {request.path for request in hub.requests} == {TARGET_LISTING}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for option in ("--dry-run", "--yes"):
        assert "cannot be reached" in refused(call("upload", folder, NAME, option), 3)


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("lost", 3, "did not make the repository (500)"),
        ("somebody else's", 3, "nothing was committed"),
        ("public", 1, "nothing was committed"),
    ],
)
def test_a_repository_that_was_not_made_as_asked_for_is_not_written(
    hub: LoopbackHub, folder: Path, fault: str, code: int, says: str
) -> None:
    """Its answer is lost, somebody else makes it meanwhile, or the Hub makes it public."""

    def make(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if request.path != "/api/repos/create":
            return None
        if fault == "somebody else's":
            hub.add_repo(NAME, {})
        reply = proceed()
        hub.repos[NAME].is_private = fault == "lost"
        return Reply(500) if fault == "lost" else reply

    hub.faults.append(once(make))
    assert says in refused(call("upload", folder, NAME, "--direct"), code)
    assert len(hub.repos[NAME].log()) == 1
    if fault == "lost":  # it is there at the next call
        assert call("upload", folder, NAME, "--direct").code == 0
        assert_holds(hub.repos[NAME], folder, "main")


@pytest.mark.parametrize("repo", ["drafter", "org/drafter@v1", "a/b/c", "/org/x", "org/../x", "o/a--b"])
def test_a_name_that_is_none_is_usage(hub: LoopbackHub, folder: Path, repo: str) -> None:
    refused(call("upload", folder, repo), 2)
    assert "no such folder" in refused(call("upload", "nowhere", NAME), 3)


def test_a_file_of_a_folder_is_answered_with_the_folder(hub: LoopbackHub, folder: Path) -> None:
    assert f"pass its folder, {folder}" in refused(call("upload", folder / "config.json", NAME), 3)
    assert hub.requests == []
    done = call("upload", folder, NAME, "--token", TOKEN)  # which the client alone has
    assert (done.code, TOKEN in done.out + done.err) == (2, False)
    assert not hub.requests


# --- the token

EVERYWHERE: dict[str, Fault] = {
    "every answer echoes it": lambda request, proceed: Reply(
        400, {"X-Error-Message": f"bad {TOKEN}", "X-Request-Id": TOKEN}, json.dumps({"error": TOKEN}).encode()
    ),
    "every answer is cut": lambda request, proceed: Reply(200, {}, b"{" + TOKEN.encode() + b"}" * 50, cut=20),
    "no answer is JSON": lambda request, proceed: Reply(
        200, {"Content-Type": "application/json"}, TOKEN.encode()
    ),
}


@pytest.mark.fast(2)
@pytest.mark.parametrize("fault", EVERYWHERE)
def test_the_token_is_in_no_output(
    hub: LoopbackHub,
    folder: Path,
    fault: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub.add_repo(NAME, {})
    hub.faults.append(EVERYWHERE[fault])
    caplog.set_level(0)
    for more in (["--json"], ["--direct", "--tag", "v1"]):
        done = call("-v", "upload", folder, NAME, *more)
        assert done.code in (0, 1, 3)
        assert TOKEN not in done.out + done.err
    told = capfd.readouterr()
    assert TOKEN not in told.out + told.err + caplog.text
    assert hub.leaks == []


@pytest.mark.slow
def test_the_clients_own_debug_log_holds_no_token(
    hub: LoopbackHub, repo: Repo, folder: Path, upload_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.append(lambda request, proceed: proceed() and Reply(500) if request.is_commit else None)
    for name, value in {"DEBUG": "1", "HUB_VERBOSITY": "debug", "HOME": str(folder.parent / "hf")}.items():
        monkeypatch.setenv(f"HF_{name}", value)
    done = subprocess.run([*upload_process, folder, NAME], capture_output=True, text=True, check=False)
    assert TOKEN not in done.stdout + done.stderr
    if not huggingface_hub.__version__.startswith("1.0."):  # whose debug log stops at a body that is streamed
        assert done.returncode == 3, done.stderr


def checked(done: Outcome) -> dict[str, Any]:
    """The JSON document, which keeps its schema."""
    assert done.code == 0, done
    SCHEMA.validate(done.document)
    return done.document


def refused(done: Outcome, code: int) -> str:
    """The last line of a call that must end with `code`; those before it are its steps."""
    assert done.code == code, done
    line = done.err.splitlines()[-1]
    assert line.startswith("eaglectl: ") and line.isprintable() and "Traceback" not in done.err, done.err
    return line.removeprefix("eaglectl: ")


def downloaded(repo: Repo, folder: Path, ref: str = "main") -> Path:
    folder.mkdir(parents=True)
    for name, blob in repo.files(ref).items():
        (folder / name).write_bytes(bytes(blob.data))  # type: ignore[arg-type]
    return folder
