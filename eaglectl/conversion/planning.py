"""Making a plan: may the layout express this drafter, what is still to be asked, what is left behind."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.aux_blocks import in_order
from eaglectl.conversion.checks import (
    check_expressible,
    check_quantised,
    format_to_write,
    settle,
    without_dropped,
    without_zero_biases,
)
from eaglectl.conversion.mla import mended, reshaped
from eaglectl.conversion.plan import KeyChange, Left, Plan, Step, Wish
from eaglectl.conversion.pruning import pruned
from eaglectl.conversion.reading_back import check_reads_back
from eaglectl.conversion.target_head import with_head
from eaglectl.conversion.tensor_steps import draft_vocabulary, tensor_steps
from eaglectl.conversion.upgrade import at_version
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.engine import sglang_ids
from eaglectl.errors import Refused, Usage, printable
from eaglectl.formats.format import Answers, Format, Layout
from eaglectl.formats.reading import family_of
from eaglectl.formats.writing import write_config

# files beside the weights that go along as they are; everything else is named in the plan as left
COPIED = (".md", ".txt", ".jinja", ".model")
TRAINERS = ("meta.json", "trainer_state.json", "training_state.json", "latest_checkpointed_iteration.txt")
NOT_COPIED = ("config.json", "eaglectl.json", "SHA256SUMS", "model.safetensors.index.json")


def make_plan(
    checkpoint: Checkpoint, drafter: Drafter, wish: Wish, answers: Answers, selected: Sequence[int] | None = None
) -> Plan:
    """The plan that fulfils `wish`. Raises Usage for what must be asked, Refused for what cannot be."""
    format = format_to_write(wish.layout)
    layout = format.layout
    assert layout is not None
    drafter = without_dropped(drafter, wish.drop)
    drafter = mended(drafter, wish)
    settle(drafter)
    attention = reshaped(checkpoint, drafter, wish)
    drafter = attention.drafter
    drafter, zero_biases = without_zero_biases(checkpoint, drafter, layout)
    if wish.head:
        drafter = with_head(drafter, wish.head)
    changed = at_version(checkpoint, drafter, wish)
    drafter, merged = in_order(changed.drafter)
    check_expressible(drafter, format, layout)
    vocabulary = draft_vocabulary(checkpoint, drafter, answers, selected)
    notes = [*drafter.notes, *attention.notes, *changed.notes, *merged]
    record = {**changed.record, **wish.record}
    if wish.pruning:
        smaller = pruned(drafter, vocabulary, wish.pruning)
        drafter, vocabulary = smaller.drafter, smaller.vocabulary
        notes.extend(smaller.notes)
        record |= smaller.record
    nested, more = _nested_ids(drafter, format, layout, wish)
    notes.extend(more)
    steps = tensor_steps(checkpoint, drafter, layout, vocabulary, wish.dtype)
    check_quantised(drafter, steps)
    family = family_of(drafter.tensors, drafter.dims)
    config = write_config(
        drafter,
        layout,
        family,
        nested,
        [step.dtype for step in steps if step.origin and step.origin[0].endswith("norm.weight")],
    )
    notes.extend(_layout_notes(drafter, layout))
    copied, left_files = _files(checkpoint)
    plan = Plan(
        printable(checkpoint.source.label), drafter, format.name, steps, config, dict(layout.metadata), _changes(checkpoint.config, config),
        tuple(_left_tensors(checkpoint, drafter, steps, {**dict.fromkeys(wish.drop, "dropped as asked by --drop"), **zero_biases})), left_files, copied, tuple(notes), record,
    )  # fmt: skip
    check_reads_back(plan, checkpoint.source)
    return plan


def _nested_ids(
    drafter: Drafter, format: Format, layout: Layout, wish: Wish
) -> tuple[Sequence[int] | None, list[Note]]:
    boundaries = drafter.aux.boundaries
    if boundaries is None or layout.nested_ids is None:
        return None, []
    if "atom" in wish.engines or layout.nested_ids == "boundary":
        return boundaries, []
    if layout.nested_ids == "output":
        if boundaries[0] == 0:
            raise Refused(
                f"{format.title} names layers by their output, and boundary 0 (the embeddings) is the output of none;"
                " write it --for vllm"
            )
        return [b - 1 for b in boundaries], []
    ids = sglang_ids(boundaries, drafter.target)
    if not isinstance(ids, str):
        return ids, []
    if format.name == "sglang":
        raise Usage(ids) if "pass --target" in ids else Refused(ids)
    return None, [
        Note(
            "warning",
            "aux layers",
            f"{ids}; without them SGLang captures its default layers, so this output is for vLLM",
        )
    ]


def _left_tensors(
    checkpoint: Checkpoint, drafter: Drafter, steps: Sequence[Step], reasons: Mapping[str, str]
) -> Iterable[Left]:
    used = {name for step in steps for name in step.origin}
    for name in checkpoint.tensors:
        if name in used:
            continue
        if name in drafter.strays:
            yield Left(name, drafter.strays[name])
        elif name in reasons:
            yield Left(name, reasons[name])
        elif name.removeprefix("model.") in ("d2t", "t2d"):
            yield Left(name, "the identity map of a full vocabulary, which says nothing")
        else:
            raise Refused(f"{name} would be lost; pass --drop {name} if it may be left behind")


def _files(checkpoint: Checkpoint) -> tuple[tuple[str, ...], tuple[Left, ...]]:
    copied, left = [], []
    for name in checkpoint.source.names():
        if name in checkpoint.weight_files or name in NOT_COPIED or "/" in name:
            continue
        if name in TRAINERS:
            left.append(Left(name, "how far a trainer was, which says nothing of the drafter"))
        elif (
            name.endswith(COPIED)
            or name.upper().startswith(("LICENSE", "NOTICE"))
            or (name.endswith(".json") and "index" not in name)
        ):
            copied.append(name)
        else:
            why = "code is not shipped with weights" if name.endswith(".py") else "not part of a drafter's release"
            left.append(Left(name, why))
    return tuple(copied), tuple(left)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[KeyChange, ...]:
    return tuple(_differences("", before, after))


def _differences(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[KeyChange]:
    for key in dict.fromkeys((*after, *before)):
        one, other = before.get(key), after.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(f"{prefix}{key}.", one, other)
        elif one != other:
            yield KeyChange(prefix + key, one, other)


def _layout_notes(drafter: Drafter, layout: Layout) -> Iterable[Note]:
    if layout.is_nested_config and "embed_tokens.weight" not in drafter.tensors:
        yield Note(
            "note", "embed_tokens", "speculators' own trainer wants embed_tokens in the file; vLLM serves without"
        )
    if drafter.has_reduced_vocabulary or "d2t" not in drafter.tensors:
        return
    if layout.has_identity_map:
        yield Note("note", "d2t", "identity d2t and t2d are written, as this producer does")
    else:
        yield Note("note", "d2t", "the full vocabulary's d2t and t2d are left out; vLLM from 0.30.0 on refuses them")
