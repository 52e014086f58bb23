"""Making a plan: transformations of the drafter in order, then names, config, and what is left behind.

Its checks come last: no open question or fault, the layout expresses the drafter, it reads back the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.dequantising import with_plain_edges
from eaglectl.conversion.plan import (
    CAST,
    DEFAULT_LAYOUT,
    FLOATS,
    ITEM_SIZE,
    ConversionPlan,
    ConversionRequest,
    GeneratedBytes,
    KeyChange,
    LeftBehind,
    Step,
    StepOrigin,
    TransformedDrafter,
    UpgradeRecipe,
)
from eaglectl.conversion.readings import (
    SHIFTS,
    TABLES,
    draft_vocabulary,
    pruned,
    with_readings_fixed,
    with_table_moved,
)
from eaglectl.conversion.rewriting import (
    HEAD,
    TargetMatrix,
    TargetRotation,
    in_ascending_order,
    rewritten_attention,
    with_factor,
    with_head,
    with_one_norm,
    with_rotation,
    with_whole_head,
)
from eaglectl.conversion.upgrade import at_version
from eaglectl.drafter.drafter import TRAINING_DEFAULT, Drafter, Feature, Note, bias_feature
from eaglectl.drafter.tensors import (
    ABSOLUTE,
    Absorbed,
    Computed,
    DraftVocabulary,
    Segment,
    Tensor,
    as_int64,
    identity,
    is_quantised_part,
    offsets_record,
)
from eaglectl.engines.registry import EngineRequest
from eaglectl.engines.sglang import ids_in
from eaglectl.errors import (
    EaglectlError,
    OpenFactError,
    OptionNeededError,
    RefusedError,
    UnreadableError,
    UsageError,
    check,
)
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import DTYPE_BITS, StoredTensor
from eaglectl.files.layout import ADAPTER, ADAPTER_CONFIG, CONFIG, INDEX, QUANTISATION, RECORD, SINGLE, SUMS
from eaglectl.files.source import check_whole
from eaglectl.formats.catalogue import by_name, default_format, writable
from eaglectl.formats.config_keys import check_numbers
from eaglectl.formats.format import NESTED_IDS, Answers, Format, Layout
from eaglectl.formats.names import canonical_name, droppable, module_prefix
from eaglectl.formats.reader import model_class_of, read_drafter
from eaglectl.formats.writer import write_config, written_name
from eaglectl.text import listed, printable

WHY_NOT: Mapping[Feature, str] = {
    Feature.NORM_BEFORE_RESIDUAL: "no rewriting of weights replaces it (the residual would need a norm)",
    Feature.PARALLEL: "its mask_hidden has no place there",
    Feature.QK_NORM: "its q/k norms have no place there",
}
COPIED_SUFFIXES = (".md", ".txt", ".jinja", ".model")
LEGAL_PREFIXES = ("LICENSE", "NOTICE")
TRAINER_STATE = (
    "meta.json",
    "trainer_state.json",
    "training_state.json",
    "latest_checkpointed_iteration.txt",
)
REWRITTEN = (CONFIG, RECORD, SUMS, INDEX)


class OtherFiles(Struct, frozen=True):
    """Draft tokens of a trainer's side file, a target's head, and the rotation of a target.

    `copied` is the stored name of an embedding to leave out: a copy of the target's first rows.
    """

    selected: Sequence[int] | None = None
    head: TargetMatrix | None = None
    rotation: TargetRotation | None = None
    copied: str = ""


def make_plan(
    checkpoint: Checkpoint,
    drafter: Drafter,
    request: ConversionRequest,
    answers: Answers,
    others: OtherFiles | None = None,
) -> ConversionPlan:
    """Plan a conversion.

    Raises UsageError for missing answers or options, RefusedError for an impossible conversion.
    """
    name, others = request.layout or DEFAULT_LAYOUT, others or OtherFiles()
    if name not in writable() or (layout := by_name(name).layout) is None:
        raise UsageError(f"--for {name}: one of {', '.join(writable())} was expected", options=("--for",))
    format = by_name(name)
    changed, reasons = _transformed(checkpoint, drafter, format, layout, request, others)
    if shift := next((fix for fix in request.fixes if fix[0] in SHIFTS), None):
        moved, vocabulary = with_table_moved(checkpoint, changed.drafter, answers, *shift)
        changed = changed.then(moved)
    else:
        vocabulary = draft_vocabulary(checkpoint, changed.drafter, answers, others.selected)
    changed = replace(changed, notes=(*changed.notes, *_repair_notes(drafter, vocabulary)))
    if others.head and (stored_head := changed.drafter.tensors[HEAD].stored):
        whole, vocabulary = with_whole_head(checkpoint, changed.drafter, vocabulary, others.head)
        changed = replace(changed, drafter=whole)
        reasons |= dict.fromkeys((*stored_head, *TABLES), "replaced by the target's whole lm_head")
    if request.pruning:
        fewer, vocabulary = pruned(changed.drafter, vocabulary, request.pruning)
        changed = changed.then(fewer)
    plan = _planned(checkpoint, changed, format, vocabulary, request, reasons)
    return replace(plan, output=_read_back(plan, checkpoint))


def _planned(
    checkpoint: Checkpoint,
    changed: TransformedDrafter,
    format: Format,
    vocabulary: DraftVocabulary,
    request: ConversionRequest,
    reasons: Mapping[str, str],
) -> ConversionPlan:
    """Return the plan for a transformed drafter; its output is not read back yet."""
    assert format.layout is not None
    layout = format.layout
    drafter, record = changed.drafter, {**request.record, **changed.record}
    ids, id_notes = _ids_by_place(drafter, format, request.engines)
    steps = _tensor_steps(checkpoint, drafter, layout, vocabulary, request.dtype)
    if any(step.name == "d2t" for step in steps):
        record["d2t"] = offsets_record(vocabulary.offsets)
    # the dtypes of the stored norms: the config states the first one that it can name
    config = write_config(
        drafter,
        format,
        model_class_of(drafter.tensors, drafter.dims),
        ids,
        [step.dtype for step in steps if step.stored and step.stored[0].endswith("norm.weight")],
    )
    check_numbers(config)
    stale = (QUANTISATION,) if "dequantised" in record or drafter.quantisation is None else ()
    copied, left_files = _side_files(checkpoint, stale)
    return ConversionPlan(
        source=printable(checkpoint.source.label),
        drafter=drafter,
        layout=format.name,
        steps=steps,
        config=config,
        metadata={"format": "pt"},
        changes=tuple(_key_changes("", checkpoint.config, config)),
        left_tensors=tuple(_tensors_left_behind(checkpoint, drafter, steps, reasons)),
        left_files=left_files,
        copied_files=copied,
        notes=(
            *changed.notes,
            *id_notes,
            *_layout_notes(drafter, format, layout, request),
            *(
                Note("warning", "files", f"{left.name} holds weights too: it is not read, and left out")
                for left in left_files
                if left.name.endswith(".safetensors")
            ),
        ),
        record=record,
    )


def _repair_notes(drafter: Drafter, vocabulary: DraftVocabulary) -> Iterator[Note]:
    if vocabulary.form == ABSOLUTE:
        yield Note(
            "warning",
            "d2t",
            "d2t: token ids became offsets; with the stored file no draft token would be accepted",
        )
    elif "d2t" not in drafter.tensors and drafter.has_reduced_vocabulary:
        stored = f"with the stored file engines propose the first {drafter.dims.draft_vocab} tokens"
        yield Note("warning", "d2t", f"d2t: made {vocabulary.how}; {stored}")


def _transformed(
    checkpoint: Checkpoint,
    drafter: Drafter,
    format: Format,
    layout: Layout,
    request: ConversionRequest,
    others: OtherFiles,
) -> tuple[TransformedDrafter, dict[str, str]]:
    """Return the drafter after all transformations but pruning, and why each tensor is left behind."""
    copied = (others.copied,) if others.copied else ()
    modules = droppable(drafter.unknown, drafter.tensors)
    dropped = tuple(name for value in request.drop for name in modules.get(value, (value,)))
    drafter = without_solved_problems(drafter, replace(request, drop=(*dropped, *copied)))
    _check_settled(drafter)
    changed = with_plain_edges(checkpoint, drafter, layout, request.engines)
    changed = changed.then(with_one_norm(checkpoint, changed.drafter, layout))
    if request.fixes:  # they count aux states in ascending order
        changed = changed.then(in_ascending_order(changed.drafter))
        changed = changed.then(with_readings_fixed(changed.drafter, request.fixes))
    attention = rewritten_attention(checkpoint, changed.drafter, request)
    drafter, missing = attention.drafter, _missing_features(attention.drafter, layout)
    zeros = {  # biases that the layout has no place for (C32)
        name: tensor.stored[0]
        for name, tensor in drafter.tensors.items()
        if bias_feature(name) in missing and not any(any(checkpoint.read(stored)) for stored in tensor.stored)
    }
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in zeros}
    drafter = replace(drafter, tensors=tensors)
    if others.head and HEAD not in tensors:
        drafter = with_head(drafter, others.head)
    changed = changed.then(replace(attention, drafter=drafter))
    changed = changed.then(
        at_version(
            checkpoint,
            drafter,
            request.version,
            replace(request.recipe or UpgradeRecipe(), dtype=request.dtype),
        )
    )
    changed = changed.then(in_ascending_order(changed.drafter))
    if others.rotation:
        changed = changed.then(with_rotation(checkpoint, changed.drafter, others.rotation))
    changed = changed.then(with_factor(changed.drafter, layout))
    _check_expressible(changed.drafter, format, layout, is_for_training=request.recipe is not None)
    reasons = dict.fromkeys(copied, "a copy of the target's first rows, whose embedding engines share")
    reasons |= dict.fromkeys(dropped, "dropped by --drop")
    reasons |= dict.fromkeys(zeros.values(), "all zeros, and this layout has no biases")
    return replace(changed, notes=(*changed.drafter.notes, *changed.notes)), reasons


def _ids_by_place(
    drafter: Drafter, format: Format, engines: Sequence[EngineRequest]
) -> tuple[Mapping[str, Sequence[int]], list[Note]]:
    """Return layer ids by their places in the layout. Raises if a required place has none for the layers."""
    boundaries, ids, notes = drafter.aux.boundaries, dict[str, Sequence[int]](), list[Note]()
    if boundaries is None:
        return ids, notes
    for place in format.written_ids:
        # ATOM reads this key as boundaries
        is_atoms = place.key == NESTED_IDS and any(request.engine == "atom" for request in engines)
        try:
            ids[place.key] = boundaries if is_atoms else ids_in(place, boundaries, drafter.target)
        except EaglectlError as error:
            if place.is_required:
                raise
            if place.meaning == "output":
                other = default_format().name
                raise RefusedError(
                    f"{format.title}: {error}; use --for {other}", options=("--for",)
                ) from None
            notes.append(
                Note(
                    "warning",
                    "aux layers",
                    f"{error}; without them SGLang captures its default layers: serve this output with vLLM",
                )
            )
    return ids, notes


def _key_changes(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[KeyChange]:
    for key in dict.fromkeys((*after, *before)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _key_changes(f"{prefix}{key}.", old, new)
        elif old != new:
            yield KeyChange(prefix + key, old, new)


def _layout_notes(
    drafter: Drafter, format: Format, layout: Layout, request: ConversionRequest
) -> Iterator[Note]:
    # what this layout means for further training, and whether it has d2t and t2d of a full vocabulary
    base, is_sectioned = drafter.rope.theta, "mrope_section" in (drafter.rope.scaling or {})
    trained_base = 10000.0 if layout.scalings is not None and not is_sectioned else base
    if trained_base != base:
        yield Note(
            "warning",
            "rope_theta",
            f"{format.title}'s own code rotates with base {trained_base:g} whatever the config states, and"
            f" this drafter has {base:g}: engines use the written base, and further training would not",
        )
    if layout.needs_embedding and "embed_tokens.weight" not in drafter.tensors:
        yield Note("warning" if request.recipe else "note", "embed_tokens", layout.needs_embedding)
    written = sorted(drafter.features() & layout.cautions.keys())
    for text in dict.fromkeys(layout.cautions[feature] for feature in written):
        yield Note("warning", "training", text)
    if not drafter.has_reduced_vocabulary and "d2t" in drafter.tensors:
        text = "the full vocabulary's d2t and t2d are left out, since vLLM from 0.30.0 on refuses them"
        if layout.has_identity_map:
            text = "identity d2t and t2d are written, as this producer does"
        yield Note("note", "d2t", text)


def _check_settled(drafter: Drafter) -> None:
    # raise for problems that forbid a conversion and for open questions
    if problems := drafter.notes_at("problem"):
        error = OptionNeededError if any(note.remedies for note in problems) else RefusedError
        topic, where = (problems[0].topic, problems[0].about) if len(problems) == 1 else ("", "")
        text = listed((note.text for note in problems), "; ")
        raise error(text, topic, where, options=_named_options(problems))
    if questions := drafter.notes_at("question"):
        raise OpenFactError(
            listed((note.text for note in questions), "; "), options=_named_options(questions)
        )


def _named_options(notes: Iterable[Note]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(option for note in notes for option in note.options))


def _check_expressible(
    drafter: Drafter, format: Format, layout: Layout, *, is_for_training: bool = False
) -> None:
    """Raise RefusedError for a feature of the drafter that the layout cannot express.

    `is_for_training`: also state the layout's cautions on training.
    """
    missing, boundaries = sorted(_missing_features(drafter, layout)), drafter.aux.boundaries
    is_depth_known = missing != [Feature.AUX_LAYERS] or drafter.target.depth is not None
    if not is_depth_known and boundaries and TRAINING_DEFAULT.may_be(boundaries):
        raise UsageError(
            f"{format.title} writes no layer ids, so boundaries {list(boundaries)} must be the target's"
            " default; pass --target to check this",
            options=("--target",),
        )
    reasons = {**WHY_NOT, **layout.cautions} if is_for_training else WHY_NOT
    why = "; ".join(f"{name}: {reasons[name]}" if name in reasons else name for name in missing)
    kind = (drafter.rope.scaling or {}).get("rope_type")
    other = _alternative(format.name)
    check(
        (missing, f"{format.title} cannot express this drafter ({why}){other}"),
        (
            format.is_parallel and Feature.PARALLEL not in drafter.features(),
            f"{format.title} is for parallel drafters, and this drafter has no mask_hidden{other}",
        ),
        (
            model_class_of(drafter.tensors, drafter.dims) not in layout.architectures,
            f"{format.title} has no class for this drafter's attention{other}",
        ),
        (
            layout.scalings is not None and kind is not None and kind not in layout.scalings,
            f"{format.title} has no rope scaling {kind}: its code raises an error{other}",
        ),
        error=RefusedError,
    )
    name = drafter.target.name
    if layout.nest and (name is None or name.startswith((".", "/", "~"))):
        raise UsageError(
            f"a config of {format.title} states the target's Hub name; pass --target-name org/name",
            options=("--target-name",),
        )


def _missing_features(drafter: Drafter, layout: Layout) -> frozenset[Feature]:
    features, model_class = drafter.features(), model_class_of(drafter.tensors, drafter.dims)
    return (features - layout.expresses) | (features & layout.lacks.get(model_class, frozenset()))


class _PlannedCheckpoint(Checkpoint, frozen=True, kw_only=True):
    """The output of a plan: tensors that are neither computed nor rearranged can be read."""

    stored: Checkpoint
    origins: Mapping[str, StepOrigin]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of one tensor's data. Raises UnreadableError if it is not made yet."""
        match self.origins[name]:
            case GeneratedBytes(data=data):
                return data[start:stop]
            case Absorbed() | Computed():
                raise UnreadableError(f"{name} is computed while the output is written")
            case segments:
                parts = (self.stored.read(part.stored, part.start, part.stop) for part in segments)
                return b"".join(parts)[start:stop]


def _read_back(plan: ConversionPlan, checkpoint: Checkpoint) -> tuple[Checkpoint, Drafter]:
    """Read the planned output back. Raises RefusedError if it is another drafter, or leaves a question.

    Without eaglectl.json, a fact that the layout leaves open is not a difference.
    """
    words, other = f"written as {by_name(plan.layout).title}'s", _alternative(plan.layout)
    tensors = {
        step.name: StoredTensor(step.name, step.dtype, step.shape, SINGLE, 0, step.nbytes)
        for step in plan.steps
    }
    alone = _PlannedCheckpoint(
        checkpoint.source,
        plan.config,
        tensors,
        plan.metadata,
        (SINGLE,),
        {},
        names=(SINGLE,),
        stored=checkpoint,
        origins={step.name: step.origin for step in plan.steps},
    )
    for written in (alone, replace(alone, sidecars={RECORD: plan.identity})):
        try:
            after = read_drafter(written, Answers(), plan.drafter.target)
        except EaglectlError as error:
            raise RefusedError(
                f"{words}, this drafter could not be read back ({error}){other}", options=error.options
            ) from None
        if differences := "; ".join(_differences(plan.drafter, after)):
            raise RefusedError(f"{words}, this drafter reads back differently: {differences}{other}")
    if questions := after.notes_at("question"):
        doubts = "; ".join(note.why for note in questions)
        raise RefusedError(f"{words}, its files leave a question open: {doubts}{other}")
    return written, after


def _alternative(layout: str) -> str:
    return "" if layout == DEFAULT_LAYOUT else f"; use --for {DEFAULT_LAYOUT}"


def _differences(before: Drafter, after: Drafter) -> Iterator[str]:
    # how a plan's output, read back, would differ from the drafter; a plan must have none
    trained, read = before.aux.boundaries or (), after.aux.boundaries or ()
    switches = ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual", "hidden_twice")
    norms = ((name, getattr(before.norms, name), getattr(after.norms, name)) for name in switches)
    differences = (
        (before.kind != after.kind, f"{after.kind} for {before.kind}"),
        (
            trained and read and trained != read,
            f"as a {after.producer} file it has layers {list(read)}, and it was trained on {list(trained)}",
        ),
        *(
            (None not in (is_on, is_read) and is_on != is_read, f"{name} {is_read} for {is_on}".lower())
            for name, is_on, is_read in norms
        ),
        (before.dims != after.dims, f"dimensions {after.dims} for {before.dims}"),
        (
            (before.rope.theta, before.rope.scaling) != (after.rope.theta, after.rope.scaling),
            f"rope {after.rope} for {before.rope}",
        ),
    )
    return (text for is_there, text in differences if is_there)


def without_solved_problems(drafter: Drafter, request: ConversionRequest) -> Drafter:
    """Return the drafter without the tensors of --drop, and without the notes that the request solves.

    Raises UsageError for tensors that are neither unknown nor optional.
    """
    names = ["mask_hidden", "t2d", *(name for name in drafter.tensors if name.endswith(".bias"))]
    if drafter.dims.hidden == drafter.dims.target_hidden:
        names.append("embed_tokens.weight")  # engines share the target's
    optional = {drafter.tensors[name].stored[0]: name for name in names if name in drafter.tensors}
    for name in request.drop:
        if name not in drafter.unknown and name not in optional:
            droppable = listed(sorted((*drafter.unknown, *optional))) or "nothing"
            raise UsageError(
                f"--drop {name}: the drafter needs this tensor, or the file does not have it; it can drop:"
                f" {droppable}",
                options=("--drop",),
            )
    dropped = {optional.get(name) for name in request.drop}
    return replace(
        drafter,
        tensors={name: tensor for name, tensor in drafter.tensors.items() if name not in dropped},
        notes=tuple(note for note in drafter.notes if not _is_solved(note, drafter, request)),
    )


def _is_solved(note: Note, drafter: Drafter, request: ConversionRequest) -> bool:
    # whether an option of the request makes a problem of the source none of the output's
    solved = {
        "training-unservable": not drafter.rope.has_mla_factors,
        "rope-pairing": request.rope_style == "interleaved",
        "tensor-shape": note.about == "d2t" and ("d2t", "from-t2d") in request.fixes,
    }
    is_query_split = request.has_query_lora and not drafter.dims.q_lora_rank
    return note.about in request.drop or solved.get(
        note.topic, note.about.endswith(".q_a_proj.weight") and is_query_split
    )


def _tensors_left_behind(
    checkpoint: Checkpoint, drafter: Drafter, steps: Sequence[Step], reasons: Mapping[str, str]
) -> Iterator[LeftBehind]:
    """Yield the stored tensors no step uses. Raises RefusedError for one without a reason to leave it."""
    used = {name for step in steps for name in step.stored}
    for name in checkpoint.tensors:
        if name in used:
            continue
        why = drafter.strays.get(name) or reasons.get(name)
        if not why and canonical_name(name, prefix=module_prefix(checkpoint.tensors)) in TABLES:
            why = "the identity map of a full vocabulary, which is not needed"
            if drafter.has_reduced_vocabulary:
                why = "computed from the other table (--fix-reading)"
        if not why:
            raise OptionNeededError(
                f"{name} would be lost; pass --drop {name} if it can be left out", options=("--drop",)
            )
        yield LeftBehind(name, why)


def _side_files(
    checkpoint: Checkpoint, stale: Collection[str]
) -> tuple[tuple[str, ...], tuple[LeftBehind, ...]]:
    """Return the files beside the weights to copy, and those to leave behind.

    `stale` are files that do not hold for the output. Raises UnreadableError for a file to copy that is too
    large for its kind.
    """
    copied, left = list[str](), list[LeftBehind]()
    for name in checkpoint.source.names():
        if name in checkpoint.weight_files or name in REWRITTEN or "/" in name:
            continue
        is_settings = name.endswith(".json") and "index" not in name
        is_text = name.endswith(COPIED_SUFFIXES) or name.upper().startswith(LEGAL_PREFIXES)
        if name in stale:
            left.append(LeftBehind(name, "config.json states what is quantised in the output"))
        elif name in TRAINER_STATE:
            left.append(LeftBehind(name, "a trainer's progress, not part of the drafter"))
        elif name in (ADAPTER, ADAPTER_CONFIG):
            left.append(LeftBehind(name, "a LoRA adapter: keep it, and merge it into its model"))
        elif is_settings or is_text:
            check_whole(checkpoint.source.place, name, checkpoint.source.size(name))
            copied.append(name)
        elif name.endswith(".py"):
            left.append(LeftBehind(name, "code is not copied with weights"))
        else:
            left.append(LeftBehind(name, "not part of a published drafter"))
    return tuple(copied), tuple(left)


def _tensor_steps(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, vocabulary: DraftVocabulary, dtype: str | None
) -> tuple[Step, ...]:
    """Return one step per output tensor, in the source's order, so that neighbours are copied together."""
    is_full, steps = not drafter.has_reduced_vocabulary, list[Step]()
    is_permuted = is_full and vocabulary.targets != tuple(range(drafter.dims.vocab))
    for name, tensor in drafter.tensors.items():
        if name == HEAD and is_permuted:
            tensor = tensor.with_rows(sorted(range(tensor.shape[0]), key=vocabulary.targets.__getitem__))
        if name not in TABLES:
            steps.append(_step(checkpoint, tensor, layout, dtype))
    steps.extend(_vocabulary_steps(checkpoint, drafter, layout, vocabulary))
    steps.extend(_output_biases(drafter, layout, dtype))
    quantised = tuple(
        name.rpartition(".")[0].rpartition(".")[2] for name in drafter.tensors if is_quantised_part(name)
    )
    for step in steps if drafter.quantisation is not None else ():
        is_changed = not step.is_moved and step.action != "derived"
        if is_changed and step.name.rpartition(".")[0].endswith(quantised):
            raise RefusedError(
                f"{step.name} is quantised and would be {step.action}; quantised weights can only be copied"
                " whole: convert the unquantised drafter, then quantise it"
            )

    def order(step: Step) -> tuple[str, int, int, str]:
        first = step.origin[0].start if isinstance(step.origin, tuple) else 0
        stored = checkpoint.tensors.get(step.stored[0]) if step.stored else None
        return stored.file if stored else "", stored.start if stored else -1, first, step.name

    return tuple(sorted(steps, key=order))


def _step(checkpoint: Checkpoint, tensor: Tensor, layout: Layout, dtype: str | None) -> Step:
    # how a tensor is written: its bytes as they are, cast, or computed; RefusedError if the dtype does not
    # allow it
    is_cast = dtype is not None and tensor.dtype in FLOATS and dtype != tensor.dtype
    written, origin, is_whole = tensor.dtype, tensor.origin, False
    match origin:
        case Computed(how=how):
            if tensor.dtype not in ITEM_SIZE:
                raise RefusedError(
                    f"{tensor.name} is {tensor.dtype}; {how} needs unquantised values: convert the"
                    " unquantised drafter"
                )
            written = dtype or tensor.dtype
        case Absorbed():
            check(
                (
                    is_cast,
                    f"{tensor.name}: --dtype cannot be combined with rearranging w_kc and w_vc; convert"
                    " first, then cast the result",
                    ("--dtype",),
                ),
                (
                    DTYPE_BITS[tensor.dtype] < 8,
                    f"{tensor.name}: w_kc and w_vc are {tensor.dtype}, and single elements of that dtype"
                    " cannot be moved; convert the unquantised drafter",
                ),
                error=RefusedError,
            )
        case _ if is_cast:
            written = dtype or tensor.dtype
            origin = Computed(CAST, (tensor,), lambda values: values, by_rows=True)
        case segments:
            first = segments[0].stored
            is_whole = segments == (Segment(first, 0, checkpoint.tensors[first].nbytes),)
    nbytes, name = prod(tensor.shape) * DTYPE_BITS[written] // 8, written_name(tensor.name, layout)
    return Step(name, written, tensor.shape, nbytes, origin, tensor.stored, is_whole)


def _vocabulary_steps(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, vocabulary: DraftVocabulary
) -> Iterator[Step]:
    # d2t and t2d as engines read them; copied where the file has the same bytes already
    if not drafter.has_reduced_vocabulary:
        if not layout.has_identity_map:
            return
        vocabulary = identity(drafter.dims.vocab)
    tables = [("d2t", "I64", as_int64(vocabulary.offsets))]
    if "t2d" in drafter.tensors or layout.has_identity_map:
        tables.append(("t2d", "BOOL", vocabulary.mask(drafter.dims.vocab)))
    for name, dtype, data in tables:
        tensor, written = drafter.tensors.get(name), written_name(name, layout)
        if tensor and tensor.dtype == dtype and checkpoint.read(tensor.stored[0]) == data:
            yield Step(written, dtype, tensor.shape, len(data), tensor.origin, tensor.stored, True)
        else:
            shape, generated = (len(data) * 8 // DTYPE_BITS[dtype],), GeneratedBytes(data, vocabulary.how)
            yield Step(written, dtype, shape, len(data), generated, tensor.stored if tensor else ())


def _output_biases(drafter: Drafter, layout: Layout, dtype: str | None) -> Iterator[Step]:
    """Yield o_proj biases of zeros if q, k and v have biases.

    vLLM builds all four or none, from uninitialised memory (llama.py:268).
    """
    if Feature.QK_NORM in drafter.features():
        return  # the Qwen3 class has no bias there
    for layer in range(drafter.dims.layers):
        module = f"layers.{layer}.self_attn"
        name = f"{module}.o_proj.bias"
        query = drafter.tensors.get(f"{module}.q_proj.bias")
        weight = drafter.tensors.get(f"{module}.o_proj.weight")
        if query is None or weight is None or name in drafter.tensors:
            continue
        written = dtype or query.dtype
        zeros = GeneratedBytes(bytes(weight.shape[0] * ITEM_SIZE[written]), "zeros: no bias was trained")
        yield Step(written_name(name, layout), written, weight.shape[:1], len(zeros.data), zeros, ())
