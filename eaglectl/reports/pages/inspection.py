"""The page of `inspect`: one drafter, or several under their names."""

from collections.abc import Iterator, Sequence

from eaglectl.errors import printable
from eaglectl.reports import inspection
from eaglectl.reports.findings import Failure, Inspection
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import (
    Content,
    Markup,
    command,
    element,
    join,
    mark,
    pairs,
    remarks,
    section,
    table,
)
from eaglectl.reports.wording import trained_layers

TONES = {"as trained": "good", "differs": "bad", "fails": "bad", "unknown": "doubt"}
SAME_TONES = {"yes": "good", "no": "bad", "unknown": "doubt"}
LEVEL_TONES = {"problem": "bad", "question": "doubt", "warning": "doubt", "note": "plain"}


def inspection_page(found: Sequence[Inspection | Failure], names: Sequence[str], *, has_tensors: bool) -> Page:
    """The page over one source, or over several; `names` are the sources as they were given."""
    if len(found) == 1 and isinstance(found[0], Inspection):
        what, *rest = inspection.headline(found[0].drafter)
        lead = _lead("", *rest)
        return Page("inspect", what, "plain", names[0], lead, _body(found[0], 2, has_tensors=has_tensors))
    failed = sum(isinstance(one, Failure) for one in found)
    tone = "doubt" if failed else "plain"
    overview = table("Checkpoints", ("checkpoint", "what it is"), map(_overview, range(len(found)), names, found))
    parts = [_part(number, name, one, has_tensors) for number, (name, one) in enumerate(zip(names, found, strict=True))]
    verdict = f"{len(found) - failed} of {len(found)} checkpoints inspected"
    return Page("inspect", verdict, tone, "", Markup(""), join([section("Checkpoints", overview), *parts]))


def _overview(number: int, name: str, one: Inspection | Failure) -> Sequence[Content]:
    link = element("a", name, href=f"#checkpoint-{number}")
    if isinstance(one, Failure):
        return link, mark("not inspected", "doubt")
    return link, join(inspection.headline(one.drafter)[:2])


def _part(number: int, name: str, one: Inspection | Failure, has_tensors: bool) -> Markup:
    title = element("h2", name, class_="subject", id=f"checkpoint-{number}")
    if isinstance(one, Failure):
        said = element("p", mark("not inspected", "doubt"), f": {printable(one.message)}")
        return element("article", title, said)
    return element("article", title, _lead(*inspection.headline(one.drafter)), _body(one, 3, has_tensors=has_tensors))


def _lead(what: str, who: str, evidence: str) -> Markup:
    strong = element("strong", what) if what else None
    return element("p", strong, who, element("span", evidence, class_="quiet"), class_="lead")


def _body(found: Inspection, level: int, *, has_tensors: bool) -> Markup:
    trained = f"trained on boundaries {trained_layers(found.drafter.aux)}"
    readings = [(*cells, mark(same, SAME_TONES[same])) for *cells, same in inspection.aux_rows(found)]
    served = table("Served as it lies", inspection.SERVED_HEAD, map(_served, inspection.served(found)))
    tensors = table("Tensors", inspection.TENSOR_HEAD, _tensors(found)) if has_tensors else None
    next_command = inspection.next_command(found)
    parts = (
        ("Network", pairs(inspection.facts(found)), ""),
        ("Aux layers", table("Aux layers", inspection.AUX_HEAD, readings), trained),
        ("Served as it lies", served, ""),
        ("Notes", _notes(found), ""),
        ("Next", command(next_command) if next_command else None, ""),
        ("Serve", pairs((engine, command(line)) for engine, line in inspection.serve_commands(found)), ""),
        ("Tensors", tensors, ""),
    )
    return join(section(title, content, about=about, level=level) for title, content, about in parts)


def _served(one: inspection.Served) -> Sequence[Content]:
    outcome = mark(inspection.WORDS[one.outcome], TONES[one.outcome]) if one.outcome else None
    return one.engine, element("span", one.releases, class_="whole"), outcome, one.why


def _tensors(found: Inspection) -> Iterator[Sequence[Content]]:
    for name, *cells, canonical in inspection.tensor_rows(found):
        yield element("code", name), *cells, element("code", canonical)


def _notes(found: Inspection) -> Markup:
    notes = inspection.in_order(found.drafter.notes)
    return remarks((note.level, LEVEL_TONES[note.level], note.text) for note in notes)
