"""The JSON document of `diagnose`."""

from typing import Any

from eaglectl.report.diagnosis import PromptLength, positions, readings, weakest
from eaglectl.report.documents.document import Parts
from eaglectl.report.documents.measurement import MEASUREMENT, measured
from eaglectl.run.diagnosis import Diagnosis
from eaglectl.run.layers import PositionShare
from eaglectl.run.published import Published
from eaglectl.run.report import SmokeReport
from eaglectl.run.sensitivity import Variant

RUNS = ("reference", "engine", "sampled", "templated")


def _not_looked(diagnosis: Diagnosis) -> list[dict[str, str]]:
    return [{"cause": title, "reason": reason} for title, reason in diagnosis.not_looked]


def _runs(diagnosis: Diagnosis) -> dict[str, Any]:
    return {name: getattr(diagnosis.evidence, name) for name in RUNS}


def _published(diagnosis: Diagnosis) -> Published | None:
    served = diagnosis.evidence.served
    return served.published if served else None


def _trust(diagnosis: Diagnosis) -> bool:
    return any(run.trust_remote_code for run in _runs(diagnosis).values() if run)


TAG = "eaglectl/diagnose/1"
PARTS: Parts = {
    **MEASUREMENT,
    Diagnosis: (
        "source",
        "target",
        "verdict",
        "ending",
        "cause",
        "title",
        "words",
        "next=commands",
        "ruled_out",
        ("not_looked", _not_looked),
        ("measured", measured),
        "expected=evidence.expected",
        ("runs", _runs),
        ("published", _published),
        ("readings", readings),
        ("prompts", weakest),
        ("text_positions", positions),
        ("trust_remote_code?", _trust),
    ),
    SmokeReport: (
        "engine=run.engine",
        "version=run.version",
        "k",
        "temperature",
        "prompts_digest",
        "*measured",
    ),
    Variant: ("name", "option", "outcome", "ratio"),
    PromptLength: ("number", "set", "drafts", "acceptance_length=length"),
    PositionShare: ("start", "end", "*share"),
}
