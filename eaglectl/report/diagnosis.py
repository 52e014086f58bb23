"""A diagnosis as sections, and the figures of it that its document has."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from eaglectl.report.acceptance import (
    DEFINITION,
    VARIANTS_TITLE,
    estimate,
    length,
    share,
)
from eaglectl.report.section import (
    TONES,
    Commands,
    Line,
    Lines,
    Outline,
    Pairs,
    Remark,
    Remarks,
    Section,
    Table,
    Tone,
    Words,
    grouped,
)
from eaglectl.report.wording import shortened
from eaglectl.run.diagnosis import Diagnosis
from eaglectl.run.layers import PositionShare
from eaglectl.run.prompts import Prompt
from eaglectl.run.report import SmokeReport
from eaglectl.run.sensitivity import Variant

LOSES_TITLE = "Where it loses"
LOSES = "the prompts with the lowest acceptance length, of the run that is judged"
POSITIONS_TITLE = "By position in the text"
POSITIONS = "right first draft tokens, teacher-forced, at all positions of the texts"
MOST_PROMPTS = 5


def diagnosis_outline(diagnosis: Diagnosis) -> Outline:
    """How the tree ended, what shows it, the next commands, and what it rests on."""
    verdict = Words(diagnosis.ending, TONES[diagnosis.verdict])
    made = runs(diagnosis)
    answers = Lines([answer.text for answer in diagnosis.measured])
    lengths = Pairs([(name, figures(report)) for name, report in made.items()])
    has_measured = bool(diagnosis.measured or made)
    commands = [("", command) for command in diagnosis.commands]
    sections = [
        Section("What shows it", [Lines([diagnosis.words])], has_heading=False),
        *([Section("Next", [Commands(commands)])] if commands else []),
        *([Section("Measured", [answers, lengths], DEFINITION if made else "")] if has_measured else []),
        *_readings(diagnosis),
        *_loses(diagnosis),
        Section("Ruled out", [Lines(diagnosis.ruled_out or ["nothing"], is_list=True)]),
        Section("Not looked at", [Lines(list(_not_looked(diagnosis)) or ["nothing"], is_list=True)]),
        *_notes(diagnosis),
    ]
    head = (verdict, f"  {diagnosis.source}: {diagnosis.title}")
    return Outline("diagnose", verdict, diagnosis.source, Words(diagnosis.title, "strong"), head, sections)


def _readings(diagnosis: Diagnosis) -> Iterator[Section]:
    """The acceptance length of each reading, the best first, and how the file's own stands among them."""
    every = sorted(readings(diagnosis), key=lambda reading: reading.measured.length.value, reverse=True)
    if not every:
        return
    rows: list[tuple[Line, ...]] = []
    for reading in every:
        tone: Tone = "good" if reading.is_better else ""
        ratio = f"x{reading.ratio.value:.2f} [{reading.ratio.low:.2f}, {reading.ratio.high:.2f}]"
        rows.append((Words(reading.name, tone), Words(estimate(reading.measured.length), tone), ratio))
    stated = every[0].stated_length
    about = f"as the file states it: {stated:.2f}; the best first, in green what is better beyond chance"
    head = ("reading", "length", "ratio to the stated one")
    yield Section(VARIANTS_TITLE, [Table(head, rows, is_whole=True)], about)


def _loses(diagnosis: Diagnosis) -> Iterator[Section]:
    """The prompts and the positions in the text at which it loses."""
    if diagnosis.evidence.served is None:
        return
    rows = [
        (f"{row.number} ({row.set})", f"{row.length:.2f} in {row.drafts} drafts", row.text)
        for row in weakest(diagnosis)[:MOST_PROMPTS]
    ]
    if rows:
        yield Section(LOSES_TITLE, [Table(("prompt", "length", "it begins"), rows)], LOSES)
    parts = [(f"{part.start} to {part.end - 1}", share(part.share)) for part in positions(diagnosis)]
    if parts:
        yield Section(POSITIONS_TITLE, [Table(("positions", "right"), parts)], POSITIONS)


def _notes(diagnosis: Diagnosis) -> Iterator[Section]:
    reference = diagnosis.evidence.reference
    if reference is not None and reference.probed is not None and reference.probed.notes:
        rows = [Remark(Words("note", "plain"), note) for note in reference.probed.notes]
        yield Section("Notes", [Remarks(rows)])


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


def _not_looked(diagnosis: Diagnosis) -> Iterator[str]:
    """A line for each reason, with the causes that it kept from being looked at."""
    for reason, titles in grouped((reason, title) for title, reason in diagnosis.not_looked).items():
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


def _text(prompt: Prompt) -> str:
    """The beginning of a prompt's text, or what it is in the place of one."""
    if prompt.messages:
        return f"messages of {prompt.place}" if prompt.place else "messages"
    return shortened(prompt.text) if prompt.text else f"{len(prompt.token_ids)} token ids"
