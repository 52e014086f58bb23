"""A running SGLang server as an engine, measured by the counts of rounds in each answer.

Read in SGLang 0.5.23: entrypoints/openai/protocol.py (return_spec_tokens_details, sglext), http_server.py
(/server_info), managers/scheduler_components/batch_result_processor.py (the histogram counts rounds by the
number of accepted draft tokens, without the bonus token).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.server.http import complete, get, other_drafter
from eaglectl.errors import RefusedError, UnreadableError

HISTOGRAM = "spec_correct_drafts_histogram"


def sglang_info(base: str) -> Mapping[str, Any] | None:
    """/server_info of an SGLang server; None where the server at `base` is another."""
    for path in ("server_info", "get_server_info"):
        try:
            info = get(f"{base}/{path}")
        except UnreadableError:
            continue
        if "speculative_algorithm" in info:
            return info
    return None


def run_sglang_server(job: EngineJob, base: str, model: str, info: Mapping[str, Any]) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count, RefusedError where
    its algorithm is not EAGLE3.
    """
    steps = _speculative_steps(base, info)
    results, seconds = [], 0.0
    for prompt in job.prompts:
        begin = time.perf_counter()
        tokens, answer = complete(base, model, prompt, job, {"return_spec_tokens_details": True})
        seconds += time.perf_counter() - begin
        drafts, accepted = _rounds(base, answer, steps)
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.report_progress(len(results))
    drafter = str(info.get("speculative_draft_model_path") or "not said")
    return EngineRun(
        engine="server",
        version=f"SGLang {info.get('version', 'of unknown version')}",
        device="the server's",
        dtype="the server's",
        proves=(
            "what the server at this URL does; acceptance simulated by its environment"
            " (SGLANG_SIMULATE_ACC_LEN) could not be seen from here"
        ),
        results=tuple(results),
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={
            "model": model,
            "drafter": drafter,
            "steps": steps,
            "topk": info.get("speculative_eagle_topk"),
        },
        differences=other_drafter(job.folder, drafter),
    )


def _speculative_steps(base: str, info: Mapping[str, Any]) -> int:
    """speculative_num_steps of a server that runs EAGLE3."""
    algorithm, steps = info["speculative_algorithm"], info.get("speculative_num_steps")
    if not algorithm:
        raise UnreadableError(
            f"{base} runs no speculative decoding; start it with --speculative-algorithm EAGLE3"
        )
    if algorithm != "EAGLE3":
        raise RefusedError(
            f"{base} runs --speculative-algorithm {algorithm}, under which an EAGLE-3 head accepts nothing;"
            " use EAGLE3"
        )
    if type(steps) is not int or steps < 1:
        raise UnreadableError(
            f"{base}/server_info does not say how many steps it drafts (speculative_num_steps)"
        )
    return steps


def _rounds(base: str, answer: Mapping[str, Any], steps: int) -> tuple[int, tuple[int, ...]]:
    """The number of rounds of one request, and in how many of them each position was accepted."""
    extension = answer.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
    histogram: Any = details.get(HISTOGRAM) if isinstance(details, Mapping) else None
    if not _is_histogram(histogram):
        raise UnreadableError(
            f"{base} does not say what each round accepted (sglext.spec_tokens_details); SGLang 0.5.23 does"
        )
    return sum(histogram), tuple(sum(histogram[position + 1 :]) for position in range(steps))


def _is_histogram(value: object) -> bool:
    return isinstance(value, Sequence) and all(type(count) is int and count >= 0 for count in value)
