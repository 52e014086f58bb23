"""A diagnosis as sections, and as a JSON document."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from eaglectl.report.acceptance import MEASUREMENT, length, measured, readings_line, readings_section, share
from eaglectl.report.documents.document import Parts
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
from eaglectl.run.answering import PositionShare
from eaglectl.run.diagnosis import Diagnosis
from eaglectl.run.probes import Variant
from eaglectl.run.report import SmokeReport
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

LOSES = "the prompts with the lowest acceptance length, of the run that is judged"
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
# the runs of the evidence, and what each shows
RUNS = {
    "reference": "in the reference",
    "engine": "in the engine",
    "sampled": "sampled",
    "templated": "in the chat template",
}


class PromptLength(Struct, frozen=True):
    """A prompt's place among the prompts from 1 on, its set, its text (or kind), and its acceptance."""

    number: int
    set: str
    text: str
    drafts: int
    length: float


def diagnosis_outline(diagnosis: Diagnosis) -> Outline:
    """How the tree ended, what shows it, the next command, what was measured; then all that was looked at."""
    verdict = Words(ENDINGS.get(diagnosis.ending, diagnosis.ending), TONES[diagnosis.verdict])
    served, reference = diagnosis.evidence.served, diagnosis.evidence.reference
    text, following, *others = diagnosis.title, *(diagnosis.commands or ("",))
    if served is not None and not any(character.isdigit() for character in text):
        text += f" (acceptance length {served.measured.length.value:.2f} at k={served.k})"
    reasons = grouped((reason, title) for title, reason in diagnosis.not_looked)
    not_looked = [f"{'; '.join(titles)}: {reason}" for reason, titles in reasons.items()]
    notes = reference.probed.notes if reference and reference.probed else ()
    sections = [
        Section("Measured", [Pairs(list(_measured(diagnosis)))], has_heading=False),
        Section("Else", [Commands([("", command) for command in others])]),
        readings_section(_readings(diagnosis)),
        *_loses(diagnosis),
        Section("Ruled out", [Lines(diagnosis.ruled_out or ["nothing"], is_list=True)], is_more=True),
        Section("Not looked at", [Lines(not_looked or ["nothing"], is_list=True)], is_more=True),
        Section("Notes", [Remarks([Remark(Words("note", "plain"), note) for note in notes])], is_more=True),
    ]
    # the fix is the next command
    words = diagnosis.words.partition("; fix: ")[0] if following else diagnosis.words
    cause, title = [words] if words else [], Words(text, "strong")
    head = (verdict, "  ", title)
    return Outline("diagnose", verdict, diagnosis.source, title, head, sections, cause=cause, next=following)


def _loses(diagnosis: Diagnosis) -> tuple[Section, Section]:
    rows = [
        (f"{row.number} ({row.set})", f"{row.length:.2f} in {row.drafts} drafts", row.text)
        for row in _weakest(diagnosis)[:MOST_PROMPTS]
    ]
    parts = [(f"{part.start} to {part.end - 1}", share(part.share)) for part in _positions(diagnosis)]
    prompts, positions = Table(("prompt", "length", "it begins"), rows), Table(("positions", "right"), parts)
    return (
        Section("Where it loses", [prompts], LOSES, is_more=True),
        Section("By position in the text", [positions], POSITIONS, is_more=True),
    )


def _measured(diagnosis: Diagnosis) -> Iterator[tuple[str, Line]]:
    """What was answered first, each run, the readings and layers that were tried, and how many causes.

    Of a healthy drafter, the warnings of `validate` too.
    """
    for answer in diagnosis.measured:
        yield "answered", answer.text
    runs = {RUNS[name]: run for name, run in _runs(diagnosis).items() if run}
    for name, run in runs.items() if len(runs) > 1 else ():
        yield name, f"{length(run)}, {run.measured.prompts} prompts, {run.run.device}"
    if variants := _readings(diagnosis):
        yield "readings", readings_line(variants)
    if (layers := diagnosis.evidence.layers) is not None:
        better = f"{layers.found.name} draft x{layers.found.ratio.words}" if layers.found else "none better"
        yield "aux layers", f"{layers.tried} other sets tried, {better}"
    for finding in diagnosis.evidence.validated.findings:
        if diagnosis.verdict == CheckVerdict.PASS and finding.severity == "warning":
            yield "warning", f"{finding.rule.id} {finding.rule.name}: {finding.match.message}"
    yield "causes", f"{len(diagnosis.ruled_out)} ruled out, {len(diagnosis.not_looked)} not looked at"


def _runs(diagnosis: Diagnosis) -> dict[str, SmokeReport | None]:
    return {name: getattr(diagnosis.evidence, name) for name in RUNS}


def _readings(diagnosis: Diagnosis) -> tuple[Variant, ...]:
    """Every reading with its ratio to the stated one, other aux layers among them."""
    evidence = diagnosis.evidence
    found = evidence.layers.found if evidence.layers else None
    return (*(evidence.reference.variants if evidence.reference else ()), *([found] if found else []))


def _positions(diagnosis: Diagnosis) -> tuple[PositionShare, ...]:
    return diagnosis.evidence.layers.by_position if diagnosis.evidence.layers else ()


def _weakest(diagnosis: Diagnosis) -> list[PromptLength]:
    """Every prompt with a draft, those of the lowest acceptance length first."""
    served, rows = diagnosis.evidence.served, []
    prompts = served.choice.prompts if served and served.choice else ()
    for index, result in enumerate(served.run.results if served else ()):
        if not result.drafts:
            continue
        text = ""
        if index < len(prompts):
            prompt = prompts[index]
            text = shortened(prompt.text) if prompt.text else f"{len(prompt.token_ids)} token ids"
            if prompt.messages:
                text = f"messages of {prompt.place}" if prompt.place else "messages"
        accepted = 1 + sum(result.accepted) / result.drafts
        rows.append(PromptLength(index + 1, result.set, text, result.drafts, accepted))
    return sorted(rows, key=lambda row: row.length)


def _not_looked(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    return [{"cause": title, "reason": reason} for title, reason in diagnosis.not_looked]


def _trust(diagnosis: Diagnosis) -> bool:
    return any(run.trust_remote_code for run in _runs(diagnosis).values() if run)


TAG = "eaglectl/diagnose/1"
PARTS: Parts = {
    **MEASUREMENT,
    Diagnosis: (
        "source",
        "target",
        "verdict",
        "ending",
        "cause",
        "title",
        "words",
        "next=commands",
        "ruled_out",
        ("not_looked", _not_looked),
        ("measured", measured),
        "expected=evidence.expected",
        ("runs", _runs),
        ("published", lambda diagnosis: diagnosis.evidence.served and diagnosis.evidence.served.published),
        ("readings", _readings),
        ("prompts", _weakest),
        ("text_positions", _positions),
        ("trust_remote_code?", _trust),
    ),
    SmokeReport: (
        "engine=run.engine",
        "version=run.version",
        "k",
        "temperature",
        "prompts_digest",
        "*measured",
    ),
    Variant: ("name", "option", "outcome", "ratio"),
    PromptLength: ("number", "set", "drafts", "acceptance_length=length"),
    PositionShare: ("start", "end", "*share"),
}
