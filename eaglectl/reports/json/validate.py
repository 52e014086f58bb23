"""The JSON documents of `validate` and `validate --fix`: in a stable order, without times."""

from collections.abc import Sequence
from typing import Any

from eaglectl.reports.findings import rule_url
from eaglectl.reports.json.document import head
from eaglectl.results import FixResult
from eaglectl.validation.finding import Finding
from eaglectl.validation.judge import ReleaseVerdict, Report, Suppressed, Unchecked, overall_verdict
from eaglectl.validation.policy import Suppression


def validate_document(results: Sequence[Report | FixResult], *, version: int = 1) -> dict[str, Any]:
    """Return eaglectl/validate/1, in which one result stands without a list, or eaglectl/validate/2."""
    entries = [_fix(result) if isinstance(result, FixResult) else _report(result) for result in results]
    if version == 1 and len(entries) == 1:
        return {**head("validate"), **entries[0]}
    reports = [result.report if isinstance(result, FixResult) else result for result in results]
    return {**head("validate", version), "verdict": overall_verdict(reports), "reports": entries}


def _fix(result: FixResult) -> dict[str, Any]:
    """The report on the output, or on the source if none was written, with what was fixed."""
    return {
        **_report(result.report),
        "fixed": [_finding(finding) for finding in result.fixed],
        "left": [{**_finding(remaining.finding), "why": remaining.why} for remaining in result.left],
        "out": None if result.out is None else str(result.out),
        "stopped": result.stopped,
    }


def _report(report: Report) -> dict[str, Any]:
    unused = [suppression for suppression in report.unused if suppression not in report.expired]
    return {
        "source": report.path,
        "engines": list(report.engines),
        "target": report.target,
        "verdict": report.verdict,
        "problem": report.problem,
        "skipped": report.skipped,
        "policy": report.policy,
        "fail_on": report.fail_on or "never",
        "off": list(report.off),
        "lowered": dict(report.lowered),
        "findings": list(map(_finding, report.findings)),
        "releases": list(map(_release, report.releases)),
        "ways_out": list(report.smallest_changes),
        "could_not_look": list(map(_unchecked, report.unchecked)),
        "suppressed": list(map(_suppressed, report.suppressed)),
        "unused_suppressions": list(map(_suppression, unused)),
        "expired_suppressions": list(map(_suppression, report.expired)),
        "passed": [rule.id for rule in report.passed],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    rule, match = finding.rule, finding.match
    return {
        "rule": rule.id,
        "name": rule.name,
        "severity": finding.severity,
        "message": match.message,
        "where": match.where,
        "engines": list(match.engines),
        "fix": finding.fix,
        "url": rule_url(rule),
    }


def _release(verdict: ReleaseVerdict) -> dict[str, Any]:
    return {
        "engine": verdict.engine,
        "release": verdict.release,
        "verdict": verdict.outcome,
        "rules": list(verdict.rules),
        "reasons": list(verdict.reasons),
    }


def _unchecked(unchecked: Unchecked) -> dict[str, Any]:
    rule = unchecked.rule
    return {
        "rule": rule.id,
        "name": rule.name,
        "reason": unchecked.reason,
        "is_required": unchecked.is_required,
    }


def _suppressed(suppressed: Suppressed) -> dict[str, Any]:
    return {**_finding(suppressed.finding), **_reason(suppressed.by)}


def _suppression(suppression: Suppression) -> dict[str, str | None]:
    return {
        "rule": suppression.rule,
        "where": suppression.where,
        **_reason(suppression),
    }


def _reason(suppression: Suppression) -> dict[str, str | None]:
    until = suppression.until
    return {"reason": suppression.reason, "until": str(until) if until else None}
