"""The JSON document of `rules`."""

from collections.abc import Iterable
from typing import Any

from eaglectl.judge.rule import Rule
from eaglectl.report.documents.document import document
from eaglectl.report.findings import rule_url


def rules_document(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return what `rules --json` prints: every rule, or the one that was named."""
    return document("eaglectl/rules/1", {"rules": list(map(_rule, rules))})


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "severity": rule.severity,
        "family": rule.family,
        "engines": [rule.engines] if rule.engines else [],
        "sentence": rule.summary,
        "why": rule.why,
        "fix": rule.fix,
        "evidence": rule.evidence,
        "doc": f"{rule.summary}\n\n{rule.why}\n\nFix: {rule.fix}",
        "url": rule_url(rule),
    }
