"""Screens for people: what `inspect` found, what `convert` will do and did."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eaglectl.conversion.plan import KeyChange, Plan
from eaglectl.drafter.drafter import Note
from eaglectl.formats.catalogue import by_name
from eaglectl.reports import inspection
from eaglectl.reports.findings import Conversion, Inspection
from eaglectl.reports.wording import size, trained_layers

STYLES = {"as trained": "green", "differs": "red", "fails": "red", "unknown": "yellow"}
SAME_STYLES = {"yes": "green", "no": "red", "unknown": "yellow"}
LEVELS = {"problem": "red", "question": "yellow", "warning": "yellow", "note": "dim"}
SHOWN_CHANGES = 60


def print_inspection(console: Console, found: Inspection, *, has_tensors: bool) -> None:
    """The screen of `inspect`."""
    drafter = found.drafter
    what, who, evidence = inspection.headline(drafter)
    console.print(Text.assemble((what, "bold"), who, (evidence, "dim")))
    console.print(indented(pairs(inspection.facts(found))))
    console.print(
        Text("\nAux layers", style="bold"),
        Text(f"trained on boundaries {trained_layers(drafter.aux)}", style="dim"),
        sep="  ",
    )
    console.print(indented(_aux_table(found)))
    console.print(Text("\nServed as it lies", style="bold"))
    console.print(indented(_verdict_table(found)))
    print_notes(console, drafter.notes)
    _print_commands(console, found)
    if has_tensors:
        console.print(Text("\nTensors", style="bold"))
        console.print(indented(_tensor_table(found)))


def print_plan(console: Console, plan: Plan) -> None:
    """The plan of `convert`: every tensor that moves, every key that changes, all that is left."""
    drafter = plan.drafter
    console.print(
        Text.assemble(
            (f"{plan.source}", "bold"),
            f": EAGLE-{drafter.version} from {by_name(drafter.producer).title} to {by_name(plan.layout).title}",
        )
    )
    moved = [step for step in plan.steps if step.action != "kept"]
    kept = len(plan.steps) - len(moved)
    console.print(Text(f"\nTensors: {len(plan.steps)}, {size(plan.nbytes)}; {kept} kept as they are", style="bold"))
    console.print(
        indented(_rows(("action", "from", "to"), [(s.action, _short(s.origin) or "config", s.name) for s in moved]))
    )
    console.print(Text(f"\nconfig.json: {len(plan.changes)} keys change", style="bold"))
    console.print(
        indented(_rows(("key", "before", "after"), [_change(change) for change in plan.changes[:SHOWN_CHANGES]]))
    )
    lost = (*plan.left_tensors, *plan.left_files)
    if lost:
        console.print(Text("\nLeft behind", style="bold"))
        console.print(indented(_rows(("what", "why"), [(left.name, left.why) for left in lost])))
    print_notes(console, plan.notes)


def print_conversion(console: Console, done: Conversion, *, is_whole: bool, is_quiet: bool) -> None:
    """What `convert` planned (`is_whole`) and did; warnings follow unless `is_quiet`."""
    plan, drafter = done.plan, done.plan.drafter
    if is_whole:
        print_plan(console, plan)
        console.print()
    if done.out is None:
        if done.gate is None:
            console.print("nothing was written (--dry-run)")
        return
    did = (
        f": EAGLE-{drafter.version}, {plan.layout} layout, {len(plan.steps)} tensors ({_actions(plan)}),"
        f" {size(plan.nbytes)} in {done.seconds:.2f} s"
    )
    console.print(Text.assemble(("wrote ", "green"), (str(done.out), "bold"), did), soft_wrap=True)
    console.print(f"aux layers: boundaries {trained_layers(drafter.aux)}", soft_wrap=True)
    if not is_whole and not is_quiet:
        print_notes(console, [note for note in plan.notes if note.level == "warning"])


def _actions(plan: Plan) -> str:
    counts = Counter(step.action for step in plan.steps)
    return ", ".join(f"{count} {action}" for action, count in sorted(counts.items(), key=lambda item: -item[1]))


def _aux_table(found: Inspection) -> RenderableType:
    rows = table(*inspection.AUX_HEAD)
    for *cells, same in inspection.aux_rows(found):
        rows.add_row(*cells, Text(same, style=SAME_STYLES[same]))
    return rows


def _verdict_table(found: Inspection) -> RenderableType:
    rows = table(*inspection.SERVED_HEAD)
    for one in inspection.served(found):
        if one.outcome:
            outcome = Text(inspection.WORDS[one.outcome], style=STYLES[one.outcome])
            rows.add_row(one.engine, one.releases, outcome, one.why)
        else:
            rows.add_row(one.engine, one.releases, "", Text(one.why, style="dim"))
    return rows


def print_notes(console: Console, notes: Sequence[Note]) -> None:
    """Notes, the most pressing first."""
    if not notes:
        return
    console.print(Text("\nNotes", style="bold"))
    for note in inspection.in_order(notes):
        console.print(indented(_line((note.level, LEVELS[note.level]), note.text)))


def _print_commands(console: Console, found: Inspection) -> None:
    if command := inspection.next_command(found):
        console.print(Text("\nNext", style="bold"))
        console.print(indented(Text(command, no_wrap=True, overflow="ignore")), soft_wrap=True)
    if commands := inspection.serve_commands(found):
        console.print(Text("\nServe", style="bold"))
        for engine, command in commands:
            console.print(Text(f"  {engine:<13} {command}"), soft_wrap=True)


def _tensor_table(found: Inspection) -> RenderableType:
    rows = table(*inspection.TENSOR_HEAD)
    for cells in inspection.tensor_rows(found):
        rows.add_row(*cells)
    return rows


def _change(change: KeyChange) -> tuple[str, str, str]:
    return change.key, _value(change.before), _value(change.after)


def _value(value: object) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _short(names: Iterable[str]) -> str:
    return " + ".join(names)


def pairs(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and values, one a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for key, value in rows:
        grid.add_row(key, Text(value))
    return grid


def _line(label: tuple[str, str], text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=8)
    grid.add_column(overflow="fold")
    grid.add_row(Text(*label), Text(text))
    return grid


def _rows(head: Sequence[str], cells: Iterable[Sequence[str]]) -> RenderableType:
    rows = table(*head)
    for row in cells:
        rows.add_row(*(Text(cell) for cell in row))
    return rows


def table(*head: str) -> Table:
    """A table without lines."""
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in head:
        rows.add_column(title, overflow="fold", no_wrap=title in ("engine", "ids it reads", "boundaries", "action"))
    return rows


def indented(what: RenderableType) -> RenderableType:
    """`what`, two columns in."""
    return Padding(Group(what), (0, 0, 0, 2))
