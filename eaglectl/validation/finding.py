"""A finding: what a rule reports on a checkpoint, under a policy."""

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.formats.commands import Complete
from eaglectl.validation.rule import Match, Rule, Severity


class Finding(Struct, frozen=True):
    """A match with its rule, at the severity that the policy gives the rule."""

    rule: Rule
    severity: Severity
    match: Match

    @property
    def fix(self) -> str:
        """What to do about it: the match's own fix, else the rule's."""
        return self.match.fix or self.rule.fix

    def completed(self, complete: Complete) -> "Finding":
        """The finding with whole commands in its message and its fix."""
        match = replace(self.match, message=complete(self.match.message), fix=complete(self.fix))
        return replace(self, match=match)
