"""A rule: its id, name, severity and documentation, the engine releases it concerns, and its check.

Also what a rule finds, and what a team's policy makes of it.
"""

import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from eaglectl.errors import UnreadableError
from eaglectl.formats.commands import Complete

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
# by the hundreds of a rule's id
FAMILIES = {
    0: "files",
    1: "config",
    2: "weights",
    3: "draft vocabulary",
    4: "aux layers",
    5: "norms",
    6: "rope",
    7: "target",
    8: "quantisation",
    9: "release",
    10: "serving: vLLM",
    11: "serving: SGLang",
    12: "serving: llama.cpp",
}


class CannotLook(UnreadableError):
    """A rule has nothing to check: no target was given, the weights may not be read, the checkpoint is
    unreadable.
    """


class Match(Struct, frozen=True):
    """One place where a rule does not hold: "config.json:KEY", "tensor:NAME", a file name, or "" for the
    checkpoint.

    `fix` replaces the rule's own; `engines` are the releases that it concerns, as "vllm==0.32.0".
    """

    message: str
    where: str = ""
    fix: str = ""
    engines: tuple[str, ...] = ()


# takes the Subject; its module imports this one
Check = Callable[[Any], Iterator[Match]]


class Rule(Struct, frozen=True):
    """One rule; `summary`, `why` and `fix` document it. `engines` is PEP 508 text, empty for all engines.

    `reported_by` are ids of rules that report the same defect for every engine: one of two such findings is
    kept. `evidence` is how the fact of an engine behind it is known: where it was run, or that it was read.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    check: Check
    engines: str = ""
    reported_by: tuple[str, ...] = ()
    evidence: str = ""

    @property
    def number(self) -> int:
        """The number of the id, which orders rules."""
        return int(self.id.removeprefix("EGL"))

    @property
    def family(self) -> str:
        """The family that the hundreds of the id name."""
        return FAMILIES[self.number // 100]


def rule(id: str, name: str, severity: Severity) -> Callable[[Check], Rule]:
    """Make a rule of a function that yields matches; its docstring is the rule's documentation."""
    return lambda check: make_rule(id, name, severity, check, check.__doc__ or "")


def note_rule(id: str, name: str, severity: Severity, documentation: str, *, is_fault: bool = False) -> Rule:
    """Make a rule of what reading a checkpoint reports on the topic of the rule's name.

    With `is_fault` a question is a finding.
    """

    return make_rule(
        id, name, severity, lambda subject: subject.reported(name, is_fault=is_fault), documentation
    )


def make_rule(id: str, name: str, severity: Severity, check: Check, documentation: str) -> Rule:
    """Make a rule with its documentation.

    That is one sentence that states what must hold, a paragraph on why, and a last paragraph that begins with
    `Fix:`. Raises TypeError where one of the three is missing.
    """
    parts = [" ".join(part.split()) for part in documentation.split("\n\n")]
    if len(parts) < 3 or not parts[-1].startswith("Fix: "):
        raise TypeError(
            f"{id}: the docstring needs a sentence, a paragraph on why, and one that begins with Fix:"
        )
    return Rule(id, name, severity, parts[0], " ".join(parts[1:-1]), parts[-1].removeprefix("Fix: "), check)


class Finding(Struct, frozen=True):
    """A match with its rule, at the severity that the policy gives the rule."""

    rule: Rule
    severity: Severity
    match: Match

    @property
    def level(self) -> int:
        """The severity as a number, the highest for errors."""
        return SEVERITIES.index(self.severity)

    def fails(self, fail_on: Severity | None) -> bool:
        """Whether it fails a checkpoint where findings of `fail_on` and above do; None: nothing does."""
        return fail_on is not None and self.level >= SEVERITIES.index(fail_on)

    @property
    def fix(self) -> str:
        """What to do about it: the match's own fix, else the rule's."""
        return self.match.fix or self.rule.fix

    def completed(self, complete: Complete) -> "Finding":
        """The finding with whole commands in its message and its fix."""
        match = replace(self.match, message=complete(self.match.message), fix=complete(self.fix))
        return replace(self, match=match)


class Suppression(Struct, frozen=True, forbid_unknown_fields=True):
    """Findings that may pass, each with the reason."""

    rule: Annotated[str, Meta(description="A rule's id or name.")]
    reason: Annotated[str, Meta(description="Why its findings may pass.", pattern=r"\S")]
    until: Annotated[datetime.date | None, Meta(description="The last day on which they may.")] = None
    where: Annotated[str, Meta(description="Only places that begin with this text.")] = ""

    def covers(self, finding: Finding) -> bool:
        """Whether it allows a finding."""
        return self.rule in (finding.rule.id, finding.rule.name) and finding.match.where.startswith(
            self.where
        )


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
