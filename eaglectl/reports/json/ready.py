"""The JSON document of `ready`."""

from typing import Any

from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports.json.document import head
from eaglectl.reports.json.measurement import estimate_part, measurement_part
from eaglectl.reports.readiness import engine_gain, last_line
from eaglectl.results import EngineReadiness, Readiness

# of a published figure
PUBLISHED = ("length", "drafter", "preset", "k", "url")


def ready_document(result: Readiness) -> dict[str, Any]:
    """eaglectl/ready/1."""
    published = result.published
    return {
        **head("ready"),
        "source": result.source,
        "verdict": result.verdict,
        "reason": result.reason,
        "line": last_line(result),
        "out": None if result.out is None else str(result.out),
        "is_converted": result.plan_command != "",
        "convert": result.plan_command or None,
        "measured": [answer.record for answer in result.measured],
        "engines": [_engine(state) for state in result.engines],
        "cause": None if result.diagnosis is None else result.diagnosis.cause,
        "next": [] if result.diagnosis is None else list(result.diagnosis.commands),
        "published": [
            {name: getattr(figure, name) for name in PUBLISHED}
            for figure in (published.alike if published else ())
        ],
        "reused": list(result.reused),
        "seconds": round(result.seconds, 3),
    }


def _engine(state: EngineReadiness) -> dict[str, Any]:
    return {
        "engine": state.engine,
        "release": state.release,
        "stored": {
            "outcome": state.stored_outcome,
            "reasons": list(state.stored_reasons),
            "acceptance": _run(state.stored),
            "gap": state.stored_gap,
            "reading": None if state.stored_reading is None else state.stored_reading.words,
        },
        "converted": None
        if state.converted_outcome is None
        else {
            "outcome": state.converted_outcome,
            "reasons": list(state.converted_reasons),
            "acceptance": _run(state.converted),
            "gap": state.converted_gap,
            "reading": None,
        },
        "gain": _gain(state),
        "command": state.command if state.is_serving else None,
        "measure": (state.is_serving and state.measure_command) or None,
    }


def _gain(state: EngineReadiness) -> dict[str, Any] | None:
    if (gain := engine_gain(state)) is None:
        return None
    return {**estimate_part(gain.ratio), "prompts_needed": gain.prompts_needed}


def _run(report: SmokeReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "engine": report.run.engine,
        "version": report.run.version,
        "verdict": report.verdict,
        "k": report.k,
        "prompts_digest": report.prompts_digest,
        **measurement_part(report.measured),
    }
