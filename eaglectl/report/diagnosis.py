"""A diagnosis as sections, and the figures of it that its document has."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from eaglectl.report.acceptance import length, readings_line, readings_section, share
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
    Words,
    grouped,
)
from eaglectl.report.wording import shortened
from eaglectl.run.diagnosis import Diagnosis
from eaglectl.run.layers import PositionShare
from eaglectl.run.prompts import Prompt
from eaglectl.run.report import SmokeReport
from eaglectl.run.sensitivity import Variant
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

LOSES_TITLE = "Where it loses"
LOSES = "the prompts with the lowest acceptance length, of the run that is judged"
POSITIONS_TITLE = "By position in the text"
POSITIONS = "right first draft tokens, teacher-forced, at all positions of the texts"
MOST_PROMPTS = 5
# in words, where the name alone does not say it
ENDINGS: Mapping[DiagnosisEnding, str] = {
    DiagnosisEnding.FILE: "cause in the file",
    DiagnosisEnding.ENGINE: "cause in the engine",
    DiagnosisEnding.PAIR: "cause in the pair",
    DiagnosisEnding.PROMPTS: "cause in the prompts",
    DiagnosisEnding.TRAINING: "cause in the training",
    DiagnosisEnding.COULD_NOT_LOOK: "could not look",
    DiagnosisEnding.NOT_FOUND: "no cause found",
}


def diagnosis_outline(diagnosis: Diagnosis) -> Outline:
    """How the tree ended, what shows it, the next command, what was measured; then all that was looked at."""
    verdict = Words(ENDINGS.get(diagnosis.ending, diagnosis.ending), TONES[diagnosis.verdict])
    title = Words(_title(diagnosis), "strong")
    following, *others = diagnosis.commands or ("",)
    variants, ruled_out = readings(diagnosis), diagnosis.ruled_out or ["nothing"]
    sections = [
        Section("Measured", [Pairs(list(_measured(diagnosis)))], has_heading=False),
        *([Section("Else", [Commands([("", command) for command in others])])] if others else []),
        *([readings_section(variants)] if variants else []),
        *_loses(diagnosis),
        Section("Ruled out", [Lines(ruled_out, is_list=True)], is_more=True),
        Section(
            "Not looked at",
            [Lines(list(_not_looked(diagnosis)) or ["nothing"], is_list=True)],
            is_more=True,
        ),
        *_notes(diagnosis),
    ]
    # the fix is the next command
    words = diagnosis.words.partition("; fix: ")[0] if following else diagnosis.words
    cause = [words] if words else []
    head = (verdict, "  ", title)
    return Outline("diagnose", verdict, diagnosis.source, title, head, sections, cause=cause, next=following)


def _title(diagnosis: Diagnosis) -> str:
    """The title of the cause, with the acceptance length where it has no figure of its own."""
    served = diagnosis.evidence.served
    if served is None or any(character.isdigit() for character in diagnosis.title):
        return diagnosis.title
    return f"{diagnosis.title} (acceptance length {served.measured.length.value:.2f} at k={served.k})"


def _measured(diagnosis: Diagnosis) -> Iterator[tuple[str, Line]]:
    """What was answered first, each run, the readings and layers that were tried, and how many causes.

    Of a healthy drafter, the warnings of `validate` too.
    """
    for answer in diagnosis.measured:
        yield "answered", answer.text
    made = runs(diagnosis)
    yield from ((name, figures(report)) for name, report in made.items() if len(made) > 1)
    variants, layers = readings(diagnosis), diagnosis.evidence.layers
    if variants:
        yield "readings", readings_line(variants)
    if layers is not None:
        better = f"{layers.found.name} draft x{layers.found.ratio.words}" if layers.found else "none better"
        yield "aux layers", f"{layers.tried} other sets tried, {better}"
    for finding in diagnosis.evidence.validated.findings:
        if diagnosis.verdict == CheckVerdict.PASS and finding.severity == "warning":
            yield "warning", f"{finding.rule.id} {finding.rule.name}: {finding.match.message}"
    looked = f"{len(diagnosis.ruled_out)} ruled out, {len(diagnosis.not_looked)} not looked at"
    yield "causes", looked


def _loses(diagnosis: Diagnosis) -> Iterator[Section]:
    """The prompts and the positions in the text at which it loses."""
    if diagnosis.evidence.served is None:
        return
    rows = [
        (f"{row.number} ({row.set})", f"{row.length:.2f} in {row.drafts} drafts", row.text)
        for row in weakest(diagnosis)[:MOST_PROMPTS]
    ]
    if rows:
        yield Section(LOSES_TITLE, [Table(("prompt", "length", "it begins"), rows)], LOSES, is_more=True)
    parts = [(f"{part.start} to {part.end - 1}", share(part.share)) for part in positions(diagnosis)]
    if parts:
        table = Table(("positions", "right"), parts)
        yield Section(POSITIONS_TITLE, [table], POSITIONS, is_more=True)


def _notes(diagnosis: Diagnosis) -> Iterator[Section]:
    reference = diagnosis.evidence.reference
    if reference is not None and reference.probed is not None and reference.probed.notes:
        rows = [Remark(Words("note", "plain"), note) for note in reference.probed.notes]
        yield Section("Notes", [Remarks(rows)], is_more=True)


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
    """A run's acceptance length, prompts and device."""
    return f"{length(report)}, {report.measured.prompts} prompts, {report.run.device}"


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
