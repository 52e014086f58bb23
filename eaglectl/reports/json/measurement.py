"""Measured acceptance as a part of JSON documents."""

from typing import Any

from eaglectl.acceptance.measurement import Estimate, Measurement


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
