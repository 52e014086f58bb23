"""The result of `diff` on the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
from eaglectl.reports.terminal.console import MOST_ROWS, Console, Text, indented
from eaglectl.reports.terminal.layout import print_heading, print_rest, table
from eaglectl.reports.wording import plural
from eaglectl.text import listed
from eaglectl.verdicts import DiffVerdict, FactState

if TYPE_CHECKING:
    from eaglectl.comparison.comparison import Comparison, KeyPair, NamePair

STYLES = {
    DiffVerdict.EQUAL: "green",
    DiffVerdict.DIFFERS: "bold red",
    DiffVerdict.SAME_HEADERS: "yellow",
    DiffVerdict.COULD_NOT_LOOK: "yellow",
}
SHOWN = 12
# characters of a tensor's name that may be wrapped
LONG_NAME = 80


def print_comparison(console: Console, comparison: "Comparison", *, is_whole: bool = False) -> None:
    """Print the verdict, facts and tensors that differ, and the spelling; `is_whole`: every name and key."""
    console.print(Text(sentence(comparison), style=STYLES[comparison.verdict]), soft_wrap=True)
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        console.print(
            Text.assemble("  ", (name, "bold"), f"  {side.source}", (f"  ({about(side)})", "dim")),
            soft_wrap=True,
        )
    _print_facts(console, comparison)
    _print_tensors(console, comparison, is_whole=is_whole)
    _print_spelling(console, comparison, is_whole=is_whole)
    if comparison.notes:
        print_heading(console, "Notes")
        for note in comparison.notes[:MOST_ROWS]:
            console.print(indented(Text(note)))


def _print_facts(console: Console, comparison: "Comparison") -> None:
    print_heading(console, "Meaning", count_facts(comparison))
    rows = table("", "A", "B", "")
    for fact in shown_facts(comparison):
        style = {FactState.DIFFERS: "red", FactState.UNKNOWN: "yellow"}.get(fact.state, "dim")
        values = (Text(text) for text in fact_values(fact))
        rows.add_row(Text(fact.name, style=style), *values, Text(fact_why(fact), style="dim"))
    if rows.row_count:
        console.print(indented(rows))


def _print_tensors(console: Console, comparison: "Comparison", *, is_whole: bool) -> None:
    print_heading(console, "Tensors", count_tensors(comparison))
    rows = table(*TENSOR_HEAD)
    shown = list(shown_tensors(comparison))
    rows.columns[0].no_wrap = all(len(pair.name) < LONG_NAME for pair in shown)
    for pair in shown if is_whole else shown[:MOST_ROWS]:
        name = Text(pair.name, style="red" if pair.differs else "dim")
        rows.add_row(name, how(pair), *figures(pair))
    if rows.row_count:
        console.print(indented(rows))
    remarks = [f"{pair.name}: {pair.remark}" for pair in comparison.tensors if pair.remark]
    for remark in remarks if is_whole else remarks[:MOST_ROWS]:
        console.print(indented(Text(remark, style="dim")))
    if not is_whole:
        print_rest(console, len(shown) - MOST_ROWS, "tensors")
        print_rest(console, len(remarks) - MOST_ROWS, "remarks")


def _print_spelling(console: Console, comparison: "Comparison", *, is_whole: bool) -> None:
    spelling = comparison.spelling
    if not spelling.differs:
        return
    print_heading(console, "Written differently", SPELLING)
    names = spelling.names if is_whole else _examples(spelling.names)
    rows = table("", "A", "B")
    for remark in spelling.remarks:
        rows.add_row(remark.about, Text(remark.a), Text(remark.b))
    for pair in names:
        rows.add_row(f"name of {pair.name}", _names(pair.a), _names(pair.b))
    for key in spelling.keys if is_whole else ():
        rows.add_row(key.key, Text(value(key.a)), Text(value(key.b)))
    if rows.row_count:
        console.print(indented(rows))
    if rest := "" if is_whole else _rest(spelling.names, spelling.keys):
        console.print(indented(Text(rest, style="dim")))


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


def _names(names: Iterable[str]) -> Text:
    return Text(" + ".join(names))
