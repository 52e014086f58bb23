"""A running SGLang server as an engine, measured by the counts of rounds in each answer.

Read in SGLang 0.5.23: entrypoints/openai/protocol.py (return_spec_tokens_details, sglext), http_server.py
(/server_info), managers/scheduler_components/batch_result_processor.py (the histogram counts rounds by the
number of accepted draft tokens, without the bonus token).
"""

import time
from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.server.answers import get_optional, hold
from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.openai import complete, most_tokens, other_drafter
from eaglectl.errors import RefusedError, UnreadableError

HISTOGRAM = "spec_correct_drafts_histogram"


def sglang_info(server: Server) -> Mapping[str, Any] | None:
    """/server_info of an SGLang server; None where the server is another. Raises UnreadableError."""
    for path in ("/server_info", "/get_server_info"):
        info = get_optional(server, path, "server_info")
        if "speculative_algorithm" in info:
            return info
    return None


def run_sglang_server(job: EngineJob, server: Server, model: str, info: Mapping[str, Any]) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count, RefusedError where
    its algorithm is not EAGLE3.
    """
    steps = _speculative_steps(server, info)
    results, seconds = [], 0.0
    for prompt in job.prompts:
        begin = time.perf_counter()
        tokens, path, answer = complete(server, model, prompt, job, {"return_spec_tokens_details": True})
        seconds += time.perf_counter() - begin
        hold(server, path, "rounds", answer)
        drafts, accepted = _rounds(server, answer, steps, most_tokens(job))
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.report_progress(len(results))
    drafter = str(info.get("speculative_draft_model_path") or "not said")
    return EngineRun(
        engine="server",
        version=f"SGLang {server.shown(info.get('version') or 'of unknown version')}",
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
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "steps": steps,
            "topk": info.get("speculative_eagle_topk"),
        },
        differences=other_drafter(job.folder, drafter, server.shown(drafter)),
    )


def _speculative_steps(server: Server, info: Mapping[str, Any]) -> int:
    """speculative_num_steps of a server that runs EAGLE3."""
    algorithm, steps = info["speculative_algorithm"], info.get("speculative_num_steps")
    if not algorithm:
        raise UnreadableError(
            f"{server} runs no speculative decoding; start it with --speculative-algorithm EAGLE3"
        )
    if algorithm != "EAGLE3":
        raise RefusedError(
            f"{server} runs --speculative-algorithm {server.shown(algorithm)}, under which an EAGLE-3"
            " head accepts nothing; use EAGLE3"
        )
    if not isinstance(steps, int):
        raise UnreadableError(
            f"{server}/server_info does not say how many steps it drafts (speculative_num_steps); start it"
            " with --speculative-num-steps"
        )
    return steps


def _rounds(server: Server, answer: Mapping[str, Any], steps: int, most: int) -> tuple[int, tuple[int, ...]]:
    """The number of rounds of one request, at most `most`, and in how many each position was accepted."""
    histogram: list[int] = answer["sglext"]["spec_tokens_details"][HISTOGRAM]
    rounds = sum(histogram)
    if rounds > most or any(histogram[steps + 1 :]):
        raise UnreadableError(
            f"{server} says that {rounds} rounds accepted up to {len(histogram) - 1} draft tokens"
            f" ({HISTOGRAM}); at most {most} rounds of {steps} were possible: see the server's log"
        )
    return rounds, tuple(sum(histogram[position + 1 :]) for position in range(steps))
