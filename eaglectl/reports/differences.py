"""A comparison in words: what the screen and the page of `diff` both show."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from eaglectl.formats.catalogue import by_name
from eaglectl.reports.tallies import plural
from eaglectl.reports.wording import size

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, Fact, FactState, Side, TensorPair

LONGEST = 60
TENSOR_HEAD = ("", "difference", "numbers that differ", "max |A - B|", "relative RMS")
SPELLING = "no reason by itself to call it another drafter"


def sentence(found: "Comparison") -> str:
    """The verdict in words."""
    facts, pairs = Counter(fact.state for fact in found.facts), sum(pair.differs for pair in found.tensors)
    unseen = "" if found.has_values else "; values were not compared (--headers-only)"
    match found.verdict:
        case "equal":
            return "the same drafter, written differently" if found.spelling.differs else "the same drafter"
        case "same-headers":
            return f"nothing differs in config and headers{unseen}"
        case "could-not-look":
            return f"cannot be told: nothing differs that is known, and {plural(facts['unknown'], 'fact')} must be asked for{unseen}"
    parts = [plural(count, word) for count, word in ((facts["differs"], "fact"), (pairs, "tensor")) if count]
    verb = "differs" if facts["differs"] + pairs == 1 else "differ"
    return f"two drafters: {' and '.join(parts)} {verb}{unseen}"


FACT_WORDS: "Mapping[FactState, str]" = {
    "equal": "equal",
    "differs": "differ",
    "unknown": "unknown",
    "not-compared": "not compared",
}


def how(pair: "TensorPair") -> str:
    """In what a tensor differs."""
    one, other = pair.a, pair.b
    match pair.state:
        case "dtype" if one and other:
            return f"{one.dtype} in A, {other.dtype} in B"
        case "shape" if one and other:
            return f"{list(one.shape)} in A, {list(other.shape)} in B"
        case "only-a" | "only-b" | "zeros":
            return "only in A" if other is None else "only in B"
    return "values" if pair.state == "bytes" else pair.state.replace("-", " ")


def figures(pair: "TensorPair") -> tuple[str, str, str]:
    """How many numbers differ, the largest difference, the relative RMS."""
    numbers = pair.numbers
    if numbers is None:
        return "", "", ""
    share = f"{numbers.differing:,} of {numbers.count:,}" + (f" ({numbers.not_finite:,} not finite)" if numbers.not_finite else "")  # fmt: skip
    return share, _figure(numbers.max_abs), _figure(numbers.relative_rms)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def about(side: "Side") -> str:
    """What one of the two is."""
    return f"EAGLE-{side.drafter.version}, {by_name(side.drafter.producer).title}, {size(side.checkpoint.nbytes)}"


def count_facts(found: "Comparison") -> str:
    """How many facts are in each state."""
    counts = Counter(fact.state for fact in found.facts)
    return "facts: " + ", ".join(f"{counts[state]} {word}" for state, word in FACT_WORDS.items() if counts[state])


def shown_facts(found: "Comparison") -> Iterator["Fact"]:
    """The facts that are not plainly equal."""
    return (fact for fact in found.facts if fact.state != "equal" or fact.why)


def fact_values(fact: "Fact") -> tuple[str, str]:
    """What the fact is in A and in B."""
    a, b = ("not known" if one is None and fact.why else value(one) for one in (fact.a, fact.b))
    return a, b


def fact_why(fact: "Fact") -> str:
    """The state, where it is not that they differ, and what it rests on."""
    state = FACT_WORDS[fact.state] if fact.state != "differs" else ""
    return "; ".join(filter(None, (state, fact.why)))


def count_tensors(found: "Comparison") -> str:
    """How many tensors are equal, differ, and were not read."""
    same = sum(pair.state == "equal" for pair in found.tensors)
    unread = sum(pair.state == "not-compared" for pair in found.tensors)
    counts = [(same, "equal"), (sum(pair.differs for pair in found.tensors), "differ")]
    counts.append((unread, "of one shape and dtype, values not compared"))
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def shown_tensors(found: "Comparison") -> Iterator["TensorPair"]:
    """The tensors that differ, and biases of zeros on one side."""
    return (pair for pair in found.tensors if pair.differs or pair.state == "zeros")


def value(given: object) -> str:
    """A value of a config as people read it, cut where it is long."""
    if isinstance(given, list) and given and all(type(item) is int for item in given):
        return ", ".join(map(str, given))
    text = given if isinstance(given, str) else "-" if given is None else json.dumps(given, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
