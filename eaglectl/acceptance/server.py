"""A running vLLM server as the engine: prompts go over its OpenAI API, counters come from /metrics before and after."""

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from eaglectl.acceptance.job import EngineRun, Job
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.prompts import Prompt
from eaglectl.errors import Refused, Unreadable

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+0-9.eE]+|NaN|[+-]Inf)\s*$")


def run_server(job: Job, url: str) -> EngineRun:
    """Run `job` against the server at `url`, prompt by prompt. Raises Unreadable where it does not answer or speculate, Refused for other traffic."""
    base = url.rstrip("/")
    model = _model(base)
    first = _counters(base)
    if DRAFTS not in first:
        raise Unreadable(
            f"{base}/metrics has no {DRAFTS}; the server runs no speculative decoding, or is not vLLM: start it with"
            " --speculative-config"
        )
    if _positions(first) == 0:
        raise Unreadable(f"{base}/metrics does not count by position ({ACCEPTED}); a newer vLLM does")
    results, seconds = [], 0.0
    for prompt in job.prompts:
        before = _counters(base)
        if before.get(RUNNING, 0.0) > 0:
            raise Refused(
                f"{base} is serving other requests, whose drafts would be counted as ours; run against a server without"
                " traffic"
            )
        begin = time.perf_counter()
        tokens = _complete(base, model, prompt, job)
        seconds += time.perf_counter() - begin
        after = _settled(base, before, tokens)
        drafts = int(after[DRAFTS] - before[DRAFTS])
        accepted = tuple(
            int(after.get(f"{ACCEPTED}[{i}]", 0) - before.get(f"{ACCEPTED}[{i}]", 0)) for i in range(_positions(after))
        )
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
        job.told(len(results), len(job.prompts))
    try:
        version = _get(f"{base}/version").get("version", "of unknown version")
    except Unreadable:
        version = "of unknown version"
    return EngineRun(
        "server",
        f"vLLM {version}",
        "the server's",
        "the server's",
        "what the server at this URL does",
        tuple(results),
        (),
        seconds,
        0.0,
        {"model": model},
    )


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


def _model(base: str) -> str:
    found = _get(f"{base}/v1/models").get("data")
    if not isinstance(found, list) or not found or not isinstance(found[0], dict) or "id" not in found[0]:
        raise Unreadable(f"{base}/v1/models lists no model; this is not an OpenAI-compatible server")
    return str(found[0]["id"])


def _complete(base: str, model: str, prompt: Prompt, job: Job) -> int:
    is_chat = prompt.is_chat and _has_template(job.target)
    body = {
        "model": model,
        **({"messages": [{"role": "user", "content": prompt.text}]} if is_chat else {"prompt": prompt.text}),
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "ignore_eos": True,
    }
    url = f"{base}/v1/chat/completions" if is_chat else f"{base}/v1/completions"
    answer = _get(url, json.dumps(body).encode(), job.timeout)
    usage = answer.get("usage")
    if not isinstance(usage, dict) or type(usage.get("completion_tokens")) is not int:
        raise Unreadable(f"{url} did not say how many tokens it made (usage.completion_tokens)")
    count: int = usage["completion_tokens"]
    return count


def _has_template(target: Path) -> bool:
    """Whether the target's tokenizer has a chat template; the other engines then use it (reference_engine.token_ids)."""
    config = target / "tokenizer_config.json"
    return (target / "chat_template.jinja").is_file() or (
        config.is_file() and "chat_template" in json.loads(config.read_text())
    )


def _counters(base: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in _read(f"{base}/metrics").decode("utf-8", "replace").splitlines():
        sample = SAMPLE.match(line)
        if not sample or not sample[1].startswith("vllm:"):
            continue
        place = re.search(r'position="(\d+)"', sample[2] or "")
        key = f"{sample[1]}[{place[1]}]" if place else sample[1]
        found[key] = found.get(key, 0.0) + float(sample[3])
    return found


def _get(url: str, body: bytes | None = None, timeout: float = 30.0) -> dict[str, Any]:
    try:
        value = json.loads(_read(url, body, timeout))
    except ValueError:
        raise Unreadable(f"{url} did not answer with JSON; this is not an OpenAI-compatible server") from None
    return value if isinstance(value, dict) else {}


def _read(url: str, body: bytes | None = None, timeout: float = 30.0) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.HTTPError as error:
        raise Unreadable(f"{url} answered {error.code}: {error.read(300).decode('utf-8', 'replace')}") from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{url}: no answer ({error})") from None
