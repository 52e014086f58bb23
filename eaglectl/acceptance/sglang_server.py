"""A running SGLang server as the engine: it says of each request how many rounds it took and what each accepted.

Read in SGLang 0.5.23: entrypoints/openai/protocol.py (return_spec_tokens_details, sglext), http_server.py (/server_info),
managers/scheduler_components/batch_result_processor.py (the histogram counts rounds by drafts accepted, without the bonus token).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from eaglectl.acceptance.http import complete, get, other_drafter
from eaglectl.acceptance.job import EngineRun, Job
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.errors import Refused, Unreadable

HISTOGRAM = "spec_correct_drafts_histogram"


def sglang_info(base: str) -> Mapping[str, Any] | None:
    """What an SGLang server says of itself; None where the server at `base` is none."""
    for place in ("server_info", "get_server_info"):
        try:
            info = get(f"{base}/{place}")
        except Unreadable:
            continue
        if "speculative_algorithm" in info:
            return info
    return None


def run_sglang_server(job: Job, base: str, model: str, info: Mapping[str, Any]) -> EngineRun:
    """Run `job` prompt by prompt. Raises Unreadable where it does not speculate or count, Refused where it drafts with something else."""
    if not info["speculative_algorithm"]:
        raise Unreadable(f"{base} runs no speculative decoding; start it with --speculative-algorithm EAGLE3")
    if info["speculative_algorithm"] != "EAGLE3":
        raise Refused(
            f"{base} runs --speculative-algorithm {info['speculative_algorithm']}, under which an EAGLE-3 head accepts nothing; use EAGLE3"
        )
    steps = info.get("speculative_num_steps")
    if type(steps) is not int or steps < 1:
        raise Unreadable(f"{base}/server_info does not say how many steps it drafts (speculative_num_steps)")
    results, seconds = [], 0.0
    for prompt in job.prompts:
        begin = time.perf_counter()
        tokens, answer = complete(base, model, prompt, job, {"return_spec_tokens_details": True})
        seconds += time.perf_counter() - begin
        drafts, accepted = _rounds(base, answer, steps)
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.told(len(results), len(job.prompts))
    drafter = str(info.get("speculative_draft_model_path") or "not said")
    return EngineRun(
        "server", f"SGLang {info.get('version', 'of unknown version')}", "the server's", "the server's",
        "what the server at this URL does; acceptance simulated by its environment (SGLANG_SIMULATE_ACC_LEN) could not be seen from here",
        tuple(results), (), seconds, 0.0,
        {"model": model, "drafter": drafter, "steps": steps, "topk": info.get("speculative_eagle_topk")},
        other_drafter(job.folder, drafter),
    )  # fmt: skip


def _rounds(base: str, answer: Mapping[str, Any], steps: int) -> tuple[int, tuple[int, ...]]:
    """Rounds of one request, and in how many of them each position was accepted."""
    extension = answer.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
    histogram = details.get(HISTOGRAM) if isinstance(details, Mapping) else None
    if not isinstance(histogram, Sequence) or not all(type(count) is int and count >= 0 for count in histogram):
        raise Unreadable(
            f"{base} does not say what each round accepted (sglext.spec_tokens_details); SGLang 0.5.23 does"
        )
    return sum(histogram), tuple(sum(histogram[position + 1 :]) for position in range(steps))
