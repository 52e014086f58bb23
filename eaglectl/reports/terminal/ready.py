"""The terminal output of `ready`: what it is, what engines do with it, and one last line."""

from eaglectl.reports import inspection as inspected
from eaglectl.reports import readiness as shared
from eaglectl.reports.terminal.console import Console, Text, indented
from eaglectl.reports.terminal.inspect import print_strip
from eaglectl.reports.terminal.layout import filled_table, print_heading
from eaglectl.reports.wording import trained_layers
from eaglectl.results import Readiness
from eaglectl.verdicts import CheckVerdict

STYLES = {CheckVerdict.PASS: "green", CheckVerdict.FAIL: "red", CheckVerdict.COULD_NOT_LOOK: "yellow"}


def print_readiness(console: Console, result: Readiness) -> None:
    """Print the drafter in two lines, its layers, the engines, what others reach, and the last line."""
    version, producer, evidence = inspected.headline(result.inspection.drafter)
    console.print(Text.assemble((version, "bold"), producer, (evidence, "dim")))
    for answer in result.measured:
        console.print(answer.text, soft_wrap=True)
    print_heading(
        console, "Aux layers", f"trained on boundaries {trained_layers(result.inspection.drafter.aux)}"
    )
    print_strip(console, result.inspection)
    print_heading(console, "Engines", shared.remark(result))
    console.print(indented(filled_table(*shared.engine_table(result))))
    for reason in shared.reasons(result):
        console.print(Text(f"  {reason}", style="yellow"), soft_wrap=True)
    if lines := shared.published_lines(result):
        print_heading(console, "What others reach", "docs/acceptance.md has the sources")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
    console.print()
    console.print(Text(shared.last_line(result), style=STYLES[result.verdict]), soft_wrap=True)
    if result.diagnosis and result.diagnosis.commands:
        console.print(f"next  {result.diagnosis.commands[0]}", soft_wrap=True)
