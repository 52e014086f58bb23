"""The JSON documents of `rules` and `explain`."""

from collections.abc import Iterable
from typing import Any

from eaglectl.reports.findings import rule_url
from eaglectl.reports.json.document import head
from eaglectl.validation.rule import Rule


def rules_document(rules: Iterable[Rule]) -> dict[str, Any]:
    """Return eaglectl/rules/1."""
    return {**head("rules"), "rules": [_rule(rule) for rule in rules]}


def explain_document(rule: Rule) -> dict[str, Any]:
    """Return eaglectl/explain/1: one rule, with its docstring in parts."""
    return {
        **head("explain"),
        **_rule(rule),
        "sentence": rule.summary,
        "why": rule.why,
        "fix": rule.fix,
        "evidence": rule.evidence,
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "severity": rule.severity,
        "family": rule.family,
        "engines": [rule.engines] if rule.engines else [],
        "doc": f"{rule.summary}\n\n{rule.why}\n\nFix: {rule.fix}",
        "url": rule_url(rule),
    }
