"""Values that the public API returns and reports show."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

import eaglectl
from eaglectl.base import Result
from eaglectl.errors import UsageError
from eaglectl.verdicts import CheckVerdict, ServedAs


class Inspection(Result, frozen=True):
    """What `inspect` returns.

    `verdicts` covers every known release, `requested` those of the `engines` argument. `commands` launch each
    engine, `following` are the next commands for the first engine, and `validate` is the command that reads
    the weights. `unchecked` are files of a Hub repository that were read in part, so that no digest covers
    the bytes. `target` names the target and states how it was found; `target_digest` is the SHA-256 of its
    config.json. `findings` are those of all rules on the parts that were read. `coverage` is the share of
    given texts or counts that the draft vocabulary holds.
    """

    source: str
    drafter: "eaglectl.Drafter"
    checkpoint: "eaglectl.Checkpoint"
    captured_layers: "tuple[eaglectl.CapturedLayers, ...]"
    verdicts: "tuple[eaglectl.Verdict, ...]"
    requested: "tuple[eaglectl.Verdict, ...]"
    commands: Mapping[str, str]
    following: "eaglectl.Following"
    validate: str
    unchecked: tuple[str, ...] = ()
    target: str = ""
    target_digest: str = ""
    findings: "tuple[eaglectl.Finding, ...]" = ()
    coverage: "eaglectl.Coverage | None" = None

    def __fspath__(self) -> str:
        return self.checkpoint.source.place


class FailedSource(Result, frozen=True):
    """One of several sources that could not be inspected, with the error that a call for it alone raises."""

    source: str
    kind: str
    exit_code: int
    message: str


class OutputServing(Struct, frozen=True):
    """How an engine serves an output: `verdict` is of the requested release, or of the newest.

    `serving` are the releases that run it as trained, in words; `command` serves it. `is_named`: the release
    was requested. `before` is the verdict on the source.
    """

    verdict: "eaglectl.Verdict"
    serving: str
    command: str
    is_named: bool = False
    before: ServedAs = ServedAs.FAILS

    @property
    def is_served(self) -> bool:
        """Whether the release runs the output as trained."""
        return self.verdict.outcome.is_served

    @property
    def is_worse(self) -> bool:
        """Whether the release serves the output worse than the source."""
        return self.verdict.outcome.level < self.before.level


class Conversion(Result, frozen=True):
    """What `convert` and `upgrade` return; `out` is None if nothing was written.

    `gate` is the acceptance that the gate of an upgrade measured; if acceptance was lost, nothing was
    written. If the gate had too few prompts, `kept` is the folder of its measurements, and `resume` the
    command that continues. `serving` states for each engine whether it runs the output as trained. `measured`
    are open questions that a measurement answered. As a path it is `out`. With `trust_remote_code`, the
    target's own code was allowed to run. `is_missed`: a requested engine is known not to run it as trained.
    """

    plan: "eaglectl.ConversionPlan"
    out: Path | None
    pickles: tuple[str, ...]
    seconds: float
    gate: "eaglectl.Gate | None" = None
    kept: Path | None = None
    resume: str = ""
    serving: tuple[OutputServing, ...] = ()
    measured: "tuple[eaglectl.MeasuredAnswer, ...]" = ()
    trust_remote_code: bool = False
    is_missed: bool = False

    def __fspath__(self) -> str:
        return _written(self.out, "convert")

    @property
    def commands(self) -> Mapping[str, str]:
        """The command that serves the output, for each engine that runs it as trained."""
        return {row.verdict.engine: row.command for row in self.serving if row.is_served and row.command}


class ServedFiles(Struct, frozen=True):
    """How one engine serves a drafter's files; `report` is the run's result; without a run, `gap` is why.

    With `reading`, the reference ran them as the engine reads them, which differs from training.
    `has_failed`: a run was started and failed. `keys` are those of `reasons`. `predicate` is `gap` without
    the engine's name at its start, "" for a gap without it. `options` are those that the engine needs.
    """

    outcome: ServedAs
    reasons: tuple[str, ...] = ()
    report: "eaglectl.SmokeReport | None" = None
    gap: str = ""
    reading: "eaglectl.NetworkReading | None" = None
    has_failed: bool = False
    keys: tuple[str, ...] = ()
    predicate: str = ""
    options: tuple[str, ...] = ()


class EngineReadiness(Result, frozen=True):
    """How one engine, or the server at a URL, serves a drafter as stored and as converted.

    `converted` is None if nothing was converted for it. `command` starts the engine with the files that it
    runs as trained.
    """

    engine: str
    release: str
    stored: ServedFiles
    converted: ServedFiles | None = None
    command: str = ""

    @property
    def final(self) -> ServedFiles:
        """The result for the files to serve."""
        return self.converted or self.stored

    @property
    def is_serving(self) -> bool:
        """Whether it runs these files as trained."""
        return self.final.outcome.is_served

    @property
    def is_right_twice(self) -> bool:
        """Whether it runs the stored files as trained too, so that only another engine needs a conversion."""
        return self.converted is not None and self.stored.outcome.is_served


class Readiness(Result, frozen=True):
    """What `ready` returns.

    `conversion` is None if nothing was converted, or if `out` already has the conversion. `out` is the folder
    of the conversion, None for a temporary one; `unwritten` is a given folder that nothing was written to,
    and `plan_command` the command that writes it. `report` validates the output. `reason` is why it is not
    ready, or a weakness of a ready drafter; `keys` are those of the reasons in it, and the engines whose
    failed run it states. `diagnosis` is the cause of low acceptance, if `ready` looked for one; `published`
    are published lengths of this target's drafters. `is_named`: the engines were requested.
    """

    source: str
    inspection: Inspection
    engines: tuple[EngineReadiness, ...]
    measured: "tuple[eaglectl.MeasuredAnswer, ...]" = ()
    conversion: "Conversion | None" = None
    out: Path | None = None
    unwritten: Path | None = None
    plan_command: str = ""
    report: "eaglectl.Report | None" = None
    diagnosis: "eaglectl.Diagnosis | None" = None
    verdict: CheckVerdict = CheckVerdict.COULD_NOT_LOOK
    reason: str = ""
    published: "eaglectl.Published | None" = None
    seconds: float = 0.0
    is_named: bool = False
    keys: tuple[str, ...] = ()

    def __fspath__(self) -> str:
        return _written(self.out or (None if self.plan_command else Path(self.source)), "ready")

    @property
    def best(self) -> EngineReadiness | None:
        """The first engine that serves the drafter.

        Engines with measured acceptance come first, then those that needed a conversion.
        """
        serving = [state for state in self.engines if state.is_serving]
        return min(
            serving, key=lambda state: (state.final.report is None, state.is_right_twice), default=None
        )


def _written(out: Path | None, function: str) -> str:
    if out is None:
        raise UsageError(f"{function} wrote nothing, so its result is no checkpoint; pass the source itself")
    return str(out)
