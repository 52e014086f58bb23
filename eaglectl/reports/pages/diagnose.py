"""The page of `diagnose`: the cause, the next commands, and pictures of what it rests on."""

from eaglectl.acceptance.diagnosis import Diagnosis
from eaglectl.acceptance.measurement import Estimate
from eaglectl.reports import acceptance
from eaglectl.reports import diagnosis as shared
from eaglectl.reports.pages.bars import bar, position_rows
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import (
    Markup,
    command,
    element,
    filled,
    join,
    mark,
    pairs,
    remarks,
    section,
    table,
)
from eaglectl.verdicts import CheckVerdict

TONES = {CheckVerdict.PASS: "good", CheckVerdict.FAIL: "bad", CheckVerdict.COULD_NOT_LOOK: "doubt"}
READING_TONES = {"yes": "bad", "no": "good"}


def diagnosis_page(diagnosis: Diagnosis) -> Page:
    """The page of one diagnosis."""
    lead = element("p", element("strong", diagnosis.title), class_="lead")
    tone = TONES[diagnosis.verdict]
    return Page("diagnose", diagnosis.ending, tone, diagnosis.source, lead, _body(diagnosis))


def _body(diagnosis: Diagnosis) -> Markup:
    runs = shared.runs(diagnosis)
    shares = [
        row for name, report in runs.items() for row in position_rows(report.measured.per_position, name)
    ]
    return join(
        [
            section("What shows it", element("p", diagnosis.words)),
            section("Next", *map(command, diagnosis.commands)),
            section(
                "Measured",
                *(element("p", answer.text) for answer in diagnosis.measured),
                pairs((name, shared.figures(report)) for name, report in runs.items()),
                table("Acceptance by position", ("", "accepted", ""), shares, "figures"),
                about=acceptance.DEFINITION if runs else "",
            ),
            _readings(diagnosis),
            _loses(diagnosis),
            section("Ruled out", element("p", "; ".join(diagnosis.ruled_out) or "nothing")),
            section("Not looked at", _list(list(shared.not_looked(diagnosis)) or ["nothing"])),
            _notes(diagnosis),
        ]
    )


def _readings(diagnosis: Diagnosis) -> Markup | None:
    """Other readings as bars of their ratio to the stated one, which is the line across."""
    readings = shared.readings(diagnosis)
    if not readings:
        return None
    most = max(1.2, *(reading.ratio.value for reading in readings)) * 1.1
    rows = []
    for reading in readings:
        better = "yes" if reading.is_better else "no"
        picture = bar(reading.ratio, most, mark=1.0)
        rows.append(
            (reading.name, acceptance.estimate(reading.ratio), picture, mark(better, READING_TONES[better]))
        )
    title = acceptance.VARIANTS_TITLE
    return section(
        title,
        table(title, ("reading", "ratio", "", "better"), rows, "figures"),
        about="ratio to the stated one, which is the line across the bars",
    )


def _loses(diagnosis: Diagnosis) -> Markup | None:
    """The prompts and the positions in the text at which it loses."""
    served = diagnosis.evidence.served
    if served is None:
        return None
    prompts = [
        (name, words, bar(Estimate(row.length, row.length, row.length), served.k + 1), text)
        for (name, words, text), row in zip(
            shared.prompt_rows(diagnosis), shared.weakest(diagnosis), strict=False
        )
    ]
    sets = [
        (name, acceptance.estimate(part.length), bar(part.length, served.k + 1), "")
        for name, part in served.by_set.items()
        if len(served.by_set) > 1
    ]
    positions = [
        (name, words, bar(part.share))
        for (name, words), part in zip(
            shared.position_rows(diagnosis), shared.positions(diagnosis), strict=True
        )
    ]
    return join(
        [
            section(
                shared.LOSES_TITLE,
                table("Sets", ("set", "length", "", ""), sets),
                table(shared.LOSES_TITLE, ("prompt", "length", "", "it begins"), prompts, "reasons"),
                about=shared.LOSES,
            ),
            section(
                shared.POSITIONS_TITLE,
                table(shared.POSITIONS_TITLE, ("positions", "right", ""), positions, "figures"),
                about=shared.POSITIONS if positions else "",
            ),
        ]
    )


def _notes(diagnosis: Diagnosis) -> Markup | None:
    reference = diagnosis.evidence.reference
    if reference is None or reference.probed is None:
        return None
    return section("Notes", remarks(("note", "plain", note) for note in reference.probed.notes))


def _list(lines: list[str]) -> Markup:
    return filled("ul", *(element("li", line) for line in lines))
