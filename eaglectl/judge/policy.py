"""A team's policy: engines, severities, required rules, allow-lists and suppressions."""

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from eaglectl.judge.rule import SEVERITIES, Finding, Rule, Severity


class Suppression(Struct, frozen=True, forbid_unknown_fields=True):
    """Findings that may pass, each with the reason."""

    rule: Annotated[str, Meta(description="A rule's id or name.")]
    reason: Annotated[str, Meta(description="Why its findings may pass.", pattern=r"\S")]
    until: Annotated[datetime.date | None, Meta(description="The last day on which they may.")] = None
    where: Annotated[str, Meta(description="Only places that begin with this text.")] = ""

    def is_expired(self, today: datetime.date) -> bool:
        """Whether the last day has passed."""
        return self.until is not None and self.until < today

    def covers(self, finding: Finding) -> bool:
        """Whether it allows a finding."""
        is_of_rule = self.rule in (finding.rule.id, finding.rule.name)
        return is_of_rule and finding.match.where.startswith(self.where)


class VerifyPolicy(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What `verify` requires of a download."""

    require_record: Annotated[bool, Meta(description="Whether a download without eaglectl.json fails.")] = (
        False
    )


class Policy(Struct, frozen=True):
    """What a team requires of its checkpoints; the empty policy requires nothing. Rules are named by id.

    `origin` is the file that it was read from. A checkpoint does not pass where a `required` rule could not
    look. Findings of `forbidden` rules are errors. Rules in `off` do not run. `allowed` maps keys of
    [allow] to patterns as of file names.
    """

    origin: str = "built in"
    engines: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    severities: Mapping[str, Severity] = field(default_factory=dict)
    off: frozenset[str] = frozenset()
    allowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    suppressions: tuple[Suppression, ...] = ()
    fail_on: Severity | Literal["never"] | None = None
    verify: VerifyPolicy = VerifyPolicy()

    def severity(self, rule: Rule) -> Severity:
        """The severity of a rule's findings."""
        return "error" if rule.id in self.forbidden else self.severities.get(rule.id, rule.severity)

    def lowers(self, rule: Rule) -> bool:
        """Whether a rule's findings are less severe than without the policy."""
        return SEVERITIES.index(self.severity(rule)) < SEVERITIES.index(rule.severity)
