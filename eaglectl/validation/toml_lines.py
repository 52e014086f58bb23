"""The line of a key in a TOML file, of which tomllib says nothing."""

import tomllib
from collections.abc import Sequence
from typing import Any

# of longer files no line is looked for, as each step parses the file's beginning
MAX_LINES, MAX_TEXT = 500, 32 << 10


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line, from 1, on which the statement begins that gives a key its value; None where none is found.

    `path` has the names of tables and keys, and the places in lists from 0. What stands before a statement is
    TOML itself, so it is the first line after the longest beginning of the file without the key.
    """
    lines = [f"{line}\n" for line in text.split("\n")]
    if len(lines) > MAX_LINES or len(text) > MAX_TEXT or not _has(text, path):
        return None
    without, with_key = 0, len(lines)
    while end := _end_between(lines, without, with_key):
        if _has("".join(lines[:end]), path):
            with_key = end
        else:
            without = end
    return next(number for number in range(without + 1, with_key + 1) if _is_statement(lines[number - 1]))


def _end_between(lines: Sequence[str], low: int, high: int) -> int | None:
    """A number of lines between two that are TOML without the rest, about the middle; None where none are."""
    middle = (low + high) // 2
    numbers = (*range(middle, low, -1), *range(middle + 1, high))
    return next((number for number in numbers if _is_toml(lines, number)), None)


def _is_statement(line: str) -> bool:
    return bool(line.strip()) and line.strip()[0] != "#"


def _is_toml(lines: Sequence[str], end: int) -> bool:
    return _parsed("".join(lines[:end])) is not None


def _has(text: str, path: Sequence[str | int]) -> bool:
    value: Any = _parsed(text)
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return value is not None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None
