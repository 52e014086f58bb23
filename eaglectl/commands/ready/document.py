"""The JSON document of `ready`."""

from typing import Any

from eaglectl.commands.ready.report import engine_gain, last_line
from eaglectl.report.acceptance import MEASUREMENT, measured
from eaglectl.report.documents.document import Parts
from eaglectl.results import EngineReadiness, Readiness
from eaglectl.run.report import Gain, SmokeReport
from eaglectl.run.speed import Speed


def _stored(state: EngineReadiness) -> dict[str, Any]:
    """What the engine does with the files as stored; `reading`: as what the reference ran them."""
    return {
        "outcome": state.stored_outcome,
        "reasons": state.stored_reasons,
        "acceptance": state.stored,
        "gap": state.stored_gap,
        "reading": state.stored_reading and state.stored_reading.words,
    }


def _converted(state: EngineReadiness) -> dict[str, Any] | None:
    if state.converted_outcome is None:
        return None
    return {
        "outcome": state.converted_outcome,
        "reasons": state.converted_reasons,
        "acceptance": state.converted,
        "gap": state.converted_gap,
        "reading": None,
    }


def _command(state: EngineReadiness) -> str | None:
    return state.command if state.is_serving else None


def _measure(state: EngineReadiness) -> str | None:
    return (state.is_serving and state.measure_command) or None


def _speed(state: EngineReadiness) -> Speed | None:
    return state.final.speed if state.final else None


def _is_converted(result: Readiness) -> bool:
    return result.plan_command != ""


def _convert(result: Readiness) -> str | None:
    return result.plan_command or None


def _cause(result: Readiness) -> str | None:
    return result.diagnosis.cause if result.diagnosis else None


def _next(result: Readiness) -> tuple[str, ...]:
    return result.diagnosis.commands if result.diagnosis else ()


def _published(result: Readiness) -> Any:
    return result.published.alike if result.published else ()


def _seconds(result: Readiness) -> float:
    return round(result.seconds, 3)


TAG = "eaglectl/ready/1"
PARTS: Parts = {
    **MEASUREMENT,
    Readiness: (
        "source",
        "verdict",
        "reason",
        ("line", last_line),
        "out",
        ("is_converted", _is_converted),
        ("convert", _convert),
        ("measured", measured),
        "engines",
        ("cause", _cause),
        ("next", _next),
        ("published", _published),
        "reused",
        ("seconds", _seconds),
        "speed_gap?",
    ),
    EngineReadiness: (
        "engine",
        "release",
        ("stored", _stored),
        ("converted", _converted),
        ("gain", engine_gain),
        ("command", _command),
        ("measure", _measure),
        ("speed?", _speed),
    ),
    SmokeReport: (
        "engine=run.engine",
        "version=run.version",
        "verdict",
        "k",
        "prompts_digest",
        "*measured",
        "coverage?",
    ),
    Gain: ("*ratio", "prompts_needed"),
}
