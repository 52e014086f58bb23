"""The JSON document of `rules`."""

from collections.abc import Mapping
from typing import Any

from msgspec import field

from eaglectl.base import RuleId
from eaglectl.judge.rule import Severity
from eaglectl.report.documents.document import Document, Part
from eaglectl.report.findings import rule_url


class RulePart(Part, frozen=True):
    """A rule."""

    id: RuleId
    name: str
    severity: Severity
    family: str
    engines: tuple[str, ...]
    summary: str = field(name="sentence")
    why: str
    fix: str
    evidence: str
    doc: str
    url: str

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        return {
            "engines": [record.engines] if record.engines else [],
            "doc": f"{record.summary}\n\n{record.why}\n\nFix: {record.fix}",
            "url": rule_url(record),
        }


class RulesDocument(Document, frozen=True, tag="eaglectl/rules/1"):
    """What eaglectl rules --json prints: every rule, or the one that was named."""

    rules: tuple[RulePart, ...]

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        return {"rules": [RulePart.of(rule) for rule in record]}
