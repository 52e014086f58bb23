"""smoke on a running server: a real one of vLLM's, and small ones that are not what they should be."""

import http.server
import json
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.report import SmokeReport
from tests.engine import pairs
from tests.engine.servers import free_port, running

PATIENCE = 180.0
K = 3
SETTINGS = (
    "--dtype",
    "float32",
    "--enforce-eager",
    "--max-model-len",
    "128",
    "--max-num-seqs",
    "4",
    "--max-num-batched-tokens",
    "256",
    "--kv-cache-memory-bytes",
    str(64 << 20),
    "--seed",
    "0",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    pairs.llama_target(root / "target")
    pairs.drafter("modelopt/hf", root / "target", root / "drafter")
    pairs.write_prompts(root / "prompts.jsonl")
    return root


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    """The address of a server with speculation."""
    speculation = {"method": "eagle3", "model": str(folder / "drafter"), "num_speculative_tokens": K}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "target")]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    speculative = ("--speculative-config", json.dumps(speculation))
    with running([*command, *SETTINGS, *speculative], folder / "server.log", PATIENCE, environment) as url:
        yield url


def smoke(folder: Path, engine: str, **settings: Any) -> SmokeReport:
    given: dict[str, Any] = {
        "prompts": folder / "prompts.jsonl",
        "max_tokens": 16,
        "timeout": 120.0,
        **settings,
    }
    options = eaglectl.SmokeOptions(run_in=engine, **given)
    return eaglectl.smoke(str(folder / "drafter"), str(folder / "target"), options)


def test_a_server_counts_what_vllm_in_a_process_of_its_own_counts(folder: Path, served: str) -> None:
    own, found = smoke(folder, "vllm"), smoke(folder, served)
    assert own.failures == found.failures == () and own.gaps == found.gaps != ()
    assert own.is_lossless
    assert [(r.drafts, r.accepted) for r in found.run.results] == [
        (r.drafts, r.accepted) for r in own.run.results
    ]
    assert found.measured.length == own.measured.length


def test_the_number_of_positions_is_the_servers(folder: Path, served: str) -> None:
    assert smoke(folder, served, k=5).k == K


def test_a_server_is_timed_with_so_many_requests_in_flight(folder: Path, served: str) -> None:
    speed = smoke(folder, served, speed=(1, 2)).speed
    assert speed is not None
    assert [(row.k, row.concurrency, row.ratio) for row in speed.rows] == [(K, 1, None), (K, 2, None)]
    assert all(row.drafted.low > 0 and row.length is not None and row.length > 1 for row in speed.rows)


@pytest.mark.parametrize("length", [4, 64])
def test_other_traffic_is_refused(length: int, folder: Path, served: str) -> None:
    with traffic(served, str(folder / "target"), length), pytest.raises(RefusedError, match="other"):
        smoke(folder, served)


@contextmanager
def traffic(url: str, model: str, length: int) -> Iterator[None]:
    """Somebody else's completions, one after the other."""
    done, begun = threading.Event(), threading.Event()
    body = json.dumps({"model": model, "prompt": "noise", "max_tokens": length, "ignore_eos": True}).encode()

    def send() -> None:
        while not done.is_set():
            request = urllib.request.Request(
                f"{url}/v1/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
            begun.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert begun.wait(60)
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
    settings["against"] = str(folder / "drafter")
    options = eaglectl.SmokeOptions(run_in=served, timeout=120.0, **settings)
    found = eaglectl.smoke(str(older), str(folder / "target"), options)
    assert found.match is not None and (found.match.ending, found.match.nearest) == ("no", "drafter")
    assert "does not draft as these files do" in found.failures[-1]


# what vLLM 0.32.0 answers, as far as smoke reads it
MODELS = {"data": [{"id": "m"}]}
PLAIN = (
    'vllm:num_requests_running{engine="0",model_name="m"} 0.0\nvllm:generation_tokens_total{engine="0"} 0.0\n'
)
DRAFTS = PLAIN + 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0\n'
POSITIONS = DRAFTS + 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 0.0\n'
USAGE = {"usage": {"completion_tokens": 16}}

NOT_SERVERS: dict[str, tuple[dict[str, Any], str]] = {
    "a server of files": ({}, "answered 404"),
    "no models": ({"/v1/models": {"data": []}}, "at least one model"),
    "a model without an id": ({"/v1/models": {"data": [{}]}}, "has no data.0.id"),
    "text for JSON": ({"/v1/models": "hello"}, "not valid JSON"),
    "no speculation": ({"/v1/models": MODELS, "/metrics": PLAIN}, "no speculative decoding"),
    "no counts by position": ({"/v1/models": MODELS, "/metrics": DRAFTS}, "does not count by position"),
    "no completions": ({"/v1/models": MODELS, "/metrics": POSITIONS}, "completions answered 404"),
    "no usage": (
        {"/v1/models": MODELS, "/metrics": POSITIONS, "/v1/completions": {}}, "has no usage",
    ),
    "counters that stand still": (
        {"/v1/models": MODELS, "/metrics": POSITIONS, "/v1/completions": USAGE}, "shows 0 of the 16 tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_SERVERS)
def test_a_server_that_cannot_be_measured_is_unreadable(name: str, folder: Path) -> None:
    pages, word = NOT_SERVERS[name]
    with small_server(pages) as url, pytest.raises(UnreadableError, match=word):
        smoke(folder, url)


def test_nobody_there_is_unreadable(folder: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be reached"):
        smoke(folder, f"http://127.0.0.1:{free_port()}")


@contextmanager
def small_server(pages: Mapping[str, Any]) -> Iterator[str]:
    """A plain HTTP server with these pages and nothing else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page if isinstance(page, str) else json.dumps(page)).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_cpu_builds_vllm_serve_ends_as_docs_smoke_md_says() -> None:
    """Once it starts, the page need no longer say how to start the server by its module."""
    command = [str(Path(sys.executable).with_name("vllm")), "serve", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert found.returncode != 0
    assert "PackageNotFoundError" in found.stderr
