"""What `validate --fix` repaired, what it left and why, on the screen and as JSON."""

from typing import Any

from rich.console import Console
from rich.text import Text

from eaglectl.errors import printable
from eaglectl.reports import documents
from eaglectl.reports.findings import Fixing
from eaglectl.reports.tallies import counted, fails
from eaglectl.reports.validation import STYLES, print_finding, print_releases


def print_fixing(console: Console, done: Fixing, *, is_quiet: bool = False) -> None:
    """The findings that are gone, those that are left, and what was written. Quiet: only what still fails."""
    if done.fixed and not is_quiet:
        console.print(Text("fixed", style="bold green"))
        for one in done.fixed:
            what = Text.assemble((f"  {one.rule.id} {one.rule.name}  ", "bold"), printable(one.hit.message))
            console.print(what, soft_wrap=not console.is_terminal)
    left = [one for one in done.left if not is_quiet or fails(one.finding, done.before)]
    if left:
        console.print(Text("left", style="bold yellow"))
    for rest in left:
        print_finding(console, rest.finding, rest.why)
    if not is_quiet:
        print_releases(console, done.report)
        console.print()
    _print_end(console, done)


def _print_end(console: Console, done: Fixing) -> None:
    if done.out is None:
        console.print(f"nothing was written: {printable(done.stopped)}", style="yellow", soft_wrap=True)
    else:
        tally = f"{len(done.fixed)} fixed, {len(done.left)} left"
        line = Text.assemble(("wrote ", "green"), (printable(str(done.out)), "bold"), f": {tally}")
        console.print(line, soft_wrap=True)
    before, verdict = done.before.verdict, done.report.verdict
    was = "" if done.out is None else f" (before: {before})"
    console.print(Text.assemble((verdict, f"bold {STYLES[verdict]}"), f"  {counted(done.report)}{was}"))


def fixing(done: Fixing) -> dict[str, Any]:
    """eaglectl/validate/1 with `fixed`, `left` and `out`: the report is the output's where one was written."""
    return {
        **documents.validation([done.report]),
        "fixed": [documents.finding(one) for one in done.fixed],
        "left": [{**documents.finding(one.finding), "why": printable(one.why)} for one in done.left],
        "out": None if done.out is None else printable(str(done.out)),
        "stopped": printable(done.stopped),
    }
