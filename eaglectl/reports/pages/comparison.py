"""The page of `diff`: what differs in meaning, in tensors and in spelling, all of the last where it is asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglectl.reports import differences
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import Content, Markup, element, folded, join, mark, pairs, section, table
from eaglectl.reports.tallies import plural

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, Fact, Spelling, TensorPair

TONES = {"equal": "good", "differs": "bad", "same-headers": "doubt", "could-not-look": "doubt"}
FACT_TONES = {"differs": "bad", "unknown": "doubt"}


def comparison_page(found: "Comparison") -> Page:
    """The page of one comparison."""
    sides = (("A", found.a), ("B", found.b))
    rows = ((name, join([element("span", side.source, class_="subject"), " ", element("span", f"({differences.about(side)})", class_="quiet")])) for name, side in sides)  # fmt: skip
    lead = join([element("p", element("strong", differences.sentence(found)), class_="lead"), pairs(rows)])
    subject = f"{found.a.source} and {found.b.source}"
    return Page("diff", found.verdict, TONES[found.verdict], subject, lead, _body(found))


def _body(found: "Comparison") -> Markup:
    facts = table("Meaning", ("fact", "A", "B", ""), map(_fact, differences.shown_facts(found)))
    tensors = table("Tensors", ("tensor", *differences.TENSOR_HEAD[1:]), map(_tensor, differences.shown_tensors(found)))
    remarks = [element("li", element("code", pair.name), f": {pair.remark}") for pair in found.tensors if pair.remark]
    return join(
        [
            section("Meaning", facts, about=differences.count_facts(found)),
            section("Tensors", tensors, element("ul", *remarks) if remarks else None, about=differences.count_tensors(found)),
            _spelling(found.spelling),
            section("Notes", element("ul", *(element("li", note) for note in found.notes)) if found.notes else None),
        ]
    )  # fmt: skip


def _fact(fact: "Fact") -> Sequence[Content]:
    name = mark(fact.name, FACT_TONES[fact.state]) if fact.state in FACT_TONES else fact.name
    return name, *differences.fact_values(fact), differences.fact_why(fact)


def _tensor(pair: "TensorPair") -> Sequence[Content]:
    name = element("code", pair.name)
    return mark(name, "bad") if pair.differs else name, differences.how(pair), *differences.figures(pair)


def _spelling(spelling: "Spelling") -> Markup | None:
    if not spelling.differs:
        return None
    head = ("", "A", "B")
    remarks = table("Written differently", head, ((one.about, one.a, one.b) for one in spelling.remarks))
    names = table("Names of tensors", head, ((f"name of {one.name}", " + ".join(one.a), " + ".join(one.b)) for one in spelling.names))  # fmt: skip
    keys = table("Config keys", head, ((one.key, differences.value(one.a), differences.value(one.b)) for one in spelling.keys))  # fmt: skip
    return section(
        "Written differently",
        remarks,
        folded(f"{plural(len(spelling.names), 'tensor')} under other names", names),
        folded(plural(len(spelling.keys), "config key"), keys),
        about=differences.SPELLING,
    )
