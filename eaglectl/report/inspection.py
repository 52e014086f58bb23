"""An inspection as rows of text: what the terminal shows of `inspect`."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.tensors import Dimensions
from eaglectl.engines import vllm
from eaglectl.engines.engine import Verdict
from eaglectl.engines.layers import CapturedLayers
from eaglectl.engines.registry import ENGINES, TARGETS_UNREAD, view_for
from eaglectl.formats.catalogue import by_name
from eaglectl.report.section import (
    CapturedSet,
    Commands,
    LayerStrip,
    Line,
    Lines,
    Outline,
    Pairs,
    Remark,
    Remarks,
    Section,
    Table,
    Tone,
    Words,
    grouped,
    toned,
)
from eaglectl.report.wording import layers, placeholders, plural, release_range, size, trained_layers
from eaglectl.results import FailedSource, Inspection
from eaglectl.run.coverage import Coverage
from eaglectl.verdicts import ServedAs

AS_TRAINED = {True: "yes", False: "no", None: "unknown"}
LEVELS = ("problem", "question", "warning", "note")
SHOWN_GROUPS = 3
# the most notes that are shown to people
MOST_NOTES = 20
AUX_HEAD = ("engine", "ids it reads", "from", "boundaries", "layers as trained")
SERVED_HEAD = ("engine", "releases", "outcome", "why")
# a target of more layers is not drawn
DEEPEST = 512
TENSOR_HEAD = ("tensor", "dtype", "shape", "bytes", "canonical")
FED_BACK = {True: "after the norm (norm_output)", False: "before the norm", None: "unknown (norm_output)"}
VOCABULARY_MAPS = ("d2t", "t2d")
# facts of vLLM that options of convert answer
ANSWERED = ("aux-unknown", "mask-token")
# only parts of files were read
HEADERS_READ = "; headers read from the Hub or its cache, which no digest covers"
FROM_TARGET = "the target's (none in the file)"


OUTCOME_TONES: Mapping[ServedAs, Tone] = {
    ServedAs.AS_TRAINED: "good",
    ServedAs.AS_PUBLISHED: "good",
    ServedAs.DIFFERS: "bad",
    ServedAs.FAILS: "bad",
    ServedAs.UNKNOWN: "doubt",
}
AS_TRAINED_TONES: Mapping[str, Tone] = {"yes": "good", "no": "bad", "unknown": "doubt"}


def inspection_outline(inspection: Inspection, name: str = "", *, has_tensors: bool = False) -> Outline:
    """What one checkpoint is; `name` is its source as given, and `has_tensors` lists its tensors."""
    drafter = inspection.drafter
    version, producer, evidence = headline(drafter)
    commands, command = tuple(inspection.commands.items()), next_command(inspection)
    served = Section("Served as stored", [Table(SERVED_HEAD, list(_served_rows(inspection)))])
    notes = [Remark(toned(note.level), note.text) for note in urgent_notes(drafter.notes)]
    published = _published_lines(inspection)
    counting = inspection.coverage.commands if inspection.coverage else ()
    steps = [("", step) for step in (command, *counting) if step]
    sections = [
        Section("Network", [Pairs(_facts(inspection))], has_heading=False),
        aux_section(inspection),
        *([served] if inspection.verdicts else []),
        *([Section("Notes", [Remarks(notes)])] if notes else []),
        *([Section("Next", [Commands(steps)], next_remark(inspection) if command else "")] if steps else []),
        *(
            [Section("Serve", [Commands(commands)], placeholders(inspection.commands.values()))]
            if commands
            else []
        ),
        *([Section("Tensors", [Table(TENSOR_HEAD, list(_tensor_rows(inspection)))])] if has_tensors else []),
        *([Section("Published", [Lines(published)])] if published else []),
    ]
    lead = (producer.strip(), Words(evidence, "quiet"))
    head = (Words(version, "strong"), producer, Words(evidence, "quiet"))
    return Outline("inspect", Words(version, "plain"), name or inspection.source, lead, head, sections)


def aux_section(inspection: Inspection) -> Section:
    """Which layers were trained on, and which ones each engine captures."""
    strip = layer_strip(inspection.drafter, inspection.captured_layers)
    rows = list(_aux_rows(inspection))
    table = Table(AUX_HEAD, rows)
    trained = f"trained on boundaries {trained_layers(inspection.drafter.aux)}"
    tables = [table] if rows else []
    return Section("Aux layers", [strip, *tables] if strip else tables, trained)


def inspections_outline(
    results: Sequence[tuple[str, Inspection | FailedSource]], *, has_tensors: bool = False
) -> Outline:
    """Each source under its name, or why it could not be inspected, then the number inspected."""
    parts = []
    for source, result in results:
        if isinstance(result, FailedSource):
            words = Words("not inspected", "doubt")
            reason = Section("", [Lines([f"{words.text}: {result.message}"])], has_heading=False)
            part = Outline("inspect", words, source, "", Words(f"== {source}", "strong"), [reason])
        else:
            part = inspection_outline(result, source, has_tensors=has_tensors)
            head = Section("", [Lines([part.head])], has_heading=False)
            part = replace(part, head=Words(f"== {source}", "strong"), sections=[head, *part.sections])
        parts.append(part)
    failed = sum(isinstance(result, FailedSource) for _, result in results)
    counted = f"{len(results) - failed} of {len(results)} checkpoints inspected"
    verdict = Words(counted, "doubt" if failed else "plain")
    return Outline("inspect", verdict, "", "", "", [], [counted], parts)


def layer_strip(drafter: Drafter, readings: Sequence[CapturedLayers]) -> LayerStrip | None:
    """Return what was trained and what engines capture on the target's layers; None where it is not drawn."""
    trained, depth = drafter.aux.boundaries or (), drafter.target.depth
    engines = grouped(
        ((captured.boundaries, AS_TRAINED[captured.same_as(drafter.aux)]), captured.engine)
        for captured in readings
        if captured.boundaries is not None
    )
    sets = [CapturedSet(tuple(names), *key) for key, names in engines.items()]
    every = {*trained, *(boundary for part in sets for boundary in part.boundaries)}
    if not every or min(every) < 0 or max(*every, depth or 0) > DEEPEST:
        return None
    undrawn = tuple(part.engine for part in readings if part.boundaries is None)
    return LayerStrip(max(*every, depth or 0), depth, trained, tuple(sets), undrawn)


def headline(drafter: Drafter) -> tuple[str, str, str]:
    """Return the EAGLE version, the producer, and the evidence for that producer."""
    producer = by_name(drafter.producer)
    return (
        f"EAGLE-{drafter.version} drafter",
        f" {'in' if producer.is_layout else 'from'} {producer.title}",
        f"  ({drafter.evidence})",
    )


def _facts(inspection: Inspection) -> list[tuple[str, str]]:
    """Return facts about the drafter, each a name and a value."""
    drafter, dims = inspection.drafter, inspection.drafter.dims
    return [
        ("target", _target(drafter, inspection.target)),
        ("network", _network(drafter)),
        ("aux input", f"{dims.aux} states of width {dims.target_hidden} into fc"),
        ("norms", _norms(drafter)),
        ("vocabulary", _vocabulary(drafter)),
        *([("coverage", _coverage(inspection.coverage))] if inspection.coverage else []),
        ("rope", _rope(drafter)),
        ("embedding", _owner(drafter, "embed_tokens.weight")),
        ("head", _owner(drafter, "lm_head.weight")),
        ("weights", _weights(inspection)),
        ("quantised", "no" if drafter.quantisation is None else "yes, passed through unchanged"),
    ]


def _target(drafter: Drafter, given: str) -> str:
    target = drafter.target
    parts = [target.name or given or "not named"]
    if target.depth:
        parts.append(f"{target.depth} layers")
    if target.model_type:
        parts.append(target.model_type)
    return ", ".join(parts)


def _network(drafter: Drafter) -> str:
    dims = drafter.dims
    parts = [
        plural(dims.layers, "layer"),
        _attention(dims),
        f"hidden {dims.hidden}",
        f"MLP {dims.intermediate}",
    ]
    if Feature.QK_NORM in drafter.features():
        parts.append("q/k norms")
    return ", ".join(parts)


def _attention(dims: Dimensions) -> str:
    if dims.attention == "MLA":
        return (
            f"MLA {dims.heads} heads, q rank {dims.q_lora_rank or 'none'}, kv rank {dims.kv_lora_rank},"
            f" {dims.qk_nope_head_dim}+{dims.qk_rope_head_dim}/{dims.v_head_dim}"
        )
    return f"{dims.attention} {dims.heads} heads on {dims.kv_heads} of {dims.head_dim}"


def _norms(drafter: Drafter) -> str:
    norms = drafter.norms
    aux = "none before fc"
    if norms.fc_norm:
        aux = "each aux state (fc_norm)"
    elif norms.norm_before_fc:
        aux = "all aux states at once (norm_before_fc)"
    residual = "normed" if norms.norm_before_residual else "un-normed"
    return f"{aux}; fed back {FED_BACK[norms.norm_output]}; residual {residual}"


def _vocabulary(drafter: Drafter) -> str:
    dims = drafter.dims
    if not drafter.has_reduced_vocabulary:
        return f"all {dims.vocab} target tokens"
    maps = " and ".join(name for name in VOCABULARY_MAPS if name in drafter.tensors) or "no map"
    return f"{dims.draft_vocab} of {dims.vocab} target tokens ({dims.draft_vocab / dims.vocab:.1%}), {maps}"


def _coverage(coverage: Coverage) -> str:
    advice = f": {coverage.advice}" if coverage.holds_down else ""
    return f"{coverage.words}{advice}"


def _rope(drafter: Drafter) -> str:
    rope, scaling = drafter.rope, drafter.rope.scaling
    text = f"base {rope.theta:g}"
    if scaling:
        text += f", {scaling.get('rope_type')} scaling"
    if scaling and "factor" in scaling:
        text += f" x{scaling['factor']:g}"
    if rope.is_interleaved:
        text += ", interleaved"
    return text


def _owner(drafter: Drafter, name: str) -> str:
    return "its own" if name in drafter.tensors else FROM_TARGET


def _weights(inspection: Inspection) -> str:
    drafter, checkpoint = inspection.drafter, inspection.checkpoint
    parameters = sum(
        math.prod(tensor.shape) for name, tensor in drafter.tensors.items() if name not in VOCABULARY_MAPS
    )
    return (
        f"{parameters:,} parameters, {size(checkpoint.nbytes)} in {len(checkpoint.weight_files)} file(s),"
        f" {', '.join(drafter.dtypes)}{HEADERS_READ if inspection.unchecked else ''}"
    )


def _aux_rows(inspection: Inspection) -> Iterator[tuple[Line, ...]]:
    """Yield the rows under AUX_HEAD: which layers each engine captures, and whether those were trained.

    Last comes what the engine's release does, where it does not run the drafter as trained all the same.
    """
    newest = _latest(inspection)
    by_label = {
        runner.label: newest[name]
        for name, engine in ENGINES.items()
        for runner in engine.behaviour(engine.releases[-1]).runners.values()
        if name in newest
    }
    for captured in inspection.captured_layers:
        ids = ", ".join(map(str, captured.ids or ())) or "-"
        boundaries = layers(captured.boundaries, captured.default)
        as_trained = AS_TRAINED[captured.same_as(inspection.drafter.aux)]
        verdict = by_label.get(captured.engine)
        but = ""
        if verdict is not None and not verdict.outcome.is_served and as_trained == "yes":
            outcome = "is unknown" if verdict.outcome == ServedAs.UNKNOWN else verdict.outcome
            but = f", but {verdict.release} {outcome}"
        elif verdict is None and as_trained == "yes":
            is_open = bool(inspection.drafter.unsettled)
            but = ", but what was trained is open" if is_open else f", but {TARGETS_UNREAD}"
        tone = "doubt" if but else AS_TRAINED_TONES[as_trained]
        yield captured.engine, ids, captured.key, boundaries, Words(f"{as_trained}{but}", tone)


def _served_rows(inspection: Inspection) -> Iterator[tuple[Line, ...]]:
    """Yield the releases requested, else vLLM's grouped by outcome, the newest first, then the others'."""
    if inspection.requested:
        yield from (_served_row(verdict, verdict.release) for verdict in inspection.requested)
        return
    yield from _vllm_rows([verdict for verdict in inspection.verdicts if verdict.engine == "vllm"])
    for verdict in inspection.verdicts:
        if verdict.engine != "vllm":
            yield _served_row(verdict, verdict.release)


def _vllm_rows(verdicts: Sequence[Verdict]) -> Iterator[tuple[Line, ...]]:
    # the runner that serves it as trained stands first, and is another one in older releases
    by_outcome = grouped(
        (
            (
                verdict.outcome,
                verdict.reasons[1:] if verdict.outcome == ServedAs.AS_TRAINED else verdict.reasons,
            ),
            verdict,
        )
        for verdict in reversed(verdicts)
    )
    groups = list(by_outcome.values())
    for group in groups[:SHOWN_GROUPS]:
        newest = group[0]
        if len({verdict.reasons for verdict in group}) > 1:
            newest = replace(newest, reasons=(f"{newest.release} {newest.reasons[0]}", *newest.reasons[1:]))
        yield _served_row(newest, release_range(group, vllm.ENGINE.releases))
    if len(groups) > SHOWN_GROUPS:
        oldest = groups[SHOWN_GROUPS - 1][-1].release
        others = plural(len(groups) - SHOWN_GROUPS, "other outcome")
        remark = f"{others} before {oldest}; list them with --engine 'vllm<{verdicts[-1].release}'"
        yield "vllm", "older", "", Words(remark, "quiet")


def _served_row(verdict: Verdict, releases: str) -> tuple[Line, ...]:
    outcome = Words(verdict.words, OUTCOME_TONES[verdict.outcome])
    # what is published of it stands below, whole
    is_published = verdict.outcome == ServedAs.AS_PUBLISHED
    return verdict.engine, releases, outcome, "; ".join(verdict.reasons[: 1 if is_published else None])


def _published_lines(inspection: Inspection) -> list[str]:
    """What the drafter's authors and others measured, for each engine that runs it as published.

    The last line is the outcome, with what its authors measured first.
    """
    lines = []
    for verdict in inspection.requested or _latest(inspection).values():
        if verdict.outcome == ServedAs.AS_PUBLISHED:
            label = f"{ENGINES[verdict.engine].title} {verdict.release}"
            lines += [f"{label}: {text}" for text in verdict.reasons[1:]]
            lines.append(f"{verdict.outcome}: {verdict.reasons[0]}")
    return lines


def urgent_notes(notes: Sequence[Note]) -> list[Note]:
    """Return notes, the most urgent first; of many, the first and how many more there are."""
    every = sorted(notes, key=lambda note: LEVELS.index(note.level))
    rest = len(every) - MOST_NOTES
    more = [Note("note", "", f"and {rest:,} more; --json lists all")] if rest > 0 else []
    return [*every[:MOST_NOTES], *more]


def next_command(inspection: Inspection) -> str:
    """Return the command to run if the newest vLLM does not run the checkpoint as trained; else "".

    Also "" where the conversion is refused, whatever options it is given, or settles nothing: a doubt is
    carried, or the target or the engine would have to be another.
    """
    if not inspection.verdicts:
        return ""
    drafter, latest = inspection.drafter, _latest(inspection)["vllm"].outcome
    is_carried = latest == ServedAs.UNKNOWN and drafter.unsettled and not drafter.notes_at("question")
    is_refused = any("pass --" not in note.text for note in _problems(inspection)) or any(
        finding.severity == "error"
        and finding.rule.family == "draft vocabulary"
        and "eaglectl convert" not in finding.fix
        for finding in inspection.findings
    )
    if latest.is_served or is_carried or is_refused or _is_beyond_conversion(inspection):
        return ""
    repair = r"run `(eaglectl convert [^`]+ --fix-reading [^`]+)`"
    repairs = filter(None, (re.match(repair, finding.fix) for finding in inspection.findings))
    return next((repair[1] for repair in repairs), inspection.convert)


def _is_beyond_conversion(inspection: Inspection) -> bool:
    """Whether the newest vLLM would not run what a conversion writes either."""
    drafter, checkpoint = inspection.drafter, inspection.checkpoint
    flat = by_name(drafter.producer).flat(checkpoint.config)
    view = view_for("vllm", drafter, checkpoint.config, flat, tuple(checkpoint.tensors))
    applied = ENGINES["vllm"].applied(view, _latest(inspection)["vllm"].release)
    return any(
        each.fact.remedy in ("restore", "upgrade")
        and each.fact.id not in ANSWERED
        and "eaglectl convert" not in each.fact.fix
        for each in applied
    )


def _problems(inspection: Inspection) -> tuple[Note, ...]:
    """The problems that a plain conversion does not solve."""
    if not inspection.drafter.notes_at("problem"):
        return ()
    # late: numpy
    from eaglectl.conversion.attention import without_solved_problems

    return without_solved_problems(inspection.drafter).notes_at("problem")


def next_remark(inspection: Inspection) -> str:
    """Return what `next_command` still needs, or ""."""
    has_questions = inspection.drafter.notes_at("question") or _problems(inspection)
    return "answer the questions above with its options" if has_questions else ""


def _latest(inspection: Inspection) -> dict[str, Verdict]:
    return {verdict.engine: verdict for verdict in inspection.verdicts}


def _tensor_rows(inspection: Inspection) -> Iterator[tuple[Line, ...]]:
    """Yield the rows under TENSOR_HEAD: every stored tensor and the canonical tensor that it is part of."""
    names = {stored: name for name, tensor in inspection.drafter.tensors.items() for stored in tensor.stored}
    for name, tensor in inspection.checkpoint.tensors.items():
        cells = (tensor.dtype, str(list(tensor.shape)), str(tensor.nbytes))
        yield Words(name, is_code=True), *cells, Words(names.get(name, "-"), is_code=True)
