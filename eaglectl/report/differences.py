"""A comparison as sections."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from eaglectl.formats.catalogue import by_name
from eaglectl.report.section import (
    Block,
    Line,
    Lines,
    Outline,
    Section,
    Table,
    Tone,
    Words,
    first_lines,
    grouped,
)
from eaglectl.report.wording import plural, shortened, size
from eaglectl.text import listed
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, Fact, KeyPair, NamePair, Side, Spelling, TensorPair
    from eaglectl.publish.plan import Changes

TENSOR_HEAD = ("tensor", "difference", "numbers that differ", "max |A - B|", "relative RMS")
TONES: Mapping[DiffVerdict, Tone] = {
    DiffVerdict.EQUAL: "good",
    DiffVerdict.DIFFERS: "bad",
    DiffVerdict.SAME_HEADERS: "doubt",
    DiffVerdict.COULD_NOT_LOOK: "doubt",
}
FACT_TONES: Mapping[FactState, Tone] = {FactState.DIFFERS: "bad", FactState.UNKNOWN: "doubt"}
SHOWN = 12
SPELLING = "no reason by itself to call it another drafter"


def comparison_outline(comparison: "Comparison", *, is_whole: bool = False) -> Outline:
    """The verdict, facts and tensors that differ, and the spelling; `is_whole`: the terminal shows all."""
    sides = (("A", comparison.a), ("B", comparison.b))
    lines = [
        (Words(letter, "strong"), f"  {side.source}  ", Words(f"({_about(side)})", "quiet"))
        for letter, side in sides
    ]
    remarks: list[Line] = [f"{pair.name}: {pair.remark}" for pair in comparison.tensors if pair.remark]
    tensors = [_tensor(pair) for pair in _shown_tensors(comparison)]
    sections = [
        Section("", [Lines(lines)], has_heading=False),
        Section("Meaning", [_facts_table(comparison)], _count_facts(comparison)),
        *([_served(comparison)] if comparison.served else []),
        Section(
            "Tensors",
            [
                Table(TENSOR_HEAD, tensors, is_whole=is_whole),
                Lines(remarks if is_whole else first_lines(remarks), is_list=True),
            ],
            _count_tensors(comparison),
        ),
        *([_spelling(comparison.spelling, is_whole=is_whole)] if comparison.spelling.differs else []),
        *(
            [Section("Notes", [Lines(first_lines(comparison.notes), is_list=True)])]
            if comparison.notes
            else []
        ),
    ]
    tone, text = TONES[comparison.verdict], f"{comparison.verdict}: {_meaning(comparison)}"
    subject = f"{comparison.a.source} and {comparison.b.source}"
    verdict = Words(comparison.verdict, tone)
    return Outline("diff", verdict, subject, Words(text, "strong"), Words(text, tone), sections)


def _served(comparison: "Comparison") -> Section:
    """What engines do with both as stored."""
    rows = [
        (fact.name, Words(fact.a, FACT_TONES.get(fact.state, "quiet")), fact.b) for fact in comparison.served
    ]
    by_reason = grouped((fact.why, fact.name) for fact in comparison.served if fact.why)
    lines = [Words(f"{listed(names)}: {why}", "quiet") for why, names in by_reason.items()]
    reasons = Lines(lines, is_list=True, is_unbroken=True)
    return Section("As stored", [Table(("engine", "A", "B"), rows), reasons])


def _facts_table(comparison: "Comparison") -> Table:
    rows = [
        (
            Words(fact.name, FACT_TONES.get(fact.state, "quiet")),
            *fact_values(fact),
            Words(fact_why(fact), "quiet"),
        )
        for fact in shown_facts(comparison)
    ]
    return Table(("fact", "A", "B", ""), rows, is_whole=True)


def _tensor(pair: "TensorPair") -> tuple[Line, ...]:
    return Words(pair.name, "bad" if pair.differs else "quiet", is_code=True), how(pair), *figures(pair)


def _spelling(spelling: "Spelling", *, is_whole: bool) -> Section:
    """What is written differently: examples, unless `is_whole`."""
    head = ("", "A", "B")
    remarks: list[tuple[Line, ...]] = [(remark.about, remark.a, remark.b) for remark in spelling.remarks]
    names = list(map(_name_row, spelling.names))
    keys: list[tuple[Line, ...]] = [(key.key, value(key.a), value(key.b)) for key in spelling.keys]
    shown = [*remarks, *names, *keys] if is_whole else [*remarks, *map(_name_row, _examples(spelling.names))]
    rest = "" if is_whole else _rest(spelling.names, spelling.keys)
    blocks: list[Block] = [
        Table(head, shown, is_whole=True),
        *([Lines([Words(rest, "quiet")])] if rest else []),
    ]
    return Section("Written differently", blocks, SPELLING)


def _name_row(pair: "NamePair") -> tuple[Line, ...]:
    sides = (Words(" + ".join(side), is_code=True) for side in (pair.a, pair.b))
    return ("name of ", Words(pair.name, is_code=True)), *sides


def _examples(names: "Sequence[NamePair]") -> "Iterable[NamePair]":
    """One name of each kind: another name, a part of a fused tensor."""
    kinds: dict[tuple[bool, bool], NamePair] = {}
    shared = Counter(side for pair in names for side in (pair.a, pair.b))
    for pair in names:
        kinds.setdefault((shared[pair.a] > 1 or len(pair.a) > 1, shared[pair.b] > 1 or len(pair.b) > 1), pair)
    return kinds.values()


def _rest(names: "Sequence[NamePair]", keys: "Sequence[KeyPair]") -> str:
    """How many names and keys are not shown; empty where there are none."""
    parts = [f"{plural(len(names), 'tensor')} under other names"] if names else []
    if keys:
        names_of_keys = listed((key.key for key in keys), most=SHOWN)
        parts.append(f"{plural(len(keys), 'config key')}: {names_of_keys}")
    return f"{'; '.join(parts)} (eaglectl -v diff lists them)" if parts else ""


def _meaning(comparison: "Comparison") -> str:
    facts = Counter(fact.state for fact in comparison.facts)
    unread = "" if comparison.has_values else "; values were not compared (--headers-only)"
    if comparison.verdict != comparison.meaning:
        return "; ".join(_faults(comparison))
    match comparison.verdict:
        case DiffVerdict.EQUAL if comparison.spelling.differs:
            return "the same drafter, written differently"
        case DiffVerdict.EQUAL:
            return "the same drafter"
        case DiffVerdict.SAME_HEADERS:
            return f"nothing differs in config and headers{unread}"
        case DiffVerdict.COULD_NOT_LOOK:
            asked = plural(facts[FactState.UNKNOWN], "fact")
            return f"nothing differs that is known, and {asked} must be asked for{unread}"
    tensors = sum(pair.differs for pair in comparison.tensors)
    counts = ((facts[FactState.DIFFERS], "fact"), (tensors, "tensor"))
    by = " and ".join(plural(count, word) for count, word in counts if count)
    return f"two drafters, by {by}{unread}"


def _faults(comparison: "Comparison") -> "Iterator[str]":
    """That no engine accepts a token of one side, and by which fault; or the repair of it."""
    for letter, own, others in zip("AB", comparison.errors, reversed(comparison.errors), strict=True):
        for fault in (fault for fault in own if fault not in others):
            yield f"the same drafter, and as stored no engine accepts a token of {letter}: {fault}"


def change_sentence(changes: "Changes") -> str:
    """What a commit changes in a repository's drafter, in words."""
    compared = changes.comparison
    if compared is None:
        return changes.reason
    facts = [fact.name for fact in compared.facts if fact.state == FactState.DIFFERS]
    tensors = sum(pair.differs for pair in compared.tensors)
    parts = [f"changes {', '.join(facts)}"] if facts else []
    if tensors:
        parts.append(f"{plural(tensors, 'tensor')} with another shape or dtype, or on one side only")
    return " and ".join(parts) or "config and headers mean the same"


def how(pair: "TensorPair") -> str:
    """How a tensor differs."""
    a, b = pair.a, pair.b
    match pair.state:
        case TensorState.DTYPE if a and b:
            return f"{a.dtype} in A, {b.dtype} in B"
        case TensorState.SHAPE if a and b:
            return f"{list(a.shape)} in A, {list(b.shape)} in B"
        case TensorState.ONLY_A | TensorState.ONLY_B | TensorState.ZEROS:
            return "only in A" if b is None else "only in B"
    return "values" if pair.state == TensorState.BYTES else pair.state


def figures(pair: "TensorPair") -> tuple[str, str, str]:
    """How many numbers differ, the largest difference, the relative RMS."""
    numbers = pair.numbers
    if numbers is None:
        return "", "", ""
    share = f"{numbers.differing:,} of {numbers.count:,}"
    if numbers.not_finite:
        share += f" ({numbers.not_finite:,} not finite)"
    return share, figure(numbers.max_abs), figure(numbers.relative_rms)


def figure(value: float | None) -> str:
    """Return a number of three digits, or "-" for none."""
    return "-" if value is None else f"{value:.3g}"


def _about(side: "Side") -> str:
    """Version, layout and size of a side."""
    return (
        f"EAGLE-{side.drafter.version}, {by_name(side.drafter.producer).title},"
        f" {size(side.checkpoint.nbytes)}"
    )


def _count_facts(comparison: "Comparison") -> str:
    """How many facts are in each state."""
    counts = Counter(fact.state for fact in comparison.facts)
    return "facts: " + ", ".join(f"{counts[state]} {state}" for state in FactState if counts[state])


def shown_facts(comparison: "Comparison") -> Iterator["Fact"]:
    """The facts that are not plainly equal."""
    return (fact for fact in comparison.facts if fact.state != FactState.EQUAL or fact.why)


def fact_values(fact: "Fact") -> tuple[str, str]:
    """The fact in A and in B."""
    return _fact_value(fact, fact.a), _fact_value(fact, fact.b)


def _fact_value(fact: "Fact", side: object) -> str:
    return "not known" if side is None and fact.why else value(side)


def fact_why(fact: "Fact") -> str:
    """The state, unless they differ, and its explanation."""
    state = fact.state if fact.state != FactState.DIFFERS else ""
    return "; ".join(filter(None, (state, fact.why)))


def _count_tensors(comparison: "Comparison") -> str:
    """How many tensors are equal, differ, and were not read."""
    same = sum(pair.state == TensorState.EQUAL for pair in comparison.tensors)
    unread = sum(pair.state == TensorState.NOT_COMPARED for pair in comparison.tensors)
    counts = [(same, "equal"), (sum(pair.differs for pair in comparison.tensors), "differ")]
    counts.append((unread, "of one shape and dtype, values not compared"))
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _shown_tensors(comparison: "Comparison") -> Iterator["TensorPair"]:
    """The tensors that differ, and biases of zeros on one side."""
    return (pair for pair in comparison.tensors if pair.differs or pair.state == TensorState.ZEROS)


def value(item: object) -> str:
    """A value of a config as text, cut where it is long."""
    if isinstance(item, list) and item and all(type(number) is int for number in item):
        return ", ".join(map(str, item))
    if item is None:
        return "-"
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return shortened(text)
