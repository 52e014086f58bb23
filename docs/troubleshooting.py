"""The page on why acceptance is low, from the causes that `diagnose` declares."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from eaglectl.run.causes import CAUSES
from eaglectl.run.diagnosis import Cause

PAGE = Path(__file__).with_name("troubleshooting.md")
HEAD = """# Why is acceptance low?

Written by `make docs` from the causes that `eaglectl diagnose` knows, in the order in which it tests them.
The first that the evidence shows is the answer; the report lists what was ruled out, and what was not looked
at.

```
eaglectl diagnose SOURCE --target TARGET --engine vllm --prompts traffic.jsonl
```

Low is an acceptance below that of `--expected LENGTH`, which training reported, or below what others reach on
the same target, prompts and chain ([figures](acceptance.md); `--like vllm-mt-bench` makes such a run). With
neither, a drafter that lives and in which nothing is found ends in "healthy", and the words say that whether
its length is good cannot be told. Exit codes: 0 healthy, 1 a cause or none found, 3 could not look
([JSON schema](../schemas/diagnose.schema.json)).
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
