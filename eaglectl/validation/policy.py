"""What a team asks of its checkpoints beyond the rules: engines, severities, required rules, allow-lists, suppressions."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from eaglectl.validation.rule import Severity

# what a policy can list as allowed
ALLOW_LISTS = ("architectures", "dtypes", "licences", "files", "quantisation", "base-models")


@dataclass(frozen=True, slots=True)
class Suppression:
    """One rule that is let pass, with the reason; `until` is the last day, `where` narrows it to places that begin so."""

    rule: str
    reason: str
    until: datetime.date | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy; `origin` is the file it was read from, as reports name it. The empty one asks for nothing.

    Rules are named by id. `required`: nothing passes where one of them could not look. `forbidden`: what they find is an
    error. `off`: they do not run. `allowed` maps names of ALLOW_LISTS to what may be there, as patterns of file names.
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
