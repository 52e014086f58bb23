"""docs/reference/causes.md: why acceptance is low, from the causes that `diagnose` declares."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from eaglectl.run.causes import CAUSES
from eaglectl.run.evidence import Cause

PAGE = Path(__file__).with_name("reference") / "causes.md"
HEAD = """# Causes of low acceptance

Written by `make docs` from the causes that `eaglectl diagnose` knows, in the order of its tests: the
first cause that the evidence shows is the result ([how to use it](../low-acceptance.md#let-diagnose-look)).
"""
PHASES = {
    "reading": "What the files say",
    "reference": "In plain torch, by the maths that the file states",
    "engine": "In the engine (`--engine`)",
    "measured": "What is left: the prompts, the target, the training",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for phase, causes in groupby(CAUSES, key=lambda cause: cause.phase):
        yield f"## {PHASES[phase]}\n"
        yield "| ends in | cause | looked at | what to do |\n|---|---|---|---|"
        yield from map(_row, causes)
        yield ""


def _row(cause: Cause) -> str:
    return f"| {cause.ending} | {cause.title} (`{cause.id}`) | {cause.how} | {cause.advice} |"
