"""Making a plan: may the layout express this drafter, what is still to be asked, what is left behind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.plan import KeyChange, Left, Plan, Step, Wish
from eaglectl.conversion.tensor_steps import draft_vocabulary, tensor_steps
from eaglectl.drafter.boundaries import may_be_default
from eaglectl.drafter.drafter import Drafter, Feature, Note
from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.engines.engine import sglang_ids
from eaglectl.errors import Refused, Usage
from eaglectl.formats.catalogue import WRITABLE, by_name
from eaglectl.formats.format import Answers, Format, Layout
from eaglectl.formats.reading import family_of
from eaglectl.formats.writing import write_config

# files beside the weights that go along as they are; everything else is named in the plan as left
COPIED = (".md", ".txt", ".jinja", ".model")
NOT_COPIED = ("config.json", "eaglectl.json", "SHA256SUMS", "model.safetensors.index.json")

CANNOT: Mapping[Feature, str] = {
    Feature.NORM_BEFORE_RESIDUAL: "no rewriting of weights replaces it (the residual would need a norm)",
    Feature.PARALLEL: "its mask_hidden has no place there",
    Feature.QK_NORM: "its q/k norms have no place there",
}


def make_plan(
    checkpoint: Checkpoint, drafter: Drafter, wish: Wish, answers: Answers, selected: Sequence[int] | None = None
) -> Plan:
    """The plan that fulfils `wish`. Raises Usage for what must be asked, Refused for what cannot be."""
    format = _format(wish.layout)
    layout = format.layout
    assert layout is not None
    drafter = _without(drafter, wish.drop)
    _settle(drafter)
    drafter, zero_biases = _without_zero_biases(checkpoint, drafter, layout)
    _check_version(drafter, wish)
    _check_expressible(drafter, format, layout)
    vocabulary = draft_vocabulary(checkpoint, drafter, answers, selected)
    notes = list(drafter.notes)
    drafter = _with_answers(drafter, answers)
    nested, more = _nested_ids(drafter, format, layout, wish)
    notes.extend(more)
    steps = tensor_steps(checkpoint, drafter, layout, vocabulary, wish.dtype)
    _check_quantised(drafter, steps)
    family = family_of(drafter.tensors, drafter.dims)
    config = write_config(
        drafter, layout, family, nested, [step.dtype for step in steps if step.dtype not in ("I64", "BOOL")]
    )
    if layout.is_nested_config and "embed_tokens.weight" not in drafter.tensors:
        notes.append(
            Note(
                "note",
                "embed_tokens",
                "speculators' own trainer wants embed_tokens in the file; vLLM serves without it",
            )
        )
    if not drafter.has_reduced_vocabulary and "d2t" in drafter.tensors:
        notes.append(
            Note(
                "note",
                "d2t",
                (
                    "the full vocabulary's d2t and t2d are left out; vLLM from 0.30.0 on refuses them"
                    if not layout.has_identity_map
                    else "identity d2t and t2d are written, as this producer does"
                ),
            )
        )
    copied, left_files = _files(checkpoint)
    return Plan(
        checkpoint.source.label, drafter, format.name, steps, config, dict(layout.metadata), _changes(checkpoint.config, config),
        tuple(_left_tensors(checkpoint, drafter, steps, {**dict.fromkeys(wish.drop, "dropped as asked by --drop"), **zero_biases})), left_files, copied, tuple(notes),
    )  # fmt: skip


def _format(name: str) -> Format:
    if name not in WRITABLE:
        raise Usage(f"--for {name} is not a layout; these are: {', '.join(WRITABLE)}")
    return by_name(name)


def _without(drafter: Drafter, drop: tuple[str, ...]) -> Drafter:
    """The drafter without the tensors named: unknown ones, and those that a drafter can be without."""
    optional = {t.stored[0]: name for name, t in drafter.tensors.items() if _is_optional(name, drafter)}
    for name in drop:
        if name not in drafter.unknown and name not in optional:
            droppable = ", ".join(sorted((*drafter.unknown, *optional))) or "nothing"
            raise Usage(
                f"--drop {name}: no drafter works without it, or the file has no such tensor; droppable here:"
                f" {droppable}"
            )
    gone = {optional.get(name) for name in drop}
    return replace(
        drafter,
        tensors={name: tensor for name, tensor in drafter.tensors.items() if name not in gone},
        notes=tuple(note for note in drafter.notes if note.about not in drop),
    )


def _is_optional(name: str, drafter: Drafter) -> bool:
    is_shared = name == "embed_tokens.weight" and drafter.dims.hidden == drafter.dims.target_hidden
    return is_shared or name in ("mask_hidden", "t2d") or name.endswith(".bias")


def _without_zero_biases(checkpoint: Checkpoint, drafter: Drafter, layout: Layout) -> tuple[Drafter, Mapping[str, str]]:
    """The drafter without biases that are all zero, for a layout that has none (formats.md, C32)."""
    lacks = {Feature.ATTENTION_BIAS, Feature.MLP_BIAS, Feature.FC_BIAS} & drafter.features() - layout.expresses
    biases = [name for name in drafter.tensors if name.endswith(".bias")] if lacks else []
    zeros = [
        name for name in biases if not any(any(checkpoint.read(stored)) for stored in drafter.tensors[name].stored)
    ]
    if len(zeros) != len(biases):
        return drafter, {}
    left = {drafter.tensors[name].stored[0]: "all zeros, and this layout has no biases" for name in zeros}
    return replace(drafter, tensors={name: t for name, t in drafter.tensors.items() if name not in zeros}), left


def _settle(drafter: Drafter) -> None:
    """Stop for what must be asked or mended first: all of it at once."""
    if problems := drafter.told("problem"):
        raise Refused("; ".join(note.text for note in problems))
    if questions := drafter.told("question"):
        raise Usage("; ".join(note.text for note in questions))


def _check_version(drafter: Drafter, wish: Wish) -> None:
    have = drafter.version
    if wish.version is None or wish.version == have or (wish.version == "3.1" and have == "3.1-joint"):
        return
    if wish.version == "3.1":
        raise Usage(
            "this is an EAGLE-3 drafter, and turning fc_norm and norm_output on changes what it computes; that needs"
            " calibration against its target, which this version does not do yet; leave --to out to keep EAGLE-3"
        )
    raise Refused(
        f"this is an EAGLE-{have} drafter; its norms cannot be turned off without changing what it computes; leave --to"
        f" out to keep {have}"
    )


def _check_expressible(drafter: Drafter, format: Format, layout: Layout) -> None:
    lacking = sorted(drafter.features() - layout.expresses)
    family = family_of(drafter.tensors, drafter.dims)
    boundaries = drafter.aux.boundaries
    if lacking == [Feature.AUX_LAYERS] and drafter.target.depth is None and boundaries and may_be_default(boundaries):
        raise Usage(
            f"{format.title} writes no layer ids, so boundaries {list(boundaries)} must be the target's default; pass"
            " --target to show that they are"
        )
    if lacking:
        why = "; ".join(f"{feature}: {CANNOT[feature]}" if feature in CANNOT else str(feature) for feature in lacking)
        raise Refused(f"{format.title} cannot express this drafter ({why}); write it --for vllm")
    if family not in layout.architectures:
        raise Refused(f"{format.title} has no class for this drafter's attention; write it --for vllm")
    if format.name == "sglang" and drafter.dims.attention == "MLA" and drafter.dims.layers > 1:
        raise Refused("SGLang's MLA drafter class has one layer; write it --for vllm")
    if layout.is_nested_config and (drafter.target.name is None or drafter.target.name.startswith((".", "/", "~"))):
        raise Usage("a speculators config names the target by its Hub name; pass --target-name org/name")


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


def _check_quantised(drafter: Drafter, steps: Iterable[Step]) -> None:
    if drafter.quantisation is None:
        return
    for step in steps:
        modules = {name.rpartition(".")[0] for name in drafter.tensors if is_quantised_part(name)}
        touched = step.action not in ("kept", "renamed", "derived")
        if touched and any(step.name.rpartition(".")[0].endswith(module.rpartition(".")[2]) for module in modules):
            raise Refused(
                f"{step.name} is quantised and would be {step.action}; quantised weights are passed through whole:"
                " convert the unquantised drafter, then quantise it"
            )


def _with_answers(drafter: Drafter, answers: Answers) -> Drafter:
    if answers.semantics.get("rope") == "10000":
        return replace(drafter, rope=replace(drafter.rope, theta=10000.0))
    return drafter


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
        if name in checkpoint.weight_files or name in NOT_COPIED:
            continue
        if (
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
