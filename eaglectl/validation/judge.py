"""Running rules over a checkpoint, and the verdict under a policy."""

import datetime
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.engines.behaviour import AppliedFact
from eaglectl.engines.registry import ENGINES
from eaglectl.errors import UnreadableError
from eaglectl.formats.commands import Complete, completing
from eaglectl.validation.policy import Policy, Suppression
from eaglectl.validation.rule import SEVERITIES, CannotLook, Finding, Rule, Severity
from eaglectl.validation.rules import NOT_OF_EVERY_ENGINE
from eaglectl.validation.rules import rules as every_rule
from eaglectl.validation.subject import Subject
from eaglectl.verdicts import CheckVerdict, ServedAs

# what is wrong with files or with a release of the drafter does not change how an engine serves it, but for
# where its weights are
NOT_SERVED = ("files", "release")
LEAKS = ("local-path", "leaked-secret")
WEIGHT_FILES = ("one-weight-source", "safetensors-header", "shard-index", "distributed-checkpoint")
# a rule's id, "" where no rule reports it, and the reason
Reason = tuple[str, str]


class ReleaseVerdict(Struct, frozen=True):
    """Whether an engine release serves the checkpoint as it was trained.

    `rules` are the ids that report the `reasons`.
    """

    engine: str
    release: str
    outcome: CheckVerdict
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class Unchecked(Struct, frozen=True):
    """A rule that could not look, and why. Where `is_required`, the checkpoint does not pass without it."""

    rule: Rule
    reason: str
    is_required: bool


class Suppressed(Struct, frozen=True):
    """A finding that a suppression of the policy allows."""

    finding: Finding
    by: Suppression


class Report(Result, frozen=True):
    """The result of validating one checkpoint.

    `unused` are suppressions that no finding needed, `expired` those past their last day, which have no
    effect. `fail_on` is the lowest severity that fails, None for none. `problem` states why the checkpoint
    could not be read, where no rule reports it. `releases` has a verdict for each requested engine release,
    oldest first; `smallest_changes` are the changes with which all of them pass. `target` states how a target
    that was not given was found. `is_of_copy`: the weights are pickles, and their values were read from a
    temporary copy. `skipped` states why a folder is no drafter's, where such are to be skipped: no rule ran.
    `doubts` are what is open of how the drafter was trained, `questions` those that somebody has to answer.
    `off` are the rules that the policy switches off, `lowered` those whose severity it lowers, with the new
    one.
    `default_engines` are the releases that nobody named, each with the reason why it was judged.
    """

    source: str
    path: str
    engines: tuple[str, ...]
    verdict: CheckVerdict
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    suppressed: tuple[Suppressed, ...]
    unused: tuple[Suppression, ...]
    passed: tuple[Rule, ...]
    policy: str
    seconds: float
    fail_on: Severity | None = "error"
    problem: str = ""
    releases: tuple[ReleaseVerdict, ...] = ()
    smallest_changes: tuple[str, ...] = ()
    expired: tuple[Suppression, ...] = ()
    target: str = ""
    is_of_copy: bool = False
    skipped: str = ""
    doubts: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    lowered: Mapping[str, Severity] = field(default_factory=dict)
    default_engines: tuple[tuple[str, str], ...] = ()

    def __fspath__(self) -> str:
        return self.path


class _Result(Struct, frozen=True):
    """What the rules reported, before suppressions."""

    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    passed: tuple[Rule, ...]

    @property
    def rule_ids(self) -> list[str]:
        """The ids of the rules that ran or could not look."""
        return [rule.id for rule in self.rules]


def judge(
    subject: Subject, rules: Sequence[Rule], policy: Policy, fail_on: Severity | None, path: str
) -> Report:
    """Run `rules` over `subject`; a finding of severity `fail_on` or above fails it, with None nothing does.

    Findings are ordered by severity, the highest first, then by rule. `path` is how commands name the
    checkpoint.
    """
    start = time.perf_counter()
    result = _run(subject, rules, policy)
    findings, changes = _repairs(subject, result, path)
    releases = release_verdicts(subject, result.rule_ids, result.findings)
    valid, expired = _valid_suppressions(policy)
    kept, suppressed = _suppress(findings, valid)
    kept.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    doubts = _doubts(subject, result)
    is_unread = subject.read_error is not None and not any(finding.severity == "error" for finding in kept)
    verdict = CheckVerdict.PASS
    if any((is_unread, doubts, _is_open(result.unchecked, releases))):
        verdict = CheckVerdict.COULD_NOT_LOOK
    report = Report(
        source=subject.label,
        path=path,
        engines=tuple(dict.fromkeys(label for request in subject.requests for label in request.labels)),
        verdict=CheckVerdict.FAIL if _is_failed(kept, releases, fail_on) else verdict,
        findings=tuple(kept),
        unchecked=result.unchecked,
        suppressed=tuple(suppressed),
        unused=_unused(valid, suppressed, result),
        passed=result.passed,
        policy=policy.origin,
        seconds=time.perf_counter() - start,
        fail_on=fail_on,
        problem=str(subject.read_error) if is_unread else "",
        expired=expired,
        releases=releases,
        target=subject.target.known.origin,
        smallest_changes=changes,
        doubts=doubts,
        questions=tuple(note.text for note in subject.questions),
        off=tuple(sorted(policy.off)),
        lowered={rule.id: policy.severity(rule) for rule in result.rules if policy.lowers(rule)},
        default_engines=tuple(
            (label, request.why) for request in subject.requests if request.why for label in request.labels
        ),
    )
    return _completed(report, completing(path, subject.target.text, subject.answers))


def _repairs(subject: Subject, result: _Result, path: str) -> tuple[Sequence[Finding], tuple[str, ...]]:
    """The findings, without conversions that are refused in their fixes, and the smallest changes."""
    is_broken = any(finding.severity == "error" for finding in result.findings)
    sought = "eaglectl convert" if is_broken else "--for"
    if not _has_defects(subject) and not any(sought in finding.fix for finding in result.findings):
        return result.findings, ()
    # late: most checkpoints need no repair
    from eaglectl.validation.fixes import Advice, smallest_changes

    advice = Advice(path, subject)
    fixes = [advice.possible(finding.fix) for finding in result.findings]
    findings = [
        finding if fix == finding.fix else replace(finding, match=replace(finding.match, fix=fix))
        for finding, fix in zip(result.findings, fixes, strict=True)
    ]
    return findings, smallest_changes(advice, result.rule_ids)


def _has_defects(subject: Subject) -> bool:
    """Whether some fact of a requested release holds."""
    try:
        return any(subject.applied_facts.values())
    except CannotLook:
        return False


def _completed(report: Report, complete: Complete) -> Report:
    """The report with whole commands in its texts: rules know neither the path nor what was given."""

    def findings(several: Iterable[Finding]) -> tuple[Finding, ...]:
        return tuple(finding.completed(complete) for finding in several)

    return replace(
        report,
        findings=findings(report.findings),
        suppressed=tuple(
            replace(entry, finding=entry.finding.completed(complete)) for entry in report.suppressed
        ),
        unchecked=tuple(replace(entry, reason=complete(entry.reason)) for entry in report.unchecked),
        releases=tuple(
            replace(verdict, reasons=tuple(map(complete, verdict.reasons))) for verdict in report.releases
        ),
        smallest_changes=tuple(map(complete, report.smallest_changes)),
        problem=complete(report.problem),
    )


def errors_for_engines(subject: Subject) -> tuple[Reason, ...]:
    """The errors that change how every engine serves the checkpoint, as rule ids and messages."""
    general = [rule for rule in every_rule(without=NOT_OF_EVERY_ENGINE) if changes_serving(rule)]
    return tuple(_general_errors(subject, _run(subject, general, Policy()).findings))


def _run(subject: Subject, rules: Sequence[Rule], policy: Policy) -> _Result:
    """Run the rules that concern the subject: rules on engines only where the engine was requested."""
    requested = tuple(request.engine for request in subject.requests if request.engine in ENGINES)
    asked = [
        rule
        for rule in rules
        if not rule.engines or rule.engines.startswith(requested) or rule.id in policy.required
    ]
    rules = asked or rules
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    passed: list[Rule] = []
    for rule in rules:
        try:
            matches = list(rule.check(subject))
        except UnreadableError as reason:  # CannotLook among them
            is_required = rule.family.startswith("serving") or rule.id in policy.required
            unchecked.append(Unchecked(rule, str(reason), is_required))
            continue
        findings += [Finding(rule, policy.severity(rule), match) for match in matches]
        if not matches:
            passed.append(rule)
    return _Result(tuple(rules), tuple(_one_each(findings)), tuple(unchecked), tuple(passed))


def _doubts(subject: Subject, result: _Result) -> tuple[str, ...]:
    """What is open of how the drafter was trained, by the rules that ran."""
    names = {rule.name for rule in result.rules}
    return tuple(note.reason for note in subject.unsettled if note.topic in names)


def _valid_suppressions(policy: Policy) -> tuple[list[Suppression], tuple[Suppression, ...]]:
    """The suppressions that are valid today, and those that have expired."""
    today = datetime.datetime.now(datetime.UTC).date()
    expired = tuple(suppression for suppression in policy.suppressions if suppression.is_expired(today))
    return [suppression for suppression in policy.suppressions if suppression not in expired], expired


def _suppress(
    findings: Iterable[Finding], suppressions: Sequence[Suppression]
) -> tuple[list[Finding], list[Suppressed]]:
    """The findings that stay, and those that the first fitting suppression allows."""
    kept: list[Finding] = []
    suppressed: list[Suppressed] = []
    for finding in findings:
        by = next((suppression for suppression in suppressions if suppression.covers(finding)), None)
        if by is None:
            kept.append(finding)
        else:
            suppressed.append(Suppressed(finding, by))
    return kept, suppressed


def _unused(
    valid: Iterable[Suppression], suppressed: Iterable[Suppressed], result: _Result
) -> tuple[Suppression, ...]:
    """Suppressions that no finding needed, though their rule could look."""
    used = {entry.by for entry in suppressed}
    checked = set(result.rule_ids) - {unchecked.rule.id for unchecked in result.unchecked}
    return tuple(entry for entry in valid if entry not in used and entry.rule in checked)


def _is_failed(
    findings: Iterable[Finding], releases: Iterable[ReleaseVerdict], fail_on: Severity | None
) -> bool:
    """Whether a finding is severe enough to fail, or a release fails for a reason that no rule reports."""
    if fail_on is None:
        return False
    least = SEVERITIES.index(fail_on)
    is_severe = any(SEVERITIES.index(finding.severity) >= least for finding in findings)
    return is_severe or any(
        verdict.outcome == CheckVerdict.FAIL and not verdict.rules for verdict in releases
    )


def _is_open(unchecked: Iterable[Unchecked], releases: Iterable[ReleaseVerdict]) -> bool:
    """Whether a required rule could not look, or a release could not be judged."""
    outcomes = {verdict.outcome for verdict in releases}
    return CheckVerdict.COULD_NOT_LOOK in outcomes or any(rule.is_required for rule in unchecked)


def _one_each(findings: Sequence[Finding]) -> list[Finding]:
    """Drop duplicates: keep the more severe of two findings on one defect.

    Of two alike, the one for all engines.
    """
    worst: dict[str, int] = {}
    for finding in findings:
        worst[finding.rule.id] = max(worst.get(finding.rule.id, -1), _severity(finding))
    replaced = {
        general
        for finding in findings
        for general in finding.rule.reported_by
        if worst.get(general, len(SEVERITIES)) < _severity(finding)
    }
    return [
        finding
        for finding in findings
        if finding.rule.id not in replaced
        and not any(worst.get(general, -1) >= _severity(finding) for general in finding.rule.reported_by)
    ]


def _severity(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def release_verdicts(
    subject: Subject, rules: Collection[str], findings: Sequence[Finding]
) -> tuple[ReleaseVerdict, ...]:
    """A verdict for every requested release, by the facts of `rules` and by `findings`.

    None where no such rule was to run.
    """
    judged = {name for name, engine in ENGINES.items() if any(fact.rule in rules for fact in engine.facts)}
    requests = [request for request in subject.requests if request.engine in judged]
    unknown = tuple(
        _unjudged(
            request.engine,
            request.unknown,
            f"not a known release: the newest is {ENGINES[request.engine].releases[-1]}",
        )
        for request in requests
        if request.unknown
    )
    releases = tuple(
        dict.fromkeys((request.engine, release) for request in requests for release in request.releases)
    )
    return (*unknown, *_known_verdicts(releases, subject, rules, findings)) if releases else unknown


def _known_verdicts(
    releases: Sequence[tuple[str, str]], subject: Subject, rules: Collection[str], findings: Sequence[Finding]
) -> Iterator[ReleaseVerdict]:
    general = tuple(_general_errors(subject, findings))
    try:
        facts = subject.applied_facts
    except CannotLook as reason:
        for release in releases:
            yield _failed(*release, general) if general else _unjudged(*release, str(reason))
        return
    reporting = {finding.rule.id for finding in findings}
    for release in releases:
        chosen = [fact for fact in facts[release] if fact.fact.rule in rules]
        yield _verdict(release, chosen, general, reporting, subject)


def _verdict(
    release: tuple[str, str],
    facts: Sequence[AppliedFact],
    general: Sequence[Reason],
    reporting: Collection[str],
    subject: Subject,
) -> ReleaseVerdict:
    """The verdict on (engine, release), in which these facts hold.

    `reporting` are rules that have findings. One of passing names the runner that it holds for, where another
    one differs.
    """
    unknown = [fact.text for fact in facts if fact.fact.outcome == ServedAs.UNKNOWN]
    reasons = [
        (_reporting_rule(fact, reporting), fact.text)
        for fact in facts
        if fact.fact.outcome != ServedAs.UNKNOWN
    ]
    rules = {rule for rule, _ in reasons}
    reasons += [reason for reason in general if reason[0] not in rules]
    if reasons:
        return _failed(*release, reasons)
    name, number = release
    if open_questions := [*unknown, *(note.reason for note in subject.drafter.unsettled)]:
        published = ENGINES[name].verdict(subject.view(name), number)
        if published.outcome != ServedAs.AS_PUBLISHED:
            return _unjudged(*release, "; ".join(dict.fromkeys([*open_questions, *published.reasons])))
        texts = (f"{published.outcome}: {published.reasons[0]}", *published.reasons[1:])
        return ReleaseVerdict(name, number, CheckVerdict.PASS, reasons=texts)
    remarks = ENGINES[name].runner_remarks(subject.view(name), number)
    return ReleaseVerdict(name, number, CheckVerdict.PASS, reasons=remarks)


def _unjudged(engine: str, release: str, reason: str) -> ReleaseVerdict:
    return ReleaseVerdict(engine, release, CheckVerdict.COULD_NOT_LOOK, (), (reason,))


def _failed(engine: str, release: str, reasons: Sequence[Reason]) -> ReleaseVerdict:
    rules = tuple(dict.fromkeys(rule for rule, _ in reasons if rule))
    return ReleaseVerdict(
        engine, release, CheckVerdict.FAIL, rules, tuple(dict.fromkeys(text for _, text in reasons))
    )


def _reporting_rule(applied_fact: AppliedFact, reporting: Collection[str]) -> str:
    """The rule that reports a fact: its own, or another on the same defect."""
    own = applied_fact.fact.rule
    return next((rule for rule in (own, *applied_fact.fact.reported_by) if rule in reporting), own)


def _general_errors(subject: Subject, findings: Iterable[Finding]) -> Iterator[Reason]:
    """Errors that concern every release.

    Those of other rules, and problems in reading that no rule reports.
    """
    is_read = subject.read_error is None
    for finding in findings:
        is_error = finding.rule.severity == "error" and not finding.match.engines
        if is_error and changes_serving(finding.rule) and (is_read or finding.rule.family not in NOT_SERVED):
            yield finding.rule.id, finding.match.message
    for note in subject.drafter.notes if is_read else ():
        if note.level == "problem" and not note.topic:
            yield "", note.text


def changes_serving(rule: Rule) -> bool:
    """Whether what the rule reports changes how any engine serves the checkpoint."""
    is_of_one_engine = rule.family.startswith("serving")
    is_served = not is_of_one_engine and rule.name not in LEAKS
    return is_served and (rule.family not in NOT_SERVED or rule.name in WEIGHT_FILES)


def unopened_report(
    source: str, problem: str, fail_on: Severity | None = "error", policy: str = "built in"
) -> Report:
    """The report on a checkpoint that could not be opened: no rule ran, so it does not pass."""
    report = skipped_report(source, "", fail_on, policy)
    return replace(report, verdict=CheckVerdict.COULD_NOT_LOOK, problem=problem)


def skipped_report(source: str, why: str, fail_on: Severity | None, policy: str) -> Report:
    """The report on a folder that is no drafter's: no rule ran, and none needs to."""
    return Report(
        source=source,
        path=source,
        engines=(),
        verdict=CheckVerdict.SKIPPED,
        findings=(),
        unchecked=(),
        suppressed=(),
        unused=(),
        passed=(),
        policy=policy,
        seconds=0.0,
        fail_on=fail_on,
        skipped=why,
    )


def overall_verdict(reports: Iterable[Report]) -> CheckVerdict:
    """The worst verdict of several checkpoints; SKIPPED where all are, as then nothing was judged."""
    verdicts = {report.verdict for report in reports}
    for verdict in (CheckVerdict.FAIL, CheckVerdict.COULD_NOT_LOOK, CheckVerdict.PASS):
        if verdict in verdicts:
            return verdict
    return CheckVerdict.SKIPPED if verdicts else CheckVerdict.PASS
