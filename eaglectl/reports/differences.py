"""A comparison in words, for the terminal and the page of `diff`."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglectl.formats.catalogue import by_name
from eaglectl.reports.wording import plural, shortened, size
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, Fact, Side, TensorPair
    from eaglectl.publishing.changes import Changes

TENSOR_HEAD = ("", "difference", "numbers that differ", "max |A - B|", "relative RMS")
SPELLING = "no reason by itself to call it another drafter"


def sentence(comparison: "Comparison") -> str:
    """The verdict, and what it means."""
    return f"{comparison.verdict}: {_meaning(comparison)}"


def _meaning(comparison: "Comparison") -> str:
    facts = Counter(fact.state for fact in comparison.facts)
    unread = "" if comparison.has_values else "; values were not compared (--headers-only)"
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
    return f"two drafters, by {_counted(facts[FactState.DIFFERS], tensors)}{unread}"


def _counted(facts: int, tensors: int) -> str:
    counts = ((facts, "fact"), (tensors, "tensor"))
    return " and ".join(plural(count, word) for count, word in counts if count)


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


def about(side: "Side") -> str:
    """Version, layout and size of a side."""
    return (
        f"EAGLE-{side.drafter.version}, {by_name(side.drafter.producer).title},"
        f" {size(side.checkpoint.nbytes)}"
    )


def count_facts(comparison: "Comparison") -> str:
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


def count_tensors(comparison: "Comparison") -> str:
    """How many tensors are equal, differ, and were not read."""
    same = sum(pair.state == TensorState.EQUAL for pair in comparison.tensors)
    unread = sum(pair.state == TensorState.NOT_COMPARED for pair in comparison.tensors)
    counts = [(same, "equal"), (sum(pair.differs for pair in comparison.tensors), "differ")]
    counts.append((unread, "of one shape and dtype, values not compared"))
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def shown_tensors(comparison: "Comparison") -> Iterator["TensorPair"]:
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
