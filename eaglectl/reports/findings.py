"""What the verbs return and reports show."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.plan import Plan
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.engine import Reading, Verdict

if TYPE_CHECKING:
    from eaglectl.acceptance.gate import Gate
    from eaglectl.validation.judging import Report
    from eaglectl.validation.rule import Finding


@dataclass(frozen=True, slots=True)
class Inspection:
    """What `inspect` found."""

    source: str
    drafter: Drafter
    checkpoint: Checkpoint
    readings: tuple[Reading, ...]
    verdicts: tuple[Verdict, ...]
    asked: tuple[Verdict, ...]
    commands: dict[str, str]


@dataclass(frozen=True, slots=True)
class Failure:
    """A source, as it was given, that could not be inspected among several; `kind` and `exit_code` are what it alone would have ended with."""

    source: str
    kind: str
    exit_code: int
    message: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """What `convert` did, or with `dry_run` would do; `out` is None when nothing was written.

    `gate` is what the gate of an upgrade measured; without `out`, it was missed.
    """

    plan: Plan
    out: Path | None
    pickles: tuple[str, ...]
    seconds: float
    gate: "Gate | None" = None


@dataclass(frozen=True, slots=True)
class Remaining:
    """A finding that `validate --fix` leaves, and why."""

    finding: "Finding"
    why: str


@dataclass(frozen=True, slots=True)
class Fixing:
    """What `validate --fix` did: the verdict before and, where something was written (`out`), after.

    `stopped` says why nothing was written. `conversion` is None where no plan could be made.
    """

    before: "Report"
    after: "Report | None"
    conversion: Conversion | None
    fixed: "tuple[Finding, ...]"
    left: tuple[Remaining, ...]
    stopped: str = ""

    @property
    def out(self) -> Path | None:
        """The folder that was written."""
        return self.conversion.out if self.conversion and self.after else None

    @property
    def report(self) -> "Report":
        """The report of what now is the best there is: the output, or the checkpoint as it was."""
        return self.after or self.before
