"""What `diff` found: on the screen, and as a JSON document with a versioned schema."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import eaglectl
from eaglectl.errors import printable
from eaglectl.reports.differences import (
    SPELLING,
    TENSOR_HEAD,
    about,
    count_facts,
    count_tensors,
    fact_values,
    fact_why,
    figures,
    how,
    sentence,
    shown_facts,
    shown_tensors,
    value,
)
from eaglectl.reports.tallies import plural
from eaglectl.reports.text import indented, table

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, KeyPair, NamePair, Side, Stored, TensorPair

STYLES = {"equal": "green", "differs": "bold red", "same-headers": "yellow", "could-not-look": "yellow"}
SHOWN = 12


def print_comparison(console: Console, found: "Comparison", *, is_whole: bool = False) -> None:
    """The verdict, what differs in meaning, in tensors and in spelling; `is_whole`: every key and name of the last."""
    console.print(Text(sentence(found), style=STYLES[found.verdict]), soft_wrap=True)
    for name, side in (("A", found.a), ("B", found.b)):
        console.print(Text.assemble("  ", (name, "bold"), f"  {printable(side.source)}", (f"  ({about(side)})", "dim")), soft_wrap=True)  # fmt: skip
    _print_facts(console, found)
    _print_tensors(console, found)
    _print_spelling(console, found, is_whole=is_whole)
    if found.notes:
        console.print(Text("\nNotes", style="bold"))
        for note in found.notes:
            console.print(indented(Text(printable(note))))


def _print_facts(console: Console, found: "Comparison") -> None:
    console.print(Text("\nMeaning", style="bold"), Text(count_facts(found), style="dim"), sep="  ")
    rows = table("", "A", "B", "")
    for fact in shown_facts(found):
        style = {"differs": "red", "unknown": "yellow"}.get(fact.state, "dim")
        values = (Text(printable(text)) for text in fact_values(fact))
        rows.add_row(Text(fact.name, style=style), *values, Text(printable(fact_why(fact)), style="dim"))
    if rows.row_count:
        console.print(indented(rows))


def _print_tensors(console: Console, found: "Comparison") -> None:
    console.print(Text("\nTensors", style="bold"), Text(count_tensors(found), style="dim"), sep="  ")
    rows = table(*TENSOR_HEAD)
    rows.columns[0].no_wrap = True
    for pair in shown_tensors(found):
        name = Text(printable(pair.name), style="red" if pair.differs else "dim")
        rows.add_row(name, how(pair), *figures(pair))
    if rows.row_count:
        console.print(indented(rows))
    for pair in found.tensors:
        if pair.remark:
            console.print(indented(Text(f"{printable(pair.name)}: {pair.remark}", style="dim")))


def _print_spelling(console: Console, found: "Comparison", *, is_whole: bool) -> None:
    spelling = found.spelling
    if not spelling.differs:
        return
    console.print(Text("\nWritten differently", style="bold"), Text(SPELLING, style="dim"), sep="  ")  # fmt: skip
    rows = table("", "A", "B")
    for remark in spelling.remarks:
        rows.add_row(remark.about, Text(printable(remark.a)), Text(printable(remark.b)))
    for pair in spelling.names if is_whole else _examples(spelling.names):
        rows.add_row(f"name of {printable(pair.name)}", _names(pair.a), _names(pair.b))
    if is_whole:
        for key in spelling.keys:
            rows.add_row(printable(key.key), Text(printable(value(key.a))), Text(printable(value(key.b))))
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
