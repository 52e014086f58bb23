"""The terminal output of `inspect`, for one source or several."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from eaglectl.reports import inspection as shared
from eaglectl.reports.terminal.console import Console, Table, Text, indented
from eaglectl.reports.terminal.layout import filled_table, pairs, print_heading, print_notes, table
from eaglectl.reports.wording import placeholders, trained_layers
from eaglectl.results import FailedSource, Inspection
from eaglectl.verdicts import ServedAs

OUTCOME_STYLES = {
    ServedAs.AS_TRAINED: "green",
    ServedAs.DIFFERS: "red",
    ServedAs.FAILS: "red",
    ServedAs.UNKNOWN: "yellow",
}
MARK_STYLES = {"good": "green", "bad": "red", "doubt": "yellow", "missing": "", "": "dim"}
GLYPHS = {"good": "●", "bad": "×", "doubt": "?", "missing": "○", "": "─"}
ASCII_GLYPHS = {"good": "*", "bad": "x", "doubt": "?", "missing": "o", "": "-"}
# columns beside a strip, and the fewest of a strip
STRIP_INDENT, MIN_STRIP = 6, 20
AS_TRAINED_STYLES = {"yes": "green", "no": "red", "unknown": "yellow"}


def print_inspection(console: Console, inspection: Inspection, *, has_tensors: bool) -> None:
    """Print one source; `has_tensors` lists its tensors too."""
    drafter = inspection.drafter
    version, producer, evidence = shared.headline(drafter)
    console.print(Text.assemble((version, "bold"), producer, (evidence, "dim")))
    console.print(indented(pairs(shared.facts(inspection))))
    print_aux_layers(console, inspection)
    print_heading(console, shared.SERVED_TITLE)
    console.print(indented(_outcome_table(inspection)))
    print_notes(console, drafter.notes)
    _print_commands(console, inspection)
    if has_tensors:
        print_heading(console, "Tensors")
        console.print(indented(filled_table(shared.TENSOR_HEAD, shared.tensor_rows(inspection))))


def print_aux_layers(console: Console, inspection: Inspection) -> None:
    """Print which layers were trained on, and which ones each engine captures."""
    trained = trained_layers(inspection.drafter.aux)
    print_heading(console, "Aux layers", f"trained on boundaries {trained}")
    print_strip(console, inspection)
    console.print(indented(_aux_table(inspection)))


def print_inspections(
    console: Console, results: Sequence[tuple[str, Inspection | FailedSource]], *, has_tensors: bool
) -> None:
    """Print each source under its name, or why it could not be inspected, then the number inspected."""
    for source, result in results:
        console.print(Text(f"== {source}", style="bold"), soft_wrap=True)
        if isinstance(result, FailedSource):
            message = f"not inspected: {result.message}"
            console.print(Text(message, style="yellow"), soft_wrap=True)
        else:
            print_inspection(console, result, has_tensors=has_tensors)
        console.print()
    failed = sum(isinstance(result, FailedSource) for _, result in results)
    console.print(f"{len(results) - failed} of {len(results)} checkpoints inspected")


def print_strip(console: Console, inspection: Inspection) -> None:
    """Print the layers that engines capture on the target, where they are not all those of training."""
    strip = shared.layer_strip(inspection)
    if strip is None or all(part.as_trained == "yes" for part in strip.captured):
        return
    glyphs = ASCII_GLYPHS if console.is_ascii else GLYPHS
    shown = set()
    for part in strip.captured:
        console.print(indented(Text("; ".join(part.engines))))
        marks = [part.mark(boundary, strip.trained) for boundary in range(strip.end + 1)]
        shown |= set(marks)
        for start, line in _lines(marks, console.width - STRIP_INDENT):
            row = Text(f"{start:>3} ", style="dim")
            for mark, run in groupby(line):
                row.append(glyphs[mark] * len(list(run)), style=MARK_STYLES[mark])
            console.print(indented(row))
    legend = [f"{glyphs[mark]} {words}" for mark, words in shared.MARKS.items() if mark in shown]
    for text in filter(None, ("  ".join(legend), strip.remark)):
        console.print(indented(Text(text, style="dim")))
    console.print()


def _lines(marks: Sequence[str], width: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the first boundary and the marks of each line; lines are of about one length."""
    count = -(-len(marks) // max(width, MIN_STRIP))
    size = -(-len(marks) // count)
    for start in range(0, len(marks), size):
        yield start, list(marks[start : start + size])


def _aux_table(inspection: Inspection) -> Table:
    rows = table(*shared.AUX_HEAD)
    for *cells, as_trained, but in shared.aux_rows(inspection):
        style = "yellow" if but else AS_TRAINED_STYLES[as_trained]
        rows.add_row(*cells, Text(f"{as_trained}{but}", style=style))
    return rows


def _outcome_table(inspection: Inspection) -> Table:
    rows = table(*shared.SERVED_HEAD)
    for row in shared.served_rows(inspection):
        if row.outcome:
            outcome = Text(row.outcome, style=OUTCOME_STYLES[row.outcome])
            rows.add_row(row.engine, row.releases, outcome, row.reasons)
        else:
            rows.add_row(row.engine, row.releases, "", Text(row.reasons, style="dim"))
    return rows


def _print_commands(console: Console, inspection: Inspection) -> None:
    if command := shared.next_command(inspection):
        print_heading(console, "Next", shared.next_remark(inspection))
        console.print(Text(f"  {command}"), soft_wrap=True)
    if commands := shared.serve_commands(inspection):
        print_heading(console, "Serve", placeholders(inspection.commands.values()))
        for engine, command in commands:
            console.print(Text(f"  {engine:<13} {command}"), soft_wrap=True)
