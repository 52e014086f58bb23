"""The page of `inspect`, for one source or several."""

from collections.abc import Iterator, Sequence

from eaglectl.reports import inspection as shared
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import (
    NOTHING,
    Content,
    Markup,
    command,
    element,
    filled,
    join,
    mark,
    name,
    pairs,
    prose,
    remarks,
    section,
    table,
)
from eaglectl.reports.pages.svg import (
    CROSS,
    DIAMOND,
    DOT,
    Cell,
    Scale,
    axis,
    legend,
    picture,
    rect,
    shape,
    timelines,
)
from eaglectl.reports.wording import placeholders, trained_layers
from eaglectl.results import FailedSource, Inspection
from eaglectl.text import printable
from eaglectl.verdicts import ServedAs

TONES = {
    ServedAs.AS_TRAINED: "good",
    ServedAs.DIFFERS: "bad",
    ServedAs.FAILS: "bad",
    ServedAs.UNKNOWN: "doubt",
}
AS_TRAINED_TONES = {"yes": "good", "no": "bad", "unknown": "doubt"}
STRIP_WORDS = {"yes": "as trained", "no": "not as trained", "unknown": "unknown whether as trained"}
MARK_WORDS = {"trained": "trained", **shared.MARKS}
MARK_SHAPES = {"trained": DOT, "good": DOT, "bad": CROSS, "doubt": DIAMOND, "missing": DOT}
LEVEL_TONES = {"problem": "bad", "question": "doubt", "warning": "doubt", "note": "plain"}


def inspect_page(
    results: Sequence[Inspection | FailedSource], names: Sequence[str], *, has_tensors: bool
) -> Page:
    """Return the page of one source or several; `names` are the sources as given on the command line."""
    if len(results) == 1 and isinstance(results[0], Inspection):
        version, *rest = shared.headline(results[0].drafter)
        body = _body(results[0], 2, has_tensors=has_tensors)
        return Page("inspect", version, "plain", names[0], _lead("", *rest), body)
    failed = sum(isinstance(result, FailedSource) for result in results)
    tone = "doubt" if failed else "plain"
    rows = map(_overview_row, range(len(results)), names, results)
    overview = section("Checkpoints", table("Checkpoints", ("checkpoint", "what it is"), rows))
    articles = (
        _article(number, source, result, has_tensors=has_tensors)
        for number, (source, result) in enumerate(zip(names, results, strict=True))
    )
    verdict = f"{len(results) - failed} of {len(results)} checkpoints inspected"
    return Page("inspect", verdict, tone, "", NOTHING, join([overview, *articles]))


def _overview_row(number: int, source: str, result: Inspection | FailedSource) -> Sequence[Content]:
    link = element("a", name(source), href=f"#checkpoint-{number}")
    if isinstance(result, FailedSource):
        return link, mark("not inspected", "doubt")
    return link, join(shared.headline(result.drafter)[:2])


def _article(number: int, source: str, result: Inspection | FailedSource, *, has_tensors: bool) -> Markup:
    title = element("h2", name(source), class_="subject", id=f"checkpoint-{number}")
    if isinstance(result, FailedSource):
        message = element("p", mark("not inspected", "doubt"), f": {printable(result.message)}")
        return element("article", title, message)
    lead = _lead(*shared.headline(result.drafter))
    return element("article", title, lead, _body(result, 3, has_tensors=has_tensors))


def _lead(version: str, producer: str, evidence: str) -> Markup:
    return element(
        "p", filled("strong", version), producer, element("span", evidence, class_="quiet"), class_="lead"
    )


def _body(inspection: Inspection, level: int, *, has_tensors: bool) -> Markup:
    trained = f"trained on boundaries {trained_layers(inspection.drafter.aux)}"
    served = map(_served_row, shared.served_rows(inspection))
    aux = table("Aux layers", shared.AUX_HEAD, _aux_rows(inspection))
    releases = table(shared.SERVED_TITLE, shared.SERVED_HEAD, served, "reasons")
    launches = ((engine, command(line)) for engine, line in shared.serve_commands(inspection))
    parts = (
        ("Network", pairs(shared.facts(inspection)), ""),
        ("Aux layers", join([_strip(inspection), aux]), trained),
        (shared.SERVED_TITLE, join([_timeline(inspection), releases]), ""),
        ("Notes", _notes(inspection), ""),
        ("Next", command(shared.next_command(inspection)), shared.next_remark(inspection)),
        ("Serve", pairs(launches), placeholders(inspection.commands.values())),
        ("Tensors", _tensor_table(inspection) if has_tensors else None, ""),
    )
    return join(section(title, content, about=about, level=level) for title, content, about in parts)


def _strip(inspection: Inspection) -> Markup:
    """Return the target's layers, with what was trained and what each engine captures as marks."""
    strip = shared.layer_strip(inspection)
    if strip is None:
        return NOTHING
    scale = Scale(0, strip.end, left=2, right=98)
    rows = [_strip_row(part, strip, scale) for part in strip.captured]
    if strip.trained:
        rows.insert(0, _strip_row(shared.CapturedSet(("trained",), strip.trained, ""), strip, scale))
    numbers = [boundary for boundary in scale.ticks(9) if boundary == int(boundary)]
    labels = [(boundary, f"{boundary:g}") for boundary in numbers if boundary <= 0.9 * strip.end]
    below = element("div", axis(scale, [*labels, (strip.end, str(strip.end))], gap=6), class_="axis")
    caption = element("figcaption", shared.strip_title(strip))
    tones = {
        part.mark(boundary, strip.trained) for part in strip.captured for boundary in range(strip.end + 1)
    }
    marks = [(MARK_WORDS[tone], _mark(50, tone)) for tone in MARK_WORDS if tone in tones]
    undrawn = filled("p", strip.remark, class_="about")
    return element("figure", caption, legend(marks), element("dl", *rows), below, undrawn, class_="bars")


def _mark(x: float, tone: str, hover: str = "") -> Markup:
    return shape(x, 11, MARK_SHAPES[tone], f"at-{tone}", hover)


def _strip_row(part: shared.CapturedSet, strip: shared.LayerStrip, scale: Scale) -> Markup:
    words = ", ".join(map(str, part.boundaries))
    if part.as_trained:
        words += f" ({STRIP_WORDS[part.as_trained]})"
    drawn = [
        rect(scale.at(layer), scale.at(layer + 1) - scale.at(layer), 7, 8, "layer")
        for layer in range(min(strip.end, strip.depth or strip.end))
    ]
    for boundary in sorted({*strip.trained, *part.boundaries}):
        tone = part.mark(boundary, strip.trained) if part.as_trained else "trained"
        hover = f"boundary {boundary}: {MARK_WORDS[tone]}"
        drawn.append(_mark(scale.at(boundary), tone, hover))
    image = picture(f"{'; '.join(part.engines)}: {words}", *drawn, height=22)
    name_cell = element("dt", "; ".join(part.engines))
    return element("div", name_cell, element("dd", image), element("dd", words, class_="words"))


def _timeline(inspection: Inspection) -> Markup:
    engines: dict[str, list[Cell]] = {}
    for verdict in inspection.requested or inspection.verdicts:
        words = ": ".join(filter(None, (verdict.outcome, "; ".join(verdict.reasons))))
        engines.setdefault(verdict.engine, []).append(Cell(verdict.release, TONES[verdict.outcome], words))
    return timelines(engines)


def _aux_rows(inspection: Inspection) -> Iterator[Sequence[Content]]:
    for *cells, as_trained, but in shared.aux_rows(inspection):
        yield *cells, mark(f"{as_trained}{but}", "doubt" if but else AS_TRAINED_TONES[as_trained])


def _served_row(row: shared.ServedRow) -> Sequence[Content]:
    releases = element("span", row.releases, class_="whole")
    if not row.outcome:
        return row.engine, releases, None, row.reasons
    return row.engine, releases, mark(row.outcome, TONES[row.outcome]), row.reasons


def _tensor_table(inspection: Inspection) -> Markup:
    rows = (
        (element("code", name(stored)), *cells, element("code", name(canonical)))
        for stored, *cells, canonical in shared.tensor_rows(inspection)
    )
    return table("Tensors", shared.TENSOR_HEAD, rows)


def _notes(inspection: Inspection) -> Markup:
    notes = shared.urgent_notes(inspection.drafter.notes)
    return remarks((note.level, LEVEL_TONES[note.level], prose(note.text)) for note in notes)
