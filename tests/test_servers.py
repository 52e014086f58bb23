"""smoke on servers that answer as SGLang 0.5.23, a llama-server of llama-cpp-python 0.3.36 and a vLLM in
development mode do (read in their sources), on loopback.
"""

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.report import SmokeReport
from tests.builders import drafter_folder

pytest.importorskip("torch")

MODELS = {"data": [{"id": "m"}]}
INFO = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "version": "0.5.23",
    "speculative_draft_model_path": "org/drafter",
}
DETAILS = {"spec_verify_ct": 10, "spec_correct_drafts_histogram": [4, 3, 2, 1]}
ANSWER = {"usage": {"completion_tokens": 20}, "sglext": {"spec_tokens_details": DETAILS}}
SGLANG = {"/v1/models": MODELS, "/server_info": INFO, "/v1/completions": ANSWER}


@contextmanager
def server(pages: Mapping[str, Any], seen: list[Any]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            page = page(len(seen)) if callable(page) else page
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write((page if isinstance(page, str) else json.dumps(page)).encode())

        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def smoke(tmp_path: Path, pages: Mapping[str, Any], seen: list[Any] | None = None) -> SmokeReport:
    folder = drafter_folder(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text('{"num_hidden_layers": 8, "model_type": "llama"}')
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    with server(pages, [] if seen is None else seen) as url:
        options = eaglectl.SmokeOptions(engine=url, prompts=tmp_path / "prompts.txt", max_tokens=20)
        return eaglectl.smoke(str(folder), str(tmp_path / "target"), options)


def test_sglang_says_of_each_request_what_its_rounds_accepted(tmp_path: Path) -> None:
    seen: list[Any] = []
    report = smoke(tmp_path, SGLANG, seen)
    assert (report.verdict, report.measured.drafts) == ("could-not-look", 20)
    assert report.gaps[0].startswith("too few to judge by: prompts 2 of the 4 needed, drafts 20 of the 50")
    assert [position.value for position in report.measured.per_position] == [0.6, 0.3, 0.1]
    assert report.measured.length.value == 2.0
    assert report.run.version == "SGLang 0.5.23"
    assert all(request["return_spec_tokens_details"] and not request["ignore_eos"] for request in seen)


def test_rounds_that_never_reach_the_last_position_still_count_it(tmp_path: Path) -> None:
    short = {
        **ANSWER,
        "sglext": {"spec_tokens_details": {**DETAILS, "spec_correct_drafts_histogram": [5, 5]}},
    }
    report = smoke(tmp_path, {**SGLANG, "/v1/completions": short})
    assert [position.value for position in report.measured.per_position] == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"speculative_algorithm": None}, UnreadableError, "runs no speculative decoding"),
        ({"speculative_algorithm": "EAGLE"}, RefusedError, "accepts nothing"),
        ({"speculative_num_steps": None}, UnreadableError, "how many steps"),
    ],
)
def test_an_sglang_server_that_does_not_draft_with_eagle3_is_no_measurement(
    change: dict[str, Any], error: type[Exception], word: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=word):
        smoke(tmp_path, {**SGLANG, "/server_info": {**INFO, **change}})


@pytest.mark.parametrize(
    "answer",
    [{}, {"sglext": {}}, {"sglext": {"spec_tokens_details": {"spec_correct_drafts_histogram": [-1]}}}],
)
def test_an_sglang_that_does_not_count_is_unreadable(answer: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="spec_tokens_details"):
        smoke(tmp_path, {**SGLANG, "/v1/completions": {"usage": {"completion_tokens": 20}, **answer}})


def test_another_drafter_on_the_server_fails(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    report = smoke(tmp_path, {**SGLANG, "/server_info": {**INFO, "speculative_draft_model_path": str(other)}})
    assert report.verdict == "fail"
    assert "drafts with" in report.failures[-1]


COUNTERS = (
    'vllm:num_requests_running{engine="0"} 0.0\nvllm:generation_tokens_total{engine="0"} 0.0\n'
    'vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 0.0\n'
)


def test_invented_acceptance_on_a_vllm_server_is_refused(tmp_path: Path) -> None:
    info = {"vllm_config": {"speculative_config": {"model": "m", "rejection_sample_method": "synthetic"}}}
    pages = {
        "/v1/models": MODELS,
        "/metrics": COUNTERS,
        "/server_info?config_format=json": info,
        "/v1/completions": ANSWER,
    }
    with pytest.raises(RefusedError, match="invents acceptance"):
        smoke(tmp_path, pages)


PROPS = {
    "build_info": "b1-0c1e570",
    "model_path": "target.gguf",
    "endpoint_metrics": True,
    "default_generation_settings": {"n_ctx": 512},
}
# after each prompt of 20 tokens: the first one, then 10 rounds, in which 6, 3 and 0 drafts were accepted
GROWTH = {"tokens_predicted_total": 20, "spec_decode_num_drafts_total": 10}
ACCEPTED = (6, 3, 0)


def llama_metrics(prompts: int) -> str:
    """The page after so many prompts: positions are counted from the first draft on."""
    lines = [f"llamacpp:{name} {count * prompts}" for name, count in GROWTH.items()]
    lines += ["llamacpp:requests_processing 0", "llamacpp:prompt_tokens_seconds 1.23457e+06"]
    by_position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    if prompts:
        lines += [
            f'{by_position}{{position="{place}"}} {count * prompts}' for place, count in enumerate(ACCEPTED)
        ]
    return "\n".join(["# TYPE llamacpp:n_decode_total counter", *lines, ""])


LLAMA = {
    "/v1/models": MODELS,
    "/props": PROPS,
    "/metrics": llama_metrics,
    "/v1/completions": {
        "usage": {"completion_tokens": 20},
        "timings": {"draft_n": 30, "draft_n_accepted": 9},
    },
}


def test_a_llama_server_counts_rounds_by_position(tmp_path: Path) -> None:
    seen: list[Any] = []
    report = smoke(tmp_path, LLAMA, seen)
    assert report.measured.drafts == 20
    assert [position.value for position in report.measured.per_position] == [0.6, 0.3, 0.0]
    assert report.measured.length.value == 1.9
    assert report.run.version == "llama.cpp b1-0c1e570"
    assert all(request["cache_prompt"] is False for request in seen)


def test_a_llama_server_without_metrics_could_not_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="without /metrics"):
        smoke(tmp_path, {**LLAMA, "/props": {**PROPS, "endpoint_metrics": False}})


def test_a_llama_server_that_drafts_nothing_is_no_measurement(tmp_path: Path) -> None:
    def page(prompts: int) -> str:
        return f"{llama_metrics(0)}llamacpp:tokens_predicted_total {20 * prompts}\n".replace(
            "llamacpp:tokens_predicted_total 0\n", ""
        )

    with pytest.raises(UnreadableError, match="drafted nothing"):
        smoke(tmp_path, {**LLAMA, "/metrics": page})


def test_a_llama_server_before_its_counters_of_drafts_is_too_old(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="run that or a later one"):
        smoke(tmp_path, {**LLAMA, "/metrics": "llamacpp:tokens_predicted_total 0\n"})


def test_counts_that_a_llama_server_rounds_are_not_read(tmp_path: Path) -> None:
    def page(prompts: int) -> str:
        rounded = "llamacpp:tokens_predicted_total 1.23457e+06"
        return llama_metrics(prompts).replace(f"llamacpp:tokens_predicted_total {20 * prompts}", rounded)

    with pytest.raises(UnreadableError, match="rounds large counts; restart the server"):
        smoke(tmp_path, {**LLAMA, "/metrics": page})


def test_other_traffic_on_a_llama_server_is_refused(tmp_path: Path) -> None:
    def page(prompts: int) -> str:
        return llama_metrics(prompts).replace("requests_processing 0", "requests_processing 1")

    with pytest.raises(RefusedError, match="serving other requests"):
        smoke(tmp_path, {**LLAMA, "/metrics": page})
