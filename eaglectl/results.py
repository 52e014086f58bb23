"""Values that the public API returns and reports show."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.verdicts import CheckVerdict, ServedAs

if TYPE_CHECKING:
    from eaglectl.acceptance.answering import MeasuredAnswer
    from eaglectl.acceptance.diagnosis import Diagnosis
    from eaglectl.acceptance.gate import Gate
    from eaglectl.acceptance.published import Published
    from eaglectl.acceptance.report import SmokeReport
    from eaglectl.checkpoint.checkpoint import Checkpoint
    from eaglectl.conversion.plan import ConversionPlan
    from eaglectl.drafter.drafter import Drafter
    from eaglectl.engines.engine import Verdict
    from eaglectl.engines.layers import CapturedLayers
    from eaglectl.engines.reading import NetworkReading
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
        return {row.verdict.engine: row.command for row in self.serving if row.is_served}


class EngineReadiness(Struct, frozen=True):
    """What one engine does with a drafter as stored and converted.

    `engine` is its name or a server's URL, `stored` and `converted` the runs where there are any, and the
    gaps why there are none. `stored_reading`: the reference ran the stored files as the engine reads them.
    `converted_outcome` is None where nothing was converted for it. `command` starts
    the engine with the files that it runs as trained.
    """

    engine: str
    release: str
    stored_outcome: ServedAs
    stored_reasons: tuple[str, ...]
    stored: "SmokeReport | None" = None
    stored_gap: str = ""
    stored_reading: "NetworkReading | None" = None
    converted_outcome: ServedAs | None = None
    converted_reasons: tuple[str, ...] = ()
    converted: "SmokeReport | None" = None
    converted_gap: str = ""
    command: str = ""

    @property
    def label(self) -> str:
        """The release as a requirement: "vllm==0.32.0"."""
        return f"{self.engine}=={self.release}"

    @property
    def final_outcome(self) -> ServedAs:
        """What it does with the files that shall be served."""
        return self.stored_outcome if self.converted_outcome is None else self.converted_outcome

    @property
    def is_serving(self) -> bool:
        """Whether it runs these files as trained."""
        return self.final_outcome == ServedAs.AS_TRAINED

    @property
    def is_right_twice(self) -> bool:
        """Whether it runs the stored files as trained too, and another engine needed the conversion."""
        return self.converted_outcome is not None and self.stored_outcome == ServedAs.AS_TRAINED

    @property
    def final(self) -> "SmokeReport | None":
        """The run of these files; None where there is none."""
        return self.stored if self.converted_outcome is None else self.converted

    @property
    def final_gap(self) -> str:
        """Why there is no run of these files."""
        return self.stored_gap if self.converted_outcome is None else self.converted_gap


class Readiness(Struct, frozen=True):
    """What `ready` returns.

    `conversion` is None where nothing was converted, or where `out` held it already; `out` is where it was
    kept, None for a temporary folder, and `plan_command` the command that writes it. `report` is of the
    output. `reason` is why it is not ready, `diagnosis` the cause of low acceptance where that was looked
    for, `published` what others reached with drafters of this target. `is_named`: the engines were asked for.
    """

    source: str
    inspection: Inspection
    engines: tuple[EngineReadiness, ...]
    measured: "tuple[MeasuredAnswer, ...]" = ()
    conversion: "Conversion | None" = None
    out: Path | None = None
    plan_command: str = ""
    report: "Report | None" = None
    diagnosis: "Diagnosis | None" = None
    verdict: CheckVerdict = CheckVerdict.COULD_NOT_LOOK
    reason: str = ""
    published: "Published | None" = None
    seconds: float = 0.0
    is_named: bool = False

    @property
    def best(self) -> EngineReadiness | None:
        """The first engine that serves the drafter.

        One whose acceptance was measured comes before others, then one that a conversion was needed for.
        """
        serving = [state for state in self.engines if state.is_serving]
        return min(serving, key=lambda state: (state.final is None, state.is_right_twice), default=None)


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
