"""The terminal output of `validate`: by checkpoint, errors first, with the fix under each finding."""

from collections.abc import Sequence

from eaglectl.reports.findings import (
    UncheckedGroup,
    common_unchecked,
    default_engines_line,
    fails,
    first_findings,
    is_unreadable,
    nothing_looked_at,
    own_unchecked,
    policy_line,
    release_rows,
    suppression_rows,
    total,
)
from eaglectl.reports.terminal.console import Console, Content, Table, Text, as_plain_text, indented
from eaglectl.reports.terminal.layout import print_sentence
from eaglectl.reports.wording import engine_ranges, plural
from eaglectl.validation.finding import Finding
from eaglectl.validation.judge import Report, overall_verdict
from eaglectl.verdicts import CheckVerdict

STYLES = {
    "error": "red",
    "warning": "yellow",
    "note": "dim",
    CheckVerdict.PASS: "green",
    CheckVerdict.FAIL: "red",
    CheckVerdict.COULD_NOT_LOOK: "yellow",
    CheckVerdict.SKIPPED: "dim",
}
COPIED = "the weights are pickles: they were copied to a temporary folder, and nothing in them was run"
# columns of a finding's text: two, then the severity and a gap
FINDING_INDENT = 10


def print_reports(console: Console, reports: Sequence[Report], *, is_quiet: bool = False) -> None:
    """Print each checkpoint and a summary line; if quiet, only what fails."""
    common = common_unchecked(reports)
    for report in reports:
        if is_quiet:
            _print_failures(console, report)
        else:
            _print_report(console, report, common)
            console.print()
    if common and not is_quiet:
        _print_unchecked(console, "could not look, in every checkpoint", common)
        console.print()
    if engines := default_engines_line(reports):
        console.print(Text(engines, style="dim"), soft_wrap=not console.is_terminal)
    console.print(_summary(reports), soft_wrap=not console.is_terminal)


def as_text(reports: Sequence[Report]) -> str:
    """Return the terminal output for a file: without colours, 160 columns wide."""
    return as_plain_text(lambda console: print_reports(console, reports))


def _print_report(console: Console, report: Report, common: Sequence[UncheckedGroup]) -> None:
    _print_title(console, report)
    if is_unreadable(report):
        _print_findings(console, [finding for finding in report.findings if finding.severity == "error"])
        _print_text(console, 2, nothing_looked_at(report), "dim")
        return
    _print_findings(console, report.findings)
    print_releases(console, report)
    _print_unchecked(console, "could not look", own_unchecked(report, common))
    for title, rows in suppression_rows(report):
        _print_heading(console, title)
        for rule, text in rows:
            _print_row(console, rule, text)


def _print_failures(console: Console, report: Report) -> None:
    _print_title(console, report)
    _print_findings(console, [finding for finding in report.findings if fails(finding, report)])


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    first, more = first_findings(findings)
    for finding in first:
        print_finding(console, finding)
    for sentence in more:
        _print_text(console, 2, sentence, "dim")


def _print_title(console: Console, report: Report) -> None:
    path, verdict = (report.path, "bold"), (report.verdict, STYLES[report.verdict])
    console.print(Text.assemble(path, "  ", verdict), soft_wrap=True)
    if report.problem:
        _print_text(console, 2, f"could not be read: {report.problem}", "yellow")
    if report.skipped:
        _print_text(console, 2, f"no drafter: {report.skipped}", "dim")
    if report.target:
        console.print(Text(f"  target: {report.target}", style="dim"), soft_wrap=True)
    if report.is_of_copy:
        _print_text(console, 2, COPIED, "dim")


def print_finding(console: Console, finding: Finding, remaining: str = "") -> None:
    """Print a finding and its fix; `remaining`: why `validate --fix` did not fix it."""
    rule, match = finding.rule, finding.match
    head = Text.assemble((f"{rule.id} {rule.name}", "bold"))
    if match.where:
        head.append(f"  {match.where}", style="cyan")
    if match.engines:
        head.append(f"  {engine_ranges(match.engines)}", style="magenta")
    grid = Table.grid()
    grid.add_column(width=FINDING_INDENT - 2)
    grid.add_row(Text(finding.severity, style=STYLES[finding.severity]), head)
    console.print(indented(grid))
    print_sentence(console, match.message, FINDING_INDENT)
    if remaining:
        _print_text(console, FINDING_INDENT, f"left: {remaining}", "dim")
    print_sentence(console, finding.fix, FINDING_INDENT, ("fix: ", "green"))


def print_releases(console: Console, report: Report) -> None:
    """Print the outcome for each engine release requested, and the smallest change that makes all pass."""
    if report.releases:
        _print_heading(console, "served as trained by")
        grid = Table.grid(padding=(0, 2, 0, 0))
        for releases, outcome, reason in release_rows(report):
            outcome_cell = Text(outcome, style=STYLES[outcome])
            grid.add_row(releases, outcome_cell, Text(reason, style="dim"))
        console.print(indented(grid, 4))
    if report.smallest_changes:
        _print_heading(console, "smallest change that makes all pass")
    for change in report.smallest_changes:
        console.print(Text(f"    {change}"), soft_wrap=True)


def _print_unchecked(console: Console, title: str, groups: Sequence[UncheckedGroup]) -> None:
    if groups:
        _print_heading(console, title)
    for reason, ids in groups:
        _print_row(console, plural(len(ids), "rule"), f"{reason} ({', '.join(ids)})")


def _print_heading(console: Console, text: str) -> None:
    console.print(Text(f"  {text}", style="bold"))


def _print_row(console: Console, name: str, text: str) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=8, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(name), Text(text, style="dim"))
    console.print(indented(grid, 4))


def _print_text(console: Console, columns: int, text: str, style: str = "") -> None:
    console.print(indented(Text(text, style=style), columns))


def _summary(reports: Sequence[Report]) -> Content:
    verdict = overall_verdict(reports)
    return Text.assemble(
        (verdict, f"bold {STYLES[verdict]}"),
        f"  {total(reports)}",
        (f"  ({policy_line(reports)})", "dim"),
    )
