"""A conversion as sections: its plan, what was written, how to serve or train it, and an upgrade's gate."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.engines.registry import ENGINES
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.report.inspection import urgent_notes
from eaglectl.report.section import (
    Block,
    Commands,
    Line,
    Lines,
    Outline,
    Remark,
    Remarks,
    Section,
    Table,
    Words,
    first_line,
    grouped,
    toned,
)
from eaglectl.report.wording import (
    also_line,
    answer_line,
    engine_names,
    engine_title,
    placeholders,
    shortened,
    size,
    trained_layers,
    why_not_served,
)
from eaglectl.results import Conversion, OutputServing
from eaglectl.verdicts import CheckVerdict, FirstWord, GateEnding

if TYPE_CHECKING:
    from eaglectl.run.gate import Gate

# with 120 prompts the ratio's interval is 1 to 3 % on either side (docs/upgrade.md)
FEW_PROMPTS = 30
# what to do where nothing was written
ADVICE = {
    GateEnding.LOST: (
        "calibrate with prompts like those in production; --tolerance lowers the limit,"
        " --no-gate skips the gate"
    ),
    GateEnding.TOO_FEW_PROMPTS: "pass hundreds of --prompts like those in production for a clear result",
}
# the most warnings that are shown without -v
MOST_WARNINGS = 2


def conversion_outline(conversion: Conversion, *, is_quiet: bool = False) -> Outline:
    """Return the outcome of a conversion, how engines serve it, the gate, and the plan.

    The engines are those of --engine, by default the layout's own, or vLLM and SGLang. `is_quiet` leaves
    out warnings and the section on serving; and also the engines that serve the output, with their command,
    unless the conversion missed its engines (`is_missed`).
    """
    is_short = is_quiet and not conversion.is_missed
    serving = [row for row in _chosen(conversion) if not (is_short and row.is_served)]
    command = next((row.command for row in serving if row.is_served), "")
    head, subject = _head(conversion, serving), str(conversion.out or conversion.plan.source)
    verdict = "written" if conversion.out else "nothing was written"
    following = command or conversion.resume
    cause, sections = _causes(conversion, serving, following), _sections(conversion, is_quiet=is_quiet)
    return Outline(
        command="convert",
        verdict=Words(verdict),
        subject=subject,
        lead=head,
        head=head,
        sections=sections,
        cause=cause,
        next=following,
    )


def _sections(conversion: Conversion, *, is_quiet: bool) -> list[Section]:
    # what was written, warnings, the gate, then what needs -v once something was written
    plan, gate, is_plan = conversion.plan, conversion.gate, conversion.out is None and conversion.gate is None
    warnings, others = _notes(plan, 0 if is_quiet else MOST_WARNINGS)
    is_start = plan.record.get("upgrade", {}).get("needs_finetune") and gate is None
    return [
        Section("", [Lines(_written(conversion), is_unbroken=True)], has_heading=False),
        Section("Warnings", [Remarks(warnings)]),
        *([_gate(gate)] if gate else []),
        *([_trainers(plan)] if is_start else []),
        Section("Notes", [Remarks(others)], is_more=not is_plan),
        *([] if is_quiet else [_serving(conversion)]),
        *(replace(section, is_more=not is_plan) for section in _changes(plan)),
    ]


def _head(conversion: Conversion, serving: Sequence[OutputServing]) -> Line:
    # the first line: what was written or why not, and each engine's answer
    plan, gate, verdict = conversion.plan, conversion.gate, "fail" if conversion.is_missed else ""
    answer = answer_line([row.verdict for row in serving], plan.drafter.aux.boundaries)
    if conversion.out is None and gate is not None:
        ending = CheckVerdict.FAIL if gate.ending == GateEnding.LOST else CheckVerdict.COULD_NOT_LOOK
        return first_line(ending, Words("nothing was written", "bad"), f": {_ending(gate).text}")
    worse = [
        Words(f"; {engine_names([row.verdict])}: {row.before} before, now {row.verdict.outcome}", "bad")
        for row in conversion.serving
        if row.is_worse
    ]
    wrote = [Words("wrote ", "good"), Words(str(conversion.out), "strong")]
    if conversion.out is None:
        verdict = verdict or FirstWord.PLANNED
        producer, layout = by_name(plan.drafter.producer).title, by_name(plan.layout).title
        text = f"nothing was written (--dry-run): EAGLE-{plan.drafter.version} from {producer} to {layout}"
        wrote = [Words(text)]
    return first_line(verdict, *wrote, "; " if answer else "", *answer, *worse)


def _causes(conversion: Conversion, serving: Sequence[OutputServing], command: str) -> list[Line]:
    # the lines under the first: measurements kept, answers measured, why an engine does not serve it
    measured = f"the measurements are in {conversion.kept}"
    measured += (
        ", and the next command continues them" if conversion.resume else "; no built-in prompts are left"
    )
    lines: list[Line] = [
        *([measured] if conversion.kept else []),
        *(answer.text for answer in conversion.measured),
        *(
            f"{engine_title(row.verdict.engine)}: {why_not_served(row, conversion.plan.notes)}"
            for row in serving
            if not row.is_served
        ),
    ]
    needed = placeholders([command])
    return [*lines, Words(needed, "quiet")] if needed else lines


def _chosen(conversion: Conversion) -> list[OutputServing]:
    """Return the rows of the engines of --engine, else of the layout's own, else of the default engines."""
    if named := [row for row in conversion.serving if row.is_named]:
        return named
    names = {conversion.plan.layout} - {"vllm"}
    if not names & set(ENGINES):
        names = {name for name, engine in ENGINES.items() if engine.is_default}
    return [row for row in conversion.serving if row.verdict.engine in names]


def _serving(conversion: Conversion) -> Section:
    # the commands of engines that serve the output, and why the others do not; with --engine of those alone
    chosen = _chosen(conversion)
    is_named = any(row.is_named for row in chosen)
    rest = [] if is_named else [row for row in conversion.serving if row not in chosen]
    rows = (*chosen, *rest)
    notes = conversion.plan.notes
    commands = list(
        dict.fromkeys((row.verdict.engine, row.command) for row in rows if row.command and row.is_served)
    )
    reasons = grouped((why_not_served(row, notes), row.verdict.engine) for row in rows if not row.is_served)
    reason_lines = [Words(f"{', '.join(engines)}: {why}", "quiet") for why, engines in reasons.items()]
    others = also_line(
        (row.verdict.outcome.words(row.verdict.start_options), engine_names([row.verdict])) for row in rest
    )
    blocks: list[Block] = [
        Commands(commands),
        Lines(reason_lines, is_list=True, is_unbroken=True),
        Lines(others),
    ]
    return Section("Serve", blocks, placeholders(command for _, command in commands), is_more=True)


def _gate(gate: "Gate") -> Section:
    # the gate's table, with the ending, or the advice if the first line has the ending already
    from eaglectl.report.acceptance import estimate

    about = (
        f"acceptance length on {gate.prompts} prompts outside of calibration; 95 % over paired prompts"
        f"{_looks(gate)}; {gate.device}, {gate.dtype}"
    )
    rows = [
        (str(row.k), *map(estimate, (row.before.length, row.after.length, row.rounds, row.ratio)))
        for row in gate.rows
    ]
    # why nothing was written is the first line of the screen
    lines = [_ending(gate) if gate.ending == GateEnding.KEPT else Words(ADVICE[gate.ending], "quiet")]
    if gate.prompts < FEW_PROMPTS and gate.ending != GateEnding.TOO_FEW_PROMPTS:
        few = f"{gate.prompts} prompts are few: pass a hundred or more --prompts"
        lines.insert(0, Words(few, "doubt"))
    return Section(
        "Gate",
        [
            Table(("k", "before", "after", "after / before", "from every position"), rows),
            Lines(lines),
        ],
        about,
    )


def _looks(gate: "Gate") -> str:
    return f", of the ratios {gate.confidence:.2%} (look {gate.looks}: all looks have 95 %)" * gate.has_looks


def _ending(gate: "Gate") -> Words:
    # whether acceptance was kept, by the intervals' bounds beside the tolerance
    match gate.ending:
        case GateEnding.KEPT:
            return Words(f"kept: every lower bound is at least {gate.tolerance:g}", "good")
        case GateEnding.LOST:
            return Words(f"acceptance is lost: an upper bound is below {gate.tolerance:g}", "bad")
        case GateEnding.TOO_FEW_PROMPTS:
            needed = f"about {gate.prompts_needed}" if gate.prompts_needed else "more"
            text = (
                f"too few prompts: an interval contains {gate.tolerance:g}; {needed} prompts would decide,"
                f" and {gate.prompts} outside of calibration were measured"
            )
            return Words(text, "doubt")


def _trainers(plan: ConversionPlan) -> Section:
    # how each trainer that can train EAGLE-3.1 continues from the output, which is only an initial checkpoint
    norms = plan.drafter.norms
    switches = {name: str(bool(getattr(norms, name))).lower() for name in ("fc_norm", "norm_output")}
    rows = [
        (f"{trainer.title} (--for {trainer.name})", trainer.layout.training.format(**switches))
        for trainer in FORMATS
        if trainer.layout and trainer.layout.training
    ]
    control = (
        f"control: train {plan.source} further as EAGLE-3 for as many steps; the difference is the gain of"
        " EAGLE-3.1"
    )
    return Section("Train it with", [Table(("trainer", "settings"), rows), Lines([control])])


def _notes(plan: ConversionPlan, most: int) -> tuple[list[Remark], list[Remark]]:
    rows = [Remark(toned(note.level), note.text) for note in urgent_notes(plan.notes)]
    first = [row for row in rows if row.word.text == "warning"][:most]
    return first, [row for row in rows if row not in first]


def _written(conversion: Conversion) -> list[Line]:
    # what the output is: version, layout, tensors by action, layers
    plan = conversion.plan
    origin = [f"target: {plan.drafter.target.origin}"] if plan.drafter.target.origin else []
    actions = ", ".join(
        f"{count} {action}" for action, count in Counter(step.action for step in plan.steps).most_common()
    )
    summary = (
        f"EAGLE-{plan.drafter.version}, {plan.layout} layout, {len(plan.steps)} tensors ({actions}),"
        f" {size(plan.nbytes)}"
    )
    return [summary, f"layers: trained on {trained_layers(plan.drafter.aux)}", *origin]


def _changes(plan: ConversionPlan) -> Iterator[Section]:
    # tensors, config keys and files that differ from the source
    moved = [step for step in plan.steps if step.action != "kept"]
    yield Section(
        "Tensors",
        [
            Table(
                ("action", "from", "to"),
                [(step.action, " + ".join(step.stored) or "config", step.name) for step in moved],
            )
        ],
        f"{len(plan.steps)}, {size(plan.nbytes)}; {len(plan.steps) - len(moved)} unchanged",
    )
    keys = [(change.key, _value(change.before), _value(change.after)) for change in plan.changes]
    yield Section("config.json", [Table(("key", "before", "after"), keys)], f"{len(keys)} keys change")
    if rows := [(left.name, left.why) for left in (*plan.left_tensors, *plan.left_files)]:
        yield Section("Left out", [Table(("what", "why"), rows)])


def _value(value: object) -> str:
    return "-" if value is None else shortened(json.dumps(value, ensure_ascii=False))
