"""The JSON documents of `validate`: in a stable order, without times."""

from collections.abc import Sequence
from typing import Any

from eaglectl.engines.engine import Verdict
from eaglectl.judge.judge import Report, Suppressed, overall_verdict
from eaglectl.judge.judgement import Unchecked
from eaglectl.judge.policy import Suppression
from eaglectl.judge.rule import Finding, Match, Rule
from eaglectl.report.documents.document import Parts, document, part
from eaglectl.report.findings import rule_url


def _url(finding: Finding) -> str:
    return rule_url(finding.rule)


def _fail_on(report: Report) -> str:
    return report.fail_on or "never"


def _unused(report: Report) -> list[Suppression]:
    return [suppression for suppression in report.unused if suppression not in report.expired]


def _passed(report: Report) -> list[str]:
    return [rule.id for rule in report.passed]


PARTS: Parts = {
    Rule: ("rule=id", "name"),
    Match: ("message", "where", "engines"),
    Finding: ("*rule", "severity", "*match", "fix", ("url", _url)),
    Verdict: ("engine", "release", "verdict=outcome.check", "rules", "reasons", "unread"),
    Unchecked: ("*rule", "reason", "is_required"),
    Suppressed: ("*finding", "reason=by.reason", "until=by.until"),
    Suppression: ("rule", "where", "reason", "until"),
    Report: (
        "source=path",
        "engines",
        "target",
        "target_digest",
        "verdict",
        "problem",
        "skipped",
        "policy",
        ("fail_on", _fail_on),
        "off",
        "lowered",
        "findings",
        "releases",
        "ways_out=smallest_changes",
        "could_not_look=unchecked",
        "suppressed",
        ("unused_suppressions", _unused),
        "expired_suppressions=expired",
        ("passed", _passed),
    ),
}


def validate_document(reports: Sequence[Report], *, version: int = 1) -> dict[str, Any]:
    """Return eaglectl/validate/1, in which one report stands without a list, or eaglectl/validate/2."""
    entries = [part(report, PARTS) for report in reports]
    if version == 1 and len(entries) == 1:
        return document("eaglectl/validate/1", entries[0])
    tag = "eaglectl/validate/1" if version == 1 else "eaglectl/validate/2"
    return document(tag, {"verdict": str(overall_verdict(reports)), "reports": entries})
