"""The terminal output of `validate --fix`."""

from collections.abc import Sequence

from eaglectl.reports.findings import counted, fails, first_findings
from eaglectl.reports.terminal.console import Console, Text
from eaglectl.reports.terminal.validate import STYLES, print_finding, print_releases
from eaglectl.results import FixResult


def print_fix(console: Console, result: FixResult, *, is_quiet: bool = False) -> None:
    """Print fixed findings, remaining ones and what was written; if quiet, only what still fails."""
    left = result.left
    if is_quiet:
        left = tuple(remaining for remaining in left if fails(remaining.finding, result.before))
    elif result.fixed:
        _print_fixed(console, result)
    if left:
        console.print(Text("left", style="bold yellow"))
    reasons = {id(remaining.finding): remaining.why for remaining in left}
    first, more = first_findings(remaining.finding for remaining in left)
    for finding in first:
        print_finding(console, finding, reasons[id(finding)])
    _print_more(console, more)
    if not is_quiet:
        print_releases(console, result.report)
        console.print()
    _print_end(console, result)


def _print_fixed(console: Console, result: FixResult) -> None:
    console.print(Text("fixed", style="bold green"))
    first, more = first_findings(result.fixed)
    for finding in first:
        rule = f"  {finding.rule.id} {finding.rule.name}  "
        line = Text.assemble((rule, "bold"), finding.match.message)
        console.print(line, soft_wrap=not console.is_terminal)
    _print_more(console, more)


def _print_more(console: Console, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        console.print(Text(f"  {sentence}", style="dim"))


def _print_end(console: Console, result: FixResult) -> None:
    verdict, suffix = result.report.verdict, ""
    if result.out is None:
        console.print(f"nothing was written: {result.stopped}", style="yellow", soft_wrap=True)
    else:
        counts = f"{len(result.fixed)} fixed, {len(result.left)} left"
        line = Text.assemble(("wrote ", "green"), (str(result.out), "bold"), f": {counts}")
        console.print(line, soft_wrap=True)
        suffix = f" (before: {result.before.verdict})"
    console.print(Text.assemble((verdict, f"bold {STYLES[verdict]}"), f"  {counted(result.report)}{suffix}"))
