"""Rounds of a server by its counters in /metrics, before and after each prompt."""

import time
from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.metrics import CounterNames, Counters, count_positions, read_counters
from eaglectl.acceptance.server.openai import complete, most_tokens
from eaglectl.errors import RefusedError, UnreadableError

METRICS_TIMEOUT, METRICS_INTERVAL = 5.0, 0.05  # seconds to wait for the counters of a finished request


def measured(
    job: EngineJob,
    server: Server,
    model: str,
    names: CounterNames,
    positions: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> tuple[tuple[PromptResult, ...], float]:
    """The rounds of each prompt of `job`, and the seconds that the requests took.

    `positions` is the number of positions that the server counts; None where it counts none before its first
    draft. `extra` are more keys of each request. Raises UnreadableError for counters that contradict
    themselves, RefusedError for other traffic.
    """
    results: list[tuple[str, int, tuple[int, ...], int]] = []
    seconds = 0.0
    for prompt in job.prompts:
        before = read_counters(server, names)
        if before.get(names.running, 0) > 0:
            raise RefusedError(
                f"{server} is serving other requests, whose drafts would be counted as ours; run against a"
                " server without traffic"
            )
        begin = time.perf_counter()
        tokens, _, _ = complete(server, model, prompt, job, extra)
        seconds += time.perf_counter() - begin
        after = _counters_after(server, names, before, tokens)
        counted = count_positions(after, names) if positions is None else positions
        drafts, accepted = _growth(server, names, (before, after), counted, most_tokens(job))
        results.append((prompt.set, drafts, accepted, tokens))
        job.report_progress(len(results))
    most = max((len(accepted) for _, _, accepted, _ in results), default=0)
    padded = (
        PromptResult(name, drafts, (*accepted, *[0] * (most - len(accepted))), (0,) * tokens)
        for name, drafts, accepted, tokens in results
    )
    return tuple(padded), seconds


def _counters_after(server: Server, names: CounterNames, before: Counters, tokens: int) -> Counters:
    """Counters once they hold the `tokens` of this request. Raises RefusedError for other traffic."""
    deadline = time.monotonic() + METRICS_TIMEOUT
    while True:
        after = read_counters(server, names)
        grown = after.get(names.generated, 0) - before.get(names.generated, 0)
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
    server: Server, names: CounterNames, counters: tuple[Counters, Counters], positions: int, most: int
) -> tuple[int, tuple[int, ...]]:
    """Drafts of one request, at most `most`, and how many of them had each position accepted."""
    before, after = counters
    keys = [names.drafts, *(f"{names.accepted}[{position}]" for position in range(positions))]
    growth = [after.get(key, 0) - before.get(key, 0) for key in keys]
    is_possible = all(0 <= count <= bound for count, bound in zip(growth, [most, *growth], strict=False))
    if not is_possible or count_positions(after, names) != positions:
        raise UnreadableError(
            f"{server}/metrics contradicts itself: one request grew {names.drafts} by {growth[0]} and"
            f" {names.accepted} by {growth[1:]}, of which none may exceed the one before, or {most};"
            " see the server's log, and run against one without traffic"
        )
    return growth[0], tuple(growth[1:])
