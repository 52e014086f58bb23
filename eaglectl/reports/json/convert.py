"""The JSON document of `convert`."""

from typing import Any

from eaglectl.acceptance.gate import Gate
from eaglectl.conversion.plan import ConversionPlan
from eaglectl.reports.json.document import head, trust_part
from eaglectl.reports.json.drafter import drafter_part, note_part, verdict_part
from eaglectl.reports.json.measurement import estimate_part, measurement_part
from eaglectl.results import Conversion


def convert_document(conversion: Conversion) -> dict[str, Any]:
    """Return eaglectl/convert/1."""
    out, gate = conversion.out, conversion.gate
    return {
        **head("convert"),
        "out": None if out is None else str(out),
        "seconds": round(conversion.seconds, 3),
        "plan": _plan(conversion.plan),
        "commands": dict(conversion.commands),
        "serving": [
            {**verdict_part(engine.verdict), "serving": engine.serving} for engine in conversion.serving
        ],
        "gate": None if gate is None else _gate(gate),
        "measured": [answer.record for answer in conversion.measured],
        "gguf": None if conversion.gguf is None else str(conversion.gguf),
        **trust_part(conversion.trust_remote_code),
    }


def _plan(plan: ConversionPlan) -> dict[str, Any]:
    return {
        "source": plan.source,
        "layout": plan.layout,
        "drafter": drafter_part(plan.drafter),
        "tensors": [
            {
                "name": step.name,
                "action": step.action,
                "from": list(step.stored),
                "dtype": step.dtype,
                "shape": list(step.shape),
                "bytes": step.nbytes,
                "how": step.how,
            }
            for step in plan.steps
        ],
        "config": dict(plan.config),
        "changes": [
            {"key": change.key, "before": change.before, "after": change.after} for change in plan.changes
        ],
        "left": [{"name": left.name, "why": left.why} for left in (*plan.left_tensors, *plan.left_files)],
        "notes": [note_part(note) for note in plan.notes],
    }


def _gate(gate: Gate) -> dict[str, Any]:
    return {
        "is_passed": gate.is_passed,
        "ending": gate.ending,
        "prompts_forecast": gate.forecast,
        "prompts_needed": gate.prompts_needed,
        "tolerance": gate.tolerance,
        "prompts": gate.prompts,
        "engine": gate.engine,
        "device": gate.device,
        "dtype": gate.dtype,
        "rows": [
            {
                "k": row.k,
                "before": measurement_part(row.before),
                "after": measurement_part(row.after),
                "ratio": estimate_part(row.ratio),
                "rounds": estimate_part(row.rounds),
            }
            for row in gate.rows
        ],
    }
