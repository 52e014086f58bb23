"""smoke on servers that answer as SGLang 0.5.23, a llama-server of llama-cpp-python 0.3.36 and a vLLM in
development mode do (read in their sources), on loopback.
"""

from pathlib import Path
from typing import Any

import pytest

from eaglectl.errors import RefusedError, UnreadableError
from tests.servers import ANSWER, DETAILS, INFO, LLAMA, MODELS, PROPS, SGLANG, llama_metrics, smoke

pytest.importorskip("torch")


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
