"""A plan is read back before it is carried out: what its config and names say must be the drafter that went in."""

from collections.abc import Iterator

from eaglectl.checkpoint.checkpoint import SINGLE, Checkpoint
from eaglectl.checkpoint.header import StoredTensor
from eaglectl.checkpoint.source import Source
from eaglectl.conversion.plan import Plan
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import EaglectlError, Refused
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers
from eaglectl.formats.reading import read_drafter


def check_reads_back(plan: Plan, source: Source) -> None:
    """Raise Refused where whoever reads the output would take it for another drafter than it was made from.

    A fact that the layout leaves open is none that it gets wrong.
    """
    title = by_name(plan.layout).title
    tensors = {
        step.name: StoredTensor(step.name, step.dtype, step.shape, SINGLE, 0, step.nbytes) for step in plan.steps
    }
    written = Checkpoint(source, plan.config, tensors, plan.metadata, (SINGLE,), {})
    try:
        found = read_drafter(written, Answers(), plan.drafter.target)
    except EaglectlError as error:
        raise Refused(f"written as {title}'s, this drafter could not be read back ({error}){_way_out(plan)}") from None
    if wrong := "; ".join(_differences(plan.drafter, found)):
        raise Refused(f"written as {title}'s, this drafter reads back as another: {wrong}{_way_out(plan)}")


def _way_out(plan: Plan) -> str:
    return "" if plan.layout == "vllm" else "; write it --for vllm"


def _differences(meant: Drafter, found: Drafter) -> Iterator[str]:
    one, other = meant.aux.boundaries, found.aux.boundaries
    if one is not None and other is not None and one != other:
        yield f"its {found.producer} marks make the layers {list(other)}, and {list(one)} were trained on"
    for name in ("fc_norm", "norm_before_fc", "norm_output", "norm_before_residual"):
        before, after = getattr(meant.norms, name), getattr(found.norms, name)
        if None not in (before, after) and before != after:
            yield f"{name} {str(after).lower()} for {str(before).lower()}"
    if meant.dims != found.dims:
        yield f"dimensions {found.dims} for {meant.dims}"
    if (meant.rope.theta, meant.rope.scaling) != (found.rope.theta, found.rope.scaling):
        yield f"rope {found.rope} for {meant.rope}"
