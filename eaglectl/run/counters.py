"""A server's counts of draft tokens: four counters in /metrics, read before and after each prompt.

Prometheus' text format is read strictly for these counters.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.http import MAX_STEPS, Completion, Server


class CounterNames(Struct, frozen=True):
    """A server's names of its counters: drafts, drafts accepted by position, tokens, requests.

    With `is_rounded`, the server rounds large counts to six digits, so that they are unusable.
    """

    title: str
    drafts: str
    accepted: str
    generated: str
    running: str
    is_rounded: bool = False


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
Send = Callable[[], Sequence[Completion]]


class Counted(Struct, frozen=True):
    """Requests that were sent together: answers, seconds, drafts, and accepted drafts by position."""

    answers: Sequence[Completion]
    seconds: float
    drafts: int
    accepted: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """The new tokens."""
        return sum(count for count, _ in self.answers)


def read_counters(server: Server, names: CounterNames) -> Counters:
    """Return the counters in a server's /metrics. Raises UnreadableError."""
    return parse_counters(server, server.read("/metrics"), names)


def parse_counters(server: Server, raw: bytes, names: CounterNames = VLLM) -> Counters:
    """Return a server's counters, summed over labels; those with a position are named "metric[position]".

    Raises UnreadableError for a sample that cannot be read, or positions with gaps.
    """

    def fault(text: str) -> UnreadableError:
        return UnreadableError(
            f"{server}/metrics {text}; {names.title}'s /metrics was expected: check this URL",
            options=("--run-in",),
        )

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fault(f"is not UTF-8 text (byte {error.start})") from None
    # the beginnings of lines with one of the four counters
    counted = names.drafts, names.accepted, names.generated, names.running
    begins = tuple(f"{name}{end}" for name in counted for end in "{ \t")
    counters: dict[str, int] = {}
    labelled: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(begins):
            continue
        sample = _sample(server, names, line)
        # the format has each sample once, and a sum would count it twice
        if sample is None or sample[0] in labelled:
            raise fault(f"has an invalid or repeated counter in line {number}: {server.shown(line[:80])}")
        labelled.add(sample[0])
        counters[sample[1]] = counters.get(sample[1], 0) + sample[2]
    positions = count_positions(counters, names)
    if positions > MAX_STEPS or {f"{names.accepted}[{n}]" for n in range(positions)} - counters.keys():
        raise fault(f"has positions that are not 0, 1, 2 ... up to at most {MAX_STEPS - 1}")
    return counters


def _sample(server: Server, names: CounterNames, line: str) -> tuple[str, str, int] | None:
    # one line of /metrics: the series, the counter's name and its value; None for lines that are not counted
    match = SAMPLE.fullmatch(line)
    if match is None:
        return None
    key, labels, text = match[1], match[2] or "", match[3]
    if names.is_rounded and "e" in text.lower():
        raise UnreadableError(
            f"{server}/metrics has {key} {server.shown(text)}: {names.title} rounds large counts;"
            " restart the server"
        )
    if key == names.accepted:
        position = POSITION.search(labels)
        key += f"[{int(position[1])}]" if position else ""
    value = float(text) if COUNT.fullmatch(text) and key != names.accepted else -1.0
    return (f"{match[1]}{labels}", key, int(value)) if (0 <= value <= MOST and value.is_integer()) else None


def count_positions(counters: Counters, names: CounterNames) -> int:
    """Return the number of draft positions in the counters."""
    return sum(key.startswith(f"{names.accepted}[") for key in counters)


def timed(send: Send) -> tuple[Sequence[Completion], float]:
    """Send requests by `send`; return the answers and the seconds that they took."""
    begin = time.perf_counter()
    answers = send()
    return answers, time.perf_counter() - begin


def count_requests(server: Server, names: CounterNames, send: Send, most: int) -> Counted:
    """Send requests by `send`; return the answers and the growth of the counters, at most `most` drafts.

    Raises UnreadableError for counters that contradict each other, RefusedError for other traffic.
    """
    before = read_counters(server, names)
    if before.get(names.running, 0) > 0:
        raise RefusedError(
            f"{server} is serving other requests, whose drafts would be counted too; use a server without"
            " traffic"
        )
    answers, seconds = timed(send)
    after = _read_after(server, names, before.get(names.generated, 0), sum(count for count, _ in answers))
    positions = count_positions(after, names)
    keys = [names.drafts, *(f"{names.accepted}[{position}]" for position in range(positions))]
    growth = [after.get(key, 0) - before.get(key, 0) for key in keys]
    is_possible = all(0 <= count <= bound for count, bound in zip(growth, [most, *growth], strict=False))
    # llama.cpp counts no position before its first draft
    if not is_possible or count_positions(before, names) not in (0, positions):
        raise UnreadableError(
            f"{server}/metrics contradicts itself: {names.drafts} grew by {growth[0]} and {names.accepted} by"
            f" {growth[1:]}; no number may exceed the one before it, nor {most}: see the server's log, and"
            " use a server without traffic"
        )
    return Counted(answers, seconds, growth[0], tuple(growth[1:]))


def _read_after(server: Server, names: CounterNames, generated: int, tokens: int) -> Counters:
    # the counters once they show the requests' tokens; an error if they show others' too
    deadline = time.monotonic() + 5.0  # until a finished request shows in its counters
    while True:
        after = read_counters(server, names)
        grown = after.get(names.generated, 0) - generated
        if grown == tokens:
            return after
        if grown > tokens:
            raise RefusedError(
                f"{server} generated {grown} tokens, but these requests {tokens}; its counters include other"
                " traffic: use a server without traffic"
            )
        if time.monotonic() > deadline:
            raise UnreadableError(
                f"{server}/metrics shows {grown} of the {tokens} tokens that the server sent; its counters"
                " do not change: see the server's log"
            )
        time.sleep(0.05)
