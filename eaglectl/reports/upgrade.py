"""The screen of `convert --to 3.1` beyond the conversion's own: what the gate measured, and what a trainer has to be told."""

from rich.console import Console
from rich.text import Text

from eaglectl.acceptance.gate import Gate
from eaglectl.drafter.drafter import Norms
from eaglectl.reports.smoke import estimate
from eaglectl.reports.text import indented, table

# the switches by trainer (formats.md, sections 1 and 8)
TRAINERS = (
    ("TorchSpec", '"fc_norm": {fc_norm}, "norm_output": {norm_output} in the draft model\'s config'),
    ("SpecForge", '"fc_norm": {fc_norm}, "norm_output": {norm_output} in the draft model\'s config; from pull request 879 (2026-09-15) on, before it they mean something else'),
    ("speculators", "fc_norm: {fc_norm}, norm_output: {norm_output}, norm_before_fc: {norm_before_fc} (its default is true)"),
)  # fmt: skip

FEW = 30  # prompts; with 120 of them the ratio's interval is 1 to 3 % on either side (eagle3-to-3.1.md, 4.1)


def print_gate(console: Console, gate: Gate) -> None:
    """Acceptance before and after, and whether that is enough."""
    console.print(
        Text("\nGate", style="bold"),
        Text(f"acceptance length on {gate.prompts} prompts that were not calibrated on; 95 % by paired bootstrap; {gate.device}, {gate.dtype}", style="dim"),
        sep="  ",
    )  # fmt: skip
    rows = table("k", "before", "after", "after / before")
    for row in gate.rows:
        rows.add_row(str(row.k), estimate(row.before.length), estimate(row.after.length), estimate(row.ratio))
    console.print(indented(rows))
    if gate.prompts < FEW:
        console.print(
            Text(f"{gate.prompts} prompts say little of others: give a hundred or more --prompts", style="yellow")
        )
    if gate.is_passed:
        console.print(Text(f"passed: every lower bound is at least {gate.tolerance:g}", style="green"))
        return
    console.print(
        Text(f"missed: a lower bound is below {gate.tolerance:g}, and nothing was written", style="red"),
        Text("\nmore prompts narrow the intervals; prompts like those in production calibrate better; --tolerance lowers the bar, --no-gate takes it away", style="dim"),
        soft_wrap=True,
    )  # fmt: skip


def print_trainers(console: Console, source: str, norms: Norms) -> None:
    """What to tell a trainer that goes on from an --init-only output, and what to compare it with."""
    console.print(Text("\nTrain it with", style="bold"))
    rows = table("trainer", "settings")
    flags = {name: str(bool(getattr(norms, name))).lower() for name in ("fc_norm", "norm_output", "norm_before_fc")}
    for trainer, settings in TRAINERS:
        rows.add_row(trainer, settings.format(**flags))
    console.print(indented(rows))
    console.print(
        f"control: {source} itself, trained on as EAGLE-3 for as many steps; what 3.1 brings is the difference to that",
        soft_wrap=True,
    )
