"""A running vLLM server as an engine, measured by its counters in /metrics before and after each prompt."""

import time
from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.server.answers import get_optional
from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.metrics import (
    ACCEPTED,
    DRAFTS,
    GENERATED,
    RUNNING,
    Counters,
    count_positions,
    read_counters,
)
from eaglectl.acceptance.server.openai import complete, most_tokens, other_drafter
from eaglectl.errors import RefusedError, UnreadableError

METRICS_TIMEOUT, METRICS_INTERVAL = 5.0, 0.05  # seconds to wait for the counters of a finished request


def run_vllm_server(job: EngineJob, server: Server, model: str) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count by position,
    RefusedError for other traffic and for synthetic acceptance.
    """
    positions = _positions(server, read_counters(server))
    config = _speculative_config(server)
    results, seconds = [], 0.0
    for prompt in job.prompts:
        before = read_counters(server)
        if before.get(RUNNING, 0) > 0:
            raise RefusedError(
                f"{server} is serving other requests, whose drafts would be counted as ours; run against a"
                " server without traffic"
            )
        begin = time.perf_counter()
        tokens, _, _ = complete(server, model, prompt, job)
        seconds += time.perf_counter() - begin
        after = _counters_after(server, before, tokens)
        drafts, accepted = _growth(server, before, after, positions, most_tokens(job))
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.report_progress(len(results))
    drafter = str(config.get("model") or "not said")
    proves = "what the server at this URL does"
    if not config:
        proves += "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"
    return EngineRun(
        engine="server",
        version=f"vLLM {_version(server)}",
        device="the server's",
        dtype="the server's",
        proves=proves,
        results=tuple(results),
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={"model": server.shown(model), "drafter": server.shown(drafter)},
        differences=other_drafter(job.folder, drafter, server.shown(drafter)),
    )


def _positions(server: Server, counters: Counters) -> int:
    """The number of positions that the server counts."""
    if DRAFTS not in counters:
        raise UnreadableError(
            f"{server}/metrics has no {DRAFTS}; the server runs no speculative decoding, or is neither vLLM"
            " nor SGLang: start it with --speculative-config"
        )
    positions = count_positions(counters)
    if positions == 0:
        raise UnreadableError(f"{server}/metrics does not count by position ({ACCEPTED}); a newer vLLM does")
    return positions


def _version(server: Server) -> str:
    version = get_optional(server, "/version", "version").get("version")
    return server.shown(version or "of unknown version")


def _speculative_config(server: Server) -> Mapping[str, Any]:
    """The server's speculative_config, which it shows in development mode; empty elsewhere.

    Raises RefusedError where its acceptance is synthetic.
    """
    info = get_optional(server, "/server_info?config_format=json", "server_info").get("vllm_config")
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    if not isinstance(config, Mapping):
        return {}
    if (method := config.get("rejection_sample_method")) == "synthetic":
        raise RefusedError(
            f"{server} runs with rejection_sample_method: {method}, which invents acceptance; start it"
            " without"
        )
    return config


def _counters_after(server: Server, before: Counters, tokens: int) -> Counters:
    """Counters once they hold the `tokens` of this request. Raises RefusedError for other traffic."""
    deadline = time.monotonic() + METRICS_TIMEOUT
    while True:
        after = read_counters(server)
        grown = after.get(GENERATED, 0) - before.get(GENERATED, 0)
        if grown > tokens:
            raise RefusedError(
                f"{server} generated {grown} tokens while ours were {tokens}; other traffic shows in its"
                " counters: run against a server of your own"
            )
        if grown == tokens:
            return after
        if time.monotonic() > deadline:
            raise UnreadableError(
                f"{server}/metrics shows {grown} of the {tokens} tokens that the server sent; its counters"
                " stand still: see the server's log"
            )
        time.sleep(METRICS_INTERVAL)


def _growth(
    server: Server, before: Counters, after: Counters, positions: int, most: int
) -> tuple[int, tuple[int, ...]]:
    """Drafts of one request, at most `most`, and how many of them had each position accepted."""
    keys = [DRAFTS, *(f"{ACCEPTED}[{position}]" for position in range(positions))]
    growth = [after.get(key, 0) - before.get(key, 0) for key in keys]
    is_possible = all(0 <= count <= bound for count, bound in zip(growth, [most, *growth], strict=False))
    if not is_possible or count_positions(after) != positions:
        raise UnreadableError(
            f"{server}/metrics contradicts itself: one request grew {DRAFTS} by {growth[0]} and {ACCEPTED} by"
            f" {growth[1:]}, of which none may exceed the one before, or {most}; see the server's log, and"
            " run against one without traffic"
        )
    return growth[0], tuple(growth[1:])
