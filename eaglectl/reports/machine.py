"""The same findings as JSON documents with versioned schemas (schemas/*.schema.json)."""

from typing import Any

import eaglectl
from eaglectl.acceptance.gate import Gate
from eaglectl.acceptance.measurement import Estimate, Measurement
from eaglectl.acceptance.report import SmokeReport
from eaglectl.conversion.plan import Plan
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.engines.engine import Verdict
from eaglectl.errors import EaglectlError
from eaglectl.reports.findings import Conversion, Inspection


def inspection(found: Inspection) -> dict[str, Any]:
    """eaglectl/inspect/1."""
    return {
        **_head("inspect"),
        "source": found.source,
        "drafter": drafter(found.drafter),
        "weights": {"files": list(found.checkpoint.weight_files), "bytes": found.checkpoint.nbytes, "dtypes": list(found.drafter.dtypes)},
        "aux_readings": [
            {
                "engine": reading.engine, "from": reading.key, "ids": _list(reading.ids), "boundaries": _list(reading.boundaries),
                "is_default": reading.is_default, "as_trained": reading.same_as(found.drafter.aux),
            }
            for reading in found.readings
        ],
        "engines": [_verdict(verdict) for verdict in (found.asked or found.verdicts)],
        "commands": {engine: text for engine, text in found.commands.items() if engine != "source"},
        "tensors": [
            {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.nbytes, "file": t.file} for t in found.checkpoint.tensors.values()
        ],
    }  # fmt: skip


def conversion(done: Conversion) -> dict[str, Any]:
    """eaglectl/convert/1."""
    return {
        **_head("convert"),
        "out": None if done.out is None else str(done.out),
        "seconds": round(done.seconds, 3),
        "plan": plan(done.plan),
        "gate": None if done.gate is None else gate(done.gate),
    }


def gate(value: Gate) -> dict[str, Any]:
    """What the gate of an upgrade measured."""
    return {
        "is_passed": value.is_passed, "tolerance": value.tolerance, "prompts": value.prompts, "engine": value.engine, "device": value.device,
        "dtype": value.dtype,
        "rows": [
            {"k": row.k, "before": _measurement(row.before), "after": _measurement(row.after), "ratio": _estimate(row.ratio)} for row in value.rows
        ],
    }  # fmt: skip


def plan(value: Plan) -> dict[str, Any]:
    """The plan part of eaglectl/convert/1."""
    return {
        "source": value.source,
        "layout": value.layout,
        "drafter": drafter(value.drafter),
        "tensors": [
            {
                "name": step.name, "action": step.action, "from": list(step.origin), "dtype": step.dtype, "shape": list(step.shape),
                "bytes": step.nbytes, "how": step.how,
            }
            for step in value.steps
        ],
        "config": dict(value.config),
        "changes": [{"key": change.key, "before": change.before, "after": change.after} for change in value.changes],
        "left": [{"name": left.name, "why": left.why} for left in (*value.left_tensors, *value.left_files)],
        "notes": [_note(note) for note in value.notes],
    }  # fmt: skip


def drafter(value: Drafter) -> dict[str, Any]:
    """A canonical drafter, without its tensors."""
    dims = {key: getattr(value.dims, key) for key in value.dims.__dataclass_fields__}
    return {
        "producer": value.producer, "evidence": value.evidence, "eagle": value.version, "attention": value.dims.attention,
        "dimensions": {key: number for key, number in dims.items() if number},
        "norms": {key: getattr(value.norms, key) for key in value.norms.__dataclass_fields__},
        "aux": {
            "count": value.aux.count, "boundaries": _list(value.aux.boundaries), "is_default": value.aux.is_default, "how": value.aux.how,
            "ids": _list(value.aux.ids), "convention": value.aux.convention,
        },
        "rope": {"theta": value.rope.theta, "scaling": value.rope.scaling, "is_interleaved": value.rope.is_interleaved},
        "target": {key: getattr(value.target, key) for key in ("name", "model_type", "depth", "hidden", "vocab")},
        "features": sorted(feature.name.lower() for feature in value.features()),
        "is_quantised": value.quantisation is not None,
        "notes": [_note(note) for note in value.notes],
    }  # fmt: skip


def smoke(report: SmokeReport) -> dict[str, Any]:
    """eaglectl/smoke/1."""
    run, against = report.run, report.against
    return {
        **_head("smoke"),
        "source": report.source,
        "engine": {
            "name": run.engine, "version": run.version, "device": run.device, "dtype": run.dtype, "proves": run.proves,
            "resolved": dict(run.resolved), "differences": list(run.differences),
        },
        "verdict": report.verdict,
        "failures": list(report.failures),
        "notes": list(report.notes),
        **_measurement(report.measured),
        "sets": {name: _measurement(measured) for name, measured in report.by_set.items()},
        "lossless": report.is_lossless,
        "seconds": {"drafted": round(run.seconds, 3), "plain": round(run.plain_seconds, 3) if run.plain else None},
        "k": report.k, "max_tokens": report.max_tokens, "seed": report.seed, "prompts_digest": report.prompts_digest,
        "temperature": report.temperature, "files": dict(report.files),
        "against": None if against is None else {"source": against.source, **_measurement(against.measured), "ratio": _estimate(against.ratio)},
        "probes": {
            "sensitivity": [
                {"name": one.name, "option": one.option, "is_better": one.is_better, **_measurement(one.measured), "ratio": _estimate(one.ratio)}
                for one in report.readings
            ],
            "drift": [
                {
                    "name": one.name, **_measurement(one.measured), "state_growth": list(one.state_growth),
                    "attention_on_first": list(one.on_first), "attention_on_own": list(one.on_own),
                }
                for one in report.drifts
            ],
        },
    }  # fmt: skip


def _measurement(found: Measurement) -> dict[str, Any]:
    return {
        "acceptance_length": found.length.value, "interval": [found.length.low, found.length.high],
        "per_position": [_estimate(position) for position in found.per_position],
        "drafts": found.drafts, "tokens": found.tokens, "prompts": found.prompts,
    }  # fmt: skip


def _estimate(found: Estimate) -> dict[str, Any]:
    return {"value": found.value, "interval": [found.low, found.high]}


def error(problem: EaglectlError) -> dict[str, Any]:
    """eaglectl/error/1."""
    return {
        **_head("error"),
        "kind": type(problem).__name__.lower(),
        "exit_code": problem.exit_code,
        "message": str(problem),
    }


def _head(command: str) -> dict[str, Any]:
    return {"schema": f"eaglectl/{command}/1", "version": eaglectl.__version__}


def _note(note: Note) -> dict[str, str]:
    return {"level": note.level, "about": note.about, "text": note.text}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "engine": verdict.engine,
        "release": verdict.release,
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
    }


def _list(value: tuple[int, ...] | None) -> list[int] | None:
    return None if value is None else list(value)
