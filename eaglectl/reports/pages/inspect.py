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
    pairs,
    remarks,
    section,
    table,
)
from eaglectl.reports.wording import trained_layers
from eaglectl.results import FailedSource, Inspection
from eaglectl.text import printable

TONES = {"as trained": "good", "differs": "bad", "fails": "bad", "unknown": "doubt"}
AS_TRAINED_TONES = {"yes": "good", "no": "bad", "unknown": "doubt"}
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
        _article(number, name, result, has_tensors=has_tensors)
        for number, (name, result) in enumerate(zip(names, results, strict=True))
    )
    verdict = f"{len(results) - failed} of {len(results)} checkpoints inspected"
    return Page("inspect", verdict, tone, "", NOTHING, join([overview, *articles]))


def _overview_row(number: int, name: str, result: Inspection | FailedSource) -> Sequence[Content]:
    link = element("a", name, href=f"#checkpoint-{number}")
    if isinstance(result, FailedSource):
        return link, mark("not inspected", "doubt")
    return link, join(shared.headline(result.drafter)[:2])


def _article(number: int, name: str, result: Inspection | FailedSource, *, has_tensors: bool) -> Markup:
    title = element("h2", name, class_="subject", id=f"checkpoint-{number}")
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
    launches = ((engine, command(line)) for engine, line in shared.serve_commands(inspection))
    parts = (
        ("Network", pairs(shared.facts(inspection)), ""),
        ("Aux layers", table("Aux layers", shared.AUX_HEAD, _aux_rows(inspection)), trained),
        (shared.SERVED_TITLE, table(shared.SERVED_TITLE, shared.SERVED_HEAD, served), ""),
        ("Notes", _notes(inspection), ""),
        ("Next", command(shared.next_command(inspection)), ""),
        ("Serve", pairs(launches), ""),
        ("Tensors", _tensor_table(inspection) if has_tensors else None, ""),
    )
    return join(section(title, content, about=about, level=level) for title, content, about in parts)


def _aux_rows(inspection: Inspection) -> Iterator[Sequence[Content]]:
    for *cells, as_trained in shared.aux_rows(inspection):
        yield *cells, mark(as_trained, AS_TRAINED_TONES[as_trained])


def _served_row(row: shared.ServedRow) -> Sequence[Content]:
    releases = element("span", row.releases, class_="whole")
    if not row.outcome:
        return row.engine, releases, None, row.reasons
    return row.engine, releases, mark(shared.OUTCOMES[row.outcome], TONES[row.outcome]), row.reasons


def _tensor_table(inspection: Inspection) -> Markup:
    rows = (
        (element("code", name), *cells, element("code", canonical))
        for name, *cells, canonical in shared.tensor_rows(inspection)
    )
    return table("Tensors", shared.TENSOR_HEAD, rows)


def _notes(inspection: Inspection) -> Markup:
    notes = shared.urgent_notes(inspection.drafter.notes)
    return remarks((note.level, LEVEL_TONES[note.level], note.text) for note in notes)
