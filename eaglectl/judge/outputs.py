"""What engines do with the output of a conversion: judged as it is planned, and as it was written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import ConversionPlan
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.behaviour import unversioned
from eaglectl.engines.engine import Verdict
from eaglectl.engines.registry import ENGINES, EngineRequest, every_release, parse_engine
from eaglectl.engines.releases import ranges
from eaglectl.errors import EaglectlError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.source import FolderSource, Source
from eaglectl.formats.catalogue import FORMATS, by_name
from eaglectl.judge.judgement import Judgement, judge_drafter
from eaglectl.judge.rule import Finding, Rule
from eaglectl.judge.rules import find_rule, plausible
from eaglectl.judge.rules.serving import RULES as SERVING
from eaglectl.judge.subject import GivenTarget, Subject
from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource

# of numbers that no trained drafter has
PLAUSIBLE = tuple(value for value in vars(plausible).values() if isinstance(value, Rule))
# of errors in numbers, which a conversion copies
VALUE_RULES = ("not-finite", "constant-tensor", "overflowing", "fresh-matrix")
# of rows beside the target's, where its weights are here and no rotation is followed
ROW_RULES = ("head-rows", "rotated-target")


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


def judge_plan(plan: ConversionPlan, *requests: EngineRequest) -> tuple[Verdict, ...]:
    """What releases do with the output of a plan, as it reads back before it is written."""
    assert plan.output is not None
    read, target = (plan.output[0], _drafter(plan)), GivenTarget(plan.drafter.target)
    source = cast("FolderSource | HubSource", plan.output[0].source)
    return judge_drafter(Subject(source, target, requests, headers_only=True, read=read), SERVING).releases


def value_errors(
    checkpoint: Checkpoint, plan: ConversionPlan, target: Source | None
) -> tuple[tuple[str, str], ...]:
    """The errors in numbers of the source that a plan copies, as ids of rules and messages."""
    assert isinstance(checkpoint.source, FolderSource)
    given = GivenTarget(plan.drafter.target, target)
    subject = Subject(checkpoint.source, given, read=(checkpoint, plan.drafter))
    copied = {"", *(f"tensor:{name}" for step in plan.steps for name in step.stored)}
    names = VALUE_RULES if plan.drafter.rotation else (*VALUE_RULES, *ROW_RULES)
    findings = judge_drafter(subject, tuple(map(find_rule, names))).findings
    return tuple((each.rule.id, each.match.message) for each in findings if each.match.where in copied)


def implausible(
    checkpoint: Checkpoint, drafter: Drafter, target_config: Mapping[str, Any] | None
) -> Iterator[Note]:
    """A warning for what stands out of norms and of a few rows of each matrix."""
    if not isinstance(checkpoint.source, FolderSource):
        return
    given, read = GivenTarget(drafter.target, None, target_config), (checkpoint, drafter)
    subject = Subject(checkpoint.source, given, headers_only=True, read=read, takes_samples=True)
    yield from notes_of(judge_drafter(subject, PLAUSIBLE).findings)


def notes_of(findings: Iterable[Finding]) -> Iterator[Note]:
    """The warnings on numbers among findings, as notes on the drafter."""
    for finding in findings:
        if finding.rule in PLAUSIBLE and finding.severity == "warning":
            yield Note("warning", finding.match.where.removeprefix("tensor:"), finding.match.message)


def judge_output(
    folder: Path,
    plan: ConversionPlan,
    errors: tuple[tuple[str, str], ...] | None = None,
    target_config: Mapping[str, Any] | None = None,
) -> Judgement:
    """What every known release does with what a conversion wrote, whose numbers have these errors.

    None: the numbers were not read.
    """
    requests = (*map(every_release, ENGINES), *(EngineRequest(name, ()) for name in unversioned()["engines"]))
    source, target = FolderSource(folder), GivenTarget(plan.drafter.target, None, target_config)
    read = read_checkpoint(source), _drafter(plan)
    subject = Subject(
        source, target, requests, headers_only=True, read=read, value_errors=errors, takes_samples=True
    )
    return judge_drafter(subject)


def _drafter(plan: ConversionPlan) -> Drafter:
    """The drafter as it reads back; its doubts are in the words of the plan, and not of the record.

    What was measured of a published drafter was the file as published.
    """
    assert plan.output is not None
    drafter = plan.output[1]
    settled = (note for note in drafter.notes if not note.is_open)
    doubts = (note for note in plan.drafter.notes if note.is_open)
    notes, rotation = (*settled, *doubts), plan.drafter.rotation
    return replace(drafter, notes=notes, publication=None, rotation=rotation)


def unserved(plan: ConversionPlan, engines: Sequence[str], named_layout: str | None) -> tuple[Unserved, ...]:
    """The engines that a conversion is for and that have no release which runs the output as trained.

    It is for `engines`, else for those of the layout that was named; without either, one of all is enough.
    Where the newest release may run it, as far as is known, that counts.
    """
    layout = by_name(plan.layout).layout
    if engines:
        wanted = [parse_engine(text) for text in engines]
    elif named_layout is not None:
        wanted = [every_release(name) for name in (layout.engines if layout else ())]
    else:
        wanted = [every_release(name) for name in ENGINES]
    missing = tuple(filter(None, (_unserved(plan, engine) for engine in wanted)))
    is_any_enough = not engines and named_layout is None
    return () if is_any_enough and len(missing) < len(wanted) else missing


def _unserved(plan: ConversionPlan, wanted: EngineRequest) -> Unserved | None:
    judged = judge_plan(plan, wanted)
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
                judged = judge_plan(plan_for(format.name), every_release(name))
            except EaglectlError:
                continue
            serving = tuple(verdict.release for verdict in judged if verdict.outcome.is_served)
            if serving:
                return name, serving, format.name
    return None
