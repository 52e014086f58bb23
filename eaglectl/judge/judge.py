"""The verdict on a drafter under a policy: its judgement, less what the policy allows."""

import datetime
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from eaglectl.base import Result
from eaglectl.engines.engine import Verdict
from eaglectl.formats.commands import completing
from eaglectl.judge.judgement import Judgement, Unchecked, judge_drafter
from eaglectl.judge.policy import Policy, Suppression
from eaglectl.judge.rule import CannotLook, Finding, Rule, Severity
from eaglectl.judge.subject import Subject
from eaglectl.verdicts import CheckVerdict, ServedAs


class Suppressed(Struct, frozen=True):
    """A finding that a suppression of the policy allows."""

    finding: Finding
    by: Suppression


class Report(Result, frozen=True):
    """The result of validating one checkpoint.

    `unused` are suppressions that no finding needed, `expired` those past their last day, which have no
    effect. `fail_on` is the lowest severity that fails, None for none. `problem` states why the checkpoint
    could not be read, where no rule reports it. `releases` has a verdict for each requested engine release,
    oldest first; `smallest_changes` are the changes with which all of them pass. `target` names the target
    and states how it was found, `target_digest` is the SHA-256 of its config.json. `is_of_copy`: the weights
    are pickles, and their values were read from a temporary copy. `skipped` states why a folder is no
    drafter's, where such are to be skipped: no rule ran. `doubts` are what is open of how the drafter was
    trained, `questions` those that somebody has to answer. `off` are the rules that the policy switches off,
    `lowered` those whose severity it lowers, with the new one.
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
    releases: tuple[Verdict, ...] = ()
    smallest_changes: tuple[str, ...] = ()
    expired: tuple[Suppression, ...] = ()
    target: str = ""
    target_digest: str = ""
    is_of_copy: bool = False
    skipped: str = ""
    doubts: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    lowered: Mapping[str, Severity] = field(default_factory=dict)
    default_engines: tuple[tuple[str, str], ...] = ()

    def __fspath__(self) -> str:
        return self.path


def judge(
    subject: Subject, rules: Sequence[Rule], policy: Policy, fail_on: Severity | None, path: str
) -> Report:
    """Run `rules` over `subject`; a finding of severity `fail_on` or above fails it, with None nothing does.

    Findings are ordered by severity, the highest first, then by rule. `path` is how commands name the
    checkpoint.
    """
    start = time.perf_counter()
    judgement = judge_drafter(subject, rules, policy)
    complete = completing(path, subject.target.text, subject.answers)
    reported, changes = _repairs(judgement, path)
    findings = [finding.completed(complete) for finding in reported]
    valid, expired = _valid_suppressions(policy)
    kept, suppressed = _suppress(findings, valid)
    kept.sort(key=lambda finding: -finding.level)
    is_unread = subject.read_error is not None and not any(finding.severity == "error" for finding in kept)
    return Report(
        source=subject.source.label,
        path=path,
        engines=tuple(dict.fromkeys(label for request in subject.requests for label in request.labels)),
        verdict=_verdict(judgement, kept, fail_on, is_unread=is_unread),
        findings=tuple(kept),
        unchecked=tuple(replace(entry, reason=complete(entry.reason)) for entry in judgement.unchecked),
        suppressed=tuple(suppressed),
        unused=_unused(valid, suppressed, judgement),
        passed=judgement.passed,
        policy=policy.origin,
        seconds=time.perf_counter() - start,
        fail_on=fail_on,
        problem=complete(str(subject.read_error)) if is_unread else "",
        expired=expired,
        releases=tuple(verdict.completed(complete) for verdict in judgement.releases),
        target=subject.target.words,
        target_digest=subject.target.digest,
        smallest_changes=tuple(map(complete, changes)),
        doubts=judgement.doubts,
        questions=tuple(note.text for note in subject.questions),
        off=tuple(sorted(policy.off)),
        lowered={rule.id: policy.severity(rule) for rule in judgement.rules if policy.lowers(rule)},
        default_engines=tuple(
            (label, request.why) for request in subject.requests if request.why for label in request.labels
        ),
    )


def _valid_suppressions(policy: Policy) -> tuple[list[Suppression], tuple[Suppression, ...]]:
    """The suppressions that are valid today, and those that have expired."""
    today = datetime.datetime.now(datetime.UTC).date()
    expired = tuple(suppression for suppression in policy.suppressions if suppression.is_expired(today))
    return [suppression for suppression in policy.suppressions if suppression not in expired], expired


def _suppress(
    findings: Iterable[Finding], suppressions: Sequence[Suppression]
) -> tuple[list[Finding], list[Suppressed]]:
    """The findings that stay, and those that the first fitting suppression allows."""
    kept, suppressed = [], []
    for finding in findings:
        by = next((suppression for suppression in suppressions if suppression.covers(finding)), None)
        if by is None:
            kept.append(finding)
        else:
            suppressed.append(Suppressed(finding, by))
    return kept, suppressed


def _unused(
    valid: Iterable[Suppression], suppressed: Iterable[Suppressed], judgement: Judgement
) -> tuple[Suppression, ...]:
    """Suppressions that no finding needed, though their rule could look."""
    used = {entry.by for entry in suppressed}
    looked = set(judgement.rule_ids) - {entry.rule.id for entry in judgement.unchecked}
    return tuple(entry for entry in valid if entry not in used and entry.rule in looked)


def _repairs(judgement: Judgement, path: str) -> tuple[Sequence[Finding], tuple[str, ...]]:
    """The findings, without conversions that are refused in their fixes, and the smallest changes."""
    subject, reported = judgement.subject, judgement.findings
    is_broken = any(finding.severity == "error" for finding in reported)
    sought = "eaglectl convert" if is_broken else "--for"
    try:
        has_defects = any(subject.applied_facts.values())
    except CannotLook:
        has_defects = False
    if not has_defects and not any(sought in finding.fix for finding in reported):
        return reported, ()
    # late: most checkpoints need no repair
    from eaglectl.judge.fixes import Advice, smallest_changes

    advice = Advice(path, subject)
    findings = [
        replace(finding, match=replace(finding.match, fix=advice.possible(finding.fix)))
        for finding in reported
    ]
    return findings, smallest_changes(advice, judgement.rule_ids)


def _verdict(
    judgement: Judgement, findings: Iterable[Finding], fail_on: Severity | None, *, is_unread: bool
) -> CheckVerdict:
    """FAIL for a finding that is severe enough, or a release that fails for a reason that no rule reports.

    COULD_NOT_LOOK where something is open: files, how the drafter was trained, a required rule, a release.
    """
    releases = judgement.releases
    unreported = any(verdict.outcome.is_known_wrong and not verdict.rules for verdict in releases)
    if (unreported and fail_on) or any(finding.fails(fail_on) for finding in findings):
        return CheckVerdict.FAIL
    is_unknown = any(verdict.outcome == ServedAs.UNKNOWN for verdict in releases)
    is_missing = any(entry.is_required for entry in judgement.unchecked)
    is_open = is_unread or is_unknown or is_missing or judgement.doubts
    return CheckVerdict.COULD_NOT_LOOK if is_open else CheckVerdict.PASS


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
    order = (CheckVerdict.FAIL, CheckVerdict.COULD_NOT_LOOK, CheckVerdict.PASS, CheckVerdict.SKIPPED)
    return next((verdict for verdict in order if verdict in verdicts), CheckVerdict.PASS)
