"""The JSON document of `rules`."""

from msgspec import field

from eaglectl.judge.rule import Severity
from schemas.parts.document import Document, Part, RuleId


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


class RulesDocument(Document, frozen=True, tag="eaglectl/rules/1"):
    """What eaglectl rules --json prints: every rule, or the one that was named."""

    rules: tuple[RulePart, ...]
