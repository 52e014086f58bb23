"""What engines do with the output of a conversion, planned or written, and the smallest repair.

The smallest repair is the change after which every requested release serves the checkpoint as trained.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.conversion.plan import ConversionPlan, ConversionRequest, parse_reading
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import quantised_modules
from eaglectl.engines.behaviour import AppliedFact, Fact, ranges, unversioned
from eaglectl.engines.engine import Engine, Verdict
from eaglectl.engines.quantised import EDGES
from eaglectl.engines.registry import ENGINES, EngineRequest, every_release, usual_release
from eaglectl.engines.view import View
from eaglectl.errors import EaglectlError, OpenFactError, RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.source import FolderSource, Source
from eaglectl.formats.catalogue import FORMATS, by_name, default_format
from eaglectl.formats.commands import SOURCE, Command, Fix, Step, command, read_fix
from eaglectl.formats.config_keys import POSITIONS
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.judge.judgement import Following, GivenTarget, Judgement, Subject, judge_drafter, serving_rules
from eaglectl.judge.rule import CannotLook, Finding, Rule, find_rule
from eaglectl.judge.rules.serving import NOT_CAPTURED, edits, spelled
from eaglectl.judge.rules.weights import PLAUSIBLE
from eaglectl.report.wording import engine_names
from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.files.hub import HubSource

# the rules on errors in tensor values, which a conversion copies
VALUE_RULES = ("not-finite", "constant-tensor", "overflowing", "fresh-matrix")
# the families of rules that read no tensor data, and others that read none but d2t and t2d
OF_CONFIG = ("config", "aux layers", "rope", "quantisation", "serving")
OF_HEADERS = (
    "norm-tensor-missing",
    "norm-flag-missing",
    "target-mismatch",
    "target-vocabulary",
    "target-is-drafter",
    "tensor-parallel-size",
)
# the rules that compare rows with the target's: only with its weights here, and without a rotation
ROW_RULES = ("head-rows", "rotated-target")


class Unserved(Struct, frozen=True):
    """An engine whose requested `releases` do not run an output, and the verdict of the last of them.

    `is_known`: none of them runs it; otherwise it is unknown whether some do.
    """

    engine: str
    releases: tuple[str, ...]
    last: Verdict
    is_known: bool = True

    @property
    def text(self) -> str:
        """The releases, and what the last one does, in words."""
        last, reasons = self.last.release, "; ".join(self.last.reasons[:2])
        reasons += f" (and {more} more)" if (more := len(self.last.reasons) - 2) > 0 else ""
        if len(self.releases) < 2:
            title = self.engine if self.engine not in ENGINES else f"{ENGINES[self.engine].title} {last}"
            return f"{title} does not run this output as trained: {reasons}"
        engine = ENGINES[self.engine]
        span, runs = ranges(self.releases, engine.releases), "runs" if self.is_known else "is known to run"
        return f"no {engine.title} of {span} {runs} this output as trained: {last}: {reasons}"

    @property
    def record(self) -> dict[str, Any]:
        """The entry in eaglectl.json."""
        return {"engine": self.engine, "releases": list(self.releases), "reasons": list(self.last.reasons)}


def judge_plan(
    plan: ConversionPlan, *requests: EngineRequest, target_config: Mapping[str, Any] | None = None
) -> tuple[Verdict, ...]:
    """Return the releases' verdicts on a plan's output, which is read back before it is written."""
    return judge_planned(plan, requests, target_config).releases


def judge_planned(
    plan: ConversionPlan,
    requests: tuple[EngineRequest, ...],
    target_config: Mapping[str, Any] | None,
    errors: tuple[tuple[str, str], ...] | None = None,
) -> Judgement:
    """Judge a plan's output by config and headers; `errors` are those in its tensor values."""
    assert plan.output is not None
    source = cast("FolderSource | HubSource", plan.output[0].source)
    read, target = (plan.output[0], _drafter(plan)), GivenTarget(plan.drafter.target, None, target_config)
    subject = Subject(source, target, requests, headers_only=True, read=read, value_errors=errors)
    # a plan's tensors have no data yet: the errors in their values are passed in, and dtypes are in the plan
    rules = (*_planned_rules(), *([find_rule("tensor-dtype")] if errors is not None else ()))
    return replace(judge_drafter(subject, rules), rules=tuple(serving_rules()))


@cache
def _planned_rules() -> Sequence[Rule]:
    return [rule for rule in serving_rules() if _is_of_plan(rule)]


def _is_of_plan(rule: Rule) -> bool:
    # whether a rule can judge an output that is not written yet
    return rule.family.startswith(OF_CONFIG) or rule.name in OF_HEADERS


def all_releases(engines: Sequence[EngineRequest]) -> tuple[EngineRequest, ...]:
    """Return requests for every known release of every engine, and `engines`."""
    return (
        *map(every_release, ENGINES),
        *(EngineRequest(name, ()) for name in unversioned()["engines"]),
        *engines,
    )


def value_errors(
    checkpoint: Checkpoint, plan: ConversionPlan, target: Source | None, *, is_planned: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the errors in the tensor values that a plan copies, as pairs of rule id and message.

    `is_planned`: also the errors that are otherwise looked for in the written output.
    """
    assert isinstance(checkpoint.source, FolderSource)
    source, target_files = checkpoint.source, GivenTarget(plan.drafter.target, target)
    value_rules = [*map(find_rule, VALUE_RULES if plan.drafter.rotation else (*VALUE_RULES, *ROW_RULES))]
    findings = judge_drafter(
        Subject(source, target_files, read=(checkpoint, plan.drafter)), value_rules
    ).findings
    findings += _source_findings(source, checkpoint, plan, target_files, value_rules) if is_planned else ()
    copied = {"", *(f"tensor:{name}" for step in plan.steps for name in step.stored)}
    # an error without a tensor concerns all of them
    moved = {f"tensor:{step.stored[0]}" if step.is_moved else "" for step in plan.steps} ^ {""}
    return tuple(
        (finding.rule.id, finding.match.message)
        for finding in findings
        if finding.severity == "error"
        and not finding.match.engines
        and finding.match.where in (copied if finding.rule in value_rules else moved)
    )


def _source_findings(
    source: FolderSource,
    checkpoint: Checkpoint,
    plan: ConversionPlan,
    target: GivenTarget,
    besides: Sequence[Rule],
) -> tuple[Finding, ...]:
    """Return what the tensor rules find in the source; tensors that a plan computes have no data yet."""
    rules = [rule for rule in serving_rules() if rule not in besides and not _is_of_plan(rule)]
    read = checkpoint, read_drafter(checkpoint, Answers(), plan.drafter.target)
    return judge_drafter(Subject(source, target, read=read, takes_samples=True), rules).findings


def plausibility_notes(
    checkpoint: Checkpoint, drafter: Drafter, target_config: Mapping[str, Any] | None
) -> Iterator[Note]:
    """Yield a warning for each implausible norm, and for implausible rows of a matrix (a few are read)."""
    if isinstance(checkpoint.source, FolderSource):
        target, read = GivenTarget(drafter.target, None, target_config), (checkpoint, drafter)
        subject = Subject(checkpoint.source, target, headers_only=True, read=read, takes_samples=True)
        yield from notes_of(judge_drafter(subject, PLAUSIBLE).findings)


def notes_of(findings: Iterable[Finding]) -> Iterator[Note]:
    """Yield the warnings on tensor values among findings, as notes on the drafter."""
    for finding in findings:
        if finding.rule in PLAUSIBLE and finding.severity == "warning":
            yield Note("warning", finding.match.where.removeprefix("tensor:"), finding.match.message)


def judge_output(
    folder: Path,
    plan: ConversionPlan,
    errors: tuple[tuple[str, str], ...] | None = None,
    target_config: Mapping[str, Any] | None = None,
    engines: Sequence[EngineRequest] = (),
    skipped: Sequence[str] = (),
) -> Judgement:
    """Judge the written output of a conversion for every known release and for `engines`.

    `errors` are those in its tensor values; None: they were not read. `skipped` are ids of rules to leave
    out.
    """
    source, target = FolderSource(folder), GivenTarget(plan.drafter.target, None, target_config)
    subject = Subject(
        source,
        target,
        all_releases(engines),
        headers_only=True,
        read=(read_checkpoint(source, headers_only=True), _drafter(plan)),
        value_errors=errors,
        takes_samples=True,
    )
    return judge_drafter(subject, [rule for rule in serving_rules() if rule.id not in skipped])


def _drafter(plan: ConversionPlan) -> Drafter:
    # the drafter as the output reads back, with the plan's doubts instead of the record's; measurements of a
    # published drafter hold for the published file only
    assert plan.output is not None
    settled = (note for note in plan.output[1].notes if not note.is_open)
    notes = (*settled, *(note for note in plan.drafter.notes if note.is_open))
    return replace(plan.output[1], notes=notes, publication=None, rotation=plan.drafter.rotation)


def unserved(
    plan: ConversionPlan,
    engines: Sequence[EngineRequest],
    named_layout: str | None,
    target_config: Mapping[str, Any] | None = None,
) -> tuple[Unserved, ...]:
    """Return the wanted engines without a release that runs the output as trained.

    Wanted are `engines`, otherwise the engines of the named layout; without either, any one engine is enough.
    An engine whose newest release has an unknown outcome is not reported.
    """
    layout = by_name(plan.layout).layout
    names = tuple(ENGINES) if named_layout is None else (layout.engines if layout else ())
    wanted, missing = engines or [every_release(name) for name in names], []
    for request in wanted:
        judged = judge_plan(plan, request, target_config=target_config)
        outcomes = [verdict.outcome for verdict in judged]
        if judged and outcomes[-1].is_known_wrong and not any(outcome.is_served for outcome in outcomes):
            missing.append(
                Unserved(
                    request.engine,
                    request.releases,
                    judged[-1],
                    not any(outcome.is_open for outcome in outcomes),
                )
            )
        elif not engines and named_layout is None:
            return ()
    return tuple(missing)


def serving_layout(
    engines: Iterable[str],
    plan_for: Callable[[str], ConversionPlan],
    target_config: Mapping[str, Any] | None = None,
) -> tuple[str, tuple[str, ...], str] | None:
    """Return the first of `engines` that runs the drafter as trained from its own layout.

    The result is the engine, the releases that do, and the layout; None if there is none. `plan_for` plans a
    layout.
    """
    for name in engines:
        for format in FORMATS:
            if format.layout is None or name not in format.layout.engines:
                continue
            with suppress(EaglectlError):
                plan = plan_for(format.name)
                judged = judge_plan(plan, every_release(name), target_config=target_config)
                if serving := tuple(verdict.release for verdict in judged if verdict.outcome.is_served):
                    return name, serving, format.name
    return None


# the fields of a ConversionRequest that an option of `convert` sets
OPTIONS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "--for": lambda value: {"layout": value},
    "--drop": lambda value: {"drop": (value,)},
    "--rope-style": lambda value: {"rope_style": value},
    "--fix-reading": lambda value: {"fixes": (parse_reading(value),)},
    "--target": lambda value: {},
}
Defects = Mapping[str, Sequence[AppliedFact]]
# of a checkpoint with more open questions, no combinations of answers are listed
MOST_QUESTIONS = 4
ANSWERED = "convert it with an answer to the open question"


class Advice(Struct, frozen=True):
    """The repairs of a source, as commands with the user's source, target and answers.

    `refusal` states why nothing can be converted. `is_measured`: a conversion measures open questions.
    `engines` are the requested ones. `plans` caches the plan of each request, or the error in its place.
    """

    source: str
    subject: Subject
    refusal: RefusedError | None = None
    is_measured: bool = False
    engines: Sequence[EngineRequest] = ()
    plans: "dict[str, ConversionPlan | EaglectlError]" = field(default_factory=dict)

    def steps(self, engine: Engine, releases: Iterable[str]) -> Iterator[Step]:
        """Yield the `convert` after which these releases serve the checkpoint, and other engines if possible.

        A refused conversion, and releases that do not serve its output, are steps too.
        """
        subject = self.subject
        chosen, lost = self._layout(engine)
        edges = self._engines_of_edges(engine.name, releases)
        options = ("--for", chosen, *(f"--engine={request.text}" for request in edges))
        line = command(
            "convert", self.source, *options, target=subject.target.choice, answers=subject.answers
        )
        conversion = Command("convert", options, line)
        match self.plan(ConversionRequest(chosen, engines=edges)):
            case RefusedError() as refusal:
                yield Step((f"no layout makes {engine.title} serve it: {refusal}",))
            case UsageError() as question if not self.is_measured:
                yield Step((f"{ANSWERED}: {question}",))
            case EaglectlError():
                yield Step((conversion,))
            case plan:
                others = [ENGINES[name].title for name in lost if name != engine.name]
                loss = f" ({' and '.join(others)} then does not serve it as trained)" if others else ""
                step = Step((conversion, loss) if loss else (conversion,), lost=" and ".join(others))
                yield from _serving_steps(plan, engine, releases, step)

    def _engines_of_edges(self, engine: str, releases: Iterable[str]) -> tuple[EngineRequest, ...]:
        """Return the oldest of the releases, for which modules outside of the layers may be dequantised."""
        if not quantised_modules(self.subject.drafter.tensors).intersection(EDGES):
            return ()
        oldest = min(releases, key=ENGINES[engine].releases.index)
        is_usual = (oldest,) == usual_release(engine).releases
        return () if is_usual else (EngineRequest(engine, (oldest,), text=f"{engine}=={oldest}"),)

    def _layout(self, engine: Engine) -> tuple[str, Sequence[str]]:
        """Return the layout to convert to, and the requested engines that do not serve it.

        If several engines are requested and all of them serve the default layout, it is that one; else the
        engine's own.
        """
        requests = self.subject.requests
        names = dict.fromkeys(request.engine for request in requests if request.engine in ENGINES)
        choices = (default_format().name, engine.name) if len(names) > 1 else (engine.name,)
        lost = {name: _engines_not_served(self.plan(ConversionRequest(name)), names) for name in choices}
        chosen = next((name for name in choices if lost[name] == ()), engine.name)
        return chosen, lost[chosen] or ()

    def _engines_to_name(self, verdict: Verdict) -> tuple[EngineRequest, ...]:
        """Return the release as --engine takes it, where a conversion without it would not be for it."""
        layout = default_format().layout
        if verdict.release and (edges := self._engines_of_edges(verdict.engine, (verdict.release,))):
            return edges
        return () if layout and verdict.engine in layout.engines else (only(verdict),)

    def following(self, verdict: Verdict, findings: Sequence[Finding]) -> Following:
        """Return the next command for a release whose verdict is that it does not serve the checkpoint."""
        facts = self.subject.applied_facts.get((verdict.engine, verdict.release))
        if facts is None or any(fact.fact.id in NOT_CAPTURED for fact in facts):
            return Following(why="; ".join(verdict.reasons), keys=tuple(dict(verdict.keyed_reasons)))
        engines = self._engines_to_name(verdict)
        fixes = tuple(value for finding in findings for value in finding.repair.values("--fix-reading"))[:1]
        options = (
            *(f"--fix-reading={name}" for name in fixes),
            *(f"--engine={request.text or request.engine}" for request in engines),
        )
        wanted = ConversionRequest(engines=engines, fixes=tuple(map(parse_reading, fixes)))
        match self.plan(wanted):
            case OpenFactError() if self.is_measured:
                return Following(self._command(options, self.subject.answers))
            case OpenFactError() if self.is_open:
                return Following(choices=dict(self._choices(verdict, wanted, options, self.subject.answers)))
            case EaglectlError() as error:
                return Following(why=str(error), keys=(f"{error.topic}:{error.where}",))
            case plan:
                (after,) = judge_plan(plan, only(verdict), target_config=self.subject.target.config)
        if not after.outcome.is_known_wrong and after.outcome.level > verdict.outcome.level:
            return Following(self._command(options, self.subject.answers))
        return _mending(after, findings)

    def _choices(
        self,
        verdict: Verdict,
        wanted: ConversionRequest,
        options: Sequence[str],
        answers: Answers,
        meanings: tuple[str, ...] = (),
    ) -> Iterator[tuple[str, str]]:
        """Yield a command and its result for each combination of answers that makes a conversion possible."""
        from eaglectl.conversion.planning import make_plan

        checkpoint = self.subject.checkpoint
        with suppress(EaglectlError):
            drafter = read_drafter(checkpoint, answers, self.subject.target.known)
            if questions := drafter.notes_at("question"):
                for choice in questions[0].choices if len(meanings) < MOST_QUESTIONS else ():
                    if not choice.is_free:
                        answered, means = answers.choosing(choice), (*meanings, choice.meaning)
                        yield from self._choices(verdict, wanted, options, answered, means)
            elif not unserved(make_plan(checkpoint, drafter, wanted, answers), wanted.engines, None):
                newest = (EngineRequest(request.engine, request.releases[-1:]) for request in self.engines)
                subject = replace(
                    self.subject,
                    requests=tuple(dict.fromkeys((only(verdict), *newest))),
                    answers=answers,
                    read=(checkpoint, drafter),
                    takes_samples=False,
                )
                first, *others = judge_drafter(subject).releases
                gives = [f"{engine_names([first])}, as stored: {first.outcome}"]
                gives += [f"{engine_names([other])}: {other.outcome}" for other in others]
                conditions = dict.fromkeys(filter(None, meanings))  # two unread keys share theirs
                yield self._command(options, answers), "; ".join([*gives, *conditions])

    def _command(self, options: Sequence[str], answers: Answers) -> str:
        return command("convert", self.source, *options, target=self.subject.target.choice, answers=answers)

    def possible(self, finding: Finding) -> Fix:
        """Return a finding's fix with each conversion that is refused, or no help, replaced by the reason.

        If a question is open that a conversion cannot measure, a fix with a conversion becomes the advice to
        answer it. The text of a refusal is a list of steps, as `read_fix` reads them.
        """
        fix = finding.repair
        if self.is_open and fix.conversions:
            return Fix(steps=(Step(parts=(ANSWERED,)),), remedy="settle", end=".")
        refusals = [self._refusal(step) or self._outlasting(step, finding) for step in fix.steps]
        if not any(refusals):
            return fix
        possible_steps = [step for step, refusal in zip(fix.steps, refusals, strict=True) if not refusal]
        steps = [replace(step, lead="") for step in dict.fromkeys(possible_steps)]
        steps += [step for text in filter(None, dict.fromkeys(refusals)) for step in read_fix(text).steps]
        return Fix(steps=_separated(steps), remedy=fix.remedy, end=".")

    def _refusal(self, step: Step) -> str:
        # why the conversion that a step names would be refused or not served; "" if it is fine, or not known
        if step.conversion is None or self.refusal:
            return str(self.refusal) if step.conversion else ""
        if (request := _requested(step)) is None:
            return ""
        plan = self.plan(request)
        if isinstance(plan, EaglectlError):
            return "" if isinstance(plan, OpenFactError) else str(plan)
        return "; ".join(engine.text for engine in unserved(plan, request.engines, request.layout))

    def _outlasting(self, step: Step, finding: Finding) -> str:
        # why the conversion that a step names helps no release of a finding; "" if it helps one, or not known
        request, labels = _requested(step), finding.match.engines
        if request is None or not labels:
            return ""
        releases = [release for _, _, release in (label.partition("==") for label in labels)]
        name = labels[0].partition("==")[0]
        plan = self.plan(replace(request, engines=self._engines_of_edges(name, releases)))
        if isinstance(plan, EaglectlError):
            return ""
        after = judge_plan(plan, EngineRequest(name, tuple(releases)))
        if not all(finding.rule.id in verdict.rules for verdict in after):
            return ""
        return f"no conversion changes that {ENGINES[name].title} {after[-1].release} {after[-1].reasons[0]}"

    @property
    def is_open(self) -> bool:
        """Whether a conversion asks a question that it cannot measure."""
        subject = self.subject
        is_asked = subject.read_error is None and bool(subject.drafter.notes_at("question"))
        return is_asked and not self.is_measured

    def plan(self, request: ConversionRequest) -> "ConversionPlan | EaglectlError":
        """Return the plan of a request, or the error that prevents it."""
        from eaglectl.conversion.planning import make_plan

        subject, key = self.subject, repr(request)
        if subject.read_error is not None:
            return subject.read_error
        if self.refusal:
            return self.refusal
        if key not in self.plans:
            try:
                self.plans[key] = make_plan(subject.checkpoint, subject.drafter, request, subject.answers)
            except EaglectlError as error:
                self.plans[key] = error
        return self.plans[key]


def _requested(step: Step) -> ConversionRequest | None:
    """Return the request of the conversion that a step names; None without one, or with other options."""
    if (conversion := step.conversion) is None:
        return None
    words = [word for word in conversion.options if word != SOURCE]
    pairs = list(zip(words[::2], words[1::2], strict=False))
    if not all(name in OPTIONS for name, _ in pairs):
        return None
    settings = {key: setting for name, value in pairs for key, setting in OPTIONS[name](value).items()}
    return ConversionRequest(**settings)


def _mending(verdict: Verdict, findings: Sequence[Finding]) -> Following:
    """Return a repair that is no conversion, or the reasons of the verdict."""
    fixes = (finding.repair for finding in findings if finding.rule.id in verdict.rules)
    if other := next((fix for fix in fixes if not fix.conversions and fix.remedy != "anew"), None):
        return Following(why=other.text)
    return Following(why="; ".join(verdict.reasons), keys=tuple(dict(verdict.keyed_reasons)))


def only(verdict: Verdict) -> EngineRequest:
    """Return a request for the release of a verdict alone."""
    return EngineRequest(verdict.engine, tuple(filter(None, [verdict.release])))


def _engines_not_served(
    plan: "ConversionPlan | EaglectlError", names: Iterable[str]
) -> tuple[str, ...] | None:
    # the engines whose installed release, else the newest one, does not serve the plan's output as trained;
    # an engine without a verdict is not counted; None without a plan
    if isinstance(plan, EaglectlError):
        return None
    verdicts_of = {name: judge_plan(plan, usual_release(name)) for name in names}
    return tuple(
        name
        for name, verdicts in verdicts_of.items()
        if verdicts and not any(verdict.outcome.is_served for verdict in verdicts)
    )


def _serving_steps(
    plan: "ConversionPlan", engine: Engine, releases: Iterable[str], step: Step
) -> Iterator[Step]:
    # the conversion, if it makes any of these releases serve the checkpoint, and a later release for those
    # that it does not help
    verdicts = judge_plan(plan, every_release(engine.name))
    wrong = {verdict.release: verdict.reasons[0] for verdict in verdicts if verdict.outcome.is_known_wrong}
    if len(wrong) < len(verdicts) and not set(releases) <= set(wrong):
        yield step
    if concerned := {release: wrong[release] for release in wrong if release in releases}:
        served = [str(verdict.release) for verdict in verdicts if verdict.outcome.is_served]
        yield _later_release(engine, _oldest_fit_release(engine, wrong), served, concerned)


def _oldest_fit_release(engine: Engine, unfit: Collection[str]) -> str | None:
    fit = list(takewhile(lambda release: release not in unfit, reversed(engine.releases)))
    return fit[-1] if fit else None


def _later_release(
    engine: Engine, first: str | None, served: Collection[str], unserved: Mapping[str, str]
) -> Step:
    # the releases from the oldest fit one on; without one, the earlier releases that serve it
    because = f"({ranges(unserved, engine.releases)} {', '.join(dict.fromkeys(unserved.values()))})"
    if first is None and served:
        earlier = ranges(served, engine.releases)
        return Step((f"use {engine.name} {earlier}, since no later release serves it {because}",))
    if first is None:
        return Step((f"no known release serves it whatever is written {because}",))
    text = f"use {engine.name}>={first}, since no conversion makes earlier ones serve it {because}"
    return Step((text,))


def smallest_changes(advice: Advice, rules: Collection[str]) -> tuple[Fix, ...]:
    """Return the repair for each engine with a release that does not serve it, by facts of `rules` alone."""
    subject = advice.subject
    try:
        facts = subject.applied_facts
    except CannotLook:
        return ()
    changes: dict[tuple[Step, ...], list[str]] = {}
    for name in dict.fromkeys(engine for engine, _ in facts):
        defects = {
            release: [fact for fact in _defects(holding) if fact.fact.rule in rules]
            for (engine, release), holding in facts.items()
            if engine == name
        }
        if steps := tuple(_steps(ENGINES[name], subject.view(name), defects, advice)):
            changes.setdefault(steps, []).append(ENGINES[name].title)
    return tuple(Fix(_separated(steps), engines=" and ".join(titles)) for steps, titles in changes.items())


def _separated(steps: Sequence[Step]) -> tuple[Step, ...]:
    return (replace(steps[0], lead=""), *(replace(step, lead=step.lead or "; ") for step in steps[1:]))


def _defects(facts: Iterable[AppliedFact], remedy: str = "") -> list[AppliedFact]:
    # the facts without a start option that runs the file as trained; with `remedy`, those with this remedy
    return [
        fact
        for fact in facts
        if fact.fact.outcome != ServedAs.UNKNOWN and fact.option is None and remedy in ("", fact.fact.remedy)
    ]


def _steps(engine: Engine, view: View, defects: Defects, advice: Advice) -> Iterator[Step]:
    # the changes to the checkpoint, then the upgrade for releases that no change helps (remedy "upgrade")
    unfit = [release for release in engine.releases if _defects(engine.applied(view, release), "upgrade")]
    oldest_fit = _oldest_fit_release(engine, unfit)
    before_fit = engine.releases[: engine.releases.index(oldest_fit)] if oldest_fit else engine.releases
    need_upgrade, changeable = dict[str, str](), dict[str, Sequence[AppliedFact]]()
    has_upgrade = any(_defects(facts, "upgrade") for facts in defects.values())
    for release, facts in defects.items():
        if upgrades := _defects(facts, "upgrade"):
            need_upgrade[release] = upgrades[-1].text
        # a final fact (the release stops there) is applied alone, and may hide the one that needs the upgrade
        # in newer releases: before the oldest fit one, it is not repaired apart
        elif has_upgrade and release in before_fit and facts and facts[0].fact.is_final:
            need_upgrade[release] = facts[0].text
        else:
            changeable[release] = facts
    yield from _change(engine, view, changeable, advice)
    if need_upgrade:
        served = [release for release in engine.releases if not engine.applied(view, release)]
        yield _later_release(engine, oldest_fit, served, need_upgrade)


def _outlasts_conversion(fact: Fact) -> bool:
    # no conversion changes the drafter's positions either
    return fact.remedy in ("restore", "anew") or POSITIONS in fact.remedy


def _change(engine: Engine, view: View, defects: Defects, advice: Advice) -> Iterator[Step]:
    # an edit of config.json if that is enough, otherwise what to restore and the conversion
    facts = {fact.fact.id: fact.fact for applied_facts in defects.values() for fact in applied_facts}
    if not facts:
        return
    changed = [edits(fact, view) for fact in facts.values()]
    written = {key: value for keys in changed for key, value in keys.items()}
    edited = replace(view, config={**view.config, **written}, flat={**view.flat, **written})
    if all(changed) and not any(_defects(engine.applied(edited, release)) for release in defects):
        yield Step((f"write {spelled(written)} into config.json",))
        return
    lasting = [fact for fact in facts.values() if _outlasts_conversion(fact)]
    for fix in dict.fromkeys(fact.fix for fact in lasting):
        yield from read_fix(fix, "measure").steps
    if len(lasting) < len(facts):
        yield from advice.steps(engine, tuple(defects))
