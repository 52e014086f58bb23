"""A server's counters in /metrics: Prometheus' text format, read strictly for the four that are used."""

import re
from collections.abc import Mapping

from msgspec import Struct

from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.openai import MAX_STEPS
from eaglectl.errors import UnreadableError

PATH = "/metrics"


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
        f"{server}{PATH} {fault}; {names.title}'s /metrics was expected: check the URL of --engine"
    )
