"""Making a plan: transformations of the drafter in order, then names, config, and what is left behind."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.attention import rewritten_attention, without_solved_problems
from eaglectl.conversion.aux_blocks import in_ascending_order
from eaglectl.conversion.double_norm import with_one_norm
from eaglectl.conversion.left_behind import (
    side_files,
    tensors_left_behind,
    without_dropped,
    without_zero_biases,
)
from eaglectl.conversion.plan import ConversionPlan, KeyChange, Step, TransformedDrafter
from eaglectl.conversion.plan_checks import (
    check_expressible,
    check_quantised,
    check_reads_back,
    check_settled,
    format_to_write,
)
from eaglectl.conversion.pruning import pruned
from eaglectl.conversion.readings import with_readings_fixed
from eaglectl.conversion.request import ConversionRequest
from eaglectl.conversion.rotation import with_rotation
from eaglectl.conversion.target_head import with_head
from eaglectl.conversion.tensor_steps import draft_vocabulary, tensor_steps
from eaglectl.conversion.upgrade import at_version
from eaglectl.drafter.drafter import Drafter, Level, Note
from eaglectl.drafter.vocabulary import offsets_record
from eaglectl.engines.sglang import ids_in
from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.formats.catalogue import default_format
from eaglectl.formats.config_schema import check_numbers
from eaglectl.formats.format import NESTED_IDS, Answers, Format, Layout
from eaglectl.formats.reader import model_class_of
from eaglectl.formats.writer import write_config
from eaglectl.text import printable


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
    format, layout = format_to_write(request.format_name)
    drafter = without_solved_problems(without_dropped(drafter, request.drop), request)
    check_settled(drafter)
    transformed, reasons = _transformed(checkpoint, drafter, layout, request)
    check_expressible(transformed.drafter, format, layout, is_for_training=request.recipe is not None)
    vocabulary = draft_vocabulary(checkpoint, transformed.drafter, answers, selected)
    record = {**transformed.record, **request.record}
    notes = list(transformed.notes)
    drafter = transformed.drafter
    if request.pruning:
        smaller = pruned(drafter, vocabulary, request.pruning)
        drafter, vocabulary = smaller.drafter, smaller.vocabulary
        notes.extend(smaller.notes)
        record |= smaller.record
    ids, id_notes = _ids(drafter, format, request)
    steps = tensor_steps(checkpoint, drafter, layout, vocabulary, request.dtype)
    check_quantised(drafter, steps)
    if any(step.name == "d2t" for step in steps):
        record["d2t"] = offsets_record(vocabulary.offsets)
    config = write_config(
        drafter, format, model_class_of(drafter.tensors, drafter.dims), ids, _norm_dtypes(steps)
    )
    check_numbers(config)
    copied, left_files = side_files(checkpoint)
    plan = ConversionPlan(
        source=printable(checkpoint.source.label),
        drafter=drafter,
        layout=format.name,
        steps=steps,
        config=config,
        metadata=dict(layout.metadata),
        changes=tuple(_key_changes("", checkpoint.config, config)),
        left_tensors=tuple(tensors_left_behind(checkpoint, drafter, steps, reasons)),
        left_files=left_files,
        copied_files=copied,
        notes=(
            *notes,
            *id_notes,
            *_layout_notes(drafter, format, layout, is_for_training=request.recipe is not None),
        ),
        record=record,
    )
    check_reads_back(plan, checkpoint.source)
    return plan


def _transformed(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, request: ConversionRequest
) -> tuple[TransformedDrafter, Mapping[str, str]]:
    """The drafter after every transformation but pruning, and why tensors are left behind, by stored name."""
    joined = with_one_norm(checkpoint, drafter, layout)
    fixed = _repaired(joined.drafter, request)
    attention = rewritten_attention(checkpoint, fixed.drafter, request)
    drafter, zero_biases = without_zero_biases(checkpoint, attention.drafter, layout)
    if request.head:
        drafter = with_head(drafter, request.head)
    version = at_version(checkpoint, drafter, request)
    ordered = in_ascending_order(version.drafter)
    rotated = TransformedDrafter(ordered.drafter)
    if request.rotation:
        rotated = with_rotation(checkpoint, ordered.drafter, request.rotation)
    changed = (fixed, attention, version, ordered, rotated)
    notes = (*rotated.drafter.notes, *(note for step in changed for note in step.notes))
    reasons = {**dict.fromkeys(request.drop, "dropped as asked by --drop"), **zero_biases}
    record = {**joined.record, **fixed.record, **version.record, **rotated.record}
    return TransformedDrafter(rotated.drafter, notes, record), reasons


def _repaired(drafter: Drafter, request: ConversionRequest) -> TransformedDrafter:
    """The drafter with the readings of --fix-reading repaired; they count aux states in ascending order."""
    if not request.fixes:
        return TransformedDrafter(drafter)
    ordered = in_ascending_order(drafter)
    fixed = with_readings_fixed(ordered.drafter, request.fixes)
    return replace(fixed, notes=(*ordered.notes, *fixed.notes))


def _norm_dtypes(steps: Sequence[Step]) -> list[str]:
    """The dtypes of stored norms: the first one a config can name is the config's dtype."""
    return [step.dtype for step in steps if step.stored and step.stored[0].endswith("norm.weight")]


def _ids(
    drafter: Drafter, format: Format, request: ConversionRequest
) -> tuple[Mapping[str, Sequence[int]], tuple[Note, ...]]:
    """Layer ids by their places in the layout. Raises where a required place has no ids for these layers."""
    boundaries = drafter.aux.boundaries
    if boundaries is None:
        return {}, ()
    ids: dict[str, Sequence[int]] = {}
    notes: list[Note] = []
    for place in format.written_ids:
        if place.key == NESTED_IDS and "atom" in request.engines:
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
