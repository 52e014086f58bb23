"""The terminal output of `smoke`: the verdict, then the numbers."""

from collections.abc import Mapping
from itertools import groupby

from eaglectl.acceptance.report import SmokeReport
from eaglectl.acceptance.showing import ShownAnswer
from eaglectl.reports import acceptance as shared
from eaglectl.reports.terminal.console import Console, Content, Text, indented
from eaglectl.reports.terminal.layout import filled_table, pairs, print_heading, print_sentence, table
from eaglectl.verdicts import CheckVerdict

STYLES = {CheckVerdict.PASS: "green", CheckVerdict.FAIL: "red", CheckVerdict.COULD_NOT_LOOK: "yellow"}
REASON_STYLES: Mapping[str, str] = {"note": "dim"} | STYLES
ACCEPTED = "underline green"
BETTER_STYLES = {"yes": "red", "no": "green"}


def print_smoke(console: Console, report: SmokeReport) -> None:
    """Print the verdict, what ran, acceptance, probes, and the reasons of a failure."""
    style = STYLES[report.verdict]
    verdict = (report.verdict, f"bold {style}")
    console.print(Text.assemble(verdict, f"  {report.source}: {shared.length(report)}"))
    console.print(indented(pairs(shared.facts(report))))
    print_heading(console, "Acceptance", shared.DEFINITION)
    console.print(indented(_table(shared.acceptance(report))))
    if report.shown:
        _print_answer(console, report.shown)
    if report.against:
        source = (f"against {report.against.source}", "bold")
        console.print()
        console.print(Text.assemble(source, f"  {shared.compared(report.against)}"), soft_wrap=True)
        console.print(indented(_table(shared.set_ratios(report.against))))
    if report.variants:
        print_heading(console, shared.VARIANTS_TITLE, shared.RATIO)
        console.print(indented(_variants(report)))
    if report.drift_conditions:
        print_heading(console, shared.DRIFT_TITLE, shared.DRIFT_CELLS)
        console.print(indented(_table(shared.drift(report))))
    for kind, text in shared.reasons(report):
        label = f"{kind:<9}" if len(kind) < 9 else f"{kind}  "
        print_sentence(console, text, 0, (label, REASON_STYLES[kind]))
    if settings := shared.resolved(report):
        console.print(Text(settings, style="dim"))


def _print_answer(console: Console, answer: ShownAnswer) -> None:
    """The prompt, and its answer with accepted draft tokens in colour, or in brackets."""
    print_heading(console, "An answer", shared.shown_counts(answer))
    for question in answer.prompt.split("\n"):
        console.print(indented(Text(question, style="dim")))
    lines = [Text()]
    opening, closing = ("", "") if console.is_terminal else ("[", "]")
    for is_draft, tokens in groupby(answer.tokens, lambda token: token.position is not None):
        first, *rest = "".join(token.text for token in tokens).split("\n")
        style = ACCEPTED if is_draft else ""
        lines[-1].append(f"{opening}{first}" if is_draft else first, style)
        lines += [Text(line, style) for line in rest]
        if is_draft:
            lines[-1].append(closing, style)
    for line in lines:
        console.print(indented(line))


def _variants(report: SmokeReport) -> Content:
    rows = table(*shared.VARIANT_HEAD)
    for *cells, better in shared.variants(report):
        rows.add_row(*cells, Text(better, style=BETTER_STYLES[better]))
    return rows


def _table(cells: shared.Cells) -> Content:
    head, *rows = cells
    return filled_table(head, rows)
