"""Measured acceptance as a part of JSON documents."""

from typing import Any

from eaglectl.acceptance.measurement import Estimate, Measurement
from eaglectl.acceptance.published import Published


def measurement_part(measurement: Measurement) -> dict[str, Any]:
    """Return an acceptance length with its interval, and acceptance by draft position."""
    length = measurement.length
    return {
        "acceptance_length": length.value,
        "interval": [length.low, length.high],
        "per_position": [estimate_part(position) for position in measurement.per_position],
        "drafts": measurement.drafts,
        "tokens": measurement.tokens,
        "prompts": measurement.prompts,
    }


def estimate_part(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate with its 95 % interval."""
    return {"value": estimate.value, "interval": [estimate.low, estimate.high]}


def published_part(published: Published | None) -> dict[str, Any] | None:
    """What others reach: what the target is taken for, lengths measured alike, and the number of others."""
    if published is None:
        return None
    return {
        "target": published.target or None,
        "by": published.how or None,
        "like": published.settings.preset if published.settings else None,
        "alike": [
            {name: getattr(length, name) for name in ("length", "drafter", "preset", "k", "url")}
            for length in published.alike
        ],
        "otherwise": len(published.otherwise),
    }
