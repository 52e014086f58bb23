"""The fault table of `upload`: for each fault its exit code, sentence, requests, and the repository after."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eaglectl.commands.upload import run as publishing
from eaglectl.publish import upload as upload_files
from tests.builders import STATED, Outcome, call, drafter_folder
from tests.hub import PUBLISHER as TOKEN
from tests.hub import Blob, LoopbackHub, Reply, Repo, Request, assert_holds, error, once, publishing_hub

pytest.importorskip("huggingface_hub")

NAME = "org/drafter"
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 64}
# the Hub's answer is no answer: the connection ends within its headers' promise
CUT = Reply(200, {}, b"{" + b" " * 50, cut=3)


@dataclass(slots=True)
class Scene:
    """Where a fault is arranged: the Hub with an empty repository, and the folder that is published."""

    hub: LoopbackHub
    repo: Repo
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def is_committed(self) -> bool:
        """Whether a request for a commit was answered."""
        return any(request.is_commit and request.status for request in self.hub.requests)


Arrange = Callable[[Scene], None]
Proceed = Callable[[], Reply]
# what is answered, or done and answered; None: what the Hub would answer
Act = Callable[[Scene, Proceed], Reply | None]


@dataclass(frozen=True, slots=True)
class Case:
    """A fault and what must come of it.

    `made` counts the commits afterwards that upload asked for, `asked` the requests for one,
    `others` the commits of somebody else. `is_spoiled`: the commit holds other files than were sent.
    """

    arrange: Arrange
    code: int
    says: str
    options: tuple[str, ...] = ("--direct",)
    asked: int = 0
    made: int = 0
    tags: tuple[str, ...] = ()
    is_spoiled: bool = False
    others: int = 0


DIRECT, PR, TAG = ("--direct",), ("--pr",), ("--direct", "--tag", "v1")
PREUPLOAD = "/preupload/"


def at(kind: str, act: Reply | Act, *, is_once: bool = False) -> Arrange:
    """What happens at requests of a kind (blob, commit, info), or with a text in their path."""

    def arrange(scene: Scene) -> None:
        def fault(request: Request, proceed: Proceed) -> Reply | None:
            is_it = getattr(request, f"is_{kind}", kind in request.path and not request.is_elsewhere)
            if not is_it:
                return None
            return act if isinstance(act, Reply) else act(scene, proceed)

        scene.hub.faults.append(once(fault) if is_once else fault)

    return arrange


def interrupt(scene: Scene, proceed: Proceed) -> Reply:
    """Ctrl-C while the answer is waited for."""
    os.kill(os.getpid(), signal.SIGINT)
    return CUT


# --- the folder changes


def edit_config(folder: Path) -> None:
    """Another value of the same length: the size does not tell."""
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"vocab_size": 64', '"vocab_size": 65'))


def edit_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def restore_config(folder: Path) -> None:
    """Changed, and changed back: what was read in between is not known."""
    data = (folder / "config.json").read_bytes()
    for text in (b"{}", data):
        (folder / "config.json").write_bytes(text)


def exchange_config(folder: Path) -> None:
    other = folder.parent / "other.json"
    shutil.copy2(folder / "config.json", other)
    other.replace(folder / "config.json")


def changing(kind: str, change: Callable[[Path], object]) -> Arrange:
    """Change the folder at the first request of a kind."""
    return at(kind, lambda scene, proceed: (change(scene.folder), proceed())[1], is_once=True)


def within(step: str, change: Callable[[Path], None]) -> Arrange:
    """Change the folder before a step of `upload` begins."""

    def arrange(scene: Scene) -> None:
        # weights are read from the disk, as large ones are
        scene.monkeypatch.setattr(upload_files, "MAX_KEPT", 1000)
        original = getattr(publishing, step)

        def changed(*arguments: Any, **options: Any) -> Any:
            change(scene.folder)
            return original(*arguments, **options)

        scene.monkeypatch.setattr(publishing, step, changed)

    return arrange


def link_weights(folder: Path) -> None:
    """A hard link, removed at once: the clock of a file system is coarse."""
    weights, other = folder / "model.safetensors", folder / "link"
    before = weights.stat().st_ctime_ns
    while weights.stat().st_ctime_ns == before:
        other.hardlink_to(weights)
        other.unlink()


def edit_and_hide(folder: Path) -> None:
    times = (folder / "model.safetensors").stat()
    edit_weights(folder)
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGED = "after the files were hashed and judged; nothing was committed"
FOLDER = [
    (within("release_target", edit_config), "config.json changed"),
    (within("release_target", restore_config), "config.json changed"),
    (within("_card_facts", edit_config), "config.json changed"),
    (within("check_plan", edit_config), "config.json changed"),
    (changing(PREUPLOAD, edit_weights), "model.safetensors changed"),
    (changing(PREUPLOAD, lambda folder: (folder / "b.safetensors").touch()), "b.safetensors was added"),
    (changing(PREUPLOAD, lambda folder: (folder / "config.json").unlink()), "config.json was removed"),
    (changing(PREUPLOAD, exchange_config), "config.json changed"),
    (changing("blob", edit_weights), "model.safetensors changed"),
    (changing(PREUPLOAD, edit_and_hide), "model.safetensors changed"),
]


# --- the target that the files name


def named(config: bytes | None) -> Arrange:
    """The card names org/target, whose config.json this is; None: there is no such repository."""

    def arrange(scene: Scene) -> None:
        (scene.folder / "README.md").write_text("---\nlicense: mit\nbase_model: org/target\n---\n")
        if config is not None:
            scene.hub.add_repo("org/target", {"config.json": config})

    return arrange


def target(**changes: Any) -> bytes:
    return json.dumps({**TARGET, **changes}).encode()


NAMED = [
    Case(named(target(vocab_size=32)), 1, "org/target on the Hub, named by base_model in README.md; state"),
    Case(named(target(draft_vocab_size=32)), 1, "EGL706 target-is-drafter"),
    Case(named(None), 0, "not compared: base_model in README.md names", asked=1, made=1),
    Case(named(b"{"), 0, "not compared: base_model", asked=1, made=1),
    Case(named(target()), 0, "target    org/target on the Hub", asked=1, made=1),
]


# --- before the commit


def with_json(reply: Reply, **changes: Any) -> Reply:
    answer = json.dumps({**json.loads(bytes(reply.body)), **changes}).encode()  # type: ignore[arg-type]
    return Reply(200, {"Content-Type": "application/json"}, answer)


def ignored(name: str) -> Arrange:
    def act(_: Scene, proceed: Proceed) -> Reply:
        reply = proceed()
        files = json.loads(bytes(reply.body))["files"]  # type: ignore[arg-type]
        return with_json(reply, files=[{**file, "shouldIgnore": file["path"] == name} for file in files])

    return at(PREUPLOAD, act)


def moved(kind: str) -> Arrange:
    return at(kind, lambda scene, proceed: scene.repo.commit({"x": b"1"}) and proceed(), is_once=True)


def by_xet(scene: Scene) -> None:
    """The Hub chooses Xet, and its tokens fail."""
    pytest.importorskip("hf_xet")
    scene.monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    at("/xet-", Reply(500))(scene)
    at("/info/lfs/objects/batch", lambda _, proceed: with_json(proceed(), transfer="xet"))(scene)


HOUR, NOTHING = {"Retry-After": "3600"}, "; nothing was committed"
BAD_CARD = Reply(400, {}, b'{"errors": [{"message": "bad"}], "warnings": []}')
BEFORE = [
    Case(at(PREUPLOAD, Reply(429, HOUR)), 3, "for 3600 seconds and try again"),
    Case(at(PREUPLOAD, error(403, "no")), 3, "the token may not write there (403)"),
    Case(at(PREUPLOAD, Reply(400)), 3, f"did not take the files (400){NOTHING}"),
    Case(at(PREUPLOAD, Reply(501)), 2, f"has no pull requests (501){NOTHING}; pass --direct", PR),
    Case(at("blob", Reply(503, HOUR)), 3, f"again after the 3600 seconds that it asks for{NOTHING}"),
    Case(at("blob", Reply(503)), 3, f"did not take the files (503); try again later{NOTHING}"),
    Case(at("blob", Reply(403)), 3, NOTHING),
    Case(at("info", Reply(503, HOUR)), 3, "the 3600 seconds that it"),
    Case(at("/api/validate-yaml", BAD_CARD), 1, "does not accept the front matter of README.md"),
    Case(at("/refs", Reply(500)), 3, "fails (500)"),
    Case(at("/refs", CUT), 3, "check the network"),
    Case(by_xet, 3, "set HF_HUB_DISABLE_XET=1"),
    Case(ignored("config.json"), 1, "ignores config.json: a commit would lack these files, and nothing"),
    Case(ignored("model.safetensors"), 1, "ignores model.safetensors", PR),
    Case(moved("blob"), 1, "changed: main was at", others=1),
]


# --- the commit


def lost(reply: Reply | None) -> Arrange:
    """The commit is made, and the answer to it is another; None: cut within it."""
    return at("commit", lambda _, proceed: (made := proceed()) and (reply or replace(made, cut=3)))


def claimed(scene: Scene) -> None:
    """The Hub says that a commit was made, and has none of that id."""
    oid = "ab" * 20
    answer = {"success": True, "commitOid": oid, "commitUrl": f"{scene.hub.endpoint}/{NAME}/commit/{oid}"}
    at("commit", with_json(Reply(200, {}, b"{}"), **answer))(scene)


OTHER_WORDS = Reply(200, {"Content-Type": "text/html"}, b"<html>welcome</html>")
UNKNOWN = "to the commit, and it is unknown whether the commit took effect; check http"
COMMIT = [
    *(
        Case(lost(reply), 3, UNKNOWN, options, asked=1, made=1)
        for options, reply in ((PR, Reply(500)), (DIRECT, None), (PR, None), (DIRECT, OTHER_WORDS))
    ),
    *(
        Case(at("commit", reply), 3, says, options, asked=1)
        for options, reply, says in (
            (DIRECT, Reply(503), f"answered 503 {UNKNOWN}"),
            (PR, CUT, UNKNOWN),
            (DIRECT, OTHER_WORDS, UNKNOWN),
            (PR, Reply(403), "may not write there (403)"),
            (DIRECT, Reply(413), f"did not make the commit (413){NOTHING}"),
            (DIRECT, Reply(429, HOUR), f"wait for 3600 seconds and try again{NOTHING}"),
            (PR, Reply(429, {"Retry-After": "7"}), f"wait for 7 seconds and try again{NOTHING}"),
            (DIRECT, Reply(501), "did not make the commit (501)"),
        )
    ),
    Case(at("commit", Reply(501)), 2, f"(501){NOTHING}; pass --direct", PR, asked=1),
    Case(moved("commit"), 1, "changed: main was at", asked=1, others=1),
    Case(moved("commit"), 1, "changed: main was at", PR, asked=1, others=1),
    Case(claimed, 3, f"the commit {'ab' * 20} (", asked=1),
]


# --- after the commit


def afterwards(reply: Reply, part: str = "/") -> Arrange:
    """Every answer after the commit, to requests whose path holds `part`."""
    return at(part, lambda scene, _: reply if scene.is_committed else None)


def spoiled(data: bytes | None) -> Arrange:
    """The commit holds other weights than were sent; None: it holds none."""

    def act(scene: Scene, proceed: Proceed) -> Reply:
        reply, repo = proceed(), scene.repo
        oid = list(repo.commits)[-1]
        held = {name: blob for name, blob in repo.commits[oid].files.items() if name != "model.safetensors"}
        if data is not None:
            held["model.safetensors"] = Blob("model.safetensors", data)
        repo.commits[oid] = replace(repo.commits[oid], files=held)
        return reply

    return at("commit", act)


def tag_elsewhere(scene: Scene, proceed: Proceed) -> Reply:
    scene.repo.tags.update(v1=next(iter(scene.repo.commits)))
    return proceed()


UNVERIFIED = "was made before and is not verified; run the command again, which compares it"
HELD = "was made before and is there and holds what was sent"
MISMATCH = "differs from what was sent; do not merge or serve it"
AFTER = [
    *(
        Case(afterwards(reply), 3, UNVERIFIED, options, asked=1, made=1)
        for reply, options in ((Reply(500), PR), (Reply(403), DIRECT), (CUT, DIRECT))
    ),
    Case(afterwards(Reply(200, {}, b"[]"), "/paths-info/"), 1, MISMATCH, asked=1, made=1),
    *(
        Case(spoiled(data), 1, MISMATCH, options, asked=1, made=1, is_spoiled=True)
        for data, options in ((b"short", TAG), (None, TAG), (None, PR))
    ),
    Case(afterwards(Reply(403), "/tag/"), 3, HELD, TAG, asked=1, made=1),
    Case(afterwards(Reply(500), "/tag/"), 3, HELD, TAG, asked=1, made=1),
    Case(at("/tag/", tag_elsewhere, is_once=True), 1, HELD, TAG, asked=1, made=1, tags=("v1",)),
    Case(
        at("/tag/", lambda _, proceed: proceed() and Reply(500)), 0, "tag v1 is at", TAG, 1, 1, tags=("v1",)
    ),
]
CASES = [
    *(Case(arrange, 1, f"{what} {CHANGED}") for arrange, what in FOLDER),
    Case(changing(PREUPLOAD, shutil.rmtree), 3, "No such file or directory"),
    Case(changing(PREUPLOAD, link_weights), 0, "published: ", asked=1, made=1),
    *(*NAMED, *BEFORE, *COMMIT, *AFTER),
    Case(at("commit", interrupt), 130, f"interrupted; {NAME} may have received files", asked=1),
]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    with publishing_hub(monkeypatch, tmp_path) as hub:
        yield Scene(hub, hub.add_repo(NAME, {}), drafter_folder(tmp_path, card=STATED), monkeypatch)


@pytest.mark.fast(4)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.says[:50]} {case.options[0]}")
def test_a_fault_ends_as_the_table_says(case: Case, scene: Scene) -> None:
    repo, hub = scene.repo, scene.hub
    first = repo.head()
    case.arrange(scene)
    done = call("upload", scene.folder, NAME, *case.options)
    assert (done.code, case.says in shown(done)) == (case.code, True), done
    assert TOKEN not in done.out + done.err and hub.leaks == [], done
    assert sum(request.is_commit for request in hub.requests) == case.asked
    made = [commit for commit in repo.commits.values() if commit.title.startswith("Upload with eaglectl")]
    assert (len(made), len(repo.commits)) == (case.made, 1 + case.made + case.others)
    assert tuple(repo.tags) == case.tags
    assert len(hub.asked("/tag/")) <= 1
    if case.code == 0 and case.tags:
        assert repo.tags == {"v1": made[0].oid}
    for commit in made:
        if not case.is_spoiled:
            assert_bound(repo, scene.folder, commit.oid)
        if "unknown" not in case.says:  # every other message names the commit
            assert commit.oid in shown(done) and f"{hub.endpoint}/{NAME}" in shown(done), done
    if not case.made:
        assert repo.refs == {"main": repo.log()[0].oid} and repo.log()[-1].oid == first


def shown(done: Outcome) -> str:
    """The error, or what was printed; one line of its own for an error."""
    if done.code in (0, 1) and done.out.count("mismatch") + (done.code == 0):
        return done.out
    line = done.err.splitlines()[-1]
    assert line.startswith("eaglectl: ") and line.isprintable() and "Traceback" not in done.err, done.err
    return line


def assert_bound(repo: Repo, folder: Path, oid: str) -> None:
    """The commit holds the folder's files, with a pass in the record that is over exactly these bytes."""
    assert_holds(repo, folder, oid)
    record = json.loads(bytes(repo.files(oid)["eaglectl.json"].data))  # type: ignore[arg-type]
    assert record["published"]["validation"]["verdict"] == "pass"
