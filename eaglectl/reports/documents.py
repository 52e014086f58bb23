"""JSON documents of `validate`, `rules` and `explain`: versioned, in a stable order, without times."""

from collections.abc import Sequence
from typing import Any

import eaglectl
from eaglectl.errors import printable
from eaglectl.reports.tallies import rule_url
from eaglectl.validation.judging import ReleaseVerdict, Report, Unlooked, merged
from eaglectl.validation.policy import Suppression
from eaglectl.validation.rule import Finding, Rule


def validation(reports: Sequence[Report]) -> dict[str, Any]:
    """eaglectl/validate/1, for one checkpoint or several."""
    head = {"schema": "eaglectl/validate/1", "version": eaglectl.__version__}
    if len(reports) == 1:
        return {**head, **_report(reports[0])}
    return {**head, "verdict": merged(reports), "reports": [_report(report) for report in reports]}


def catalogue(rules: Sequence[Rule]) -> dict[str, Any]:
    """eaglectl/rules/1."""
    return {"schema": "eaglectl/rules/1", "version": eaglectl.__version__, "rules": [_rule(one) for one in rules]}


def explanation(rule: Rule) -> dict[str, Any]:
    """eaglectl/explain/1: one rule, in its parts."""
    parts = {"sentence": rule.sentence, "why": rule.why, "fix": rule.fix}
    return {"schema": "eaglectl/explain/1", "version": eaglectl.__version__, **_rule(rule), **parts}


def _report(report: Report) -> dict[str, Any]:
    return {
        "source": printable(report.path), "engines": list(report.engines), "verdict": report.verdict, "problem": printable(report.problem),
        "policy": printable(report.policy), "fail_on": report.fail_on or "never",
        "findings": [finding(one) for one in report.findings],
        "releases": [_release(one) for one in report.releases], "ways_out": [printable(way) for way in report.ways_out],
        "could_not_look": [_unlooked(one) for one in report.unlooked],
        "suppressed": [{**finding(one.finding), **_reason(one.by)} for one in report.suppressed],
        "unused_suppressions": [_suppression(one) for one in report.unused if one not in report.expired],
        "expired_suppressions": [_suppression(one) for one in report.expired],
        "passed": [one.id for one in report.passed],
    }  # fmt: skip


def finding(one: Finding) -> dict[str, Any]:
    """One finding of eaglectl/validate/1."""
    return {
        "rule": one.rule.id, "name": one.rule.name, "severity": one.severity, "message": printable(one.hit.message), "where": printable(one.hit.where),
        "engines": list(one.hit.engines), "fix": printable(one.fix), "url": rule_url(one.rule),
    }  # fmt: skip


def _release(one: ReleaseVerdict) -> dict[str, Any]:
    reasons = [printable(reason) for reason in one.reasons]
    return {"engine": one.engine, "release": one.release, "verdict": one.outcome, "rules": list(one.rules), "reasons": reasons}  # fmt: skip


def _unlooked(one: Unlooked) -> dict[str, Any]:
    reason = printable(one.reason)
    return {"rule": one.rule.id, "name": one.rule.name, "reason": reason, "is_required": one.is_required}


def _reason(by: Suppression) -> dict[str, str | None]:
    return {"reason": printable(by.reason), "until": str(by.until) if by.until else None}


def _suppression(one: Suppression) -> dict[str, str | None]:
    return {"rule": printable(one.rule), "where": printable(one.where), **_reason(one)}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id, "name": rule.name, "severity": rule.severity, "family": rule.family,
        "engines": [rule.engines] if rule.engines else [], "doc": f"{rule.sentence}\n\n{rule.why}\n\nFix: {rule.fix}", "url": rule_url(rule),
    }  # fmt: skip
