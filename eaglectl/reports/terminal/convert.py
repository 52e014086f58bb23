"""The terminal output of `convert`: the plan, what was written, and for --to 3.1 the gate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglectl.drafter.drafter import Norms, Note
from eaglectl.formats.catalogue import FORMATS
from eaglectl.reports.conversion import plan_outline, summary
from eaglectl.reports.inspection import urgent_notes
from eaglectl.reports.terminal.console import Console, Text, indented
from eaglectl.reports.terminal.layout import print_heading, print_notes, table
from eaglectl.reports.terminal.report import print_outline
from eaglectl.reports.wording import not_served, placeholders, trained_layers
from eaglectl.results import Conversion, OutputServing
from eaglectl.verdicts import GateEnding

if TYPE_CHECKING:
    from eaglectl.acceptance.gate import Gate

# with 120 prompts the ratio's interval is 1 to 3 % on either side (docs/upgrade.md)
FEW_PROMPTS = 30


def print_conversion(console: Console, conversion: Conversion, *, has_plan: bool, is_quiet: bool) -> None:
    """Print the plan (`has_plan`), what was written, and warnings unless `is_quiet`."""
    plan, drafter = conversion.plan, conversion.plan.drafter
    if has_plan:
        print_outline(console, plan_outline(plan))
        console.print()
    for answer in conversion.measured:
        console.print(answer.text, soft_wrap=True)
    if conversion.out is None:
        if conversion.gate is None:
            console.print("nothing was written (--dry-run)")
        return
    what = f": {summary(conversion)}"
    console.print(Text.assemble(("wrote ", "green"), (str(conversion.out), "bold"), what), soft_wrap=True)
    console.print(f"aux layers: boundaries {trained_layers(drafter.aux)}", soft_wrap=True)
    warnings = [note for note in plan.notes if note.level == "warning"]
    if not has_plan and not is_quiet:
        if drafter.target.origin:
            console.print(f"target: {drafter.target.origin}", soft_wrap=True)
        print_notes(console, warnings)
    if conversion.gguf is not None:
        console.print(Text.assemble(("wrote ", "green"), (str(conversion.gguf), "bold")), soft_wrap=True)
    if not is_quiet:
        _print_serving(console, conversion.serving, urgent_notes(plan.notes if has_plan else warnings))


def _print_serving(console: Console, serving: Sequence[OutputServing], shown: Sequence[Note]) -> None:
    """Print a line for each engine: the command that serves the output, or why it does not.

    `shown` are the notes above, which are not repeated.
    """
    if serving:
        commands = [engine.command for engine in serving if engine.is_served]
        print_heading(console, "Serve", placeholders(commands))
    names_by_line: dict[tuple[str, str], list[str]] = {}
    for engine in serving:
        style = "" if engine.is_served else "yellow" if engine.verdict.release else "dim"
        text = engine.command if engine.is_served else not_served(engine, shown)
        names_by_line.setdefault((text, style), []).append(engine.verdict.engine)
    for (text, style), names in names_by_line.items():
        console.print(Text(f"  {', '.join(names):<13} {text}", style=style), soft_wrap=True)


def print_gate(console: Console, gate: "Gate") -> None:
    """Print acceptance before and after an upgrade, and whether it passed the gate."""
    from eaglectl.reports.acceptance import estimate

    about = (
        f"acceptance length on {gate.prompts} prompts that were not calibrated on;"
        f" 95 % over paired prompts; {gate.device}, {gate.dtype}"
    )
    print_heading(console, "Gate", about)
    rows = table("k", "before", "after", "after / before", "from every position")
    for row in gate.rows:
        lengths = (row.before.length, row.after.length, row.rounds, row.ratio)
        rows.add_row(str(row.k), *map(estimate, lengths))
    console.print(indented(rows))
    if gate.prompts < FEW_PROMPTS:
        advice = f"{gate.prompts} prompts say little of others: give a hundred or more --prompts"
        console.print(Text(advice, style="yellow"))
    match gate.ending:
        case GateEnding.KEPT:
            console.print(Text(f"kept: every lower bound is at least {gate.tolerance:g}", style="green"))
        case GateEnding.LOST:
            text = f"lost: an upper bound is below {gate.tolerance:g}, and nothing was written"
            console.print(Text(text, style="red"), soft_wrap=True)
            advice = (
                "prompts like those in production calibrate better; --tolerance lowers the bar, --no-gate"
                " skips the gate"
            )
            console.print(Text(advice, style="dim"), soft_wrap=True)
        case GateEnding.TOO_FEW_PROMPTS:
            needed = f"about {gate.prompts_needed}" if gate.prompts_needed else "more"
            text = (
                f"too few prompts: an interval holds {gate.tolerance:g}, and nothing was written; {needed}"
                f" prompts would tell, and {gate.prompts} were not calibrated on"
            )
            console.print(Text(text, style="yellow"), soft_wrap=True)


def print_trainers(console: Console, source: str, norms: Norms) -> None:
    """Print how trainers take an --init-only output, and the control to compare it with."""
    print_heading(console, "Train it with")
    rows = table("trainer", "settings")
    switches = {name: str(bool(getattr(norms, name))).lower() for name in ("fc_norm", "norm_output")}
    for format in FORMATS:
        if format.layout and format.layout.training:
            rows.add_row(f"{format.title} (--for {format.name})", format.layout.training.format(**switches))
    console.print(indented(rows))
    console.print(
        f"control: {source} itself, trained on as EAGLE-3 for as many steps;"
        " the difference is what EAGLE-3.1 gains",
        soft_wrap=True,
    )
