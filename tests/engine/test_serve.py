"""smoke on a running server: a real one of vLLM's, and small ones that are not what they should be."""

import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UsageError
from eaglectl.run.results import SmokeReport
from tests.engine import pairs
from tests.engine.servers import running_vllm

PATIENCE = 180.0
K = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs.pair("modelopt/hf", tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    """The address of a server with speculation."""
    with running_vllm(folder / "target", folder / "drafter", folder / "server.log", PATIENCE) as url:
        yield url


def smoke(folder: Path, engine: str, drafter: str = "drafter", **settings: Any) -> SmokeReport:
    given = {"prompts": folder / "prompts.jsonl", "max_tokens": 16, "timeout": 120.0, **settings}
    options = eaglectl.SmokeOptions(run_in=engine, **given)
    return eaglectl.smoke(str(folder / drafter), str(folder / "target"), options)


def test_a_server_counts_what_vllm_in_a_process_of_its_own_counts(folder: Path, served: str) -> None:
    own, found = smoke(folder, "vllm"), smoke(folder, served)
    assert own.failures == found.failures == () and own.gaps == found.gaps[: len(own.gaps)] != ()
    assert own.is_lossless
    assert [row[:2] for row in pairs.counts(found)] == [row[:2] for row in pairs.counts(own)]
    assert found.measured.length == own.measured.length


def test_the_number_of_positions_is_the_servers(folder: Path, served: str) -> None:
    with pytest.raises(UsageError, match="a running server has its own number"):
        smoke(folder, served, k=5)


def test_a_server_is_timed_with_so_many_requests_in_flight(folder: Path, served: str) -> None:
    speed = smoke(folder, served, speed=(1, 2)).speed
    assert speed is not None
    assert [(row.k, row.concurrency, row.ratio) for row in speed.rows] == [(K, 1, None), (K, 2, None)]
    assert all(row.drafted.low > 0 and row.length is not None and row.length > 1 for row in speed.rows)


def test_a_server_is_compared_with_one_without_a_drafter(folder: Path, served: str) -> None:
    with running_vllm(folder / "target", None, folder / "baseline.log", PATIENCE) as baseline:
        speed = smoke(folder, served, speed=(1, 2), baseline_url=baseline).speed
        assert speed is not None and len(speed.break_even) == 1
        for row in speed.rows:
            assert row.plain is not None and row.ratio is not None and row.plain.low > 0 and row.ratio.low > 0
        wrong = smoke(folder, served, speed=(1,), baseline_url=served.replace("127.0.0.1", "localhost"))
        assert wrong.speed is None and "drafts too" in wrong.speed_gap


@pytest.mark.parametrize("length", [4, 64])
def test_other_traffic_is_refused(length: int, folder: Path, served: str) -> None:
    with traffic(served, str(folder / "target"), length), pytest.raises(RefusedError, match="other"):
        smoke(folder, served)


@contextmanager
def traffic(url: str, model: str, length: int) -> Iterator[None]:
    """Somebody else's completions, one after the other."""
    done, begun = threading.Event(), threading.Event()
    body = {"model": model, "prompt": "noise", "max_tokens": length, "ignore_eos": True}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)

    def send() -> None:
        while not done.is_set():
            urllib.request.urlopen(request, timeout=180).read()
            begun.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert begun.wait(180)
        yield
    finally:
        done.set()
        thread.join()


def test_a_server_drafts_as_its_files_do_and_not_as_older_ones(folder: Path, served: str) -> None:
    older, prompts = folder / "older", folder / "more.jsonl"
    shutil.copytree(folder / "drafter", older)
    weights = pairs.tensors(older)
    weights["fc.weight"] = weights["fc.weight"].flip(0)
    pairs.write(weights, older)
    prompts.write_text("".join(f"line {number} of some text\n" for number in range(8)))
    settings = {"prompts": prompts, "max_tokens": 48, "against": str(older)}
    match = smoke(folder, served, **settings).match
    assert match is not None and (match.ending, match.nearest) == ("yes", "drafter"), match
    # a drafter that was not trained has near ties, which rounding decides
    assert match.alike == 8 and match.files[0].equal > 4 > match.files[1].equal
    found = smoke(folder, served, "older", **settings | {"against": str(folder / "drafter")})
    assert found.match is not None and (found.match.ending, found.match.nearest) == ("no", "drafter")
    assert "does not draft as these files do" in found.failures[-1]
