"""Values that the public API returns and reports show."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.verdicts import ServedAs

if TYPE_CHECKING:
    from eaglectl.acceptance.answering import MeasuredAnswer
    from eaglectl.acceptance.gate import Gate
    from eaglectl.checkpoint.checkpoint import Checkpoint
    from eaglectl.conversion.plan import ConversionPlan
    from eaglectl.drafter.drafter import Drafter
    from eaglectl.engines.engine import Verdict
    from eaglectl.engines.layers import CapturedLayers
    from eaglectl.validation.finding import Finding
    from eaglectl.validation.judge import Report


class Inspection(Struct, frozen=True):
    """What `inspect` returns.

    `verdicts` covers every known release, `requested` those of the `engines` argument; `commands` holds the
    command that launches each engine, `convert` the one that converts the source. `unchecked` are files of
    a Hub repository of which bytes were read that no digest covers, as headers are parts of their files.
    """

    source: str
    drafter: "Drafter"
    checkpoint: "Checkpoint"
    captured_layers: "tuple[CapturedLayers, ...]"
    verdicts: "tuple[Verdict, ...]"
    requested: "tuple[Verdict, ...]"
    commands: Mapping[str, str]
    convert: str
    unchecked: tuple[str, ...] = ()


class FailedSource(Struct, frozen=True):
    """One of several sources that could not be inspected, with the error it would have ended with alone."""

    source: str
    kind: str
    exit_code: int
    message: str


class Start(Struct, frozen=True):
    """What `init` returns: the file that was written, the questions that no answer settles yet, in words.

    `measured`: what was measured of those that were open.
    """

    path: Path
    questions: tuple[str, ...]
    measured: tuple[str, ...] = ()


class OutputServing(Struct, frozen=True):
    """What an engine does with an output: `verdict` is of the release asked for, or of the newest.

    `serving` are the releases that run it as trained, in words, and `command` is the one that serves it.
    """

    verdict: "Verdict"
    serving: str
    command: str

    @property
    def is_served(self) -> bool:
        """Whether the release runs the output as trained."""
        return self.verdict.outcome == ServedAs.AS_TRAINED


class Conversion(Struct, frozen=True):
    """What `convert` and `upgrade` return; `out` is None if nothing was written.

    `gate` is the acceptance that the gate of an upgrade measured; if it was missed, nothing was written.
    `serving` states for each engine whether it runs the output as trained; `gguf` is the GGUF file that was
    written beside `out`, `measured` what the files left open and a measurement answered.
    """

    plan: "ConversionPlan"
    out: Path | None
    pickles: tuple[str, ...]
    seconds: float
    gate: "Gate | None" = None
    serving: tuple[OutputServing, ...] = ()
    gguf: Path | None = None
    measured: "tuple[MeasuredAnswer, ...]" = ()

    @property
    def commands(self) -> Mapping[str, str]:
        """The command that serves the output, for each engine that runs it as trained."""
        return {one.verdict.engine: one.command for one in self.serving if one.is_served}


class RemainingFinding(Struct, frozen=True):
    """A finding that `fix` does not repair, and why."""

    finding: "Finding"
    why: str


class FixResult(Struct, frozen=True):
    """What `fix` returns: the report on the source and, if something was written, on the output (`after`).

    `stopped` is the reason why nothing was written. `conversion` is None if no plan could be made.
    """

    before: "Report"
    after: "Report | None"
    conversion: Conversion | None
    fixed: "tuple[Finding, ...]"
    left: tuple[RemainingFinding, ...]
    stopped: str = ""

    @property
    def out(self) -> Path | None:
        """The folder that was written."""
        return self.conversion.out if self.conversion and self.after else None

    @property
    def report(self) -> "Report":
        """The report on the output, or on the source if nothing was written."""
        return self.after or self.before
