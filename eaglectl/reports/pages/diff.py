"""The page of `diff`: what differs in meaning, in tensors and in how the files are written."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from eaglectl.reports import differences
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import (
    MOST_ROWS,
    Content,
    Markup,
    element,
    folded,
    join,
    mark,
    name,
    pairs,
    section,
    table,
)
from eaglectl.reports.pages.svg import Bar, bars, fitted, fitted_log
from eaglectl.reports.wording import plural
from eaglectl.verdicts import DiffVerdict, FactState

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, Fact, Spelling, TensorPair

TONES = {
    DiffVerdict.EQUAL: "good",
    DiffVerdict.DIFFERS: "bad",
    DiffVerdict.SAME_HEADERS: "doubt",
    DiffVerdict.COULD_NOT_LOOK: "doubt",
}
FACT_TONES = {FactState.DIFFERS: "bad", FactState.UNKNOWN: "doubt"}
# the largest over the smallest relative RMS that one linear scale shows
WIDEST = 50


def comparison_page(comparison: "Comparison") -> Page:
    """The page of one comparison."""
    sides = (("A", comparison.a), ("B", comparison.b))
    rows = (
        (
            letter,
            join(
                [
                    element("span", name(side.source), class_="subject"),
                    " ",
                    element("span", f"({differences.about(side)})", class_="quiet"),
                ]
            ),
        )
        for letter, side in sides
    )
    lead = join(
        [element("p", element("strong", differences.sentence(comparison)), class_="lead"), pairs(rows)]
    )
    subject = f"{comparison.a.source} and {comparison.b.source}"
    return Page("diff", comparison.verdict, TONES[comparison.verdict], subject, lead, _body(comparison))


def _body(comparison: "Comparison") -> Markup:
    facts = table("Meaning", ("fact", "A", "B", ""), map(_fact, differences.shown_facts(comparison)))
    tensors = table(
        "Tensors",
        ("tensor", *differences.TENSOR_HEAD[1:]),
        map(_tensor, differences.shown_tensors(comparison)),
    )
    remarked = [pair for pair in comparison.tensors if pair.remark]
    remarks = [
        element("li", element("code", name(pair.name)), f": {pair.remark}") for pair in remarked[:MOST_ROWS]
    ]
    if len(remarked) > MOST_ROWS:
        remarks.append(element("li", f"and {len(remarked) - MOST_ROWS:,} more; --json lists all"))
    return join(
        [
            section("Meaning", facts, about=differences.count_facts(comparison)),
            section(
                "Tensors",
                _distances(comparison),
                tensors,
                element("ul", *remarks) if remarks else None,
                about=differences.count_tensors(comparison),
            ),
            _spelling(comparison.spelling),
            section(
                "Notes",
                element("ul", *(element("li", note) for note in comparison.notes))
                if comparison.notes
                else None,
            ),
        ]
    )


def _fact(fact: "Fact") -> Sequence[Content]:
    name = mark(fact.name, FACT_TONES[fact.state]) if fact.state in FACT_TONES else fact.name
    return name, *differences.fact_values(fact), differences.fact_why(fact)


def _tensor(pair: "TensorPair") -> Sequence[Content]:
    shown = element("code", name(pair.name))
    return mark(shown, "bad") if pair.differs else shown, differences.how(pair), *differences.figures(pair)


def _distances(comparison: "Comparison") -> Markup:
    """Return the relative RMS of each tensor whose numbers differ as a bar."""
    distances = [
        (pair.name, pair.numbers.relative_rms)
        for pair in differences.shown_tensors(comparison)
        if pair.numbers and pair.numbers.relative_rms is not None
    ]
    values = [value for _, value in distances if value > 0]
    is_log = bool(values) and max(values) > WIDEST * min(values)
    scale = fitted_log(values) if is_log else fitted(values)
    rows = [
        Bar(element("code", name(tensor)), value, differences.figure(value), tone="share")
        for tensor, value in distances
    ]
    ticks = [(value, f"{value:g}") for value in scale.ticks()]
    note = "; the scale is logarithmic" if is_log else ""
    return bars(f"relative RMS: RMS of A - B over RMS of A{note}", rows, scale, ticks)


def _names(names: Iterable[str]) -> Markup:
    """Return the names of tensors that are stored for one."""
    return element("code", Markup(" + ".join(map(name, names))))


def _spelling(spelling: "Spelling") -> Markup | None:
    if not spelling.differs:
        return None
    head = ("", "A", "B")
    remarks = table(
        "Written differently", head, ((remark.about, remark.a, remark.b) for remark in spelling.remarks)
    )
    names = table(
        "Names of tensors",
        head,
        (
            (join(["name of ", _names([pair.name])]), _names(pair.a), _names(pair.b))
            for pair in spelling.names
        ),
    )
    keys = table(
        "Config keys",
        head,
        ((name(key.key), differences.value(key.a), differences.value(key.b)) for key in spelling.keys),
    )
    return section(
        "Written differently",
        remarks,
        folded(f"{plural(len(spelling.names), 'tensor')} under other names", names),
        folded(plural(len(spelling.keys), "config key"), keys),
        about=differences.SPELLING,
    )
