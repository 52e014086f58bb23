"""smoke on servers that answer as SGLang 0.5.23, a llama-server of llama-cpp-python 0.3.36 and a vLLM in
development mode do (read in their sources), on loopback.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError, UsageError
from tests.servers import ANSWER, INFO, LLAMA, METRICS, MODELS, PROPS, SGLANG, llama_metrics, server, smoke

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


def test_the_number_of_positions_is_the_servers(tmp_path: Path) -> None:
    details = {"spec_verify_ct": 10, "spec_correct_drafts_histogram": [5, 3, 2]}
    counted = {"usage": {"completion_tokens": 17}, "sglext": {"spec_tokens_details": details}}
    report = smoke(tmp_path, {**info(speculative_num_steps=2), "/v1/completions": counted})
    assert (report.k, [position.value for position in report.measured.per_position]) == (2, [0.5, 0.2])


PLAIN = {"/v1/models": MODELS, "/v1/completions": {"usage": {"completion_tokens": 20}}}


def test_a_server_without_a_drafter_gives_the_ratio_and_the_break_even(tmp_path: Path) -> None:
    seen: list[Any] = []
    with server(PLAIN, seen) as baseline:
        speed = smoke(tmp_path, SGLANG, speed=(1, 2), baseline_url=baseline).speed
    assert speed is not None and [row.concurrency for row in speed.rows] == [1, 2]
    assert all(row.plain is not None and row.ratio is not None for row in speed.rows)
    assert len(speed.break_even) == 1 and f"the ratio is that to {baseline}" in speed.how
    assert seen and not any("return_spec_tokens_details" in request for request in seen)


@pytest.mark.parametrize(
    "pages", [SGLANG, {**PLAIN, "/metrics": METRICS.format(tokens=0, drafts=0, first=0, second=0)}]
)
def test_a_baseline_that_drafts_is_refused_and_acceptance_stays(pages: Any, tmp_path: Path) -> None:
    with server(pages, []) as baseline:
        report = smoke(tmp_path, SGLANG, speed=(1,), baseline_url=baseline)
    assert report.speed is None and report.measured.length.value == 2.0
    assert (
        report.speed_gap == f"--baseline-url {baseline}: this server drafts too; start one without a drafter"
    )


def test_a_baseline_that_does_not_answer_is_a_gap(tmp_path: Path) -> None:
    report = smoke(tmp_path, SGLANG, speed=(1,), baseline_url="http://127.0.0.1:9")
    assert report.speed is None and "127.0.0.1:9" in report.speed_gap
    assert "--run-in" not in report.speed_gap and "check this URL" in report.speed_gap


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"run_in": "reference", "speed": (1,), "baseline_url": "http://h:1"},
            "needs vLLM or a running server",
        ),
        ({"run_in": "http://h:1", "baseline_url": "http://h:2"}, "for a running server's speed"),
        ({"run_in": "http://h:1", "speed": (1,), "baseline_url": "h:2"}, "a URL like http://localhost:8001"),
        ({"run_in": "http://h:1", "speed": (1,), "baseline_url": "http://h:1/"}, "is the server of --run-in"),
    ],
)
def test_a_baseline_that_cannot_be_is_a_wrong_call(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        eaglectl.smoke("drafter", "target", eaglectl.SmokeOptions(**options))


def test_another_drafter_on_the_server_fails(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    report = smoke(tmp_path, info(speculative_draft_model_path=str(other)))
    assert report.verdict == "fail"
    assert "drafts with" in report.failures[-1]


def test_a_llama_server_counts_rounds_by_position(tmp_path: Path) -> None:
    seen: list[Any] = []
    report = smoke(tmp_path, LLAMA, seen)
    assert report.measured.drafts == 20
    assert [position.value for position in report.measured.per_position] == [0.6, 0.3, 0.0]
    assert report.measured.length.value == 1.9
    assert (report.run.version, report.run.differences) == ("llama.cpp b1-0c1e570", ())
    assert all(request["cache_prompt"] is False for request in seen)


def replaced(old: str, new: str) -> Callable[[int], str]:
    """The page of counts with another text; {} is the number of tokens."""
    return lambda prompts: llama_metrics(prompts).replace(old.format(20 * prompts), new)


def not_counted(prompts: int) -> str:
    page = f"{llama_metrics(0)}llamacpp:tokens_predicted_total {20 * prompts}\n"
    return page.replace("llamacpp:tokens_predicted_total 0\n", "")


ROUNDED = replaced("tokens_predicted_total {}\n", "tokens_predicted_total 1.23457e+06\n")
BUSY = replaced("requests_processing 0", "requests_processing 1")


def info(**changes: Any) -> dict[str, Any]:
    """Another answer of SGLang's on what it runs."""
    return {**SGLANG, "/server_info": {**INFO, **changes}}


def uncounted(**answer: Any) -> dict[str, Any]:
    return {**SGLANG, "/v1/completions": {"usage": {"completion_tokens": 20}, **answer}}


VLLM = {
    "/v1/models": MODELS,
    "/metrics": METRICS.format(tokens=0, drafts=0, first=0, second=0),
    "/server_info?config_format=json": {
        "vllm_config": {"speculative_config": {"model": "m", "rejection_sample_method": "synthetic"}}
    },
    "/v1/completions": ANSWER,
}
NEGATIVE = {"sglext": {"spec_tokens_details": {"spec_correct_drafts_histogram": [-1]}}}
OLD = "llamacpp:tokens_predicted_total 0\n"
# the pages of a server, and the error with which nothing is measured
NO_MEASUREMENT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no drafts": (info(speculative_algorithm=None), UnreadableError, "runs no speculative decoding"),
    "EAGLE": (info(speculative_algorithm="EAGLE"), RefusedError, "accepts nothing"),
    "no steps": (info(speculative_num_steps=None), UnreadableError, "does not report speculative_num_steps"),
    "no counts": (uncounted(), UnreadableError, "spec_tokens_details"),
    "empty counts": (uncounted(sglext={}), UnreadableError, "spec_tokens_details"),
    "negative counts": (uncounted(**NEGATIVE), UnreadableError, "spec_tokens_details"),
    "invented": (VLLM, RefusedError, "simulates acceptance"),
    "no metrics": (
        {**LLAMA, "/props": {**PROPS, "endpoint_metrics": False}},
        UnreadableError,
        "without /metrics",
    ),
    "no drafts counted": ({**LLAMA, "/metrics": not_counted}, UnreadableError, "drafted no tokens"),
    "too old": ({**LLAMA, "/metrics": OLD}, UnreadableError, "run that or a later release"),
    "rounded": ({**LLAMA, "/metrics": ROUNDED}, UnreadableError, "rounds large counts; restart the server"),
    "other traffic": ({**LLAMA, "/metrics": BUSY}, RefusedError, "serving other requests"),
}


@pytest.mark.parametrize("case", NO_MEASUREMENT)
def test_a_server_whose_counts_say_nothing_is_no_measurement(case: str, tmp_path: Path) -> None:
    pages, error, words = NO_MEASUREMENT[case]
    with pytest.raises(error, match=words):
        smoke(tmp_path, pages)
