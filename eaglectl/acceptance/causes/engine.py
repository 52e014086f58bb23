"""Causes in the engine: it refuses the drafter, or computes something else than the file means."""

from eaglectl.acceptance.causes.looks import is_thin
from eaglectl.acceptance.diagnosis import Cause, Evidence, NotLooked, Shown
from eaglectl.acceptance.measurement import ratio
from eaglectl.acceptance.report import MAX_REGRESSION, SmokeReport
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, DiagnosisEnding

NO_ENGINE = "no engine was asked for; give --engine"


def _engine_refuses(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine_refusal:
        return Shown(evidence.engine_refusal, _changes(evidence))
    return _unless_run(evidence)


def _unless_run(evidence: Evidence) -> NotLooked | None:
    if evidence.engine is not None:
        return None
    return NotLooked(evidence.engine_gap or NO_ENGINE)


def _engine_setting(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine is None:
        return _unless_run(evidence)
    if not evidence.engine.run.differences:
        return None
    return Shown("; ".join(evidence.engine.run.differences), _engine_commands(evidence))


def _engine_commands(evidence: Evidence) -> tuple[str, ...]:
    """What reading says has to change for this engine, or the conversion for it, if it changes anything."""
    conversion = evidence.commands.get("convert")
    return _changes(evidence) or ((conversion,) if conversion else ())


def _changes(evidence: Evidence) -> tuple[str, ...]:
    """The smallest changes for the one engine that was asked for, without its name before them."""
    changes = (change.partition(": ")[2] for change in evidence.validated.smallest_changes)
    return tuple(change.strip("`") if change.count("`") == 2 else change for change in changes)


def _engine_unfilled(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine is None:
        return _unless_run(evidence)
    unfilled = evidence.engine.run.resolved.get("unfilled")
    if unfilled is None:
        return NotLooked("the engine does not say which parameters nothing fills")
    if not unfilled:
        return None
    return Shown(f"parameters that nothing fills: {listed(unfilled)}", _engine_commands(evidence))


def _engine_fact(evidence: Evidence) -> Shown | NotLooked | None:
    if evidence.engine_name is None:
        return NotLooked(NO_ENGINE)
    releases = evidence.validated.releases
    if not releases:
        return NotLooked("which releases the server has is not asked; validate --engine takes one")
    failed = [verdict for verdict in releases if verdict.outcome == CheckVerdict.FAIL]
    if _is_level(evidence):
        return None
    if not failed:
        is_open = any(verdict.outcome == CheckVerdict.COULD_NOT_LOOK for verdict in releases)
        return NotLooked("its verdict is open: see `validate --engine`") if is_open else None
    last = failed[-1]
    words = f"{last.engine} {last.release} does not serve it as trained: {'; '.join(last.reasons)}"
    return Shown(words, _engine_commands(evidence))


def _is_level(evidence: Evidence) -> bool:
    """Whether the engine's run accepts as much as the reference's."""
    both = _both(evidence)
    return both is not None and ratio(both[0].run.results, both[1].run.results).low >= MAX_REGRESSION


def _both(evidence: Evidence) -> tuple[SmokeReport, SmokeReport] | None:
    engine, reference = evidence.engine, evidence.reference
    if engine is None or reference is None or engine.k != reference.k:
        return None
    if len(engine.run.results) != len(reference.run.results):
        return None
    return engine, reference


def _engine_lower(evidence: Evidence) -> Shown | NotLooked | None:
    if (gap := _unless_run(evidence)) is not None:
        return gap
    if (both := _both(evidence)) is None:
        return NotLooked("the engine's run has another number of drafts in a round than the reference's")
    compared = ratio(both[0].run.results, both[1].run.results)
    if compared.high >= MAX_REGRESSION or is_thin(both[0].measured):
        return None
    words = (
        f"{both[0].run.engine} {both[0].run.version} accepts x{compared.value:.2f} [{compared.low:.2f},"
        f" {compared.high:.2f}] of what the reference does with the same file, and says of no setting that it"
        " differs"
    )
    return Shown(words, _engine_commands(evidence))


ENGINE_REFUSES = Cause(
    "engine-refuses",
    DiagnosisEnding.ENGINE,
    "engine",
    "an engine that refuses the drafter",
    "the run in the engine",
    "Run the printed `convert`, or install a release that serves it.",
    _engine_refuses,
)
ENGINE_SETTING = Cause(
    "engine-setting",
    DiagnosisEnding.ENGINE,
    "engine",
    "an engine that uses other settings than the file means",
    "norm switches and aux layers that the engine resolved",
    "Run the printed `convert`.",
    _engine_setting,
)
ENGINE_UNFILLED = Cause(
    "engine-unfilled",
    DiagnosisEnding.ENGINE,
    "engine",
    "parameters that the engine leaves unfilled",
    "the parameters that no tensor of the file fills",
    "Run the printed `convert`.",
    _engine_unfilled,
)
ENGINE_FACT = Cause(
    "engine-fact",
    DiagnosisEnding.ENGINE,
    "engine",
    "a release that is known not to serve it as trained",
    "what this release is known to do with such a file, unless its own run shows no loss",
    "Write the keys that are named, run the printed `convert`, or install the release that is named.",
    _engine_fact,
)
ENGINE_LOWER = Cause(
    "engine-lower",
    DiagnosisEnding.ENGINE,
    "engine",
    "an engine that computes something else",
    "acceptance in the engine over that in the reference, on the same prompts",
    "Try the printed `convert`, another release, and report it to the engine.",
    _engine_lower,
)
