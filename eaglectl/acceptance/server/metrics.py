"""vLLM's counters in /metrics: Prometheus' text format, read strictly for the four that are used."""

import re
from collections.abc import Mapping

from eaglectl.acceptance.server.http import Server
from eaglectl.acceptance.server.openai import MAX_STEPS
from eaglectl.errors import UnreadableError

PATH = "/metrics"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running"
NAMES = (DRAFTS, ACCEPTED, GENERATED, RUNNING)
# how a sample of them begins, whatever follows
LINES = tuple(f"{name}{end}" for name in NAMES for end in "{ \t")
# name{labels} value [timestamp]; quotes in the value of a label are escaped
SAMPLE = re.compile(
    r'([a-z_:]++)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?[ \t]++(\S++)(?:[ \t]++-?[0-9]{1,20})?[ \t\r]*+'
)
POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,4})"')
# the server prints counters as floats
COUNT = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+?[0-9]{1,2})?", re.IGNORECASE)
MOST = 2.0**53

Counters = Mapping[str, int]


def read_counters(server: Server) -> Counters:
    """Values of vLLM's counters. Raises UnreadableError."""
    return parse_counters(server, server.read(PATH))


def parse_counters(server: Server, raw: bytes) -> Counters:
    """Values of vLLM's counters, summed over labels; those with a position are named "metric[position]".

    Raises UnreadableError for a sample that cannot be read, or positions with gaps.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fault(server, f"is not UTF-8 text (byte {error.start})") from None
    samples: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        match = SAMPLE.fullmatch(line) if line.startswith(NAMES) else None
        if match is None or match[1] not in NAMES:
            if line.startswith(LINES):
                raise _unreadable(server, number, line)
            continue
        key, value = _key(match[1], match[2] or ""), _value(match[3])
        labelled = f"{match[1]}{match[2]}"
        # the format has each sample once, and a sum would count it twice
        if key is None or value is None or labelled in samples:
            raise _unreadable(server, number, line)
        samples[labelled] = key, value
    counters: dict[str, int] = {}
    for key, value in samples.values():
        counters[key] = counters.get(key, 0) + value
    positions = count_positions(counters)
    if positions > MAX_STEPS or any(
        f"{ACCEPTED}[{position}]" not in counters for position in range(positions)
    ):
        raise _fault(server, f"counts by positions that are not 0, 1, 2 ... up to {MAX_STEPS - 1}")
    return counters


def count_positions(counters: Counters) -> int:
    """The number of positions that are counted."""
    return sum(key.startswith(f"{ACCEPTED}[") for key in counters)


def _key(name: str, labels: str) -> str | None:
    """The key of a sample; None where its position cannot be read."""
    if name != ACCEPTED:
        return name
    position = POSITION.search(labels)
    return f"{name}[{int(position[1])}]" if position else None


def _value(text: str) -> int | None:
    """The count that `text` is; None where it is none."""
    value = float(text) if COUNT.fullmatch(text) else -1.0
    return int(value) if 0 <= value <= MOST and value.is_integer() else None


def _unreadable(server: Server, number: int, line: str) -> UnreadableError:
    return _fault(
        server, f"has a line {number} that is no counter, or that repeats one: {server.shown(line[:80])}"
    )


def _fault(server: Server, fault: str) -> UnreadableError:
    return UnreadableError(f"{server}{PATH} {fault}; vLLM's /metrics was expected: check the URL of --engine")
