"""Checks of a plan: nothing is open or broken, the layout expresses the drafter, and reads back the same."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.header import StoredTensor
from eaglectl.checkpoint.layout import RECORD, SINGLE
from eaglectl.checkpoint.source import Source
from eaglectl.conversion.plan import ConversionPlan, Step
from eaglectl.conversion.request import DEFAULT_LAYOUT
from eaglectl.drafter.boundaries import TRAINING_DEFAULT
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.drafter.tensors import is_quantised_part
from eaglectl.errors import EaglectlError, OpenFactError, OptionNeededError, RefusedError, UsageError
from eaglectl.formats.catalogue import by_name, writable
from eaglectl.formats.format import Answers, Format, Layout
from eaglectl.formats.reader import model_class_of, read_drafter
from eaglectl.text import listed

WHY_NOT: Mapping[Feature, str] = {
    Feature.NORM_BEFORE_RESIDUAL: "no rewriting of weights replaces it (the residual would need a norm)",
    Feature.PARALLEL: "its mask_hidden has no place there",
    Feature.QK_NORM: "its q/k norms have no place there",
}


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
    if missing := sorted(missing_features(drafter, layout)):
        if missing == [Feature.AUX_LAYERS]:
            _check_default_layers(drafter, format)
        why = _why(missing, {**WHY_NOT, **layout.cautions} if is_for_training else WHY_NOT)
        raise RefusedError(f"{format.title} cannot express this drafter ({why}){_alternative(format.name)}")
    if format.is_parallel and Feature.PARALLEL not in drafter.features():
        raise RefusedError(
            f"{format.title} is for parallel drafters, and this one has no mask_hidden"
            f"{_alternative(format.name)}"
        )
    model_class = model_class_of(drafter.tensors, drafter.dims)
    if model_class not in layout.architectures:
        raise RefusedError(
            f"{format.title} has no class for this drafter's attention{_alternative(format.name)}"
        )
    limits, kind = layout.rope, (drafter.rope.scaling or {}).get("rope_type")
    if limits and kind is not None and kind not in limits.scalings:
        raise RefusedError(
            f"{format.title} has no rope scaling {kind}: its code stops there{_alternative(format.name)}"
        )
    name = drafter.target.name
    if layout.is_nested_config and (name is None or name.startswith((".", "/", "~"))):
        text = f"a config of {format.title} names the target by its Hub name; pass --target-name org/name"
        raise UsageError(text)


def _why(missing: Iterable[Feature], reasons: Mapping[Feature, str]) -> str:
    """The missing features, each with its reason where there is one."""
    return "; ".join(
        f"{feature}: {reasons[feature]}" if feature in reasons else feature for feature in missing
    )


def _check_default_layers(drafter: Drafter, format: Format) -> None:
    """Raise UsageError where the layers may be the default ones of a target that is not known."""
    boundaries = drafter.aux.boundaries
    if drafter.target.depth is None and boundaries and TRAINING_DEFAULT.may_be(boundaries):
        raise UsageError(
            f"{format.title} writes no layer ids, so boundaries {list(boundaries)} must be the target's"
            " default; pass --target to show that they are"
        )


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


def check_reads_back(plan: ConversionPlan, source: Source) -> None:
    """Raise RefusedError where the output would be read as another drafter, or with a question.

    Without eaglectl.json, a fact that the layout leaves open is not a difference.
    """
    title, other = by_name(plan.layout).title, _alternative(plan.layout)
    tensors = {
        step.name: StoredTensor(step.name, step.dtype, step.shape, SINGLE, 0, step.nbytes)
        for step in plan.steps
    }
    alone = Checkpoint(source, plan.config, tensors, plan.metadata, (SINGLE,), {})
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
