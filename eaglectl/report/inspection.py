"""An inspection as sections (what engines do with a checkpoint, and its facts) and as keys of documents."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from eaglectl.drafter.drafter import GIVEN, AuxLayers, Drafter, Feature, Note, Rope, Target, options
from eaglectl.drafter.tensors import Dimensions
from eaglectl.engines.behaviour import CapturedLayers
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES
from eaglectl.files.header import StoredTensor
from eaglectl.formats.catalogue import by_name
from eaglectl.report.documents import Parts, document, error_part, part
from eaglectl.report.section import (
    Commands,
    Line,
    Lines,
    Outline,
    Pairs,
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
    MOST_CAUSES,
    also_line,
    answer_line,
    choice_section,
    engine_names,
    layers,
    placeholders,
    plural,
    release_outcome,
    release_table,
    remarks,
    size,
    trained_layers,
)
from eaglectl.results import FailedSource, Inspection
from eaglectl.run.coverage import Coverage
from eaglectl.verdicts import CheckVerdict, ServedAs

# whether an engine captures the trained layers
AS_TRAINED = {True: Words("yes", "good"), False: Words("no", "bad"), None: Words("unknown", "doubt")}
LEVELS = ("problem", "question", "warning", "note")
# how many facts on a drafter are shown without -v
SHORT = 5
# the most notes that are shown to people
MOST_NOTES = 20
AUX_HEAD = ("engine", "ids it reads", "from", "boundaries", "layers as trained", "newest release")
TENSOR_HEAD = ("tensor", "dtype", "shape", "bytes", "canonical")
FED_BACK = {True: "after the norm (norm_output)", False: "before the norm", None: "unknown (norm_output)"}
VOCABULARY_MAPS = ("d2t", "t2d")
# facts of vLLM that options of convert answer
ANSWERED = ("aux-unknown", "mask-token")
# only parts of files were read
HEADERS_READ = "; headers read from the Hub or its cache, which no digest covers"
FROM_TARGET = "the target's (none in the file)"


def inspection_outline(inspection: Inspection) -> Outline:
    """Return what engines do with one checkpoint, what to run next, and the checkpoint's facts.

    The engines are those of --engine, else vLLM and SGLang.
    """
    drafter, verdicts, facts = inspection.drafter, _judged(inspection), _facts(inspection)
    version, producer, evidence = headline(drafter)
    serve = inspection.commands.items()
    commands = [(engine, text) for engine, text in serve if _is_shown(inspection, engine)]
    notes = [Remark(toned(note.level), note.text) for note in urgent_notes(drafter.notes)]
    short = SHORT + bool(inspection.coverage)
    answer = answer_line(verdicts, drafter.aux.boundaries) or (Words(version, "strong"), producer)
    sections = [
        choice_section(inspection.following),
        Section("Drafter", [Pairs(facts[:short]), Lines(_others(inspection))], f"{version}{producer}"),
        *_beside(inspection),
        Section("Network", [Pairs(facts[short:])], evidence.strip(), is_more=True),
        aux_section(inspection),
        Section("Releases", [release_table(inspection.requested or inspection.verdicts)], is_more=True),
        Section("Notes", [Remarks(notes)], is_more=True),
        Section("Serve", [Commands(commands)], placeholders(text for _, text in commands), is_more=True),
        Section("Tensors", [Table(TENSOR_HEAD, _tensor_rows(inspection))], is_more=True),
    ]
    command, published = _next(inspection, verdicts), ServedAs.AS_PUBLISHED
    return Outline(
        "inspect",
        Words(f"EAGLE-{drafter.version}", "plain"),
        os.fspath(inspection),
        answer,
        first_line(_worst(verdicts), *answer),
        sections,
        [f"{verdict.outcome}: {verdict.reasons[0]}" for verdict in verdicts if verdict.outcome == published],
        cause=_cause(inspection, verdicts, command),
        next=command,
    )


def _worst(verdicts: Sequence[Verdict]) -> CheckVerdict:
    """Return the worst check of all verdicts; COULD_NOT_LOOK without verdicts."""
    checks = {verdict.outcome.check for verdict in verdicts}
    order = (CheckVerdict.FAIL, CheckVerdict.COULD_NOT_LOOK, CheckVerdict.PASS)
    return next((check for check in order if check in checks), CheckVerdict.COULD_NOT_LOOK)


def _latest(inspection: Inspection) -> dict[str, Verdict]:
    return {verdict.engine: verdict for verdict in inspection.verdicts}


def _judged(inspection: Inspection) -> Sequence[Verdict]:
    newest = _latest(inspection).values()
    return inspection.requested or [verdict for verdict in newest if ENGINES[verdict.engine].is_default]


def _is_shown(inspection: Inspection, engine: str) -> bool:
    return not inspection.requested or any(verdict.engine == engine for verdict in inspection.requested)


def _cause(inspection: Inspection, verdicts: Sequence[Verdict], command: str) -> list[Line]:
    """Return why these releases do not run it as trained, each reason once, and why no conversion helps.

    Questions come first. Reasons about other layers are left out: the first line states them.
    """
    reasons, following = _reasons(verdicts), inspection.following
    questions = _questions(inspection)
    keys = {reason: key for verdict in verdicts for key, reason in verdict.keyed_reasons}
    first = [questions[keys[reason]] for reason in reasons if keys[reason] in questions]
    others = [
        f"{engine_names(group)}: {text}" for text, group in reasons.items() if keys[text] not in questions
    ]
    if command != inspection.validate:
        first = first or list(questions.values())[:1]
        is_stated = {keys[reason] for reason in reasons}.issuperset(following.keys or (following.why,))
        others += [following.why] if following.why and not is_stated else []
    lines: list[Line] = [*first, *others]
    if following.choices:  # the choices need the lines; -v shows the other reasons
        return lines[:1]
    if len(lines) > MOST_CAUSES:
        rest = plural(len(lines) - MOST_CAUSES, "more reason")
        lines[MOST_CAUSES:] = [Words(f"and {rest} with -v", "quiet")]
    return lines


def _questions(inspection: Inspection) -> dict[str, str]:
    """Return open questions by key, with the options that answer them unless choices follow."""
    notes, has_choices = inspection.drafter.notes_at("question"), inspection.following.choices
    return {
        note.key: note.why if has_choices else f"{note.why}; pass {options(note.choices)}" for note in notes
    }


def _reasons(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Return the verdicts by reason, without the reasons that the first line states."""
    return grouped(
        (reason, verdict)
        for verdict in verdicts
        for key, reason in verdict.keyed_reasons
        if reason in remarks(verdict) and not (verdict.reading and key in ENGINES[verdict.engine].layer_rules)
    )


def _next(inspection: Inspection, verdicts: Sequence[Verdict]) -> str:
    """Return the next command: `validate` if the newest release serves it, else a conversion."""
    newest = [verdict for verdict in verdicts if verdict.engine == verdicts[0].engine][-1:]
    is_served = any(verdict.outcome.is_served for verdict in newest)
    return inspection.validate if is_served else inspection.following.command


def _others(inspection: Inspection) -> Sequence[Line]:
    """Return one line on the engines that are not judged; nothing if engines were requested."""
    if inspection.requested:
        return []
    others = [verdict for verdict in _latest(inspection).values() if verdict not in _judged(inspection)]
    outcomes = [(verdict.outcome.words(verdict.start_options), engine_names([verdict])) for verdict in others]
    engines, on_other_layers = _runner_labels(), _on_other_layers(inspection)
    unread = [
        (
            "on other layers" if captured.same_as(inspection.drafter.aux) is False else "not judged",
            captured.engine,
        )
        for captured in inspection.captured_layers
        if captured.engine not in engines and captured not in on_other_layers
    ]
    return also_line([*outcomes, *unread])


def _on_other_layers(inspection: Inspection) -> list[CapturedLayers]:
    """Return the untrained layers that other engines capture, if all judged releases serve the drafter."""
    if inspection.requested or not all(verdict.outcome.is_served for verdict in _judged(inspection)):
        return []
    engines, aux = _runner_labels(), inspection.drafter.aux
    return [
        captured
        for captured in inspection.captured_layers
        if captured.engine not in engines and captured.same_as(aux) is False
    ]


def _beside(inspection: Inspection) -> Iterator[Section]:
    """Yield the engines that capture other layers, with their settings, and commands for more coverage."""
    if captured := _on_other_layers(inspection):
        rows = [_aux_row(layers, inspection)[:-1] for layers in captured]
        settings = [(name, text) for name, text in inspection.commands.items() if name not in ENGINES]
        yield Section("On other layers", [Table(AUX_HEAD[:-1], rows), Commands(settings)], has_heading=False)
    if inspection.coverage and inspection.coverage.commands:
        yield Section("To cover more", [Commands([("", text) for text in inspection.coverage.commands])])


def _runner_labels() -> Mapping[str, str]:
    return {
        runner.label: name
        for name, engine in ENGINES.items()
        for runner in engine.behaviour(engine.releases[-1]).runners.values()
    }


def aux_section(inspection: Inspection) -> Section:
    """Return the trained layers, and those that each engine captures."""
    engines = _runner_labels()
    captured = [
        layers
        for layers in inspection.captured_layers
        if _is_shown(inspection, engines.get(layers.engine, layers.engine))
    ]
    table = Table(AUX_HEAD, [_aux_row(layers, inspection) for layers in captured])
    trained = f"trained on boundaries {trained_layers(inspection.drafter.aux)}"
    return Section("Aux layers", [table], trained, is_more=True)


def inspections_outline(results: Sequence[Inspection | FailedSource]) -> Outline:
    """Return the answer for each source, or why there is none, then the count of inspected sources.

    For a single inspection, return only its answer.
    """
    outlines = []
    if len(results) == 1 and isinstance(results[0], Inspection):
        return inspection_outline(results[0])
    for result in results:
        if isinstance(result, FailedSource):
            head, cause = (
                first_line(CheckVerdict.COULD_NOT_LOOK, Words(result.source, "strong")),
                [result.message],
            )
            outline = Outline(
                "inspect", Words("not inspected", "doubt"), result.source, "", head, [], cause=cause
            )
        else:
            outline = inspection_outline(result)
            head = first_line(_worst(_judged(result)), Words(outline.subject, "strong"))
            sections = [replace(section, is_more=True) for section in outline.sections]
            outline = replace(outline, head=head, sections=sections, cause=[outline.lead, *outline.cause])
        outlines.append(outline)
    failed = sum(isinstance(result, FailedSource) for result in results)
    counted = f"{len(results) - failed} of {len(results)} checkpoints inspected"
    verdict = Words(counted, "doubt" if failed else "plain")
    return Outline("inspect", verdict, "", "", "", [], [counted], outlines)


def headline(drafter: Drafter) -> tuple[str, str, str]:
    """Return the EAGLE version, the producer, and the evidence for that producer."""
    producer = by_name(drafter.producer)
    return (
        f"EAGLE-{drafter.version} drafter",
        f" {'in' if producer.is_layout else 'from'} {producer.title}",
        f"  ({drafter.evidence})",
    )


def _facts(inspection: Inspection) -> list[tuple[str, str]]:
    # the rows of the drafter's facts
    drafter, dims, checkpoint = inspection.drafter, inspection.drafter.dims, inspection.checkpoint
    coverage, network = inspection.coverage, [plural(dims.layers, "layer"), _attention(dims)]
    network += [f"hidden {dims.hidden}", f"MLP {dims.intermediate}"]
    if Feature.QK_NORM in drafter.features():
        network.append("q/k norms")
    target, covered = drafter.target, []
    # the user knows a path that was given, and it can be longer than a line
    how = target.origin or (GIVEN if inspection.target else "")
    depth = f"{target.depth} layers" if target.depth else None
    if coverage:
        covered = [("coverage", f"{coverage.words}{f': {coverage.advice}' if coverage.holds_down else ''}")]
    parameters = sum(
        math.prod(tensor.shape) for name, tensor in drafter.tensors.items() if name not in VOCABULARY_MAPS
    )
    weights = (
        f"{parameters:,} parameters, {size(checkpoint.nbytes)} in {len(checkpoint.weight_files)} file(s),"
        f" {', '.join(drafter.dtypes)}{HEADERS_READ if inspection.unchecked else ''}"
    )
    return [
        ("target", ", ".join(filter(None, (target.name or how or "not named", depth, target.model_type)))),
        ("network", ", ".join(network)),
        ("layers", f"trained on {trained_layers(drafter.aux)}"),
        ("norms", _norms(drafter)),
        ("vocabulary", _vocabulary(drafter)),
        *covered,
        ("aux input", f"{dims.aux} states of width {dims.target_hidden} into fc"),
        ("rope", _rope(drafter.rope)),
        ("embedding", "its own" if "embed_tokens.weight" in drafter.tensors else FROM_TARGET),
        ("head", "its own" if drafter.has_head else FROM_TARGET),
        ("weights", weights),
        ("quantised", "no" if drafter.quantisation is None else "yes, passed through unchanged"),
    ]


def _attention(dims: Dimensions) -> str:
    if dims.attention == "MLA":
        return (
            f"MLA {dims.heads} heads, q rank {dims.q_lora_rank or 'none'}, kv rank {dims.kv_lora_rank},"
            f" {dims.qk_nope_head_dim}+{dims.qk_rope_head_dim}/{dims.v_head_dim}"
        )
    return f"{dims.attention} {dims.heads} heads on {dims.kv_heads} of {dims.head_dim}"


def _norms(drafter: Drafter) -> str:
    norms = drafter.norms
    aux = "all aux states at once (norm_before_fc)" if norms.norm_before_fc else "none before fc"
    if norms.fc_norm:
        aux = "each aux state (fc_norm)"
    residual = "normed" if norms.norm_before_residual else "un-normed"
    return f"{aux}; fed back {FED_BACK[norms.norm_output]}; residual {residual}"


def _vocabulary(drafter: Drafter) -> str:
    dims = drafter.dims
    if not drafter.has_reduced_vocabulary:
        return f"all {dims.vocab} target tokens"
    maps = " and ".join(name for name in VOCABULARY_MAPS if name in drafter.tensors) or "no map"
    return f"{dims.draft_vocab} of {dims.vocab} target tokens ({dims.draft_vocab / dims.vocab:.1%}), {maps}"


def _rope(rope: Rope) -> str:
    text = f"base {rope.theta:g}"
    if rope.scaling:
        text += f", {rope.scaling.get('rope_type')} scaling"
        text += f" x{rope.scaling['factor']:g}" if "factor" in rope.scaling else ""
    return f"{text}, interleaved" if rope.is_interleaved else text


def _aux_row(captured: CapturedLayers, inspection: Inspection) -> tuple[Line, ...]:
    ids = ", ".join(map(str, captured.ids or ())) or "-"
    verdict = _latest(inspection).get(_runner_labels().get(captured.engine, ""))
    outcome = release_outcome(verdict) if verdict else Words("not judged", "doubt")
    cells = (captured.engine, ids, captured.key, layers(captured.boundaries, captured.default))
    return *cells, AS_TRAINED[captured.same_as(inspection.drafter.aux)], outcome


def urgent_notes(notes: Sequence[Note]) -> list[Note]:
    """Return notes, the most urgent first; at most MOST_NOTES, and a note with the count of the others."""
    every = sorted(notes, key=lambda note: LEVELS.index(note.level))
    rest = len(every) - MOST_NOTES
    more = [Note("note", "", f"and {rest:,} more; --json lists all")] if rest > 0 else []
    return [*every[:MOST_NOTES], *more]


def _tensor_rows(inspection: Inspection) -> list[tuple[Line, ...]]:
    # in the columns of TENSOR_HEAD
    canonical_names = {
        stored: name for name, tensor in inspection.drafter.tensors.items() for stored in tensor.stored
    }
    return [
        (
            Words(stored, is_code=True),
            tensor.dtype,
            str(list(tensor.shape)),
            str(tensor.nbytes),
            Words(canonical_names.get(stored, "-"), is_code=True),
        )
        for stored, tensor in inspection.checkpoint.tensors.items()
    ]


def _dimensions(drafter: Drafter) -> dict[str, int]:
    return {key: number for key, number in asdict(drafter.dims).items() if number}


DRAFTER: Parts = {
    Drafter: (
        "producer",
        "evidence",
        "eagle=version",
        "attention=dims.attention",
        ("dimensions", _dimensions),
        "norms",
        "aux",
        "rope",
        "target",
        ("features", lambda drafter: sorted(feature.name.lower() for feature in drafter.features())),
        ("is_quantised", lambda drafter: drafter.quantisation is not None),
        "notes",
    ),
    AuxLayers: ("count", "boundaries", "is_default", "how", "ids", "convention"),
    Rope: ("theta", "scaling", "is_interleaved"),
    Target: ("name", "model_type", "depth", "hidden", "vocab"),
    Note: ("level", "about", "text"),
    Verdict: ("engine", "release", "outcome", "reasons", "rules", "unread", "options=start_options"),
}


# the keys of coverage in all, and of each set and script
SHARE = ("tokens", "covered", "share", "most_length")


def _shares(parts: Mapping[str, Coverage]) -> dict[str, Any]:
    return {name: {key: getattr(part, key) for key in SHARE} for name, part in parts.items()}


COVERAGE: Parts = {
    Coverage: (
        *SHARE,
        ("sets", lambda coverage: _shares(coverage.sets)),
        ("scripts", lambda coverage: _shares(coverage.scripts)),
        "next=commands?",
    )
}
PARTS: Parts = {
    **DRAFTER,
    **COVERAGE,
    Inspection: (
        "source",
        "target",
        "target_digest",
        "drafter",
        (
            "weights",
            lambda inspection: {
                "files": inspection.checkpoint.weight_files,
                "bytes": inspection.checkpoint.nbytes,
                "dtypes": inspection.drafter.dtypes,
                "unchecked": inspection.unchecked,
            },
        ),
        (
            "aux_readings",
            lambda inspection: [
                {
                    "engine": layers.engine,
                    "from": layers.key,
                    "ids": layers.ids,
                    "boundaries": layers.boundaries,
                    "is_default": layers.is_default,
                    "as_trained": layers.same_as(inspection.drafter.aux),
                }
                for layers in inspection.captured_layers
            ],
        ),
        ("engines", lambda inspection: inspection.requested or inspection.verdicts),
        "commands",
        "next=following.command",
        ("tensors", lambda inspection: list(inspection.checkpoint.tensors.values())),
        "coverage?",
        "choices=following.choices?",
    ),
    StoredTensor: ("name", "dtype", "shape", "bytes=nbytes", "file"),
}


def inspect_document(results: Sequence[Inspection | FailedSource]) -> dict[str, Any]:
    """Return eaglectl/inspect/1: a single result without a list; in a list each result has its path."""
    if len(results) == 1 and isinstance(results[0], Inspection):
        return document("eaglectl/inspect/1", part(results[0], PARTS))
    entries: list[dict[str, Any]] = []
    for result in results:
        if isinstance(result, FailedSource):
            error = error_part(result.kind, result.exit_code, result.message)
            entries.append({"path": result.source, "error": error})
        else:
            entries.append({"path": os.fspath(result), **part(result, PARTS)})
    return document("eaglectl/inspect/1", {"inspections": entries})
