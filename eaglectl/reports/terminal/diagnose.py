"""The terminal output of `diagnose`: the cause, the next command, and what was looked at."""

from collections.abc import Iterator

from eaglectl.acceptance.diagnosis import Diagnosis
from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports.acceptance import length
from eaglectl.reports.terminal.console import Console, Text, indented
from eaglectl.reports.terminal.layout import pairs, print_heading

STYLES = {"pass": "green", "fail": "red", "could-not-look": "yellow"}


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print how the tree ended, what shows it, the next commands, and what it rests on."""
    ending = (diagnosis.ending.upper(), f"bold {STYLES[diagnosis.verdict]}")
    console.print(Text.assemble(ending, f"  {diagnosis.source}: {diagnosis.title}"))
    console.print(indented(Text(diagnosis.words)))
    for command in diagnosis.commands:
        console.print(Text(f"next: {command}"), soft_wrap=True)
    evidence = diagnosis.evidence
    runs = [
        ("in the reference", evidence.reference),
        ("in the engine", evidence.engine),
        ("sampled", evidence.sampled),
        ("in the chat template", evidence.templated),
    ]
    if measured := [(name, _figures(report)) for name, report in runs if report is not None]:
        print_heading(console, "Measured")
        console.print(indented(pairs(measured)))
    print_heading(console, "Ruled out")
    console.print(indented(Text("; ".join(diagnosis.ruled_out) or "nothing")))
    print_heading(console, "Not looked at")
    for line in _not_looked(diagnosis):
        console.print(indented(line))
    if not diagnosis.not_looked:
        console.print(indented(Text("nothing")))
    if evidence.reference is not None and evidence.reference.probed is not None:
        for note in evidence.reference.probed.notes:
            console.print(Text(f"note  {note}"))


def _not_looked(diagnosis: Diagnosis) -> Iterator[Text]:
    """A line for each reason, with the causes that it kept from being looked at."""
    by_reason: dict[str, list[str]] = {}
    for title, reason in diagnosis.not_looked:
        by_reason.setdefault(reason, []).append(title)
    for reason, titles in by_reason.items():
        yield Text(f"{'; '.join(titles)}: {reason}")


def _figures(report: SmokeReport) -> str:
    return f"{length(report)}, {report.measured.prompts} prompts; {report.run.engine} {report.run.version}"
