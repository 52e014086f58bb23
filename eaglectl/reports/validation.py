"""What `validate` found: the screen and the JSON document."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

import eaglectl
from eaglectl.validation.judging import Report, merged
from eaglectl.validation.rule import Finding

STYLES = {
    "error": "red",
    "warning": "yellow",
    "note": "dim",
    "pass": "green",
    "fail": "red",
    "could-not-look": "yellow",
}


def print_reports(console: Console, reports: Sequence[Report]) -> None:
    """One block for each checkpoint, the worst findings first."""
    for report in reports:
        console.print(Text.assemble((report.source, "bold"), "  ", (report.verdict, STYLES[report.verdict])))
        for one in report.findings:
            console.print(Text.assemble("  ", (one.severity, STYLES[one.severity]), f"  {one.rule.id} {one.rule.name}"))
            console.print(Text(f"    {one.hit.message}"))
            console.print(Text(f"    fix: {one.fix}", style="dim"))


def document(reports: Sequence[Report]) -> dict[str, Any]:
    """eaglectl/validate/1, for one checkpoint or several."""
    head = {"schema": "eaglectl/validate/1", "version": eaglectl.__version__}
    if len(reports) == 1:
        return {**head, **_report(reports[0])}
    return {**head, "verdict": merged(reports), "reports": [_report(report) for report in reports]}


def _report(report: Report) -> dict[str, Any]:
    return {
        "source": report.path, "engines": list(report.engines), "verdict": report.verdict, "policy": report.policy,
        "findings": [_finding(one) for one in report.findings],
        "could_not_look": [{"rule": one.rule.id, "name": one.rule.name, "reason": one.reason, "is_required": one.is_required} for one in report.unlooked],
        "suppressed": [{**_finding(one.finding), "reason": one.by.reason} for one in report.suppressed],
        "unused_suppressions": [{"rule": one.rule, "reason": one.reason} for one in report.unused],
        "passed": [one.id for one in report.passed],
    }  # fmt: skip


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "rule": one.rule.id, "name": one.rule.name, "severity": one.severity, "message": one.hit.message, "where": one.hit.where,
        "engines": list(one.hit.engines), "fix": one.fix, "url": "",
    }  # fmt: skip
