"""The JSON documents of `validate`: in a stable order, without times."""

from collections.abc import Sequence
from typing import Any

from eaglectl.engines.engine import Verdict
from eaglectl.judge.judgement import Report, Suppressed, Unchecked, overall_verdict
from eaglectl.judge.rule import Finding, Match, Rule, Suppression
from eaglectl.report.documents.document import Parts, document, part
from eaglectl.report.findings import rule_url

PARTS: Parts = {
    Rule: ("rule=id", "name"),
    Match: ("message", "where", "engines"),
    Finding: ("*rule", "severity", "*match", "fix", ("url", lambda finding: rule_url(finding.rule))),
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
        ("fail_on", lambda report: report.fail_on or "never"),
        "off",
        "lowered",
        "findings",
        "releases",
        "ways_out=smallest_changes",
        "could_not_look=unchecked",
        "suppressed",
        "unused_suppressions=unused",
        "expired_suppressions=expired",
        ("passed", lambda report: [rule.id for rule in report.passed]),
    ),
}


def validate_document(reports: Sequence[Report], *, version: int = 1) -> dict[str, Any]:
    """Return eaglectl/validate/1, in which one report stands without a list, or eaglectl/validate/2."""
    entries = [part(report, PARTS) for report in reports]
    if version == 1 and len(entries) == 1:
        return document("eaglectl/validate/1", entries[0])
    tag = "eaglectl/validate/1" if version == 1 else "eaglectl/validate/2"
    return document(tag, {"verdict": str(overall_verdict(reports)), "reports": entries})
