"""The one policy of retries: how often each request is sent, what is waited, and what is never sent twice."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from eaglectl.errors import UnreadableError
from eaglectl.files import hub_requests
from eaglectl.files.checkpoint import open_folder
from eaglectl.files.hub_requests import RetryPolicy
from eaglectl.publish import upload
from tests.builders import STATED, call, drafter_folder, floats
from tests.hub import LoopbackHub, Reply, Request, once, publishing_hub

BIG = {"embed_tokens.weight": floats("big", 40_960, 16)}  # 1.3 MB
WAIT = re.compile(r"eaglectl: waiting (\d+\.\d) s before attempt (\d) of (\d): (127\.0\.0\.1|localhost) (.+)")
KINDS: dict[str, Callable[[Request], bool]] = {
    "list": lambda request: request.is_info,
    "blob": lambda request: request.is_blob,
    "weights": lambda request: request.is_elsewhere and request.is_file("model.safetensors"),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub with a drafter of one large file, whose token may write."""
    with publishing_hub(monkeypatch, tmp_path) as running:
        config = {"vocab_size": 40_960}
        running.add_repo("org/drafter", drafter_folder(tmp_path, "made", tensors=BIG, config=config))
        drafter_folder(tmp_path, "mine", card=STATED)
        yield running


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the policy as it is, which are not waited."""
    waits: list[float] = []
    monkeypatch.setattr(hub_requests, "POLICY", RetryPolicy(jitter=0.0))
    clock = SimpleNamespace(sleep=waits.append, monotonic=hub_requests.time.monotonic)
    monkeypatch.setattr(hub_requests, "time", clock)
    return waits


def fail(hub: LoopbackHub, kind: str, reply: Reply, times: int = 100) -> None:
    """Let requests of a kind fail."""
    hub.faults.append(once(lambda request, _: reply if KINDS[kind](request) else None, times))


INSPECT = ("inspect", "org/drafter")
UPLOAD = ("upload", "mine", "org/other", "--direct")
CONVERT = ("convert", "org/drafter", "--for", "sglang", "-o", "out")


@pytest.mark.fast(5)
@pytest.mark.parametrize(
    ("arguments", "kind", "status"),
    [
        *((INSPECT, "list", status) for status in (408, 429, 500, 502, 503, 504)),
        (CONVERT, "weights", 503),
        (UPLOAD, "blob", 503),
    ],
)
def test_a_request_is_sent_four_times_and_no_more(
    hub: LoopbackHub, sleeps: list[float], arguments: tuple[str, ...], kind: str, status: int
) -> None:
    fail(hub, kind, Reply(status))
    done = call(*arguments)
    assert (done.code, sum(map(KINDS[kind], hub.requests))) == (3, 4), done
    assert sleeps == [0.5, 1.0, 2.0]
    waits = [match.groups() for line in done.err.splitlines() if (match := WAIT.fullmatch(line))]
    assert [(wait, number, how) for wait, number, _, _, how in waits] == [
        ("0.5", "2", f"answered {status}"),
        ("1.0", "3", f"answered {status}"),
        ("2.0", "4", f"answered {status}"),
    ]
    assert not Path("out").exists() and len(hub.repos) == 1 + (arguments == UPLOAD)


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_beyond_the_deadline_is_said_and_not_waited(
    hub: LoopbackHub, sleeps: list[float], status: int
) -> None:
    fail(hub, "weights", Reply(status, {"Retry-After": "3600"}))
    done = call(*CONVERT)
    assert (done.code, sum(map(KINDS["weights"], hub.requests)), sleeps) == (3, 1, [])
    assert "3600 seconds" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "7"}, {"RateLimit": '"api";r=0;t=7'}, {"RateLimit": '"api"; r = 0 ; t = 7'}]
)
def test_a_wait_that_is_asked_for_is_waited(
    hub: LoopbackHub, sleeps: list[float], headers: dict[str, str]
) -> None:
    fail(hub, "list", Reply(429, headers), 1)
    done = call(*INSPECT)
    assert (done.code, sleeps) == (0, [7.0])
    assert done.err == "eaglectl: waiting 7.0 s before attempt 2 of 4: 127.0.0.1 answered 429\n"
    assert call("-q", *INSPECT).err == ""


@pytest.mark.parametrize("part", ["/commit/", "/tag/"])
def test_what_changes_the_repository_is_sent_once(hub: LoopbackHub, sleeps: list[float], part: str) -> None:
    hub.faults.append(lambda request, _: Reply(503) if part in request.path else None)
    done = call(*UPLOAD, "--tag", "v1")
    assert (done.code, len(hub.asked(part, method="POST")), sleeps) == (3, 1, [])


def test_blobs_reads_and_posts_that_change_nothing_are_sent_again(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit, which is sent once (test_upload_faults.py), and after it."""
    monkeypatch.setattr(upload, "MAX_KEPT", 1000)  # sent as a file, which is read again
    fail(hub, "blob", Reply(503), 3)
    failed = set()

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        is_committed = any(request.is_commit for request in hub.requests)
        for part in ("/preupload/", "/refs", "/paths-info/", "/revision/"):
            if part in request.path and (part, is_committed) not in failed:
                failed.add((part, is_committed))
                return Reply(503)
        return None

    hub.faults.append(fault)
    assert call(*UPLOAD).code == 0
    assert failed >= {("/preupload/", False), ("/refs", False), ("/paths-info/", True), ("/revision/", False)}
    weights = Path("mine/model.safetensors").read_bytes()
    assert hub.repos["org/other"].files()["model.safetensors"].data == weights
    assert [len(request.body) for request in hub.requests if request.is_blob] == [len(weights)] * 4


@pytest.mark.parametrize(
    ("cuts", "breaks", "is_whole"),
    [([1000, 500_000], 2, True), ([10] * 50, 4, False)],
    ids=["begun again", "a trickle is no progress"],
)
def test_a_download_that_breaks_off_is_begun_again(
    hub: LoopbackHub, cuts: list[int], breaks: int, is_whole: bool
) -> None:
    left = list(cuts)

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        return replace(proceed(), cut=left.pop(0)) if KINDS["weights"](request) and left else None

    hub.faults.append(fault)
    if is_whole:
        data = Path("made/model.safetensors").read_bytes()
        assert (open_folder("org/drafter").root / "model.safetensors").read_bytes() == data
    else:
        with pytest.raises(UnreadableError, match="broke the answer off"):
            open_folder("org/drafter")
    assert len(cuts) - len(left) == breaks
