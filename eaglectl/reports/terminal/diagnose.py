"""The terminal output of `diagnose`: the cause, the next command, and what was looked at."""

from eaglectl.acceptance.diagnosis import Diagnosis
from eaglectl.reports import diagnosis as shared
from eaglectl.reports.terminal.console import Console, Text, indented
from eaglectl.reports.terminal.layout import filled_table, pairs, print_heading, print_sentence
from eaglectl.verdicts import CheckVerdict

STYLES = {CheckVerdict.PASS: "green", CheckVerdict.FAIL: "red", CheckVerdict.COULD_NOT_LOOK: "yellow"}


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print how the tree ended, what shows it, the next commands, and what it rests on."""
    ending = (diagnosis.ending, f"bold {STYLES[diagnosis.verdict]}")
    console.print(Text.assemble(ending, f"  {diagnosis.source}: {diagnosis.title}"))
    print_sentence(console, diagnosis.words, 2)
    for command in diagnosis.commands:
        console.print(Text(f"next: {command}"), soft_wrap=True)
    _print_figures(console, diagnosis)
    print_heading(console, "Ruled out")
    console.print(indented(Text("; ".join(diagnosis.ruled_out) or "nothing")))
    print_heading(console, "Not looked at")
    for line in shared.not_looked(diagnosis):
        console.print(indented(Text(line)))
    if not diagnosis.not_looked:
        console.print(indented(Text("nothing")))
    reference = diagnosis.evidence.reference
    if reference is not None and reference.probed is not None:
        for note in reference.probed.notes:
            console.print(Text(f"note  {note}"))


def _print_figures(console: Console, diagnosis: Diagnosis) -> None:
    """Print what was measured, and where the drafter loses."""
    for answer in diagnosis.measured:
        console.print(Text(answer.text), soft_wrap=True)
    if measured := [(name, shared.figures(report)) for name, report in shared.runs(diagnosis).items()]:
        print_heading(console, "Measured")
        console.print(indented(pairs(measured)))
    if prompts := list(shared.prompt_rows(diagnosis)):
        print_heading(console, shared.LOSES_TITLE, shared.LOSES)
        console.print(indented(filled_table(("prompt", "length", "it begins"), prompts)))
    if positions := list(shared.position_rows(diagnosis)):
        print_heading(console, shared.POSITIONS_TITLE, shared.POSITIONS)
        console.print(indented(filled_table(("positions", "right"), positions)))
