"""The page on why acceptance is low, from the causes that `diagnose` declares."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from eaglectl.acceptance.causes import CAUSES
from eaglectl.acceptance.diagnosis import Cause

PAGE = Path(__file__).with_name("troubleshooting.md")
HEAD = """# Why is acceptance low?

Written by `make docs` from the causes that `eaglectl diagnose` knows, in the order in which it tests them.
The first that the evidence shows is the answer; the report lists what was ruled out, and what was not looked
at.

```
eaglectl diagnose SOURCE --target TARGET --engine vllm --prompts traffic.jsonl
```

Low is an acceptance of position 0 below half of drafts, a line drawn by eaglectl; `--expected LENGTH`, the
acceptance length that training reported, draws another. Exit codes: 0 healthy, 1 a cause or none found,
3 could not look ([JSON schema](../schemas/diagnose.schema.json)).
"""
STAGES = {
    "reading": "What the files say",
    "reference": "In plain torch, by the maths that the file states",
    "engine": "In the engine (`--engine`)",
    "measured": "What is left: the prompts, the target, the training",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for stage, causes in groupby(CAUSES, key=lambda cause: cause.stage):
        yield f"## {STAGES[stage]}\n"
        yield "| ends in | cause | looked at | what to do |\n|---|---|---|---|"
        yield from map(_row, causes)
        yield ""


def _row(cause: Cause) -> str:
    return f"| {cause.ending} | {cause.title} (`{cause.id}`) | {cause.how} | {cause.advice} |"
