"""The JSON documents of `validate`: in a stable order, without times."""

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from eaglectl.judge.rule import Severity
from eaglectl.verdicts import CheckVerdict
from schemas.parts.document import INLINE, Document, Ended, Part, RuleId

Until = Annotated[datetime.date | None, Meta(extra_json_schema={"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"})]


class RuleNamePart(Part, frozen=True):
    """A rule."""

    id: RuleId = field(name="rule")
    name: str


class MatchPart(Part, frozen=True):
    """A place where a rule does not hold."""

    message: str
    where: str
    engines: tuple[str, ...]


class FindingPart(Part, frozen=True):
    """One thing that a rule found; where is config.json:KEY, tensor:NAME, a file, or empty for the whole"""

    rule: RuleNamePart = field(name=f"{INLINE}rule")
    severity: Severity
    match: MatchPart = field(name=f"{INLINE}match")
    fix: str
    url: str


class ReleasePart(Part, frozen=True):
    """The verdict for a release of an engine."""

    engine: str
    release: str
    outcome: Ended = field(name="verdict")
    rules: tuple[RuleId, ...]
    reasons: tuple[str, ...]
    unread: Annotated[str, Meta(description="What of the files was not read, where it passes")]


class UncheckedPart(Part, frozen=True):
    """A rule that could not look."""

    rule: RuleNamePart = field(name=INLINE)
    reason: str
    is_required: bool


class ReasonPart(Part, frozen=True):
    """Why findings may pass, and until when."""

    reason: str
    until: Until


class SuppressedPart(Part, frozen=True):
    """A finding that a suppression of the policy allows."""

    finding: FindingPart = field(name=f"{INLINE}finding")
    by: ReasonPart = field(name=f"{INLINE}by")


class SuppressionPart(Part, frozen=True):
    """A suppression of the policy."""

    rule: str
    where: str
    reason: str
    until: Until


class ReportPart(Part, frozen=True):
    """What the rules say of a checkpoint."""

    path: str = field(name="source")
    engines: tuple[str, ...]
    target: Annotated[str, Meta(description="The target and how it was found; empty where there was none")]
    target_digest: Annotated[str, Meta(description="SHA-256 of the target's config.json, or empty")]
    verdict: CheckVerdict
    problem: str
    skipped: Annotated[
        str, Meta(description="Why the folder is no drafter's, with --skip-others; else empty")
    ]
    policy: str
    fail_on: Severity | Literal["never"]
    off: Annotated[tuple[str, ...], Meta(description="the rules that the policy switches off")]
    lowered: Annotated[
        Mapping[str, Severity],
        Meta(description="the rules whose severity the policy lowers, with the new one"),
    ]
    findings: tuple[FindingPart, ...]
    releases: tuple[ReleasePart, ...]
    smallest_changes: tuple[str, ...] = field(name="ways_out")
    unchecked: tuple[UncheckedPart, ...] = field(name="could_not_look")
    suppressed: tuple[SuppressedPart, ...]
    unused: tuple[SuppressionPart, ...] = field(name="unused_suppressions")
    expired: tuple[SuppressionPart, ...] = field(name="expired_suppressions")
    passed: tuple[RuleId, ...]


class ValidateDocument(Document, frozen=True, tag="eaglectl/validate/1"):
    """What eaglectl validate --json prints: one checkpoint, or several under reports; with --json-version 2
    always so.
    """

    report: ReportPart = field(name=INLINE)


class ReportsDocument(Document, frozen=True, tag="eaglectl/validate/1"):
    """Several checkpoints."""

    verdict: CheckVerdict
    reports: tuple[ReportPart, ...]


class ReportsDocument2(ReportsDocument, frozen=True, tag="eaglectl/validate/2"):
    """One checkpoint or several."""
