"""Lines of eaglectl in the log of an engine."""

import re
from collections.abc import Sequence
from typing import Any

# how vLLM writes what modules of in_engine log; Python writes the text alone before vLLM's logging is set up
LINE = re.compile(
    r"(?:(INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[(?:look|hooks|updates)\.py:\d+\] |^(?=eaglectl ))(.*)", re.M
)


def unlike(lines: Sequence[str], patterns: Sequence[str]) -> list[Any]:
    """Lines and patterns that do not go together."""
    if len(lines) != len(patterns):
        return [lines, patterns]
    return [pair for pair in zip(lines, patterns, strict=True) if not re.match(pair[1], pair[0])]
