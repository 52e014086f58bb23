"""Hubs that are not the Hub: inspect, convert, upload and verify over one that differs where it may."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import eaglectl
from eaglectl.files import hub_cache
from eaglectl.publish import upload
from tests.builders import STATED, call, drafter_folder, floats, is_one_line
from tests.hub import TOKEN, short_waits
from tests.other_hub import OtherHub, other_hub

pytest.importorskip("huggingface_hub")
BIG = {"embed_tokens.weight": floats("big", 10_240, 16)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherHub]:
    """The other Hub, with a drafter of 340 kB."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    with other_hub() as running:
        for name, value in {
            "ENDPOINT": running.endpoint,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_OFFLINE": False,
            "HUGGINGFACE_CO_URL_TEMPLATE": running.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_TELEMETRY": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(upload, "PAUSE", 0.0)
        client_waits = short_waits(monkeypatch)
        folder = drafter_folder(tmp_path, "made", tensors=BIG, config={"vocab_size": 10_240}, card=STATED)
        running.commit("org/drafter", {path.name: path.read_bytes() for path in folder.iterdir()})
        yield running
        close_session()
    assert client_waits == []


def test_its_drafter_is_inspected_as_the_folder_is(hub: OtherHub, tmp_path: Path) -> None:
    here = call("inspect", tmp_path / "made", "--json").document
    there = call("inspect", "org/drafter", "--json").document
    assert there["tensors"] == here["tensors"] and there["drafter"] == here["drafter"]
    assert there["weights"]["unchecked"] == ["model.safetensors"]  # of which parts were read
    hub.has_ids = False  # the list of a commit has none, and now the tree neither
    there = call("inspect", "org/drafter", "--json").document
    assert there["weights"]["unchecked"] == ["README.md", "config.json", "model.safetensors"]


def test_a_commit_of_64_digits_is_a_revision(hub: OtherHub) -> None:
    first = hub.repos["org/drafter"][0][0]
    hub.commit("org/drafter", {"config.json": b"{}"}, "second")
    assert len(first) == 64
    done = call("inspect", f"org/drafter@{first}")
    assert done.code == 0 and f'"revision": "{first}"' in done.out
    assert call("inspect", "org/drafter").code != 0


@pytest.mark.parametrize("pinned", [False, True])
def test_its_drafter_is_converted_as_the_folder_is(hub: OtherHub, tmp_path: Path, pinned: bool) -> None:
    name = f"org/drafter@{hub.repos['org/drafter'][0][0]}" if pinned else "org/drafter"
    for source, out in ((name, "there"), (tmp_path / "made", "here")):
        done = call("convert", source, "--for", "sglang", "-o", tmp_path / out)
        assert done.code == 0, done
    assert (tmp_path / "there/model.safetensors").read_bytes() == (
        tmp_path / "here/model.safetensors"
    ).read_bytes()
    assert json.loads((tmp_path / "there/eaglectl.json").read_text())["source"]["name"] == "org/drafter"
    assert call("--offline", "inspect", name).code == 0


def test_a_drafter_is_published_and_verified(hub: OtherHub, tmp_path: Path) -> None:
    done = call("upload", tmp_path / "made", "org/new", "--direct", "--tag", "v1", "--json")
    assert done.code == 0, done
    oid, _, files = hub.repos["org/new"][-1]
    assert done.document["commit"]["oid"] == oid and hub.tags["org/new"] == {"v1": oid}
    assert files["model.safetensors"] == (tmp_path / "made/model.safetensors").read_bytes()
    assert len(hub.repos["org/new"]) == 2  # the empty one of its creation, and ours
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    assert call("verify", folder).code == 0
    again = call("upload", tmp_path / "made", "org/new", "--direct", "--json")
    assert (again.code, again.document["outcome"]) == (0, "nothing-to-do")


def test_a_hub_without_auth_check_is_written_to(hub: OtherHub, tmp_path: Path) -> None:
    hub.commit("org/old", {})
    assert call("upload", tmp_path / "made", "org/old", "--direct").code == 0
    asked = [path for method, path in hub.asked if "auth-check" in path]
    assert asked == ["/api/models/org/old/auth-check/write"]


def test_a_head_that_moved_is_not_committed_on(
    hub: OtherHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client cannot send a parent of 64 digits, so the head is compared before the commit."""
    hub.commit("org/old", {})
    blobs = hub.blobs

    class Moving(dict[str, bytes]):
        def __setitem__(self, key: str, value: bytes) -> None:
            hub.commit("org/old", {"theirs": b"1"}, "theirs")
            super().__setitem__(key, value)

    hub.blobs = Moving(blobs)
    done = call("upload", tmp_path / "made", "org/old", "--direct")
    assert done.code == 1 and "moved" in done.err
    assert [title for _, title, _ in hub.repos["org/old"]] == ["first", "theirs"]


Arrange = Callable[[OtherHub], object]


def before(part: str, status: int) -> Arrange:
    """A status in the place of what a request would do."""
    return lambda hub: hub.faults.append(lambda _, path: status if part in path else None)


def lost(part: str, status: int, method: str = "POST") -> Arrange:
    """A status in the place of the answer to what was done."""
    return lambda hub: hub.lost.append(
        lambda how, path: status if (how, part in path) == (method, True) else None
    )


def theirs(part: str) -> Arrange:
    """Somebody else commits at the first request of a kind."""

    def arrange(hub: OtherHub) -> None:
        def fault(_: str, path: str) -> int | None:
            if part in path and len(hub.repos["org/old"]) == 1:
                hub.commit("org/old", {"theirs": b"1"}, "theirs")
            return None

        hub.faults.append(fault)

    return arrange


def spoiled(hub: OtherHub) -> None:
    """The commit holds other weights of the same size than were sent."""

    def fault(_: str, path: str) -> int | None:
        oid, title, files = hub.repos["org/old"][-1]
        if "/paths-info/" in path and title != "first":
            data = files["model.safetensors"]
            hub.repos["org/old"][-1] = (oid, title, {**files, "model.safetensors": data[::-1]})
        return None

    hub.faults.append(fault)


def after(part: str, status: int) -> Arrange:
    """A status for requests after the commit."""

    def arrange(hub: OtherHub) -> None:
        hub.faults.append(lambda _, path: status if part in path and len(hub.repos["org/old"]) > 1 else None)

    return arrange


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, the exit code and sentence that come of it, and the commits there are then."""

    arrange: Arrange
    code: int
    says: str
    titles: tuple[str, ...] = ("first",)
    is_tagged: bool = False


OURS = ("first", f"Upload with eaglectl {eaglectl.__version__}")
FAULTS = {
    "the token may not write": Case(before("/auth-check/", 403), 3, "may not write there (403)"),
    "the Hub cannot say who may write": Case(before("/auth-check/", 405), 0, "tag v1 is at", OURS, True),
    "files are not taken": Case(before("/preupload/", 400), 3, "(400); nothing was committed"),
    "a blob is refused": Case(before("/storage/", 403), 3, "nothing was committed"),
    "a blob fails": Case(before("/storage/", 503), 3, "try again later; nothing was committed"),
    "a commit is refused": Case(before("/commit/", 403), 3, "may not write there (403)"),
    "a commit fails": Case(before("/commit/", 503), 3, "did not take effect; nothing was committed"),
    "there are no commits": Case(before("/commit/", 501), 3, "fails (501) and did not make the commit"),
    "the answer to the commit is lost": Case(
        lost("/commit/", 500), 0, "the Hub's answer was lost", OURS, True
    ),
    "a proxy refuses the answer": Case(lost("/commit/", 403), 0, "the Hub's answer was lost", OURS, True),
    "somebody commits before": Case(theirs("/preupload/"), 1, "nothing was committed", ("first", "theirs")),
    "somebody commits in between": Case(
        theirs("/commit/"), 0, "tag v1 is at", ("first", "theirs", OURS[1]), True
    ),
    "the commit cannot be compared": Case(after("/paths-info/", 500), 3, "is not verified; run the", OURS),
    "the commit holds other bytes": Case(spoiled, 1, "does not hold what was sent; do not merge", OURS),
    "the tag is refused": Case(before("/tag/", 403), 3, "is there and holds what was sent", OURS),
    "the answer to the tag is lost": Case(lost("/tag/", 500), 0, "tag v1 is at", OURS, True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_as_on_the_hub(name: str, hub: OtherHub, tmp_path: Path) -> None:
    case, first = FAULTS[name], hub.commit("org/old", {})
    case.arrange(hub)
    done = call("upload", tmp_path / "made", "org/old", "--direct", "--tag", "v1")
    assert (done.code, case.says in " ".join((done.out + done.err).split())) == (case.code, True), done
    assert TOKEN not in done.out + done.err
    log = hub.repos["org/old"]
    assert tuple(title for _, title, _ in log) == case.titles
    oid = log[-1][0]
    assert oid == first or case.titles[-1] == "theirs" or oid in done.out + done.err
    assert hub.tags["org/old"] == ({"v1": oid} if case.is_tagged else {})
    assert len([path for _, path in hub.asked if "/commit/" in path]) <= 1


def test_a_hub_without_pull_requests_takes_no_proposal(hub: OtherHub, tmp_path: Path) -> None:
    hub.commit("org/old", {})
    done = call("upload", tmp_path / "made", "org/old", "--pr")
    assert done.code == 2 and "501" in done.err and "--direct" in done.err, done
    assert len(hub.repos["org/old"]) == 1
    assert len([path for _, path in hub.asked if "/commit/" in path]) <= 1


def test_a_hub_without_etags_is_inspected_and_its_downloads_are_refused(
    hub: OtherHub, tmp_path: Path
) -> None:
    hub.is_bare = True
    assert call("inspect", "org/drafter").code == 0
    done = call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / "out")
    assert done.code == 3 and is_one_line(done) and not (tmp_path / "out").exists(), done


@pytest.mark.parametrize("digits", [40, 64])
def test_a_hub_whose_etags_are_hexadecimal_and_no_digests_is_held_to_what_it_lists(
    hub: OtherHub, tmp_path: Path, digits: int
) -> None:
    hub.version_digits = digits
    for name in ("first", "second"):  # the second from the client's cache
        assert call("inspect", "org/drafter").code == 0
        assert call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / name).code == 0
    hub_cache.COMPARED.clear()
    (config,) = (tmp_path / "cache").glob("models--org--drafter/snapshots/*/config.json")
    config.write_bytes(config.read_bytes().replace(b"10240", b"10241"))
    done = call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / "third")
    assert done.code == 3 and "the Hub at 127.0.0.1" in done.err and "lists (git id" in done.err, done.err


def test_a_hub_that_lists_no_digests_and_has_hexadecimal_etags_is_used_by_its_downloads(
    hub: OtherHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import snapshot_download

    hub.version_digits, hub.has_ids = 64, False
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.chdir(tmp_path)
    assert call("inspect", "org/drafter").code == 0
    done = call("convert", "org/drafter", "--for", "sglang", "-o", "out")
    assert done.code == 3 and not (tmp_path / "out").exists()
    assert "run `hf download org/drafter --local-dir drafter` and give drafter" in done.err
    snapshot_download("org/drafter", local_dir="drafter", endpoint=hub.endpoint)
    assert call("convert", "drafter", "--for", "sglang", "-o", "out").code == 0


@pytest.mark.parametrize("command", ["inspect", "convert"])
def test_a_repository_that_is_not_there_is_told(hub: OtherHub, command: str) -> None:
    done = call(command, "org/none")
    assert done.code == 3 and "is no repository on the Hub that can be seen" in done.err
