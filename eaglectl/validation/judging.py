"""Running the rules over a checkpoint, and what comes of it under a policy."""

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass

from eaglectl.errors import Unreadable
from eaglectl.validation.policy import Policy, Suppression
from eaglectl.validation.releases import Outcome as Outcome
from eaglectl.validation.releases import ReleaseVerdict as ReleaseVerdict
from eaglectl.validation.releases import is_asked, one_each, release_verdicts
from eaglectl.validation.remedy import ways_out
from eaglectl.validation.rule import SEVERITIES, CannotLook, Finding, Rule, Severity
from eaglectl.validation.subject import Subject


@dataclass(frozen=True, slots=True)
class Unlooked:
    """A rule that could not look, and why; `is_required`: the policy asks for it, so nothing passes without it."""

    rule: Rule
    reason: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that a suppression of the policy lets pass."""

    finding: Finding
    by: Suppression


@dataclass(frozen=True, slots=True)
class Report:
    """What validation found in one checkpoint. `unused` are suppressions of the policy that met nothing here.

    `expired` are suppressions that have run out and count for nothing. `fail_on` is the least severity that failed it, None for none; `problem` why it could not be read, where no rule says so.
    `releases` has every engine release asked for, oldest first; `ways_out` the smallest changes that make all of them pass.
    """

    source: str
    path: str
    engines: tuple[str, ...]
    verdict: Outcome
    findings: tuple[Finding, ...]
    unlooked: tuple[Unlooked, ...]
    suppressed: tuple[Suppressed, ...]
    unused: tuple[Suppression, ...]
    passed: tuple[Rule, ...]
    policy: str
    seconds: float
    fail_on: Severity | None = "error"
    problem: str = ""
    releases: tuple[ReleaseVerdict, ...] = ()
    ways_out: tuple[str, ...] = ()
    expired: tuple[Suppression, ...] = ()


def judge(subject: Subject, rules: Sequence[Rule], policy: Policy, fail_on: Severity | None, path: str) -> Report:
    """Run `rules` over `subject`. `fail_on`: the least severity that fails; None: nothing does.

    Findings come in order of severity, then of rule. A suppression that has run out is as good as none.
    """
    start = time.perf_counter()
    findings: list[Finding] = []
    unlooked: list[Unlooked] = []
    passed: list[Rule] = []
    rules = [one for one in rules if one.id in policy.required or is_asked(one, subject)] or rules
    for one in rules:
        severity = "error" if one.id in policy.forbidden else policy.severities.get(one.id, one.severity)
        try:
            hits = list(one.check(subject))
        except (CannotLook, Unreadable) as reason:
            is_serving = one.family.startswith("serving")  # it only runs where it was asked for
            unlooked.append(Unlooked(one, str(reason), is_serving or one.id in policy.required))
            continue
        findings += [Finding(one, severity, hit) for hit in hits]
        if not hits:
            passed.append(one)
    findings = one_each(findings)
    ids = [one.id for one in rules]
    releases = release_verdicts(subject, ids, findings)
    today = datetime.datetime.now(datetime.UTC).date()
    valid = [one for one in policy.suppressions if one.until is None or one.until >= today]
    suppressed = [Suppressed(finding, by) for finding in findings if (by := _suppressor(finding, valid))]
    hidden = {id(one.finding) for one in suppressed}
    kept = [finding for finding in findings if id(finding) not in hidden]
    kept.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    used = {one.by for one in suppressed}
    looked = {one.id for one in rules} - {one.rule.id for one in unlooked}
    engines = tuple(f"{wanted.engine}=={release}" for wanted in subject.wanted for release in wanted.releases)
    return Report(
        subject.label, path, engines, _outcome(kept, unlooked, fail_on, subject, releases), tuple(kept), tuple(unlooked), tuple(suppressed),
        tuple(one for one in valid if one not in used and one.rule in looked), tuple(passed), policy.origin, time.perf_counter() - start,
        fail_on=fail_on, problem=str(subject.stop or "") if _is_blind(subject, kept) else "",
        expired=tuple(one for one in policy.suppressions if one not in valid), releases=releases, ways_out=ways_out(subject, ids, path),
    )  # fmt: skip


def _suppressor(finding: Finding, suppressions: Sequence[Suppression]) -> Suppression | None:
    fitting = (one for one in suppressions if one.rule in (finding.rule.id, finding.rule.name))
    return next((one for one in fitting if finding.hit.where.startswith(one.where)), None)


def _outcome(
    findings: Sequence[Finding],
    unlooked: Sequence[Unlooked],
    fail_on: Severity | None,
    subject: Subject,
    releases: Sequence[ReleaseVerdict],
) -> Outcome:
    is_failed = any(one.outcome == "fail" and not one.rules for one in releases)  # for what no rule reports
    if fail_on and (is_failed or any(SEVERITIES.index(one.severity) >= SEVERITIES.index(fail_on) for one in findings)):
        return "fail"
    is_blind = _is_blind(subject, findings) or any(one.is_required for one in unlooked)
    is_open = any(one.outcome == "could-not-look" for one in releases)
    return "could-not-look" if is_blind or is_open else "pass"


def _is_blind(subject: Subject, findings: Sequence[Finding]) -> bool:
    return subject.stop is not None and not any(one.severity == "error" for one in findings)


def unopened(source: str, problem: str, fail_on: Severity | None = "error", policy: str = "built in") -> Report:
    """The report of a checkpoint that could not be opened at all: nothing was looked at, nothing passes."""
    return Report(source, source, (), "could-not-look", (), (), (), (), (), policy, 0.0, fail_on, problem)


def merged(reports: Sequence[Report]) -> Outcome:
    """The verdict over several checkpoints: a failure before blindness before a pass."""
    verdicts = {report.verdict for report in reports}
    return "fail" if "fail" in verdicts else "could-not-look" if "could-not-look" in verdicts else "pass"
