"""A diagnosis as rows of text: what the terminal, the page and the document of `diagnose` share."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from eaglectl.acceptance.diagnosis import Diagnosis
from eaglectl.acceptance.layers import PositionShare
from eaglectl.acceptance.prompts import Prompt
from eaglectl.acceptance.report import SmokeReport
from eaglectl.acceptance.sensitivity import Variant
from eaglectl.reports.acceptance import length, share
from eaglectl.reports.wording import shortened

LOSES_TITLE = "Where it loses"
LOSES = "the prompts with the lowest acceptance length, of the run that is judged"
POSITIONS_TITLE = "By position in the text"
POSITIONS = "right first draft tokens, teacher-forced, at all positions of the texts"
MOST_PROMPTS = 5


class PromptLength(Struct, frozen=True):
    """A prompt's place among the prompts from 1 on, its set, its text (or kind), and its acceptance."""

    number: int
    set: str
    text: str
    drafts: int
    length: float


def runs(diagnosis: Diagnosis) -> Mapping[str, SmokeReport]:
    """The runs that were made, by what they show."""
    evidence = diagnosis.evidence
    every = {
        "in the reference": evidence.reference,
        "in the engine": evidence.engine,
        "sampled": evidence.sampled,
        "in the chat template": evidence.templated,
    }
    return {name: report for name, report in every.items() if report is not None}


def figures(report: SmokeReport) -> str:
    """A run's acceptance length, prompts and engine."""
    return f"{length(report)}, {report.measured.prompts} prompts; {report.run.engine} {report.run.version}"


def not_looked(diagnosis: Diagnosis) -> Iterator[str]:
    """A line for each reason, with the causes that it kept from being looked at."""
    by_reason: dict[str, list[str]] = {}
    for title, reason in diagnosis.not_looked:
        by_reason.setdefault(reason, []).append(title)
    for reason, titles in by_reason.items():
        yield f"{'; '.join(titles)}: {reason}"


def readings(diagnosis: Diagnosis) -> tuple[Variant, ...]:
    """Every reading with its ratio to the stated one, other aux layers among them."""
    evidence = diagnosis.evidence
    found = evidence.layers.found if evidence.layers else None
    return (*(evidence.reference.variants if evidence.reference else ()), *([found] if found else []))


def positions(diagnosis: Diagnosis) -> tuple[PositionShare, ...]:
    """Shares of right first draft tokens by position in the text, where they were looked at."""
    layers = diagnosis.evidence.layers
    return layers.by_position if layers else ()


def position_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """The positions and the share of each."""
    for part in positions(diagnosis):
        yield f"{part.start} to {part.end - 1}", share(part.share)


def weakest(diagnosis: Diagnosis) -> tuple[PromptLength, ...]:
    """Every prompt with a draft, those of the lowest acceptance length first."""
    served = diagnosis.evidence.served
    if served is None:
        return ()
    prompts = served.choice.prompts if served.choice else ()
    rows = []
    for index, result in enumerate(served.run.results):
        if result.drafts:
            text = _text(prompts[index]) if index < len(prompts) else ""
            accepted = 1 + sum(result.accepted) / result.drafts
            rows.append(PromptLength(index + 1, result.set, text, result.drafts, accepted))
    return tuple(sorted(rows, key=lambda row: row.length))


def prompt_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    """Number and set, acceptance length, and text of the prompts that it loses most on."""
    for row in weakest(diagnosis)[:MOST_PROMPTS]:
        yield f"{row.number} ({row.set})", f"{row.length:.2f} in {row.drafts} drafts", row.text


def _text(prompt: Prompt) -> str:
    """The beginning of a prompt's text, or what it is in the place of one."""
    if prompt.messages:
        return f"messages of {prompt.place}" if prompt.place else "messages"
    return shortened(prompt.text) if prompt.text else f"{len(prompt.token_ids)} token ids"
