"""The fault table of `upload`: for each fault its exit code, sentence, requests, and the repository after."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eaglectl.commands.upload import run as publishing
from eaglectl.publish import plan as upload_files
from tests.builders import STATED, Outcome, call, drafter_folder
from tests.hub import PUBLISHER as TOKEN
from tests.hub import (
    Blob,
    Fault,
    LoopbackHub,
    Reply,
    Repo,
    Request,
    assert_holds,
    error,
    once,
    publishing_hub,
)

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

    def answer(self, fault: Fault) -> None:
        """Add a fault of the Hub."""
        self.hub.faults.append(fault)


Arrange = Callable[[Scene], None]


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


PR = ("--pr",)
TAG = ("--direct", "--tag", "v1")


# --- the folder changes


def edit_config(folder: Path) -> None:
    """Another value of the same length: the size does not tell."""
    path = folder / "config.json"
    text = path.read_text()
    changed = text.replace('"vocab_size": 64', '"vocab_size": 65')
    assert len(changed) == len(text) and changed != text
    path.write_text(changed)


def edit_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def restore_config(folder: Path) -> None:
    """Changed, and changed back: what was read in between is not known."""
    path = folder / "config.json"
    data = path.read_bytes()
    path.write_bytes(b"{}")
    path.write_bytes(data)


def exchange_config(folder: Path) -> None:
    other = folder.parent / "other.json"
    shutil.copy2(folder / "config.json", other)
    other.replace(folder / "config.json")


def add_file(folder: Path) -> None:
    (folder / "model-2.safetensors").write_bytes(b"x")


def remove_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def at(is_it: Callable[[Request], bool], change: Callable[[Path], None]) -> Arrange:
    """Change the folder at the first request of a kind."""

    def arrange(scene: Scene) -> None:
        def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
            if not is_it(request):
                return None
            change(scene.folder)
            return proceed()

        scene.answer(once(fault))

    return arrange


def is_preupload(request: Request) -> bool:
    return "/preupload/" in request.path


def within(step: str, change: Callable[[Path], None]) -> Arrange:
    """Change the folder before a step of `upload` begins."""

    def arrange(scene: Scene) -> None:
        # weights are read from the disk, as large ones are
        scene.monkeypatch.setattr(upload_files, "MAX_KEPT", 1000)
        original = getattr(publishing, step)

        def changing(*arguments: Any, **options: Any) -> Any:
            change(scene.folder)
            return original(*arguments, **options)

        scene.monkeypatch.setattr(publishing, step, changing)

    return arrange


late = partial(at, is_preupload)
CHANGED = "what was judged is not what lies there now, and nothing was committed"
FOLDER = {
    f"{name} {when}": Case(how(change), 1, f"{file} {word} after the files were hashed: {CHANGED}")
    for name, change, file, word, when, how in (
        *(
            ("the config changes", edit_config, "config.json", "changed", when, partial(within, step))
            for when, step in (
                ("before it is judged", "release_target"),
                ("after it was judged", "served_releases"),
                ("before the plan is shown", "check_plan"),
            )
        ),
        ("the weights change", edit_weights, "model.safetensors", "changed", "while files are sent", late),
        ("a file is added", add_file, "model-2.safetensors", "was added", "while files are sent", late),
    )
} | {
    "the weights change while they are sent": Case(
        at(lambda request: request.is_blob, edit_weights), 1, "model.safetensors changed after"
    ),
    "a file is removed": Case(at(is_preupload, remove_file), 1, "config.json was removed after"),
    "the config changes and changes back": Case(
        within("release_target", restore_config), 1, "config.json changed after"
    ),
    "the config is exchanged for an equal file": Case(
        at(is_preupload, exchange_config), 1, "config.json changed after"
    ),
    "the folder is gone": Case(at(is_preupload, shutil.rmtree), 1, "nothing was committed"),
}


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


NAMED = {
    "the target has another width": Case(named(target(hidden_size=32)), 1, "EGL701 target-mismatch"),
    "the target has a smaller vocabulary": Case(
        named(target(vocab_size=32)), 1, "The target is org/target on"
    ),
    "the target has a larger vocabulary": Case(named(target(vocab_size=128)), 1, "the target has 128 tokens"),
    "the target is a drafter": Case(named(target(draft_vocab_size=32)), 1, "EGL706 target-is-drafter"),
    "the target is not there": Case(
        named(None), 0, "not compared: base_model in README.md names", asked=1, made=1
    ),
    "the target's config is broken": Case(named(b"{"), 0, "not compared: base_model", asked=1, made=1),
    "the target fits": Case(named(target()), 0, "target    org/target on the Hub", asked=1, made=1),
}


# --- before the commit


def always(is_it: Callable[[Request], bool], reply: Reply) -> Arrange:
    return lambda scene: scene.answer(lambda request, proceed: reply if is_it(request) else None)


def on(part: str) -> Callable[[Request], bool]:
    return lambda request: part in request.path and not request.is_elsewhere


def ignored(name: str) -> Arrange:
    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if not is_preupload(request):
            return None
        reply = proceed()
        assert isinstance(reply.body, bytes)
        answer = json.loads(reply.body)
        for file in answer["files"]:
            file["shouldIgnore"] = file["path"] == name
        return replace(reply, body=json.dumps(answer).encode())

    return lambda scene: scene.answer(fault)


def moved(is_it: Callable[[Request], bool]) -> Arrange:
    def arrange(scene: Scene) -> None:
        def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
            return scene.repo.commit({"x": b"1"}) and proceed() if is_it(request) else None

        scene.answer(once(fault))

    return arrange


def by_xet(scene: Scene) -> None:
    """The Hub chooses Xet, and its tokens fail."""
    pytest.importorskip("hf_xet")
    from huggingface_hub import constants

    scene.monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if "/xet-" in request.path:
            return Reply(500)
        if not request.path.endswith("/info/lfs/objects/batch"):
            return None
        body = proceed().body
        assert isinstance(body, bytes)
        answer = {**json.loads(body), "transfer": "xet"}
        return Reply(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    scene.answer(fault)


HOUR = {"Retry-After": "3600"}
BEFORE = {
    **{
        f"the Hub cannot say who may write, {status}": Case(
            always(on("/auth-check"), Reply(status)), 0, "a commit on main", asked=1, made=1
        )
        for status in (404, 405, 501)
    },
    **{
        f"{what}, for an hour": Case(always(is_it, Reply(status, HOUR)), 3, says)
        for what, is_it, status, says in (
            ("too many requests", is_preupload, 429, "for 3600 seconds and try again"),
            ("no blob is taken", lambda request: request.is_blob, 503, "3600 seconds"),
            ("the repository is not shown", lambda request: request.is_info, 503, "the 3600 seconds that it"),
        )
    },
    "Xet fails": Case(by_xet, 3, "set HF_HUB_DISABLE_XET=1"),
    "the token may not write": Case(
        always(on("/auth-check"), error(403, "no")), 3, "the token may not write there (403)"
    ),
    "the Hub takes no blob": Case(
        always(lambda request: request.is_blob, Reply(503)),
        3,
        "did not take the files; try again later; nothing was committed",
    ),
    "the Hub refuses a blob": Case(
        always(lambda request: request.is_blob, Reply(403)), 3, "nothing was committed"
    ),
    "the Hub refuses to say how files are sent": Case(
        always(is_preupload, Reply(400)), 3, "does not take the files (400); nothing was committed"
    ),
    "too many requests": Case(
        always(is_preupload, Reply(429, {"Retry-After": "0"})), 3, "too many requests from here (429)"
    ),
    "no pull requests, said early": Case(
        always(is_preupload, Reply(501)),
        2,
        "has no pull requests (501); nothing was committed, give --direct",
        PR,
    ),
    "the repository ignores the config": Case(
        ignored("config.json"),
        1,
        "ignores config.json: a commit would lack what was judged, and nothing was committed",
    ),
    "the repository ignores the weights": Case(
        ignored("model.safetensors"), 1, "ignores model.safetensors", PR
    ),
    "the card's front matter is refused": Case(
        always(on("/api/validate-yaml"), Reply(400, {}, b'{"errors": [{"message": "bad"}], "warnings": []}')),
        1,
        "does not accept the front matter of README.md",
    ),
    "the head moves while files are sent": Case(
        moved(lambda request: request.is_blob), 1, "moved: main was at", others=1
    ),
    "the refs cannot be read": Case(always(on("/refs"), Reply(500)), 3, "fails (500)"),
    "the refs are cut": Case(always(on("/refs"), CUT), 3, "did not answer"),
}


# --- the commit


def commits(*replies: Reply | None, is_made: bool) -> Arrange:
    """The answer to the request for a commit; `is_made`: after it took effect. None: cut within it."""

    def arrange(scene: Scene) -> None:
        def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
            if not request.is_commit:
                return None
            reply = proceed() if is_made else CUT
            return replies[0] or replace(reply, cut=3)

        scene.answer(fault)

    return arrange


def under_another(scene: Scene) -> None:
    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if not request.is_commit:
            return None
        proceed()
        scene.repo.commit({"NOTES.md": b"mine"})
        return Reply(500)

    scene.answer(fault)


def claimed(scene: Scene) -> None:
    """The Hub says that a commit was made, and has none of that id."""
    oid = "ab" * 20
    answer = {"success": True, "commitOid": oid, "commitUrl": f"{scene.hub.endpoint}/{NAME}/commit/{oid}"}
    reply = Reply(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
    scene.answer(lambda request, proceed: reply if request.is_commit else None)


def lost_and_unreadable(scene: Scene) -> None:
    commits(Reply(500), is_made=True)(scene)
    scene.answer(lambda request, proceed: Reply(500) if scene.is_committed else None)


OTHER_WORDS = Reply(200, {"Content-Type": "text/html"}, b"<html>welcome</html>")
COMMIT = {
    **{
        f"the answer is lost, {how}, {options[0]}": Case(
            commits(reply, is_made=True), 0, "the Hub's answer was lost", options, asked=1, made=1
        )
        for how, reply, options in (
            ("500", Reply(500), PR),
            ("504", Reply(504), ("--direct",)),
            ("cut", None, ("--direct",)),
            ("cut", None, PR),
            ("a page", OTHER_WORDS, ("--direct",)),
            ("403", Reply(403), ("--direct",)),
            ("403", Reply(403), PR),
            ("412", Reply(412), ("--direct",)),
        )
    },
    **{
        f"no commit is made, {how}, {options[0]}": Case(
            commits(reply, is_made=False), 3, says, options, asked=1
        )
        for options in (("--direct",), PR)
        for how, reply, says in (
            (
                "503",
                Reply(503),
                "answered 503 to the commit, and it did not take effect; nothing was committed",
            ),
            ("cut", None, "to the commit, and it did not take effect; nothing was committed"),
            ("a page", OTHER_WORDS, "it did not take effect"),
            ("403", Reply(403), "may not write there (403)"),
            ("413", Reply(413), "does not make the commit (413); nothing was committed"),
            ("429 for an hour", Reply(429, HOUR), "wait for 3600 seconds and try again; nothing was"),
            (
                "429",
                Reply(429, {"Retry-After": "7"}),
                "wait for 7 seconds and try again; nothing was committed",
            ),
        )
    },
    "no pull requests": Case(
        commits(Reply(501), is_made=False),
        2,
        "has no pull requests (501); nothing was committed, give --direct",
        PR,
        asked=1,
    ),
    "the Hub knows no commits": Case(
        commits(Reply(501), is_made=False), 3, "fails (501) and did not make the commit", asked=1
    ),
    "the head moves under the commit": Case(
        moved(lambda request: request.is_commit), 1, "moved: main was at", asked=1, others=1
    ),
    "the head moves under the pull request": Case(
        moved(lambda request: request.is_commit), 1, "moved: main was at", PR, asked=1, others=1
    ),
    "somebody else commits on a lost one": Case(
        under_another, 0, "the Hub's answer was lost", asked=1, made=1, others=1
    ),
    "the answer is lost and nothing can be read": Case(
        lost_and_unreadable, 3, "whether it took effect is not known", asked=1, made=1
    ),
    "the Hub claims a commit that it has not": Case(claimed, 3, f"the commit {'ab' * 20} (", asked=1),
}


# --- after the commit


def afterwards(reply: Reply, part: str = "") -> Arrange:
    """Every answer after the commit, to requests whose path holds `part`."""

    def arrange(scene: Scene) -> None:
        scene.answer(lambda request, _: reply if scene.is_committed and part in request.path else None)

    return arrange


def spoiled(data: bytes | None) -> Arrange:
    """The commit holds other weights than were sent; None: it holds none."""

    def arrange(scene: Scene) -> None:
        def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
            if not request.is_commit:
                return None
            reply, repo = proceed(), scene.repo
            oid = list(repo.commits)[-1]
            held = {
                name: blob for name, blob in repo.commits[oid].files.items() if name != "model.safetensors"
            }
            if data is not None:
                held["model.safetensors"] = Blob("model.safetensors", data)
            repo.commits[oid] = replace(repo.commits[oid], files=held)
            return reply

        scene.answer(fault)

    return arrange


def tagged_elsewhere(scene: Scene) -> None:
    before = scene.repo.head()

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        return (scene.repo.tags.update(v1=before), proceed())[1] if "/tag/" in request.path else None

    scene.answer(once(fault))


def tag_lost(scene: Scene) -> None:
    scene.answer(lambda request, proceed: (proceed(), Reply(500))[1] if "/tag/" in request.path else None)


UNVERIFIED = "was made before and is not verified; run the command again, which compares it"
HELD = "was made before and is there and holds what was sent"
AFTER = {
    **{
        f"the commit cannot be compared, {how}, {options[0]}": Case(
            afterwards(reply), 3, UNVERIFIED, options, asked=1, made=1
        )
        for options in (("--direct",), PR)
        for how, reply in (
            ("500", Reply(500)),
            ("403", Reply(403)),
            ("429", Reply(429, {"Retry-After": "0"})),
            ("no network", CUT),
        )
    },
    "the commit is listed without files": Case(
        afterwards(Reply(200, {}, b"[]"), "/paths-info/"),
        1,
        "does not hold what was sent; do not merge",
        asked=1,
        made=1,
    ),
    **{
        f"the commit holds {how}, {options[0]}": Case(
            spoiled(data),
            1,
            "does not hold what was sent; do not merge or serve it",
            options,
            asked=1,
            made=1,
            is_spoiled=True,
        )
        for options in (TAG, PR)
        for how, data in (("short weights", b"short"), ("no weights", None))
    },
    "the tag is refused": Case(afterwards(Reply(403), "/tag/"), 3, HELD, TAG, asked=1, made=1),
    "the tag fails": Case(afterwards(Reply(500), "/tag/"), 3, HELD, TAG, asked=1, made=1),
    "the tag is set elsewhere meanwhile": Case(tagged_elsewhere, 1, HELD, TAG, asked=1, made=1, tags=("v1",)),
    "the answer to the tag is lost": Case(tag_lost, 0, "tag v1 is at", TAG, asked=1, made=1, tags=("v1",)),
}

CASES = {**FOLDER, **NAMED, **BEFORE, **COMMIT, **AFTER}


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    with publishing_hub(monkeypatch, tmp_path) as hub:
        yield Scene(hub, hub.add_repo(NAME, {}), drafter_folder(tmp_path, card=STATED), monkeypatch)


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_a_fault_ends_as_the_table_says(name: str, scene: Scene) -> None:
    case, repo, hub = CASES[name], scene.repo, scene.hub
    first = repo.head()
    case.arrange(scene)
    done = call("upload", scene.folder, NAME, *case.options)
    assert (done.code, case.says in shown(done)) == (case.code, True), done
    assert TOKEN not in done.out + done.err and hub.leaks == [], done
    assert sum(request.is_commit for request in hub.requests) == case.asked
    made = [commit for commit in repo.commits.values() if commit.title.startswith("Upload with eaglectl")]
    assert (len(made), len(repo.commits)) == (case.made, 1 + case.made + case.others)
    assert tuple(repo.tags) == case.tags
    if case.code == 0 and case.tags:
        assert repo.tags == {"v1": made[0].oid}
    for commit in made:
        if not case.is_spoiled:
            assert_bound(repo, scene.folder, commit.oid)
        if "not known" not in case.says:  # every other message names the commit
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
