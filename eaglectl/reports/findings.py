"""What the verbs return and reports show."""

from dataclasses import dataclass
from pathlib import Path

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.plan import Plan
from eaglectl.drafter.drafter import Drafter
from eaglectl.engines.engine import Reading, Verdict


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
    """What `convert` did, or with `dry_run` would do; `out` is None when nothing was written."""

    plan: Plan
    out: Path | None
    pickles: tuple[str, ...]
    seconds: float
