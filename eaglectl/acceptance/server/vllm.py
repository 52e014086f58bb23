"""A running vLLM server as an engine, measured by its counters in /metrics before and after each prompt."""

import re
import time
from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.server.http import complete, get, other_drafter, read
from eaglectl.errors import RefusedError, UnreadableError

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+0-9.eE]+|NaN|[+-]Inf)\s*$")
METRICS_TIMEOUT, METRICS_INTERVAL = 5.0, 0.05  # seconds to wait for the counters of a finished request

Counters = Mapping[str, float]


def run_vllm_server(job: EngineJob, base: str, model: str) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count by position,
    RefusedError for other traffic and for synthetic acceptance.
    """
    _check_counters(base, _counters(base))
    config = _speculative_config(base)
    results, seconds = [], 0.0
    for prompt in job.prompts:
        before = _counters(base)
        if before.get(RUNNING, 0.0) > 0:
            raise RefusedError(
                f"{base} is serving other requests, whose drafts would be counted as ours; run against a"
                " server without traffic"
            )
        begin = time.perf_counter()
        tokens, _ = complete(base, model, prompt, job)
        seconds += time.perf_counter() - begin
        after = _counters_after(base, before, tokens)
        accepted = tuple(
            int(after.get(key, 0) - before.get(key, 0))
            for key in (f"{ACCEPTED}[{position}]" for position in range(_positions(after)))
        )
        drafts = int(after[DRAFTS] - before[DRAFTS])
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.report_progress(len(results))
    drafter = str(config.get("model", "not said"))
    proves = "what the server at this URL does"
    if not config:
        proves += "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"
    return EngineRun(
        engine="server",
        version=f"vLLM {_version(base)}",
        device="the server's",
        dtype="the server's",
        proves=proves,
        results=tuple(results),
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={"model": model, "drafter": drafter},
        differences=other_drafter(job.folder, drafter),
    )


def _check_counters(base: str, counters: Counters) -> None:
    if DRAFTS not in counters:
        raise UnreadableError(
            f"{base}/metrics has no {DRAFTS}; the server runs no speculative decoding, or is neither vLLM nor"
            " SGLang: start it with --speculative-config"
        )
    if _positions(counters) == 0:
        raise UnreadableError(f"{base}/metrics does not count by position ({ACCEPTED}); a newer vLLM does")


def _version(base: str) -> str:
    try:
        return str(get(f"{base}/version").get("version", "of unknown version"))
    except UnreadableError:
        return "of unknown version"


def _speculative_config(base: str) -> Mapping[str, Any]:
    """The server's speculative_config, which it shows in development mode; empty elsewhere.

    Raises RefusedError where its acceptance is synthetic.
    """
    try:
        info = get(f"{base}/server_info?config_format=json").get("vllm_config")
    except UnreadableError:
        return {}
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    if not isinstance(config, Mapping):
        return {}
    if (method := config.get("rejection_sample_method")) == "synthetic":
        raise RefusedError(
            f"{base} runs with rejection_sample_method: {method}, which invents acceptance; start it without"
        )
    return config


def _counters_after(base: str, before: Counters, tokens: int) -> Counters:
    """Counters once they hold the `tokens` of this request. Raises RefusedError for other traffic."""
    deadline = time.monotonic() + METRICS_TIMEOUT
    while True:
        after = _counters(base)
        grown = int(after.get(GENERATED, 0) - before.get(GENERATED, 0))
        if grown > tokens:
            raise RefusedError(
                f"{base} generated {grown} tokens while ours were {tokens}; other traffic shows in its"
                " counters: run against a server of your own"
            )
        if grown == tokens:
            return after
        if time.monotonic() > deadline:
            raise UnreadableError(
                f"{base}/metrics shows {grown} of the {tokens} tokens that the server sent; its counters"
                " stand still"
            )
        time.sleep(METRICS_INTERVAL)


def _positions(counters: Counters) -> int:
    return sum(key.startswith(f"{ACCEPTED}[") for key in counters)


def _counters(base: str) -> Counters:
    """Values of vLLM's metrics, summed over labels; those with a position are named "metric[position]"."""
    counters: dict[str, float] = {}
    for line in read(f"{base}/metrics").decode("utf-8", "replace").splitlines():
        sample = SAMPLE.match(line)
        if not sample or not sample[1].startswith("vllm:"):
            continue
        position = re.search(r'position="(\d+)"', sample[2] or "")
        key = f"{sample[1]}[{position[1]}]" if position else sample[1]
        counters[key] = counters.get(key, 0.0) + float(sample[3])
    return counters
