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
class Conversion:
    """What `convert` did, or with `dry_run` would do; `out` is None when nothing was written.

    `gate` is what the gate of an upgrade measured; without `out`, it was missed.
    """

    plan: Plan
    out: Path | None
    pickles: tuple[str, ...]
    seconds: float
    gate: "Gate | None" = None
