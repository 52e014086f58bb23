"""What engines do with the output of a plan, before it is written."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.conversion.request import ConversionRequest
from eaglectl.drafter.tensors import Tensor
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES, EngineRequest, every_release, parse_engine, verdicts
from eaglectl.engines.releases import ranges
from eaglectl.errors import EaglectlError
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.verdicts import ServedAs


class Unserved(Struct, frozen=True):
    """An engine, those of its releases that were asked for, and what the last of them does with an output.

    `is_known`: that none of them runs it; else some may, as far as is known.
    """

    engine: str
    releases: tuple[str, ...]
    last: Verdict
    is_known: bool = True

    @property
    def text(self) -> str:
        """In words: the releases, and what the last one does."""
        engine, reasons = ENGINES[self.engine], "; ".join(self.last.reasons)
        if len(self.releases) == 1:
            return f"{engine.title} {self.last.release} does not run this output as trained: it {reasons}"
        span = ranges(self.releases, engine.releases)
        runs = "runs" if self.is_known else "is known to run"
        return f"no {engine.title} of {span} {runs} this output as trained: {self.last.release} {reasons}"

    @property
    def record(self) -> dict[str, Any]:
        """As eaglectl.json states it."""
        return {"engine": self.engine, "releases": list(self.releases), "reasons": list(self.last.reasons)}


def output_verdicts(plan: ConversionPlan, wanted: EngineRequest) -> tuple[Verdict, ...]:
    """What releases of an engine do with the output of a plan."""
    generated = {
        step.name: Tensor(step.name, step.dtype, step.shape, ()) for step in plan.steps if not step.stored
    }
    doubts = tuple(note for note in plan.drafter.notes if note.is_open)
    settled = replace(
        plan.drafter,
        notes=doubts,
        unknown=(),
        tensors={**generated, **plan.drafter.tensors},
        publication=None,  # what was measured was the file as published
    )
    names = tuple(step.name for step in plan.steps)
    flat = by_name(plan.layout).flat(plan.config)
    return verdicts(settled, plan.config, flat, names, wanted)


def unserved(plan: ConversionPlan, request: ConversionRequest) -> tuple[Unserved, ...]:
    """The engines that the request is for and that have no release which runs the output as trained.

    It is for its `engines`, else for those of a layout that it names; where it names neither, one of all is
    enough. Where the newest release may run it, as far as is known, that counts; a trainer's start is for no
    engine.
    """
    if request.recipe is not None and request.recipe.is_start:
        return ()
    layout = by_name(plan.layout).layout
    if request.engines:
        wanted = [parse_engine(text) for text in request.engines]
    elif request.layout is not None:
        wanted = [every_release(name) for name in (layout.engines if layout else ())]
    else:
        wanted = [every_release(name) for name in ENGINES]
    missing = tuple(filter(None, (_unserved(plan, engine) for engine in wanted)))
    is_any_enough = not request.engines and request.layout is None
    return () if is_any_enough and len(missing) < len(wanted) else missing


def _unserved(plan: ConversionPlan, wanted: EngineRequest) -> Unserved | None:
    judged = output_verdicts(plan, wanted)
    outcomes = [verdict.outcome for verdict in judged]
    if any(outcome.is_served for outcome in outcomes) or not judged or not outcomes[-1].is_known_wrong:
        return None
    return Unserved(wanted.engine, wanted.releases, judged[-1], ServedAs.UNKNOWN not in outcomes)


def serving_layout(
    engines: Iterable[str], plan_for: Callable[[str], ConversionPlan]
) -> tuple[str, tuple[str, ...], str] | None:
    """The first of `engines` that runs the drafter as trained from a layout of its own: also its releases.

    The layout comes last; `plan_for` plans one.
    """
    for name in engines:
        for format in FORMATS:
            if format.layout is None or name not in format.layout.engines:
                continue
            try:
                judged = output_verdicts(plan_for(format.name), every_release(name))
            except EaglectlError:
                continue
            serving = tuple(verdict.release for verdict in judged if verdict.outcome.is_served)
            if serving:
                return name, serving, format.name
    return None
