"""A running server as the engine: vLLM's by its counters in /metrics before and after, SGLang's by what it says of each request."""

import re
import time
from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.http import complete, first_model, get, other_drafter, read
from eaglectl.acceptance.job import EngineRun, Job
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.sglang_server import run_sglang_server, sglang_info
from eaglectl.errors import Refused, Unreadable

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+0-9.eE]+|NaN|[+-]Inf)\s*$")


def run_server(job: Job, url: str) -> EngineRun:
    """Run `job` against the server at `url`, prompt by prompt. Raises Unreadable where it does not answer or speculate, Refused for other traffic."""
    base = url.rstrip("/")
    model = first_model(base)
    if (info := sglang_info(base)) is not None:
        return run_sglang_server(job, base, model, info)
    first = _counters(base)
    if DRAFTS not in first:
        raise Unreadable(
            f"{base}/metrics has no {DRAFTS}; the server runs no speculative decoding, or is neither vLLM nor SGLang: start it with"
            " --speculative-config"
        )
    if _positions(first) == 0:
        raise Unreadable(f"{base}/metrics does not count by position ({ACCEPTED}); a newer vLLM does")
    settings = _settings(base)
    results, seconds = [], 0.0
    for prompt in job.prompts:
        before = _counters(base)
        if before.get(RUNNING, 0.0) > 0:
            raise Refused(
                f"{base} is serving other requests, whose drafts would be counted as ours; run against a server without"
                " traffic"
            )
        begin = time.perf_counter()
        tokens, _ = complete(base, model, prompt, job)
        seconds += time.perf_counter() - begin
        after = _settled(base, before, tokens)
        drafts = int(after[DRAFTS] - before[DRAFTS])
        accepted = tuple(
            int(after.get(f"{ACCEPTED}[{i}]", 0) - before.get(f"{ACCEPTED}[{i}]", 0)) for i in range(_positions(after))
        )
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.told(len(results), len(job.prompts))
    drafter = str(settings.get("model", "not said"))
    return EngineRun(
        "server", f"vLLM {_version(base)}", "the server's", "the server's",
        "what the server at this URL does" + ("" if settings else "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"),
        tuple(results), (), seconds, 0.0, {"model": model, "drafter": drafter}, other_drafter(job.folder, drafter),
    )  # fmt: skip


def _version(base: str) -> str:
    try:
        return str(get(f"{base}/version").get("version", "of unknown version"))
    except Unreadable:
        return "of unknown version"


def _settings(base: str) -> Mapping[str, Any]:
    """The server's speculative_config where it shows it (development mode). Raises Refused where its acceptance is invented."""
    try:
        config = get(f"{base}/server_info?config_format=json").get("vllm_config")
    except Unreadable:
        return {}
    found = config.get("speculative_config") if isinstance(config, Mapping) else None
    settings: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    if (method := settings.get("rejection_sample_method")) == "synthetic":
        raise Refused(f"{base} runs with rejection_sample_method: {method}, which invents acceptance; start it without")
    return settings


def _settled(base: str, before: dict[str, float], tokens: int) -> dict[str, float]:
    """Counters once they hold our tokens; more than ours is somebody else's traffic."""
    deadline = time.monotonic() + 5.0
    while True:
        after = _counters(base)
        grown = int(after.get(GENERATED, 0) - before.get(GENERATED, 0))
        if grown > tokens:
            raise Refused(
                f"{base} generated {grown} tokens while ours were {tokens}; other traffic shows in its counters: run"
                " against a server of your own"
            )
        if grown == tokens:
            return after
        if time.monotonic() > deadline:
            raise Unreadable(
                f"{base}/metrics shows {grown} of the {tokens} tokens that the server sent; its counters stand still"
            )
        time.sleep(0.05)


def _positions(counters: dict[str, float]) -> int:
    return sum(1 for key in counters if key.startswith(f"{ACCEPTED}["))


def _counters(base: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in read(f"{base}/metrics").decode("utf-8", "replace").splitlines():
        sample = SAMPLE.match(line)
        if not sample or not sample[1].startswith("vllm:"):
            continue
        place = re.search(r'position="(\d+)"', sample[2] or "")
        key = f"{sample[1]}[{place[1]}]" if place else sample[1]
        found[key] = found.get(key, 0.0) + float(sample[3])
    return found
