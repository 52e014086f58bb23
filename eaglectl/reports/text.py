"""Screens for people: what `inspect` found, what `convert` will do and did."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eaglectl.conversion.plan import KeyChange, Plan
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.tensors import Dimensions
from eaglectl.engines import vllm
from eaglectl.engines.engine import Verdict
from eaglectl.formats.catalogue import by_name
from eaglectl.reports.findings import Conversion, Inspection
from eaglectl.reports.wording import layers, release_range, size, trained_layers

STYLES = {"as trained": "green", "differs": "red", "fails": "red", "unknown": "yellow"}
WORDS = {
    "as trained": "runs as trained",
    "differs": "runs differently than trained",
    "fails": "does not load",
    "unknown": "cannot be told",
}
LEVELS = {"problem": "red", "question": "yellow", "warning": "yellow", "note": "dim"}
SHOWN_CHANGES = 60


def print_inspection(console: Console, found: Inspection, *, has_tensors: bool) -> None:
    """The screen of `inspect`."""
    drafter = found.drafter
    title = Text.assemble(
        (f"EAGLE-{drafter.version} drafter", "bold"),
        f" from {by_name(drafter.producer).title}",
        (f"  ({drafter.evidence})", "dim"),
    )
    console.print(title)
    console.print(indented(_facts(found)))
    console.print(
        Text("\nAux layers", style="bold"),
        Text(f"trained on boundaries {trained_layers(drafter.aux)}", style="dim"),
        sep="  ",
    )
    console.print(indented(_aux_table(found)))
    console.print(Text("\nServed as it lies", style="bold"))
    console.print(indented(_verdict_table(found)))
    print_notes(console, drafter.notes)
    _print_commands(console, found)
    if has_tensors:
        console.print(Text("\nTensors", style="bold"))
        console.print(indented(_tensor_table(found)))


def print_plan(console: Console, plan: Plan) -> None:
    """The plan of `convert`: every tensor that moves, every key that changes, all that is left."""
    drafter = plan.drafter
    console.print(
        Text.assemble(
            (f"{plan.source}", "bold"),
            f": EAGLE-{drafter.version} from {by_name(drafter.producer).title} to {by_name(plan.layout).title}",
        )
    )
    moved = [step for step in plan.steps if step.action != "kept"]
    kept = len(plan.steps) - len(moved)
    console.print(Text(f"\nTensors: {len(plan.steps)}, {size(plan.nbytes)}; {kept} kept as they are", style="bold"))
    console.print(
        indented(_rows(("action", "from", "to"), [(s.action, _short(s.origin) or "config", s.name) for s in moved]))
    )
    console.print(Text(f"\nconfig.json: {len(plan.changes)} keys change", style="bold"))
    console.print(
        indented(_rows(("key", "before", "after"), [_change(change) for change in plan.changes[:SHOWN_CHANGES]]))
    )
    lost = (*plan.left_tensors, *plan.left_files)
    if lost:
        console.print(Text("\nLeft behind", style="bold"))
        console.print(indented(_rows(("what", "why"), [(left.name, left.why) for left in lost])))
    print_notes(console, plan.notes)


def print_conversion(console: Console, done: Conversion, *, is_whole: bool, is_quiet: bool) -> None:
    """What `convert` planned (`is_whole`) and did; warnings follow unless `is_quiet`."""
    plan, drafter = done.plan, done.plan.drafter
    if is_whole:
        print_plan(console, plan)
        console.print()
    if done.out is None:
        if done.gate is None:
            console.print("nothing was written (--dry-run)")
        return
    did = (
        f": EAGLE-{drafter.version}, {plan.layout} layout, {len(plan.steps)} tensors ({_actions(plan)}),"
        f" {size(plan.nbytes)} in {done.seconds:.2f} s"
    )
    console.print(Text.assemble(("wrote ", "green"), (str(done.out), "bold"), did), soft_wrap=True)
    console.print(f"aux layers: boundaries {trained_layers(drafter.aux)}", soft_wrap=True)
    if not is_whole and not is_quiet:
        print_notes(console, [note for note in plan.notes if note.level == "warning"])


def _actions(plan: Plan) -> str:
    counts = Counter(step.action for step in plan.steps)
    return ", ".join(f"{count} {action}" for action, count in sorted(counts.items(), key=lambda item: -item[1]))


def _facts(found: Inspection) -> RenderableType:
    drafter, dims = found.drafter, found.drafter.dims
    target = drafter.target
    known = [f"{target.depth} layers" if target.depth else "", target.model_type or ""]
    rows = [
        ("target", (target.name or "not named") + "".join(f", {part}" for part in known if part)),
        ("network", f"{dims.layers} layer{'s' * (dims.layers > 1)}, {_attention(dims)}, hidden {dims.hidden}, MLP {dims.intermediate}" + (", q/k norms" if Feature.QK_NORM in drafter.features() else "")),
        ("aux input", f"{dims.aux} states of width {dims.target_hidden} into fc"),
        ("norms", _norms(drafter)),
        ("vocabulary", _vocabulary(drafter)),
        ("rope", _rope(drafter)),
        ("embedding", "its own" if "embed_tokens.weight" in drafter.tensors else "the target's (none in the file)"),
        ("head", "its own" if "lm_head.weight" in drafter.tensors else "the target's (none in the file)"),
        ("weights", f"{_parameters(found):,} parameters, {size(found.checkpoint.nbytes)} in {len(found.checkpoint.weight_files)} file(s), {', '.join(drafter.dtypes)}"),
        ("quantised", "yes, passed through unchanged" if drafter.quantisation is not None else "no"),
    ]  # fmt: skip
    return pairs(rows)


def _attention(dims: Dimensions) -> str:
    if dims.attention == "MLA":
        return (
            f"MLA {dims.heads} heads, q rank {dims.q_lora_rank or 'none'}, kv rank {dims.kv_lora_rank},"
            f" {dims.qk_nope_head_dim}+{dims.qk_rope_head_dim}/{dims.v_head_dim}"
        )
    return f"{dims.attention} {dims.heads} heads on {dims.kv_heads} of {dims.head_dim}"


def _norms(drafter: Drafter) -> str:
    norms = drafter.norms
    output = {True: "after the norm (norm_output)", False: "before the norm", None: "unknown (norm_output)"}[
        norms.norm_output
    ]
    aux = (
        "each aux state (fc_norm)"
        if norms.fc_norm
        else "all aux states at once (norm_before_fc)"
        if norms.norm_before_fc
        else "none before fc"
    )
    return f"{aux}; fed back {output}; residual {'normed' if norms.norm_before_residual else 'un-normed'}"


def _vocabulary(drafter: Drafter) -> str:
    dims = drafter.dims
    if not drafter.has_reduced_vocabulary:
        return f"all {dims.vocab} target tokens"
    maps = " and ".join(name for name in ("d2t", "t2d") if name in drafter.tensors) or "no map"
    return f"{dims.draft_vocab} of {dims.vocab} target tokens ({dims.draft_vocab / dims.vocab:.1%}), {maps}"


def _rope(drafter: Drafter) -> str:
    rope = drafter.rope
    scaling = (
        f", {rope.scaling.get('rope_type')} scaling"
        + (f" x{rope.scaling['factor']:g}" if "factor" in rope.scaling else "")
        if rope.scaling
        else ""
    )
    return f"base {rope.theta:g}{scaling}{', interleaved' if rope.is_interleaved else ''}"


def _parameters(found: Inspection) -> int:
    total = 0
    for name, tensor in found.drafter.tensors.items():
        count = 1
        for axis in tensor.shape:
            count *= axis
        total += count if name not in ("d2t", "t2d") else 0
    return total


def _aux_table(found: Inspection) -> RenderableType:
    rows = table("engine", "ids it reads", "from", "boundaries", "as trained")
    for reading in found.readings:
        same = reading.same_as(found.drafter.aux)
        word = {
            True: Text("yes", style="green"),
            False: Text("no", style="red"),
            None: Text("unknown", style="yellow"),
        }[same]
        ids = ", ".join(map(str, reading.ids)) if reading.ids else "-"
        rows.add_row(reading.engine, ids, reading.key, layers(reading.boundaries, is_default=reading.is_default), word)
    return rows


def _verdict_table(found: Inspection) -> RenderableType:
    rows = table("engine", "releases", "outcome", "why")
    if found.asked:
        for verdict in found.asked:
            _add_verdict(rows, verdict.engine, verdict.release, verdict)
        return rows
    of_vllm = [verdict for verdict in found.verdicts if verdict.engine == "vllm"]
    newest = of_vllm[-1]
    groups: dict[tuple[str, tuple[str, ...]], list[Verdict]] = {}
    for verdict in reversed(of_vllm):
        groups.setdefault((verdict.outcome, verdict.reasons), []).append(verdict)
    for group in list(groups.values())[:3]:
        _add_verdict(rows, "vllm", release_range(group, vllm.releases()), group[0])
    if len(groups) > 3:
        rows.add_row(
            "vllm",
            "older",
            "",
            Text(
                f"{len(groups) - 3} more kinds of trouble before"
                f" {min(groups[k][-1].release for k in list(groups)[2:3])}; ask with --engine 'vllm<{newest.release}'",
                style="dim",
            ),
        )
    for verdict in found.verdicts:
        if verdict.engine == "sglang":
            _add_verdict(rows, "sglang", verdict.release, verdict)
    return rows


def _add_verdict(rows: Table, engine: str, releases: str, verdict: Verdict) -> None:
    rows.add_row(
        engine, releases, Text(WORDS[verdict.outcome], style=STYLES[verdict.outcome]), "; ".join(verdict.reasons)
    )


def print_notes(console: Console, notes: Sequence[Note]) -> None:
    """Notes, the most pressing first."""
    if not notes:
        return
    console.print(Text("\nNotes", style="bold"))
    order = list(LEVELS)
    for note in sorted(notes, key=lambda note: order.index(note.level)):
        console.print(indented(_line((note.level, LEVELS[note.level]), note.text)))


def _print_commands(console: Console, found: Inspection) -> None:
    latest = {verdict.engine: verdict for verdict in found.verdicts}
    fit = [engine for engine, verdict in latest.items() if verdict.outcome == "as trained"]
    if latest["vllm"].outcome != "as trained":
        asks = " (answer the questions above with its options)" if found.drafter.told("question") else ""
        console.print(Text("\nNext", style="bold"))
        console.print(
            indented(Text(f"eaglectl convert {found.commands['source']}{asks}", no_wrap=True, overflow="ignore")),
            soft_wrap=True,
        )
    if "tensorrt-llm" in found.commands:
        fit.append("tensorrt-llm")  # its layers are a serving setting, whatever the file says
    if fit:
        console.print(Text("\nServe", style="bold"))
        for engine in fit:
            console.print(Text(f"  {engine:<13} {found.commands[engine]}"), soft_wrap=True)


def _tensor_table(found: Inspection) -> RenderableType:
    rows = table("tensor", "dtype", "shape", "bytes", "canonical")
    names = {stored: name for name, tensor in found.drafter.tensors.items() for stored in tensor.stored}
    for name, tensor in found.checkpoint.tensors.items():
        rows.add_row(name, tensor.dtype, str(list(tensor.shape)), str(tensor.nbytes), names.get(name, "-"))
    return rows


def _change(change: KeyChange) -> tuple[str, str, str]:
    return change.key, _value(change.before), _value(change.after)


def _value(value: object) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _short(names: Iterable[str]) -> str:
    return " + ".join(names)


def pairs(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and values, one a line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for key, value in rows:
        grid.add_row(key, Text(value))
    return grid


def _line(label: tuple[str, str], text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=8)
    grid.add_column(overflow="fold")
    grid.add_row(Text(*label), Text(text))
    return grid


def _rows(head: Sequence[str], cells: Iterable[Sequence[str]]) -> RenderableType:
    rows = table(*head)
    for row in cells:
        rows.add_row(*(Text(cell) for cell in row))
    return rows


def table(*head: str) -> Table:
    """A table without lines."""
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in head:
        rows.add_column(title, overflow="fold", no_wrap=title in ("engine", "ids it reads", "boundaries", "action"))
    return rows


def indented(what: RenderableType) -> RenderableType:
    """`what`, two columns in."""
    return Padding(Group(what), (0, 0, 0, 2))
