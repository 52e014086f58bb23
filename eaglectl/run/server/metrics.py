"""Rounds of a server by its counters in /metrics, before and after each prompt.

Prometheus' text format is read strictly for the four counters that are used.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.job import EngineJob
from eaglectl.run.measurement import PromptResult
from eaglectl.run.prompts import Prompt
from eaglectl.run.server.answers import MAX_STEPS, Completion, complete, most_tokens
from eaglectl.run.server.http import Server

PATH = "/metrics"

METRICS_TIMEOUT, METRICS_INTERVAL = 5.0, 0.05  # seconds to wait for the counters of a finished request


class CounterNames(Struct, frozen=True):
    """How a server calls the counters of drafts, of drafts accepted by position, of tokens, of requests.

    `is_rounded`: it prints large counts with six digits, which are then no counts.
    """

    title: str
    drafts: str
    accepted: str
    generated: str
    running: str
    is_rounded: bool = False

    @property
    def every(self) -> tuple[str, ...]:
        """All four names."""
        return self.drafts, self.accepted, self.generated, self.running


VLLM = CounterNames(
    "vLLM",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
)
# tools/server/server-task.cpp, llama-cpp-python 0.3.36
LLAMACPP = CounterNames(
    "llama.cpp",
    "llamacpp:spec_decode_num_drafts_total",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:requests_processing",
    is_rounded=True,
)
# name{labels} value [timestamp]; quotes in the value of a label are escaped
SAMPLE = re.compile(
    r'([a-z_:]++)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?[ \t]++(\S++)(?:[ \t]++-?[0-9]{1,20})?[ \t\r]*+'
)
POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,4})"')
# the server prints counters as floats
COUNT = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+?[0-9]{1,2})?", re.IGNORECASE)
MOST = 2.0**53

Counters = Mapping[str, int]


def read_counters(server: Server, names: CounterNames = VLLM) -> Counters:
    """Values of a server's counters. Raises UnreadableError."""
    return parse_counters(server, server.read(PATH), names)


def parse_counters(server: Server, raw: bytes, names: CounterNames = VLLM) -> Counters:
    """Values of a server's counters, summed over labels; those with a position are named "metric[position]".

    Raises UnreadableError for a sample that cannot be read, or positions with gaps.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(server, names, f"is not UTF-8 text (byte {error.start})") from None
    samples = _samples(server, text, names)
    counters: dict[str, int] = {}
    for key, value in samples.values():
        counters[key] = counters.get(key, 0) + value
    positions = count_positions(counters, names)
    if positions > MAX_STEPS or any(
        f"{names.accepted}[{position}]" not in counters for position in range(positions)
    ):
        raise _fault(server, names, f"counts by positions that are not 0, 1, 2 ... up to {MAX_STEPS - 1}")
    return counters


def _samples(server: Server, text: str, names: CounterNames) -> dict[str, tuple[str, int]]:
    """Key and value of each sample of the four, by its name and labels."""
    # how a sample of them begins, whatever follows
    begins = tuple(f"{name}{end}" for name in names.every for end in "{ \t")
    samples: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        match = SAMPLE.fullmatch(line) if line.startswith(names.every) else None
        if match is None or match[1] not in names.every:
            if line.startswith(begins):
                raise _unreadable(server, names, number, line)
            continue
        _check_exact(server, names, match)
        key, value = _key(match[1], match[2] or "", names), _value(match[3])
        labelled = f"{match[1]}{match[2]}"
        # the format has each sample once, and a sum would count it twice
        if key is None or value is None or labelled in samples:
            raise _unreadable(server, names, number, line)
        samples[labelled] = key, value
    return samples


def _check_exact(server: Server, names: CounterNames, match: re.Match[str]) -> None:
    """Raise UnreadableError for a count that the server rounded."""
    if names.is_rounded and "e" in match[3].lower():
        raise UnreadableError(
            f"{server}{PATH} has {match[1]} {server.shown(match[3])}: {names.title} rounds large counts;"
            " restart the server"
        )


def count_positions(counters: Counters, names: CounterNames = VLLM) -> int:
    """The number of positions that are counted."""
    return sum(key.startswith(f"{names.accepted}[") for key in counters)


def _key(name: str, labels: str, names: CounterNames) -> str | None:
    """The key of a sample; None where its position cannot be read."""
    if name != names.accepted:
        return name
    position = POSITION.search(labels)
    return f"{name}[{int(position[1])}]" if position else None


def _value(text: str) -> int | None:
    """The count that `text` is; None where it is none."""
    value = float(text) if COUNT.fullmatch(text) else -1.0
    return int(value) if 0 <= value <= MOST and value.is_integer() else None


def _unreadable(server: Server, names: CounterNames, number: int, line: str) -> UnreadableError:
    return _fault(
        server,
        names,
        f"has a line {number} that is no counter, or that repeats one: {server.shown(line[:80])}",
    )


def _fault(server: Server, names: CounterNames, fault: str) -> UnreadableError:
    return UnreadableError(
        f"{server}{PATH} {fault}; {names.title}'s /metrics was expected: check the URL of --run-in"
    )


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

        def send(prompt: Prompt = prompt) -> list[Completion]:
            return [complete(server, model, prompt, job, extra)]

        tokens, took, drafts, accepted = count_requests(server, names, send, most_tokens(job), positions)
        seconds += took
        results.append((prompt.set, drafts, accepted, tokens))
        job.report_progress(len(results))
    most = max((len(accepted) for _, _, accepted, _ in results), default=0)
    padded = (
        PromptResult(name, drafts, (*accepted, *[0] * (most - len(accepted))), (0,) * tokens)
        for name, drafts, accepted, tokens in results
    )
    return tuple(padded), seconds


def count_requests(
    server: Server,
    names: CounterNames,
    send: Callable[[], Sequence[Completion]],
    most: int,
    positions: int | None = None,
) -> tuple[int, float, int, tuple[int, ...]]:
    """Of requests: the new tokens, the seconds, the drafts, and how many had each position accepted.

    There are at most `most` drafts. Raises as `measured` does.
    """
    before, begin = read_idle_counters(server, names), time.perf_counter()
    answers = send()
    seconds = time.perf_counter() - begin
    tokens = sum(count for count, _, _ in answers)
    after = read_counters_after(server, names, before, tokens)
    counted = count_positions(after, names) if positions is None else positions
    return tokens, seconds, *count_growth(server, names, (before, after), counted, most)


def read_idle_counters(server: Server, names: CounterNames) -> Counters:
    """Values of the counters of a server that serves nobody else. Raises RefusedError where it does."""
    counters = read_counters(server, names)
    if counters.get(names.running, 0) > 0:
        raise RefusedError(
            f"{server} is serving other requests, whose drafts would be counted as ours; run against a"
            " server without traffic"
        )
    return counters


def read_counters_after(server: Server, names: CounterNames, before: Counters, tokens: int) -> Counters:
    """Counters once they hold the `tokens` of our requests. Raises RefusedError for other traffic."""
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


def count_growth(
    server: Server, names: CounterNames, counters: tuple[Counters, Counters], positions: int, most: int
) -> tuple[int, tuple[int, ...]]:
    """Drafts of our requests, at most `most`, and how many of them had each position accepted."""
    before, after = counters
    keys = [names.drafts, *(f"{names.accepted}[{position}]" for position in range(positions))]
    growth = [after.get(key, 0) - before.get(key, 0) for key in keys]
    is_possible = all(0 <= count <= bound for count, bound in zip(growth, [most, *growth], strict=False))
    if not is_possible or count_positions(after, names) != positions:
        raise UnreadableError(
            f"{server}/metrics contradicts itself: our requests grew {names.drafts} by {growth[0]} and"
            f" {names.accepted} by {growth[1:]}, of which none may exceed the one before, or {most};"
            " see the server's log, and run against one without traffic"
        )
    return growth[0], tuple(growth[1:])
