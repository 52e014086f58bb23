"""Making a plan: transformations of the drafter in order, then names, config, and what is left behind.

Checks of it come last: nothing is open or broken, the layout expresses the drafter, it reads back the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from eaglectl.conversion.attention import rewritten_attention, with_one_norm, without_solved_problems
from eaglectl.conversion.aux_blocks import in_ascending_order
from eaglectl.conversion.plan import ConversionPlan, KeyChange, LeftBehind, Step, TransformedDrafter
from eaglectl.conversion.pruning import pruned
from eaglectl.conversion.readings import with_readings_fixed
from eaglectl.conversion.request import DEFAULT_LAYOUT, ConversionRequest, UpgradeRecipe
from eaglectl.conversion.rotation import with_rotation
from eaglectl.conversion.target_head import NAME as HEAD
from eaglectl.conversion.target_head import with_head, with_whole_head
from eaglectl.conversion.tensor_steps import draft_vocabulary, tensor_steps
from eaglectl.conversion.upgrade import at_version
from eaglectl.drafter.boundaries import TRAINING_DEFAULT
from eaglectl.drafter.drafter import Drafter, Feature, Level, Note, bias_feature
from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.drafter.vocabulary import ABSOLUTE, DraftVocabulary, offsets_record
from eaglectl.engines.sglang import ids_in
from eaglectl.errors import EaglectlError, OpenFactError, OptionNeededError, RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import StoredTensor
from eaglectl.files.layout import RECORD, SINGLE
from eaglectl.files.source import Source, check_whole
from eaglectl.formats.catalogue import by_name, default_format, writable
from eaglectl.formats.config_keys import check_numbers
from eaglectl.formats.format import NESTED_IDS, Answers, Format, Layout
from eaglectl.formats.names import canonical_name
from eaglectl.formats.reader import model_class_of, read_drafter
from eaglectl.formats.writer import write_config
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
REWRITTEN = ("config.json", "eaglectl.json", "SHA256SUMS", "model.safetensors.index.json")


def make_plan(
    checkpoint: Checkpoint,
    drafter: Drafter,
    request: ConversionRequest,
    answers: Answers,
    selected: Sequence[int] | None = None,
) -> ConversionPlan:
    """The plan that fulfils `request`; `selected` are the draft tokens of a trainer's side file.

    Raises UsageError for what must be asked, RefusedError for what cannot be done.
    """
    format, layout = format_to_write(request.layout or DEFAULT_LAYOUT)
    is_for_training = request.recipe is not None
    changed, reasons = _transformed(checkpoint, drafter, layout, request)
    check_expressible(changed.drafter, format, layout, is_for_training=is_for_training)
    vocabulary = draft_vocabulary(checkpoint, changed.drafter, answers, selected)
    repairs = tuple(_repair_notes(drafter, vocabulary))
    changed = changed.then(TransformedDrafter(changed.drafter, repairs, request.record))
    changed, vocabulary, given_up = _with_other_tokens(checkpoint, changed, vocabulary, request)
    reasons = {**reasons, **given_up}
    drafter, record = changed.drafter, dict(changed.record)
    ids, id_notes = _ids(drafter, format, request.engines)
    layout_notes = _layout_notes(drafter, format, layout, is_for_training=is_for_training)
    steps = tensor_steps(checkpoint, drafter, layout, vocabulary, request.dtype)
    check_quantised(drafter, steps)
    if any(step.name == "d2t" for step in steps):
        record["d2t"] = offsets_record(vocabulary.offsets)
    # of the stored norms, the first dtype that a config can name is the config's
    dtypes = [step.dtype for step in steps if step.stored and step.stored[0].endswith("norm.weight")]
    config = write_config(drafter, format, model_class_of(drafter.tensors, drafter.dims), ids, dtypes)
    check_numbers(config)
    copied, left_files = side_files(checkpoint)
    plan = ConversionPlan(
        source=printable(checkpoint.source.label),
        drafter=drafter,
        layout=format.name,
        steps=steps,
        config=config,
        metadata={"format": "pt"},
        changes=tuple(_key_changes("", checkpoint.config, config)),
        left_tensors=tuple(tensors_left_behind(checkpoint, drafter, steps, reasons)),
        left_files=left_files,
        copied_files=copied,
        notes=(*changed.notes, *id_notes, *layout_notes),
        record=record,
    )
    return replace(plan, output=read_back(plan, checkpoint.source))


def _with_other_tokens(
    checkpoint: Checkpoint,
    changed: TransformedDrafter,
    vocabulary: DraftVocabulary,
    request: ConversionRequest,
) -> tuple[TransformedDrafter, DraftVocabulary, Mapping[str, str]]:
    """The drafter with the target's whole head and the most counted tokens of it, where these are asked for.

    Last come the stored tensors that are left behind, with the reason.
    """
    given_up: Mapping[str, str] = {}
    if request.head and changed.drafter.tensors[HEAD].stored:
        own = changed.drafter.tensors[HEAD].stored
        whole, vocabulary = with_whole_head(checkpoint, changed.drafter, vocabulary, request.head)
        changed = changed.then(TransformedDrafter(whole))
        given_up = dict.fromkeys((*own, "d2t", "t2d"), "of the target's head, now whole")
    if request.pruning:
        fewer, vocabulary = pruned(changed.drafter, vocabulary, request.pruning)
        changed = changed.then(fewer)
    return changed, vocabulary, given_up


def _repair_notes(drafter: Drafter, vocabulary: DraftVocabulary) -> Iterator[Note]:
    """What the output's d2t repairs, and what engines do with the source's."""
    if vocabulary.how.startswith(ABSOLUTE):
        yield Note("warning", "d2t", "d2t: token ids became offsets; as stored no engine accepts a token")
    elif "d2t" not in drafter.tensors and drafter.has_reduced_vocabulary:
        first = drafter.dims.draft_vocab
        text = f"d2t: made {vocabulary.how}; as stored engines propose the first {first} tokens"
        yield Note("warning", "d2t", text)


def _transformed(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, request: ConversionRequest
) -> tuple[TransformedDrafter, Mapping[str, str]]:
    """The drafter after every transformation but pruning, and why tensors are left behind, by stored name."""
    drafter = without_solved_problems(
        without_dropped(drafter, request.drop),
        rope_style=request.rope_style,
        has_query_lora=request.has_query_lora,
        fixes=request.fixes,
    )
    check_settled(drafter)
    changed = with_one_norm(checkpoint, drafter, layout)
    if request.fixes:  # they count aux states in ascending order
        changed = changed.then(in_ascending_order(changed.drafter))
        changed = changed.then(with_readings_fixed(changed.drafter, request.fixes))
    attention = rewritten_attention(
        checkpoint,
        changed.drafter,
        rope_style=request.rope_style,
        has_query_lora=request.has_query_lora,
        dtype=request.dtype,
    )
    drafter, zero_biases = without_zero_biases(checkpoint, attention.drafter, layout)
    if request.head and HEAD not in drafter.tensors:
        drafter = with_head(drafter, request.head)
    changed = changed.then(replace(attention, drafter=drafter))
    recipe = request.recipe or UpgradeRecipe()
    changed = changed.then(at_version(checkpoint, drafter, request.version, recipe, request.dtype))
    changed = changed.then(in_ascending_order(changed.drafter))
    if request.rotation:
        changed = changed.then(with_rotation(checkpoint, changed.drafter, request.rotation))
    reasons = {**dict.fromkeys(request.drop, "dropped as asked by --drop"), **zero_biases}
    return replace(changed, notes=(*changed.drafter.notes, *changed.notes)), reasons


def _ids(
    drafter: Drafter, format: Format, engines: Sequence[str]
) -> tuple[Mapping[str, Sequence[int]], tuple[Note, ...]]:
    """Layer ids by their places in the layout. Raises where a required place has no ids for these layers."""
    boundaries = drafter.aux.boundaries
    if boundaries is None:
        return {}, ()
    ids: dict[str, Sequence[int]] = {}
    notes: list[Note] = []
    for place in format.written_ids:
        if place.key == NESTED_IDS and "atom" in engines:
            ids[place.key] = boundaries  # ATOM reads this key as boundaries
            continue
        try:
            ids[place.key] = ids_in(place, boundaries, drafter.target)
        except EaglectlError as error:
            if place.is_required:
                raise
            if place.meaning == "output":
                text = f"{format.title}: {error}; write it --for {default_format().name}"
                raise RefusedError(text) from None
            text = f"{error}; without them SGLang captures its default layers, so this output is for vLLM"
            notes.append(Note("warning", "aux layers", text))
    return ids, tuple(notes)


def _key_changes(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[KeyChange]:
    for key in dict.fromkeys((*after, *before)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _key_changes(f"{prefix}{key}.", old, new)
        elif old != new:
            yield KeyChange(prefix + key, old, new)


def _layout_notes(
    drafter: Drafter, format: Format, layout: Layout, *, is_for_training: bool
) -> Iterator[Note]:
    base, is_sectioned = drafter.rope.theta, "mrope_section" in (drafter.rope.scaling or {})
    if layout.rope and base != layout.rope.base and not is_sectioned:
        text = (
            f"{format.title}'s own code rotates with base {layout.rope.base:g} whatever is stated, and this"
            f" drafter has {base:g}: engines rotate as written, and training would go on with another"
        )
        yield Note("warning", "rope_theta", text)
    if layout.needs_embedding and "embed_tokens.weight" not in drafter.tensors:
        level: Level = "warning" if is_for_training else "note"
        yield Note(level, "embed_tokens", layout.needs_embedding)
    written = sorted(drafter.features() & layout.cautions.keys())
    for text in dict.fromkeys(layout.cautions[feature] for feature in written):
        yield Note("warning", "training", text)
    if drafter.has_reduced_vocabulary or "d2t" not in drafter.tensors:
        return
    text = "the full vocabulary's d2t and t2d are left out; vLLM from 0.30.0 on refuses them"
    if layout.has_identity_map:
        text = "identity d2t and t2d are written, as this producer does"
    yield Note("note", "d2t", text)


def format_to_write(name: str) -> tuple[Format, Layout]:
    """The format with this name, and its layout. Raises UsageError where no layout has that name."""
    layout = by_name(name).layout if name in writable() else None
    if layout is None:
        raise UsageError(f"--for {name} is not a layout; these are: {', '.join(writable())}")
    return by_name(name), layout


def check_settled(drafter: Drafter) -> None:
    """Raise RefusedError with all of a drafter's problems, OpenFactError with all of its questions."""
    if problems := drafter.notes_at("problem"):
        has_option = any(note.names_option for note in problems)
        error = OptionNeededError if has_option else RefusedError
        raise error(listed((note.text for note in problems), "; "))
    if questions := drafter.notes_at("question"):
        raise OpenFactError(listed((note.text for note in questions), "; "))


def check_expressible(
    drafter: Drafter, format: Format, layout: Layout, *, is_for_training: bool = False
) -> None:
    """Raise where the layout has no place for something this drafter needs.

    `is_for_training`: with the trainer's reason.
    """
    missing, boundaries = sorted(missing_features(drafter, layout)), drafter.aux.boundaries
    is_depth_known = missing != [Feature.AUX_LAYERS] or drafter.target.depth is not None
    if not is_depth_known and boundaries and TRAINING_DEFAULT.may_be(boundaries):
        raise UsageError(
            f"{format.title} writes no layer ids, so boundaries {list(boundaries)} must be the target's"
            " default; pass --target to show that they are"
        )
    reasons = {**WHY_NOT, **layout.cautions} if is_for_training else WHY_NOT
    why = "; ".join(f"{name}: {reasons[name]}" if name in reasons else name for name in missing)
    limits, kind = layout.rope, (drafter.rope.scaling or {}).get("rope_type")
    other = _alternative(format.name)
    check(
        (missing, f"{format.title} cannot express this drafter ({why}){other}"),
        (
            format.is_parallel and Feature.PARALLEL not in drafter.features(),
            f"{format.title} is for parallel drafters, and this one has no mask_hidden{other}",
        ),
        (
            model_class_of(drafter.tensors, drafter.dims) not in layout.architectures,
            f"{format.title} has no class for this drafter's attention{other}",
        ),
        (
            limits and kind is not None and kind not in limits.scalings,
            f"{format.title} has no rope scaling {kind}: its code stops there{other}",
        ),
        error=RefusedError,
    )
    name = drafter.target.name
    if layout.nest and (name is None or name.startswith((".", "/", "~"))):
        text = f"a config of {format.title} names the target by its Hub name; pass --target-name org/name"
        raise UsageError(text)


def missing_features(drafter: Drafter, layout: Layout) -> frozenset[Feature]:
    """The features of a drafter that a layout has no place for."""
    model_class = model_class_of(drafter.tensors, drafter.dims)
    features = drafter.features()
    return (features - layout.expresses) | (features & layout.lacks.get(model_class, frozenset()))


def check_quantised(drafter: Drafter, steps: Iterable[Step]) -> None:
    """Raise RefusedError where a step would change a quantised weight."""
    if drafter.quantisation is None:
        return
    modules = tuple(
        name.rpartition(".")[0].rpartition(".")[2] for name in drafter.tensors if is_quantised_part(name)
    )
    for step in steps:
        if step.is_moved or step.action == "derived":
            continue
        if step.name.rpartition(".")[0].endswith(modules):
            raise RefusedError(
                f"{step.name} is quantised and would be {step.action}; quantised weights are passed through"
                " whole: convert the unquantised drafter, then quantise it"
            )


def read_back(plan: ConversionPlan, source: Source) -> tuple[Checkpoint, Drafter]:
    """The output as it will be read.

    Raises RefusedError where that is another drafter, or a question.

    Without eaglectl.json, a fact that the layout leaves open is not a difference.
    """
    title, other = by_name(plan.layout).title, _alternative(plan.layout)
    tensors = {
        step.name: StoredTensor(step.name, step.dtype, step.shape, SINGLE, 0, step.nbytes)
        for step in plan.steps
    }
    alone = Checkpoint(source, plan.config, tensors, plan.metadata, (SINGLE,), {}, names=(SINGLE,))
    for written in (alone, replace(alone, sidecars={RECORD: plan.identity})):
        try:
            after = read_drafter(written, Answers(), plan.drafter.target)
        except EaglectlError as error:
            text = f"written as {title}'s, this drafter could not be read back ({error}){other}"
            raise RefusedError(text) from None
        if differences := "; ".join(_differences(plan.drafter, after)):
            raise RefusedError(
                f"written as {title}'s, this drafter reads back as another: {differences}{other}"
            )
    if questions := after.notes_at("question"):
        doubts = "; ".join(note.text.partition("; pass --")[0] for note in questions)
        raise RefusedError(f"written as {title}'s, its files leave open what was trained: {doubts}{other}")
    return written, after


def _alternative(layout: str) -> str:
    return "" if layout == DEFAULT_LAYOUT else f"; write it --for {DEFAULT_LAYOUT}"


def _differences(before: Drafter, after: Drafter) -> Iterator[str]:
    if before.kind != after.kind:
        yield f"{after.kind} for {before.kind}"
    trained, read = before.aux.boundaries, after.aux.boundaries
    if trained is not None and read is not None and trained != read:
        yield f"its {after.producer} marks make the layers {list(read)}, and {list(trained)} were trained on"
    for name in ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual", "hidden_twice"):
        is_on, is_read = getattr(before.norms, name), getattr(after.norms, name)
        if None not in (is_on, is_read) and is_on != is_read:
            yield f"{name} {str(is_read).lower()} for {str(is_on).lower()}"
    if before.dims != after.dims:
        yield f"dimensions {after.dims} for {before.dims}"
    if (before.rope.theta, before.rope.scaling) != (after.rope.theta, after.rope.scaling):
        yield f"rope {after.rope} for {before.rope}"


def without_dropped(drafter: Drafter, drop: Sequence[str]) -> Drafter:
    """The drafter without the named tensors, which must be unknown or optional.

    Raises UsageError for others.
    """
    optional = _find_optional(drafter)
    for name in drop:
        if name not in drafter.unknown and name not in optional:
            droppable = listed(sorted((*drafter.unknown, *optional))) or "nothing"
            raise UsageError(
                f"--drop {name}: no drafter works without it, or the file has no such tensor; droppable here:"
                f" {droppable}"
            )
    dropped = {optional.get(name) for name in drop}
    return replace(
        drafter,
        tensors={name: tensor for name, tensor in drafter.tensors.items() if name not in dropped},
        notes=tuple(note for note in drafter.notes if note.about not in drop),
    )


def _find_optional(drafter: Drafter) -> dict[str, str]:
    """The names of the tensors that drafters work without, by stored name."""
    names = {name for name in drafter.tensors if name in ("mask_hidden", "t2d") or name.endswith(".bias")}
    if drafter.dims.hidden == drafter.dims.target_hidden:
        names.add("embed_tokens.weight")  # engines share the target's
    return {tensor.stored[0]: name for name, tensor in drafter.tensors.items() if name in names}


def without_zero_biases(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout
) -> tuple[Drafter, Mapping[str, str]]:
    """The drafter without biases of zeros that `layout` has no place for, and why by stored name (C32)."""
    missing = missing_features(drafter, layout)
    zeros = [
        name
        for name, tensor in drafter.tensors.items()
        if bias_feature(name) in missing and not any(any(checkpoint.read(stored)) for stored in tensor.stored)
    ]
    reasons = {drafter.tensors[name].stored[0]: "all zeros, and this layout has no biases" for name in zeros}
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in zeros}
    return replace(drafter, tensors=tensors), reasons


def tensors_left_behind(
    checkpoint: Checkpoint, drafter: Drafter, steps: Sequence[Step], reasons: Mapping[str, str]
) -> Iterator[LeftBehind]:
    """The stored tensors no step uses. Raises RefusedError for one without a reason to leave it."""
    used = {name for step in steps for name in step.stored}
    for name in checkpoint.tensors:
        if name in used:
            continue
        if why := drafter.strays.get(name) or reasons.get(name):
            yield LeftBehind(name, why)
        elif canonical_name(name) in ("d2t", "t2d"):
            why = "the identity map of a full vocabulary, which says nothing"
            if drafter.has_reduced_vocabulary:
                why = "made of the other table (--fix-reading)"
            yield LeftBehind(name, why)
        else:
            raise OptionNeededError(f"{name} would be lost; pass --drop {name} if it may be left behind")


def side_files(checkpoint: Checkpoint) -> tuple[tuple[str, ...], tuple[LeftBehind, ...]]:
    """The files beside the weights that are copied, and those that are left behind.

    Raises UnreadableError for one to copy that is larger than any of its kind.
    """
    copied, left = [], []
    for name in checkpoint.source.names():
        if name in checkpoint.weight_files or name in REWRITTEN or "/" in name:
            continue
        is_settings = name.endswith(".json") and "index" not in name
        if name in TRAINER_STATE:
            why = "how far a trainer was, which says nothing of the drafter"
            left.append(LeftBehind(name, why))
        elif is_settings or name.endswith(COPIED_SUFFIXES) or name.upper().startswith(LEGAL_PREFIXES):
            check_whole(checkpoint.source.place, name, checkpoint.source.size(name))
            copied.append(name)
        elif name.endswith(".py"):
            left.append(LeftBehind(name, "code is not shipped with weights"))
        else:
            left.append(LeftBehind(name, "not part of a drafter's release"))
    return tuple(copied), tuple(left)
