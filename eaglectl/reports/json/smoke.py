"""The JSON document of `smoke`."""

from typing import Any

from eaglectl.acceptance.probe import DriftCondition
from eaglectl.acceptance.prompts import PromptChoice
from eaglectl.acceptance.report import DrafterComparison, SetRatio, SmokeReport
from eaglectl.acceptance.sensitivity import Variant
from eaglectl.acceptance.showing import ShownAnswer
from eaglectl.reports.acceptance import speed_meaning
from eaglectl.reports.json.document import head, trust_part
from eaglectl.reports.json.measurement import estimate_part, measurement_part, published_part


def smoke_document(report: SmokeReport) -> dict[str, Any]:
    """eaglectl/smoke/1."""
    run = report.run
    return {
        **head("smoke"),
        "source": report.source,
        "engine": {
            "name": run.engine,
            "version": run.version,
            "device": run.device,
            "dtype": run.dtype,
            "proves": run.proves,
            "resolved": dict(run.resolved),
            "differences": list(run.differences),
            "arguments": dict(run.arguments),
        },
        "verdict": report.verdict,
        "failures": list(report.failures),
        "gaps": list(report.gaps),
        "notes": list(report.notes),
        **measurement_part(report.measured),
        "sets": {name: measurement_part(measured) for name, measured in report.by_set.items()},
        "lossless": report.is_lossless,
        "seconds": {
            "drafted": round(run.seconds, 3),
            "plain": round(run.plain_seconds, 3) if run.plain else None,
            "meaning": speed_meaning(report),
        },
        "k": report.k,
        "max_tokens": report.max_tokens,
        "seed": report.seed,
        "prompts_digest": report.prompts_digest,
        "prompts_file": None if report.choice is None else _choice(report.choice),
        "ignore_eos": report.ignores_eos,
        "temperature": report.temperature,
        "files": dict(report.files),
        "published": published_part(report.published),
        "against": None if report.against is None else _comparison(report.against),
        "probes": {
            "sensitivity": [_variant(variant) for variant in report.variants],
            "drift": [_drift(condition) for condition in report.drift_conditions],
        },
        **({} if report.shown is None else {"shown": _shown(report.shown)}),
        **trust_part(report.trust_remote_code),
    }


def _shown(answer: ShownAnswer) -> dict[str, Any]:
    return {
        "prompt": answer.prompt,
        "tokens": [{"text": token.text, "position": token.position} for token in answer.tokens],
        "accepted": list(answer.accepted),
    }


def _comparison(other: DrafterComparison) -> dict[str, Any]:
    return {
        "source": other.source,
        **measurement_part(other.measured),
        "ending": other.ending,
        "ratio": estimate_part(other.ratio),
        "rounds": estimate_part(other.rounds),
        "meaning": other.meaning,
        "max_regression": other.max_regression,
        "prompts_forecast": other.forecast,
        "sets": {part.name: _set_ratio(part) for part in other.sets},
        "failures": list(other.failures),
        "gaps": list(other.gaps),
    }


def _set_ratio(part: SetRatio) -> dict[str, Any]:
    return {
        "prompts": part.prompts,
        "ratio": estimate_part(part.ratio),
        "rounds": estimate_part(part.rounds),
        "outcome": part.outcome,
        "ending": part.ending,
        "prompts_needed": part.needed,
    }


def _choice(choice: PromptChoice) -> dict[str, Any]:
    """The file that the prompts are from (null for the built-in ones), and the sample of it."""
    return {
        "name": choice.file,
        "sha256": choice.sha256,
        "prompts": choice.total,
        "sample": choice.sample,
    }


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "option": variant.option,
        "is_better": variant.is_better,
        "outcome": variant.outcome,
        "p_value": variant.p_value,
        "prompts_needed": variant.prompts_needed,
        "is_verified": variant.is_verified,
        **measurement_part(variant.measured),
        "ratio": estimate_part(variant.ratio),
    }


def _drift(condition: DriftCondition) -> dict[str, Any]:
    return {
        "name": condition.name,
        **measurement_part(condition.measured),
        "state_growth": list(condition.state_growth),
        "attention_on_first": list(condition.attention_on_first),
        "attention_on_own": list(condition.attention_on_own),
    }
