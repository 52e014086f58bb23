"""A conversion as sections: its plan, the layers that engines capture of the output, and how to serve it."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.drafter.drafter import Note
from eaglectl.engines.registry import aux_readings
from eaglectl.formats.catalogue import by_name
from eaglectl.reports.inspection import OUTCOME_TONES, layer_strip, urgent_notes
from eaglectl.reports.section import (
    TONES,
    Commands,
    Lines,
    Outline,
    Remark,
    Remarks,
    Section,
    Table,
    Words,
)
from eaglectl.reports.wording import not_served, placeholders, shortened, size, trained_layers
from eaglectl.results import Conversion


def plan_outline(plan: ConversionPlan) -> Outline:
    """The tensors and keys that change, what is left out, and the notes."""
    producer, layout = by_name(plan.drafter.producer).title, by_name(plan.layout).title
    about = f": EAGLE-{plan.drafter.version} from {producer} to {layout}"
    sections = [*_changes(plan), *_notes(plan.notes)]
    head = (Words(plan.source, "strong"), about)
    return Outline("convert", Words("a plan", "plain"), plan.source, "", head, sections)


def conversion_outline(conversion: Conversion) -> Outline:
    """What was written or planned, the layers that engines capture of it, how to serve it, and the plan."""
    plan, out = conversion.plan, conversion.out
    readings = aux_readings(by_name(plan.layout).flat(plan.config), plan.drafter.target)
    strip = layer_strip(plan.drafter, tuple(readings.values()))
    trained = f"trained on boundaries {trained_layers(plan.drafter.aux)}"
    served = {row.verdict.engine: row.command for row in conversion.serving if row.is_served}
    others = [
        (Words(row.verdict.engine, OUTCOME_TONES[row.verdict.outcome]), not_served(row))
        for row in conversion.serving
        if not row.is_served
    ]
    measured = [answer.text for answer in conversion.measured]
    sections = [
        Section("Aux layers", [strip] if strip else [], trained),
        Section(
            "Serve",
            [Commands(tuple(served.items())), Table(("engine", "why it does not"), others, "reasons")],
            placeholders(served.values()),
        ),
        *([Section("Measured", [Lines(measured)])] if measured else []),
        *_changes(plan),
        *_notes(plan.notes),
    ]
    verdict = Words("written" if out else "nothing was written", "good" if out else "plain")
    lead = summary(conversion)
    return Outline("convert", verdict, str(out or plan.source), lead, lead, sections)


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
        rows = [Remark(Words(note.level, TONES[note.level]), note.text) for note in shown]
        yield Section("Notes", [Remarks(rows)])


def _value(value: object) -> str:
    if value is None:
        return "-"
    return shortened(json.dumps(value, ensure_ascii=False))
