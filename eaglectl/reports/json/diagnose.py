"""The JSON document of `diagnose`."""

from typing import Any

from eaglectl.acceptance.diagnosis import Diagnosis
from eaglectl.acceptance.report import SmokeReport
from eaglectl.acceptance.sensitivity import Variant
from eaglectl.reports import diagnosis as shared
from eaglectl.reports.json.document import head, trust_part
from eaglectl.reports.json.measurement import estimate_part, measurement_part, published_part


def diagnose_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """eaglectl/diagnose/1."""
    evidence = diagnosis.evidence
    runs = {
        "reference": evidence.reference,
        "engine": evidence.engine,
        "sampled": evidence.sampled,
        "templated": evidence.templated,
    }
    return {
        **head("diagnose"),
        "source": diagnosis.source,
        "target": diagnosis.target,
        "verdict": diagnosis.verdict,
        "ending": diagnosis.ending,
        "cause": diagnosis.cause,
        "title": diagnosis.title,
        "words": diagnosis.words,
        "next": list(diagnosis.commands),
        "ruled_out": list(diagnosis.ruled_out),
        "not_looked": [{"cause": title, "reason": reason} for title, reason in diagnosis.not_looked],
        "measured": [answer.record for answer in diagnosis.measured],
        "expected": evidence.expected,
        "runs": {name: None if report is None else _run(report) for name, report in runs.items()},
        "published": published_part(evidence.served.published if evidence.served else None),
        "readings": [_reading(reading) for reading in shared.readings(diagnosis)],
        "prompts": [
            {"number": row.number, "set": row.set, "drafts": row.drafts, "acceptance_length": row.length}
            for row in shared.weakest(diagnosis)
        ],
        "text_positions": [
            {"start": part.start, "end": part.end, **estimate_part(part.share)}
            for part in shared.positions(diagnosis)
        ],
        **trust_part(any(report.trust_remote_code for report in runs.values() if report)),
    }


def _reading(reading: Variant) -> dict[str, Any]:
    return {
        "name": reading.name,
        "option": reading.option,
        "outcome": reading.outcome,
        "ratio": estimate_part(reading.ratio),
    }


def _run(report: SmokeReport) -> dict[str, Any]:
    return {
        "engine": report.run.engine,
        "version": report.run.version,
        "k": report.k,
        "temperature": report.temperature,
        "prompts_digest": report.prompts_digest,
        **measurement_part(report.measured),
    }
