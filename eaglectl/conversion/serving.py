"""What engines do with the output of a plan, before it is written."""

from msgspec.structs import replace

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.drafter.tensors import Tensor
from eaglectl.engines.catalogue import parse_engine, verdicts
from eaglectl.engines.engine import Verdict
from eaglectl.formats.catalogue import by_name


def output_verdicts(plan: ConversionPlan, engine: str) -> tuple[Verdict, ...]:
    """What the releases of an engine, as users write it, do with the output of a plan."""
    generated = {
        step.name: Tensor(step.name, step.dtype, step.shape, ()) for step in plan.steps if not step.stored
    }
    settled = replace(plan.drafter, notes=(), unknown=(), tensors={**generated, **plan.drafter.tensors})
    names = tuple(step.name for step in plan.steps)
    flat = by_name(plan.layout).flat(plan.config)
    return verdicts(settled, plan.config, flat, names, parse_engine(engine))
