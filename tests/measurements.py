"""Measurements of trained drafters, and reports of them."""

import json
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from eaglectl.run.measurement import PromptResult, measure
from eaglectl.run.results import SmokeReport
from tests.pages import smoke_report

# drafts and accepted drafts by position of each prompt of fixtures/tiny: k=3, 64 new tokens, both drafters
COUNTS = json.loads(Path(__file__).with_name("prompt_counts.json").read_text())


def result(drafts: int, *accepted: int) -> PromptResult:
    return PromptResult("set", drafts, accepted, (0,) * (drafts + sum(accepted)))


EAGLE3, EAGLE31 = ([result(*row) for row in COUNTS[name]] for name in ("eagle3", "eagle3.1"))


def report(results: Sequence[PromptResult]) -> SmokeReport:
    passed = smoke_report(verdict="pass")
    run = replace(passed.run, results=tuple(results))
    return replace(passed, run=run, measured=measure(results), against=None, variants=())


def worse(results: Sequence[PromptResult], share: float) -> list[PromptResult]:
    """The same prompts with drafts that are accepted less."""
    return [
        replace(result, drafts=round(result.drafts * (1 + share)), accepted=result.accepted)
        for result in results
    ]
