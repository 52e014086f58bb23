"""A comparison as sections, and as a JSON document."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from eaglectl.comparison.comparison import Comparison, Fact, NamePair, Side, Spelling, TensorPair
from eaglectl.formats.catalogue import by_name
from eaglectl.report.documents.document import Parts
from eaglectl.report.section import Line, Lines, Outline, Section, Table, Tone, Words, first_lines, grouped
from eaglectl.report.wording import plural, shortened, size
from eaglectl.text import listed
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

if TYPE_CHECKING:
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


def comparison_outline(comparison: Comparison, *, is_whole: bool = False) -> Outline:
    """The verdict, facts and tensors that differ, and the spelling; `is_whole`: the terminal shows all."""
    lines = [
        (
            Words(letter, "strong"),
            f"  {side.source}  ",
            Words(
                f"(EAGLE-{side.drafter.version}, {by_name(side.drafter.producer).title},"
                f" {size(side.checkpoint.nbytes)})",
                "quiet",
            ),
        )
        for letter, side in (("A", comparison.a), ("B", comparison.b))
    ]
    states = Counter(fact.state for fact in comparison.facts)
    counts = ", ".join(f"{states[state]} {state}" for state in FactState if states[state])
    facts = [
        (
            Words(fact.name, FACT_TONES.get(fact.state, "quiet")),
            *fact_values(fact),
            Words(fact_why(fact), "quiet"),
        )
        for fact in shown_facts(comparison)
    ]
    remarks: list[Line] = [f"{pair.name}: {pair.remark}" for pair in comparison.tensors if pair.remark]
    tensors = [
        _tensor_row(pair)
        for pair in comparison.tensors
        if pair.differs or pair.state == TensorState.ZEROS  # biases of zeros on one side
    ]
    sections = [
        Section("", [Lines(lines)], has_heading=False),
        Section("Meaning", [Table(("fact", "A", "B", ""), facts, is_whole=True)], f"facts: {counts}"),
        _served(comparison),
        Section(
            "Tensors",
            [
                Table(TENSOR_HEAD, tensors, is_whole=is_whole),
                Lines(remarks if is_whole else first_lines(remarks), is_list=True),
            ],
            _count_tensors(comparison),
        ),
        _spelling(comparison.spelling, is_whole=is_whole),
        Section("Notes", [Lines(first_lines(comparison.notes), is_list=True)]),
    ]
    tone, text = TONES[comparison.verdict], f"{comparison.verdict}: {_meaning(comparison)}"
    subject = f"{comparison.a.source} and {comparison.b.source}"
    verdict = Words(comparison.verdict, tone)
    return Outline("diff", verdict, subject, Words(text, "strong"), Words(text, tone), sections)


def _served(comparison: Comparison) -> Section:
    rows = [
        (fact.name, Words(fact.a, FACT_TONES.get(fact.state, "quiet")), fact.b) for fact in comparison.served
    ]
    by_reason = grouped((fact.why, fact.name) for fact in comparison.served if fact.why)
    lines = [Words(f"{listed(names)}: {why}", "quiet") for why, names in by_reason.items()]
    reasons = Lines(lines, is_list=True, is_unbroken=True)
    return Section("As stored", [Table(("engine", "A", "B"), rows), reasons])


def _tensor_row(pair: TensorPair) -> tuple[Line, ...]:
    """A tensor, how it differs, how many numbers do, the largest difference, the relative RMS."""
    a, b, numbers, how = pair.a, pair.b, pair.numbers, str(pair.state)
    match pair.state:
        case TensorState.DTYPE if a and b:
            how = f"{a.dtype} in A, {b.dtype} in B"
        case TensorState.SHAPE if a and b:
            how = f"{list(a.shape)} in A, {list(b.shape)} in B"
        case TensorState.ONLY_A | TensorState.ONLY_B | TensorState.ZEROS:
            how = "only in A" if b is None else "only in B"
        case TensorState.BYTES:
            how = "values"
    name = Words(pair.name, "bad" if pair.differs else "quiet", is_code=True)
    if numbers is None:
        return name, how, "", "", ""
    share = f"{numbers.differing:,} of {numbers.count:,}"
    if numbers.not_finite:
        share += f" ({numbers.not_finite:,} not finite)"
    figures = (numbers.max_abs, numbers.relative_rms)
    return name, how, share, *("-" if figure is None else f"{figure:.3g}" for figure in figures)


def _spelling(spelling: Spelling, *, is_whole: bool) -> Section:
    """What is written differently: examples of names, unless `is_whole`, and how many more there are."""
    names = spelling.names
    rows: list[tuple[Line, ...]] = [(remark.about, remark.a, remark.b) for remark in spelling.remarks]
    rows += [
        (
            ("name of ", Words(pair.name, is_code=True)),
            *(Words(" + ".join(side), is_code=True) for side in (pair.a, pair.b)),
        )
        for pair in (names if is_whole else _examples(names))
    ]
    rest = [f"{plural(len(names), 'tensor')} under other names"] if names else []
    if is_whole:
        rows += [(key.key, _value(key.a), _value(key.b)) for key in spelling.keys]
    elif spelling.keys:
        keys = listed((key.key for key in spelling.keys), most=SHOWN)
        rest.append(f"{plural(len(spelling.keys), 'config key')}: {keys}")
    more = (
        [] if is_whole or not rest else [Words(f"{'; '.join(rest)} (eaglectl -v diff lists them)", "quiet")]
    )
    return Section("Written differently", [Table(("", "A", "B"), rows, is_whole=True), Lines(more)], SPELLING)


def _examples(names: Sequence[NamePair]) -> list[NamePair]:
    """One name of each kind: another name, a part of a fused tensor."""
    kinds: dict[tuple[bool, ...], NamePair] = {}
    shared = Counter(side for pair in names for side in (pair.a, pair.b))
    for pair in names:
        kinds.setdefault(tuple(shared[side] > 1 or len(side) > 1 for side in (pair.a, pair.b)), pair)
    return list(kinds.values())


def _meaning(comparison: Comparison) -> str:
    facts = Counter(fact.state for fact in comparison.facts)
    unread = "" if comparison.has_values else "; values were not compared (--headers-only)"
    if comparison.verdict != comparison.meaning:
        return "; ".join(
            f"the same drafter, and as stored no engine accepts a token of {letter}: {fault}"
            for letter, own, others in zip("AB", comparison.errors, comparison.errors[::-1], strict=True)
            for fault in own
            if fault not in others
        )
    match comparison.verdict:
        case DiffVerdict.EQUAL:
            return f"the same drafter{', written differently' * comparison.spelling.differs}"
        case DiffVerdict.SAME_HEADERS:
            return f"nothing differs in config and headers{unread}"
        case DiffVerdict.COULD_NOT_LOOK:
            asked = plural(facts[FactState.UNKNOWN], "fact")
            return f"nothing differs that is known, and {asked} must be asked for{unread}"
    tensors = sum(pair.differs for pair in comparison.tensors)
    counts = ((facts[FactState.DIFFERS], "fact"), (tensors, "tensor"))
    by = " and ".join(plural(count, word) for count, word in counts if count)
    return f"two drafters, by {by}{unread}"


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


def shown_facts(comparison: Comparison) -> Iterator[Fact]:
    """The facts that are not plainly equal."""
    return (fact for fact in comparison.facts if fact.state != FactState.EQUAL or fact.why)


def fact_values(fact: Fact) -> tuple[str, str]:
    """The fact in A and in B."""
    a, b = ("not known" if side is None and fact.why else _value(side) for side in (fact.a, fact.b))
    return a, b


def fact_why(fact: Fact) -> str:
    """The state, unless they differ, and its explanation."""
    state = fact.state if fact.state != FactState.DIFFERS else ""
    return "; ".join(filter(None, (state, fact.why)))


def _count_tensors(comparison: Comparison) -> str:
    states = Counter(pair.state for pair in comparison.tensors)
    counts = (
        (states[TensorState.EQUAL], "equal"),
        (sum(pair.differs for pair in comparison.tensors), "differ"),
        (states[TensorState.NOT_COMPARED], "of one shape and dtype, values not compared"),
    )
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _value(item: object) -> str:
    if isinstance(item, list) and item and all(type(number) is int for number in item):
        return ", ".join(map(str, item))
    if item is None:
        return "-"
    return shortened(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))


TAG = "eaglectl/diff/1"
PARTS: Parts = {
    Comparison: (
        "verdict",
        ("values", lambda comparison: "compared" if comparison.has_values else "not-compared"),
        ("is_written_alike", lambda comparison: not comparison.spelling.differs),
        "a",
        "b",
        "facts",
        "served",
        "tensors",
        "spelling",
        "notes",
    ),
    Side: (
        "source",
        "producer=drafter.producer",
        "eagle=drafter.version",
        (
            "weights",
            lambda side: {"files": side.checkpoint.weight_files, "bytes": side.checkpoint.nbytes},
        ),
    ),
}
