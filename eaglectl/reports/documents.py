"""JSON documents of `validate`, `rules` and `explain`: versioned, in a stable order, without times."""

from collections.abc import Sequence
from typing import Any

import eaglectl
from eaglectl.reports.tallies import rule_url
from eaglectl.validation.judging import Report, merged
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
        "source": report.path, "engines": list(report.engines), "verdict": report.verdict, "problem": report.problem,
        "policy": report.policy, "fail_on": report.fail_on or "never",
        "findings": [_finding(one) for one in report.findings],
        "could_not_look": [{"rule": one.rule.id, "name": one.rule.name, "reason": one.reason, "is_required": one.is_required} for one in report.unlooked],
        "suppressed": [{**_finding(one.finding), "reason": one.by.reason, "until": str(one.by.until) if one.by.until else None} for one in report.suppressed],
        "unused_suppressions": [{"rule": one.rule, "where": one.where, "reason": one.reason, "until": str(one.until) if one.until else None} for one in report.unused],
        "passed": [one.id for one in report.passed],
    }  # fmt: skip


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "rule": one.rule.id, "name": one.rule.name, "severity": one.severity, "message": one.hit.message, "where": one.hit.where,
        "engines": list(one.hit.engines), "fix": one.fix, "url": rule_url(one.rule),
    }  # fmt: skip


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id, "name": rule.name, "severity": rule.severity, "family": rule.family,
        "engines": [rule.engines] if rule.engines else [], "doc": f"{rule.sentence}\n\n{rule.why}\n\nFix: {rule.fix}", "url": rule_url(rule),
    }  # fmt: skip
