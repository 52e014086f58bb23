"""What must hold before a plan is made: nothing to ask, nothing broken, nothing that the layout cannot express."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.plan import Step
from eaglectl.drafter.boundaries import may_be_default
from eaglectl.drafter.drafter import Drafter, Feature, bias_feature
from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.errors import Refused, Usage
from eaglectl.formats.catalogue import WRITABLE, by_name
from eaglectl.formats.format import Format, Layout
from eaglectl.formats.reading import family_of

CANNOT: Mapping[Feature, str] = {
    Feature.NORM_BEFORE_RESIDUAL: "no rewriting of weights replaces it (the residual would need a norm)",
    Feature.PARALLEL: "its mask_hidden has no place there",
    Feature.QK_NORM: "its q/k norms have no place there",
}


def format_to_write(name: str) -> Format:
    """The format with this name. Raises Usage where none of that name is written."""
    if name not in WRITABLE:
        raise Usage(f"--for {name} is not a layout; these are: {', '.join(WRITABLE)}")
    return by_name(name)


def without_dropped(drafter: Drafter, drop: tuple[str, ...]) -> Drafter:
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


def without_zero_biases(checkpoint: Checkpoint, drafter: Drafter, layout: Layout) -> tuple[Drafter, Mapping[str, str]]:
    """The drafter without biases that are all zero, for a layout that has none (formats.md, C32)."""
    lacks = _lacking(drafter, layout)
    biases = [name for name in drafter.tensors if bias_feature(name) in lacks]
    zeros = [
        name for name in biases if not any(any(checkpoint.read(stored)) for stored in drafter.tensors[name].stored)
    ]
    left = {drafter.tensors[name].stored[0]: "all zeros, and this layout has no biases" for name in zeros}
    return replace(drafter, tensors={name: t for name, t in drafter.tensors.items() if name not in zeros}), left


def settle(drafter: Drafter) -> None:
    """Stop for what must be asked or mended first: all of it at once."""
    if problems := drafter.told("problem"):
        raise Refused("; ".join(note.text for note in problems))
    if questions := drafter.told("question"):
        raise Usage("; ".join(note.text for note in questions))


def check_expressible(drafter: Drafter, format: Format, layout: Layout) -> None:
    """Raise where the layout has no place for something this drafter needs."""
    family = family_of(drafter.tensors, drafter.dims)
    lacking = sorted(_lacking(drafter, layout))
    way_out = "" if format.name == "vllm" else "; write it --for vllm"
    boundaries = drafter.aux.boundaries
    if lacking == [Feature.AUX_LAYERS] and drafter.target.depth is None and boundaries and may_be_default(boundaries):
        raise Usage(
            f"{format.title} writes no layer ids, so boundaries {list(boundaries)} must be the target's default; pass"
            " --target to show that they are"
        )
    if lacking:
        why = "; ".join(f"{feature}: {CANNOT[feature]}" if feature in CANNOT else str(feature) for feature in lacking)
        raise Refused(f"{format.title} cannot express this drafter ({why}){way_out}")
    if family not in layout.architectures:
        raise Refused(f"{format.title} has no class for this drafter's attention{way_out}")
    if format.name == "sglang" and drafter.dims.attention == "MLA" and drafter.dims.layers > 1:
        raise Refused("SGLang's MLA drafter class has one layer; write it --for vllm")
    if layout.is_nested_config and (drafter.target.name is None or drafter.target.name.startswith((".", "/", "~"))):
        raise Usage("a speculators config names the target by its Hub name; pass --target-name org/name")


def _lacking(drafter: Drafter, layout: Layout) -> frozenset[Feature]:
    family = family_of(drafter.tensors, drafter.dims)
    features = drafter.features()
    return (features - layout.expresses) | (features & layout.lacks.get(family, frozenset()))


def check_quantised(drafter: Drafter, steps: Iterable[Step]) -> None:
    """Raise Refused where a quantised weight would not be passed through whole."""
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
