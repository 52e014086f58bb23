"""The one policy of retries: how often each request is sent, what is waited, and what is never sent twice."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eaglectl.files import hub_requests
from eaglectl.files.hub import hub_calls
from eaglectl.files.hub_requests import RetryPolicy, TransferError
from eaglectl.publish import upload
from tests.builders import STATED, Outcome, call, drafter_folder, floats
from tests.hub import TOKEN, LoopbackHub, Reply, Request, User, client_hub, once

BIG = {"embed_tokens.weight": floats("big", 40_960, 16)}  # 1.3 MB
WAIT = re.compile(r"eaglectl: waiting (\d+\.\d) s before attempt (\d) of (\d): (127\.0\.0\.1|localhost) (.+)")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A loopback Hub with a drafter of one large file, whose token may write."""
    with client_hub(monkeypatch, tmp_path) as running:
        config = {"vocab_size": 40_960}
        running.add_repo("org/drafter", drafter_folder(tmp_path, "made", tensors=BIG, config=config))
        running.users = {TOKEN: User("alice", ("org",))}
        drafter_folder(tmp_path, "mine", card=STATED)
        monkeypatch.setattr(upload, "PAUSE", 0.0)
        yield running


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the policy as it is, which are not waited."""
    waits: list[float] = []
    monkeypatch.setattr(hub_requests, "POLICY", RetryPolicy(jitter=0.0))
    clock = SimpleNamespace(sleep=waits.append, monotonic=hub_requests.time.monotonic)
    monkeypatch.setattr(hub_requests, "time", clock)
    return waits


def is_blob(request: Request) -> bool:
    return request.is_blob


def is_list(request: Request) -> bool:
    return request.is_info


def is_weights(request: Request) -> bool:
    return request.is_elsewhere and request.is_file("model.safetensors")


def failing(hub: LoopbackHub, which: Callable[[Request], bool], reply: Reply) -> None:
    hub.faults.append(lambda request, proceed: reply if which(request) else None)


def count(hub: LoopbackHub, which: Callable[[Request], bool]) -> int:
    return sum(map(which, hub.requests))


Failing = Callable[[tuple[str, ...], Callable[[Request], bool], Reply], tuple[Outcome, int]]


@pytest.fixture
def call_failing(
    hub: LoopbackHub, sleeps: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Failing:
    """Call a command while some requests fail; its outcome, and how many of those requests were sent."""

    def act(
        arguments: tuple[str, ...], which: Callable[[Request], bool], reply: Reply
    ) -> tuple[Outcome, int]:
        monkeypatch.chdir(tmp_path)
        failing(hub, which, reply)
        return call(*arguments), count(hub, which)

    return act


UPLOAD = ("upload", "mine", "org/other", "--direct")
CONVERT = ("convert", "org/drafter", "--for", "sglang", "-o", "out")


@pytest.mark.parametrize(
    ("arguments", "which", "status"),
    [
        *((("inspect", "org/drafter"), is_list, status) for status in (408, 429, 500, 502, 503, 504)),
        (CONVERT, is_weights, 503),
        (UPLOAD, is_blob, 503),
    ],
)
def test_a_request_is_sent_four_times_and_no_more(
    hub: LoopbackHub,
    sleeps: list[float],
    tmp_path: Path,
    call_failing: Failing,
    arguments: tuple[str, ...],
    which: Callable[[Request], bool],
    status: int,
) -> None:
    before = len(hub.repos)
    done, sent = call_failing(arguments, which, Reply(status))
    assert (done.code, sent) == (3, 4), done
    assert sleeps == [0.5, 1.0, 2.0]
    waits = [match.groups() for line in done.err.splitlines() if (match := WAIT.fullmatch(line))]
    assert [(wait, number, how) for wait, number, _, _, how in waits] == [
        ("0.5", "2", f"answered {status}"),
        ("1.0", "3", f"answered {status}"),
        ("2.0", "4", f"answered {status}"),
    ]
    assert not (tmp_path / "out").exists()
    assert len(hub.repos) == before + (arguments == UPLOAD)


@pytest.mark.parametrize(
    ("arguments", "which", "status"),
    [
        (("inspect", "org/drafter"), is_list, 429),
        (("inspect", "org/drafter"), is_list, 503),
        (CONVERT, is_weights, 503),
        (UPLOAD, is_blob, 503),
    ],
)
def test_a_wait_beyond_the_deadline_is_said_and_not_waited(
    sleeps: list[float],
    call_failing: Failing,
    arguments: tuple[str, ...],
    which: Callable[[Request], bool],
    status: int,
) -> None:
    done, sent = call_failing(arguments, which, Reply(status, {"Retry-After": "3600"}))
    assert (done.code, sent, sleeps) == (3, 1, [])
    assert "3600 seconds" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "7"}, {"RateLimit": '"api";r=0;t=7'}, {"RateLimit": '"api"; r = 0 ; t = 7'}],
)
def test_a_wait_that_is_asked_for_is_waited(
    hub: LoopbackHub, sleeps: list[float], headers: dict[str, str]
) -> None:
    hub.faults.append(once(lambda request, proceed: Reply(429, headers) if request.is_info else None))
    done = call("inspect", "org/drafter")
    assert (done.code, sleeps) == (0, [7.0])
    assert done.err == "eaglectl: waiting 7.0 s before attempt 2 of 4: 127.0.0.1 answered 429\n"
    assert call("-q", "inspect", "org/drafter").err == ""


def test_waits_of_one_request_end_at_the_deadline(hub: LoopbackHub, sleeps: list[float]) -> None:
    failing(hub, is_list, Reply(503, {"Retry-After": "25"}))
    done = call("inspect", "org/drafter")
    assert (sleeps, count(hub, is_list)) == ([25.0, 25.0], 3)
    assert "after the 25 seconds that it asks for" in done.err


@given(
    st.integers(1, 8),
    st.floats(0.0, 1.0),
    st.floats(0.01, 4.0),
    st.floats(0.01, 30.0),
)
def test_a_wait_grows_to_its_limit_and_jitter_only_shortens_it(
    failures: int, jitter: float, first: float, longest: float
) -> None:
    policy = RetryPolicy(first_wait=first, longest_wait=longest, jitter=jitter)
    whole = replace(policy, jitter=0.0).backoff(failures)
    assert whole == min(first * 2.0 ** (failures - 1), longest)
    assert whole * (1 - jitter) <= policy.backoff(failures) <= whole


def test_two_waits_are_not_the_same() -> None:
    assert len({RetryPolicy().backoff(1) for _ in range(20)}) > 1


@pytest.mark.parametrize(("part", "status"), [("/commit/", 503), ("/commit/", 429), ("/tag/", 503)])
def test_what_changes_the_repository_is_sent_once(
    hub: LoopbackHub, sleeps: list[float], tmp_path: Path, status: int, part: str
) -> None:
    hub.add_repo("org/other", {})
    hub.faults.append(
        lambda request, proceed: Reply(status) if request.method == "POST" and part in request.path else None
    )
    done = call("upload", tmp_path / "mine", "org/other", "--direct", "--tag", "v1")
    assert (done.code, len(hub.asked(part, method="POST")), sleeps) == (3, 1, [])


def test_a_repository_is_created_once(hub: LoopbackHub, sleeps: list[float], tmp_path: Path) -> None:
    failing(hub, lambda request: request.path == "/api/repos/create", Reply(503))
    assert call("upload", tmp_path / "mine", "org/other", "--direct").code == 3
    assert len(hub.asked("/api/repos/create")) == 1 and sleeps == []


def test_a_post_that_changes_nothing_is_repeated_after_one_that_may_not_be(
    hub: LoopbackHub, sleeps: list[float]
) -> None:
    failing(hub, lambda request: request.method == "POST", Reply(503))
    sent = []
    for is_repeatable in (False, True):
        with (
            pytest.raises(TransferError, match="answered 503"),
            hub_calls(is_repeatable=is_repeatable) as session,
        ):
            session.request("POST", f"{hub.endpoint}/api/{is_repeatable}")
        sent.append(len(hub.asked(f"/api/{is_repeatable}")))
    assert sent == [1, 4]


def test_a_blob_is_whole_after_it_was_sent_in_vain(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eaglectl.publish import plan as upload_files

    monkeypatch.setattr(upload_files, "MAX_KEPT", 1000)  # sent as a file, which is read again
    hub.faults.append(once(lambda request, proceed: Reply(503) if request.is_blob else None, 3))
    assert call("upload", tmp_path / "mine", "org/other", "--direct").code == 0
    weights = (tmp_path / "mine/model.safetensors").read_bytes()
    assert hub.repos["org/other"].files()["model.safetensors"].data == weights
    assert [len(request.body) for request in hub.requests if request.is_blob] == [len(weights)] * 4


# a body that breaks off


def cut_weights(hub: LoopbackHub, *cuts: int) -> list[str | None]:
    """Break the weights off after so many bytes each time; gives the ranges that are asked for."""
    left, ranges = list(cuts), list[str | None]()

    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if not is_weights(request):
            return None
        ranges.append(request.range)
        return replace(proceed(), cut=left.pop(0)) if left else None

    hub.faults.append(fault)
    return ranges


def test_a_download_goes_on_where_it_broke_off(hub: LoopbackHub, tmp_path: Path) -> None:
    data = (tmp_path / "made/model.safetensors").read_bytes()
    ranges = cut_weights(hub, 1000, 500_000)
    folder = hub_session_download("org/drafter")
    assert (folder / "model.safetensors").read_bytes() == data
    assert ranges == [None, "bytes=1000-", "bytes=501000-"]


def hub_session_download(name: str) -> Path:
    from eaglectl.files.opening import open_folder

    return open_folder(name).root


def test_progress_starts_the_count_again(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "POLICY", replace(hub_requests.POLICY, progress=100_000))
    ranges = cut_weights(hub, *[100_000] * 8)
    hub_session_download("org/drafter")
    assert len(ranges) == 9


def test_a_trickle_is_no_progress(hub: LoopbackHub) -> None:
    ranges = cut_weights(hub, *[10] * 50)
    from eaglectl.errors import UnreadableError

    with pytest.raises(UnreadableError, match="broke the answer off"):
        hub_session_download("org/drafter")
    assert len(ranges) == 4


def test_a_file_that_became_another_is_not_put_together(hub: LoopbackHub, tmp_path: Path) -> None:
    def fault(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if not is_weights(request):
            return None
        reply = proceed()
        if request.range is None:
            return replace(reply, cut=1000)
        return replace(reply, headers={**reply.headers, "ETag": '"another"'})

    hub.faults.append(fault)
    done = call("convert", "org/drafter", "--for", "sglang", "-o", tmp_path / "out")
    assert done.code == 3 and "broke the answer off" in done.err and not (tmp_path / "out").exists()


# Xet


@pytest.mark.parametrize("status", [404, 500])
def test_a_failure_of_xet_names_the_variable_that_turns_it_off(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    pytest.importorskip("hf_xet")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    failing(hub, lambda request: "/xet-" in request.path, Reply(status))

    def by_xet(request: Request, proceed: Callable[[], Reply]) -> Reply | None:
        if not request.path.endswith("/info/lfs/objects/batch"):
            return None
        answer = json.loads(proceed().body)
        return Reply(
            200, {"Content-Type": "application/json"}, json.dumps({**answer, "transfer": "xet"}).encode()
        )

    hub.faults.append(by_xet)
    done = call("upload", tmp_path / "mine", "org/other", "--direct")
    assert done.code == 3 and "HF_HUB_DISABLE_XET=1" in done.err, done
    assert count(hub, lambda request: request.is_commit) == 0
