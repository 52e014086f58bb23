"""The smallest inputs of a corpus that reach each line of eaglectl, for the tree."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.checks import CORPUS, as_line, finding, kept_inputs
from tests.fuzz.parsers import Parser

MOST_INPUTS, MOST_BYTES, LONGEST = 30, 3000, 1500
Step = tuple[str, int, int]


def steps(parser: Parser, data: bytes) -> set[Step]:
    """The steps from line to line of eaglectl that an input takes."""
    taken: set[Step] = set()
    lines: dict[int, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/eaglectl/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            taken.add((frame.f_code.co_filename, lines.get(id(frame), 0), frame.f_lineno))
            lines[id(frame)] = frame.f_lineno
        return trace

    sys.settrace(trace)
    try:
        finding(parser, data)
    finally:
        sys.settrace(None)
    return taken


def keep(parser: Parser, folder: Path) -> None:
    """Write the smallest inputs of `folder`, and those kept before, that take steps no smaller one takes."""
    candidates = {path.read_bytes() for path in folder.iterdir()} | {*kept_inputs(CORPUS, parser.name)}
    covered: set[Step] = set()
    for seed in parser.seeds():
        covered |= steps(parser, seed)
    kept: list[bytes] = []
    for data in sorted(candidates, key=lambda data: (len(data), data)):
        if len(data) > LONGEST or len(kept) == MOST_INPUTS or sum(map(len, kept)) + len(data) > MOST_BYTES:
            break
        if new := steps(parser, data) - covered:
            covered |= new
            kept.append(data)
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{parser.name}.jsonl").write_text("".join(map(as_line, kept)), encoding="ascii")
