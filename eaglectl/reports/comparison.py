"""What `diff` found: on the screen, and as a JSON document with a versioned schema."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import eaglectl
from eaglectl.errors import printable
from eaglectl.formats.catalogue import by_name
from eaglectl.reports.tallies import plural
from eaglectl.reports.text import indented, table
from eaglectl.reports.wording import size

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, FactState, KeyPair, NamePair, Side, Stored, TensorPair

STYLES = {"equal": "green", "differs": "bold red", "same-headers": "yellow", "could-not-look": "yellow"}
SHOWN = 12
LONGEST = 60


def print_comparison(console: Console, found: "Comparison", *, is_whole: bool = False) -> None:
    """The verdict, what differs in meaning, in tensors and in spelling; `is_whole`: every key and name of the last."""
    console.print(Text(_sentence(found), style=STYLES[found.verdict]), soft_wrap=True)
    for name, side in (("A", found.a), ("B", found.b)):
        about = f"EAGLE-{side.drafter.version}, {by_name(side.drafter.producer).title}, {size(side.checkpoint.nbytes)}"
        console.print(Text.assemble("  ", (name, "bold"), f"  {printable(side.source)}", (f"  ({about})", "dim")), soft_wrap=True)  # fmt: skip
    _print_facts(console, found)
    _print_tensors(console, found)
    _print_spelling(console, found, is_whole=is_whole)
    if found.notes:
        console.print(Text("\nNotes", style="bold"))
        for note in found.notes:
            console.print(indented(Text(printable(note))))


def _sentence(found: "Comparison") -> str:
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


def _print_facts(console: Console, found: "Comparison") -> None:
    counts = Counter(fact.state for fact in found.facts)
    words = [f"{counts[state]} {word}" for state, word in FACT_WORDS.items() if counts[state]]
    console.print(Text("\nMeaning", style="bold"), Text(f"facts: {', '.join(words)}", style="dim"), sep="  ")
    rows = table("", "A", "B", "")
    for fact in found.facts:
        if fact.state != "equal" or fact.why:
            style = {"differs": "red", "unknown": "yellow"}.get(fact.state, "dim")
            state = FACT_WORDS[fact.state] if fact.state != "differs" else ""
            why = Text(printable("; ".join(filter(None, (state, fact.why)))), style="dim")
            values = (Text("not known") if value is None and fact.why else _value(value) for value in (fact.a, fact.b))
            rows.add_row(Text(fact.name, style=style), *values, why)
    if rows.row_count:
        console.print(indented(rows))


FACT_WORDS: "Mapping[FactState, str]" = {
    "equal": "equal",
    "differs": "differ",
    "unknown": "unknown",
    "not-compared": "not compared",
}


def _print_tensors(console: Console, found: "Comparison") -> None:
    same = [pair for pair in found.tensors if pair.state == "equal"]
    counts = [(len(same), "equal"), (sum(pair.differs for pair in found.tensors), "differ")]
    unread = sum(pair.state == "not-compared" for pair in found.tensors)
    words = [
        f"{count} {word}" for count, word in (*counts, (unread, "of one shape and dtype, values not compared")) if count
    ]
    console.print(Text("\nTensors", style="bold"), Text(", ".join(words), style="dim"), sep="  ")
    rows = table("", "difference", "numbers that differ", "max |A - B|", "relative RMS")
    rows.columns[0].no_wrap = True
    for pair in found.tensors:
        if pair.differs or pair.state == "zeros":
            name = Text(printable(pair.name), style="red" if pair.differs else "dim")
            rows.add_row(name, _how(pair), *_figures(pair))
    if rows.row_count:
        console.print(indented(rows))
    for pair in found.tensors:
        if pair.remark:
            console.print(indented(Text(f"{printable(pair.name)}: {pair.remark}", style="dim")))


def _how(pair: "TensorPair") -> str:
    one, other = pair.a, pair.b
    match pair.state:
        case "dtype" if one and other:
            return f"{one.dtype} in A, {other.dtype} in B"
        case "shape" if one and other:
            return f"{list(one.shape)} in A, {list(other.shape)} in B"
        case "only-a" | "only-b" | "zeros":
            return "only in A" if other is None else "only in B"
    return "values" if pair.state == "bytes" else pair.state.replace("-", " ")


def _figures(pair: "TensorPair") -> tuple[str, str, str]:
    numbers = pair.numbers
    if numbers is None:
        return "", "", ""
    share = f"{numbers.differing:,} of {numbers.count:,}" + (f" ({numbers.not_finite:,} not finite)" if numbers.not_finite else "")  # fmt: skip
    return share, _figure(numbers.max_abs), _figure(numbers.relative_rms)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _print_spelling(console: Console, found: "Comparison", *, is_whole: bool) -> None:
    spelling = found.spelling
    if not spelling.differs:
        return
    console.print(Text("\nWritten differently", style="bold"), Text("no reason by itself to call it another drafter", style="dim"), sep="  ")  # fmt: skip
    rows = table("", "A", "B")
    for remark in spelling.remarks:
        rows.add_row(remark.about, Text(printable(remark.a)), Text(printable(remark.b)))
    for pair in spelling.names if is_whole else _examples(spelling.names):
        rows.add_row(f"name of {printable(pair.name)}", _names(pair.a), _names(pair.b))
    if is_whole:
        for key in spelling.keys:
            rows.add_row(printable(key.key), _value(key.a), _value(key.b))
    if rows.row_count:
        console.print(indented(rows))
    if not is_whole and (spelling.keys or spelling.names):
        console.print(indented(Text(_rest(spelling.names, spelling.keys), style="dim")))


def _examples(names: "Sequence[NamePair]") -> "Iterable[NamePair]":
    """One name of each kind: another name, a part of a fused tensor."""
    kinds: dict[tuple[bool, bool], NamePair] = {}
    shared = Counter(side for pair in names for side in (pair.a, pair.b))
    for pair in names:
        kinds.setdefault((shared[pair.a] > 1 or len(pair.a) > 1, shared[pair.b] > 1 or len(pair.b) > 1), pair)
    return kinds.values()


def _rest(names: "Sequence[NamePair]", keys: "Sequence[KeyPair]") -> str:
    parts = [f"{plural(len(names), 'tensor')} under other names"] if names else []
    if keys:
        listed = ", ".join(printable(key.key) for key in keys[:SHOWN])
        parts.append(f"{plural(len(keys), 'config key')}: {listed}" + (", ..." if len(keys) > SHOWN else ""))
    return "; ".join(parts) + " (eaglectl -v diff lists them)"


def _names(names: Iterable[str]) -> Text:
    return Text(printable(" + ".join(names)))


def _value(value: object) -> Text:
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return Text(", ".join(map(str, value)))
    text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, ensure_ascii=False)
    return Text(printable(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."))


def comparison(found: "Comparison") -> dict[str, Any]:
    """eaglectl/diff/1."""
    spelling = found.spelling
    return {
        "schema": "eaglectl/diff/1", "version": eaglectl.__version__, "verdict": found.verdict,
        "values": "compared" if found.has_values else "not-compared", "is_written_alike": not spelling.differs,
        "a": _side(found.a), "b": _side(found.b),
        "facts": [{"name": one.name, "a": one.a, "b": one.b, "state": one.state, "why": one.why} for one in found.facts],
        "tensors": [_pair(one) for one in found.tensors],
        "spelling": {
            "remarks": [{"about": one.about, "a": one.a, "b": one.b} for one in spelling.remarks],
            "names": [{"name": one.name, "a": list(one.a), "b": list(one.b)} for one in spelling.names],
            "config": [{"key": one.key, "a": one.a, "b": one.b} for one in spelling.keys],
        },
        "notes": list(found.notes),
    }  # fmt: skip


def _side(side: "Side") -> dict[str, Any]:
    drafter, checkpoint = side.drafter, side.checkpoint
    return {
        "source": side.source, "producer": drafter.producer, "eagle": drafter.version,
        "weights": {"files": list(checkpoint.weight_files), "bytes": checkpoint.nbytes},
    }  # fmt: skip


def _pair(pair: "TensorPair") -> dict[str, Any]:
    numbers = pair.numbers
    return {
        "name": pair.name, "state": pair.state, "a": _stored(pair.a), "b": _stored(pair.b),
        "numbers": None if numbers is None else {key: getattr(numbers, key) for key in numbers.__dataclass_fields__},
        "remark": pair.remark,
    }  # fmt: skip


def _stored(stored: "Stored | None") -> dict[str, Any] | None:
    if stored is None:
        return None
    return {"dtype": stored.dtype, "shape": list(stored.shape), "from": list(stored.origin), "sha256": stored.sha256}
