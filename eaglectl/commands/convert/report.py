"""A conversion as sections: its plan, what was written, how to serve or train it, and an upgrade's gate."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.drafter.drafter import Note
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.report.inspection import urgent_notes
from eaglectl.report.section import (
    Commands,
    Line,
    Lines,
    Outline,
    Remark,
    Remarks,
    Section,
    Table,
    Words,
    grouped,
    toned,
)
from eaglectl.report.wording import not_served, placeholders, shortened, size, trained_layers
from eaglectl.results import Conversion
from eaglectl.verdicts import GateEnding

if TYPE_CHECKING:
    from eaglectl.run.gate import Gate

# with 120 prompts the ratio's interval is 1 to 3 % on either side (docs/upgrade.md)
FEW_PROMPTS = 30


def conversion_outline(conversion: Conversion, *, has_plan: bool = True, is_quiet: bool = False) -> Outline:
    """What was written or planned, how to serve or to train it, the gate, and the plan (`has_plan`).

    Notes without the plan are warnings alone; `is_quiet` leaves those out, and how to serve it.
    """
    plan, out = conversion.plan, conversion.out
    notes = [note for note in plan.notes if has_plan or (note.level == "warning" and not is_quiet)]
    measured = [answer.text for answer in conversion.measured]
    is_start = plan.record.get("upgrade", {}).get("needs_finetune") and conversion.gate is None
    sections = [
        *_written(conversion),
        *([Section("Measured", [Lines(measured)])] if measured else []),
        *_notes(notes),
        *([] if is_quiet or not conversion.serving else [_serving(conversion, urgent_notes(notes))]),
        *([_gate(conversion.gate)] if conversion.gate else []),
        *([_trainers(plan)] if is_start else []),
        *(_changes(plan) if has_plan else []),
    ]
    lead, last = summary(conversion), ["nothing was written (--dry-run)"]
    if out is None:
        verdict, head = Words("nothing was written", "plain"), _plan_head(plan)
        last = [] if conversion.gate else last
        return Outline("convert", verdict, plan.source, lead, head, sections, last)
    head = (Words("wrote ", "good"), Words(str(out), "strong"), f": {lead}")
    return Outline("convert", Words("written", "good"), str(out), lead, head, sections)


def _plan_head(plan: ConversionPlan) -> Line:
    producer, layout = by_name(plan.drafter.producer).title, by_name(plan.layout).title
    return Words(plan.source, "strong"), f": EAGLE-{plan.drafter.version} from {producer} to {layout}"


def _written(conversion: Conversion) -> Iterator[Section]:
    """The layers that engines capture of the output, and its target."""
    plan = conversion.plan
    lines: list[Line] = [f"aux layers: boundaries {trained_layers(plan.drafter.aux)}"]
    if plan.drafter.target.origin:
        lines.append(f"target: {plan.drafter.target.origin}")
    yield Section("", [Lines(lines, is_unbroken=True)], has_heading=False)


def _serving(conversion: Conversion, shown: Sequence[Note]) -> Section:
    """The command that serves the output in each engine, or why it does not; engines that share it together.

    `shown` are the notes above, which are not repeated.
    """
    names_by_command = grouped(
        (row.command, row.verdict.engine) for row in conversion.serving if row.is_served
    )
    commands = [(", ".join(names), command) for command, names in names_by_command.items()]
    width = max((len(names) for names, _ in commands), default=0)
    names_by_reason = grouped(
        ((not_served(row, shown), row.verdict.release != ""), row.verdict.engine)
        for row in conversion.serving
        if not row.is_served
    )
    reasons = [
        Words(f"{', '.join(names):<{width}}  {why}", "doubt" if is_followed else "quiet")
        for (why, is_followed), names in names_by_reason.items()
    ]
    lines = Lines(reasons, is_list=True, is_unbroken=True)
    return Section("Serve", [Commands(commands), lines], placeholders(names_by_command))


def _gate(gate: "Gate") -> Section:
    """Acceptance before and after an upgrade, and whether it was kept."""
    from eaglectl.report.acceptance import estimate

    about = (
        f"acceptance length on {gate.prompts} prompts that were not calibrated on;"
        f" 95 % over paired prompts; {gate.device}, {gate.dtype}"
    )
    rows = [
        (str(row.k), *map(estimate, (row.before.length, row.after.length, row.rounds, row.ratio)))
        for row in gate.rows
    ]
    head = ("k", "before", "after", "after / before", "from every position")
    lines: list[Line] = []
    if gate.prompts < FEW_PROMPTS:
        text = f"{gate.prompts} prompts say little of others: give a hundred or more --prompts"
        lines.append(Words(text, "doubt"))
    return Section("Gate", [Table(head, rows), Lines([*lines, *_ending(gate)])], about)


def _ending(gate: "Gate") -> Iterator[Line]:
    match gate.ending:
        case GateEnding.KEPT:
            yield Words(f"kept: every lower bound is at least {gate.tolerance:g}", "good")
        case GateEnding.LOST:
            yield Words(f"lost: an upper bound is below {gate.tolerance:g}, and nothing was written", "bad")
            text = (
                "prompts like those in production calibrate better; --tolerance lowers the bar, --no-gate"
                " skips the gate"
            )
            yield Words(text, "quiet")
        case GateEnding.TOO_FEW_PROMPTS:
            needed = f"about {gate.prompts_needed}" if gate.prompts_needed else "more"
            text = (
                f"too few prompts: an interval holds {gate.tolerance:g}, and nothing was written; {needed}"
                f" prompts would tell, and {gate.prompts} were not calibrated on"
            )
            yield Words(text, "doubt")


def _trainers(plan: ConversionPlan) -> Section:
    """How trainers take an --init-only output, and the control to compare it with."""
    norms = plan.drafter.norms
    switches = {name: str(bool(getattr(norms, name))).lower() for name in ("fc_norm", "norm_output")}
    rows = [
        (f"{format.title} (--for {format.name})", format.layout.training.format(**switches))
        for format in FORMATS
        if format.layout and format.layout.training
    ]
    control = (
        f"control: {plan.source} itself, trained on as EAGLE-3 for as many steps; the difference is what"
        " EAGLE-3.1 gains"
    )
    return Section("Train it with", [Table(("trainer", "settings"), rows), Lines([control])])


def summary(conversion: Conversion) -> str:
    """The version, the layout, the tensors by what becomes of them, the size and the time."""
    plan = conversion.plan
    counts = Counter(step.action for step in plan.steps)
    actions = ", ".join(f"{count} {action}" for action, count in counts.most_common())
    return (
        f"EAGLE-{plan.drafter.version}, {plan.layout} layout, {len(plan.steps)} tensors ({actions}),"
        f" {size(plan.nbytes)} in {conversion.seconds:.2f} s"
    )


def _changes(plan: ConversionPlan) -> Iterator[Section]:
    moved = [step for step in plan.steps if step.action != "kept"]
    kept = len(plan.steps) - len(moved)
    moves = [(step.action, " + ".join(step.stored) or "config", step.name) for step in moved]
    title = f"Tensors: {len(plan.steps)}, {size(plan.nbytes)}; {kept} kept as they are"
    yield Section(title, [Table(("action", "from", "to"), moves)])
    keys = [(change.key, _value(change.before), _value(change.after)) for change in plan.changes]
    title = f"config.json: {len(plan.changes)} keys change"
    yield Section(title, [Table(("key", "before", "after"), keys)])
    if left_out := (*plan.left_tensors, *plan.left_files):
        rows = [(left.name, left.why) for left in left_out]
        yield Section("Left out", [Table(("what", "why"), rows)])


def _notes(notes: Sequence[Note]) -> Iterator[Section]:
    if shown := urgent_notes(notes):
        rows = [Remark(toned(note.level), note.text) for note in shown]
        yield Section("Notes", [Remarks(rows)])


def _value(value: object) -> str:
    if value is None:
        return "-"
    return shortened(json.dumps(value, ensure_ascii=False))
