"""What `validate` found, on the screen: by checkpoint, the worst first, the way out under each finding."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eaglectl.errors import printable
from eaglectl.reports import wording
from eaglectl.reports.tallies import (
    Blindness,
    asked,
    blindness,
    fails,
    plural,
    release_rows,
    shared_blindness,
    suppressions,
    total,
)
from eaglectl.validation.judging import Report, merged
from eaglectl.validation.rule import Finding

STYLES = {
    "error": "red",
    "warning": "yellow",
    "note": "dim",
    "pass": "green",
    "fail": "red",
    "could-not-look": "yellow",
}


def print_reports(console: Console, reports: Sequence[Report], *, is_quiet: bool = False) -> None:
    """One block for each checkpoint, and a last line over all. Quiet: only what fails."""
    common = shared_blindness(reports)
    for report in reports:
        _print_report(console, report, common, is_quiet=is_quiet)
        if not is_quiet:
            console.print()
    if common and not is_quiet:
        _print_blindness(console, "could not look, in every checkpoint", common)
        console.print()
    console.print(_last_line(reports), soft_wrap=not console.is_terminal)


def as_text(reports: Sequence[Report]) -> str:
    """The screen as a file holds it: without colours, of the width that pipelines see."""
    stream = io.StringIO()
    print_reports(Console(file=stream, width=160, no_color=True, highlight=False, emoji=False, markup=False), reports)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _print_report(console: Console, report: Report, common: Sequence[Blindness], *, is_quiet: bool) -> None:
    title = (printable(report.path), "bold")
    console.print(Text.assemble(title, "  ", (report.verdict, STYLES[report.verdict])), soft_wrap=True)
    if report.problem:
        _print(console, 2, f"could not be read: {report.problem}", "yellow")
    for one in report.findings:
        if not is_quiet or fails(one, report):
            print_finding(console, one)
    if not is_quiet:
        print_releases(console, report)
        own = [] if report.problem else [one for one in blindness(report) if one not in common]
        _print_blindness(console, "could not look", own)
        _print_suppressions(console, report)


def print_finding(console: Console, one: Finding, why: str = "") -> None:
    """A finding with the way out under it; `why`: it is still there."""
    head = Text.assemble((f"{one.rule.id} {one.rule.name}", "bold"))
    if one.hit.where:
        head.append(f"  {printable(one.hit.where)}", style="cyan")
    if one.hit.engines:
        head.append(f"  {wording.engines(one.hit.engines)}", style="magenta")
    table = Table.grid()
    table.add_column(width=8)
    table.add_row(Text(one.severity, style=STYLES[one.severity]), head)
    console.print(Padding(table, (0, 0, 0, 2)))
    _print(console, 10, one.hit.message)
    if why:
        _print(console, 10, f"left: {why}", "dim")
    console.print(Padding(Text.assemble(("fix: ", "green"), printable(one.fix)), (0, 0, 0, 10)))


def print_releases(console: Console, report: Report) -> None:
    """What each engine release asked for does, and the way out."""
    if report.releases:
        _heading(console, "served as trained by")
        table = Table.grid(padding=(0, 2, 0, 0))
        for releases, outcome, why in release_rows(report):
            table.add_row(printable(releases), Text(outcome, style=STYLES[outcome]), Text(printable(why), style="dim"))
        console.print(Padding(table, (0, 0, 0, 4)))
    if report.ways_out:
        _heading(console, "smallest change that makes all pass")
    for way in report.ways_out:
        console.print(Padding(Text(printable(way)), (0, 0, 0, 4)))


def _print_blindness(console: Console, title: str, found: Sequence[Blindness]) -> None:
    if found:
        _heading(console, title)
    for reason, ids in found:
        _row(console, plural(len(ids), "rule"), f"{reason} ({', '.join(ids)})")


def _print_suppressions(console: Console, report: Report) -> None:
    for title, rows in suppressions(report):
        _heading(console, title)
        for rule, text in rows:
            _row(console, rule, text)


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"  {text}", style="bold"))


def _row(console: Console, name: str, text: str) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=8, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(printable(name)), Text(printable(text), style="dim"))
    console.print(Padding(table, (0, 0, 0, 4)))


def _print(console: Console, indent: int, text: str, style: str = "") -> None:
    console.print(Padding(Text(printable(text), style=style), (0, 0, 0, indent)))


def _last_line(reports: Sequence[Report]) -> Text:
    verdict = merged(reports)
    return Text.assemble(
        (verdict, f"bold {STYLES[verdict]}"), f"  {total(reports)}", (f"  ({printable(asked(reports))})", "dim")
    )
