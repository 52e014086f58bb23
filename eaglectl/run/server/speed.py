"""Tokens a second of a running server, with so many requests in flight."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from eaglectl.progress import report_step
from eaglectl.run.job import EngineJob
from eaglectl.run.server.answers import Completion, complete, first_model, hold, most_tokens
from eaglectl.run.server.http import Server, open_server
from eaglectl.run.server.metrics import LLAMACPP, VLLM, CounterNames, count_requests
from eaglectl.run.server.run import count_rounds, llamacpp_props, sglang_info, speculative_steps
from eaglectl.run.speed import NO_RATIO, Speed, compare_timings
from eaglectl.run.timing import Batch, RunBatch, time_repeats

# the completion of the prompt with this number
Send = Callable[[int], Completion]


def measure_server(job: EngineJob, url: str, k: int, concurrencies: Sequence[int]) -> Speed:
    """Time the server at `url`, which drafts `k` tokens, on the prompts of `job`. Raises as `run_server`."""
    server = open_server(url, job.timeout)
    report_step(job.on_progress, "timing the server")
    run = _make_runner(replace(job, ignores_eos=True), server, first_model(server))
    timings = time_repeats(run, concurrencies, len(job.prompts))
    repeats = min(len(timing.batches) for timing in timings)
    how = (
        f"this server over HTTP, warm, so many requests in flight, each of {job.max_tokens} new tokens where"
        " it takes ignore_eos; prompts come again, and their prefixes may be in its cache;"
        f" {repeats} repeats; {NO_RATIO}"
    )
    return Speed(compare_timings(k, timings, None), "the server's", "", job.max_tokens, repeats, how)


def _make_runner(job: EngineJob, server: Server, model: str) -> RunBatch:
    """What runs a batch on the server, and counts as that kind of server does."""
    most = most_tokens(job)

    def send(extra: Mapping[str, Any], index: int) -> Completion:
        return complete(server, model, job.prompts[index], job, extra)

    info = sglang_info(server)
    if info is not None:
        steps = speculative_steps(server, info)
        send_counted = partial(send, {"return_spec_tokens_details": True})
        return partial(_run_sglang, server, steps, most, send_counted)
    if llamacpp_props(server) is not None:
        # as acceptance is measured: a cached prompt would not be evaluated anew
        return partial(_run_counted, server, LLAMACPP, most, partial(send, {"cache_prompt": False}))
    return partial(_run_counted, server, VLLM, most, partial(send, {}))


def _run_counted(
    server: Server, names: CounterNames, most: int, send: Send, concurrency: int, indices: Sequence[int]
) -> Batch:
    """A batch on a server that counts in /metrics. Raises RefusedError for other traffic."""
    send_all = partial(_send_all, send, concurrency, indices)
    tokens, seconds, drafts, accepted = count_requests(server, names, send_all, most * len(indices))
    return Batch(tokens, seconds, drafts, sum(accepted))


def _run_sglang(
    server: Server, steps: int, most: int, send: Send, concurrency: int, indices: Sequence[int]
) -> Batch:
    """A batch on a server that counts in each answer."""
    begin = time.perf_counter()
    answers = _send_all(send, concurrency, indices)
    seconds = time.perf_counter() - begin
    drafts = accepted = 0
    for _, path, answer in answers:
        hold(server, path, "rounds", answer)
        rounds, by_position = count_rounds(server, answer, steps, most)
        drafts, accepted = drafts + rounds, accepted + sum(by_position)
    return Batch(sum(count for count, _, _ in answers), seconds, drafts, accepted)


def _send_all(send: Send, concurrency: int, indices: Sequence[int]) -> list[Completion]:
    """The answers, with `concurrency` requests in flight until the last ones."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(send, indices))
