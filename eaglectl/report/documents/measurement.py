"""The keys of measured acceptance and speed in JSON documents."""

from typing import Any

from eaglectl.report.documents.document import Parts
from eaglectl.report.documents.drafter import COVERAGE
from eaglectl.run.measurement import Estimate, Measurement
from eaglectl.run.published import Published, PublishedLength
from eaglectl.run.speed import BreakEven, FastestK, Place, Speed, SpeedRow, Spread


def measured(result: Any) -> list[dict[str, Any]]:
    """What the files left open and a measurement answered, as eaglectl.json has it."""
    return [answer.record for answer in result.measured]


def _rates(total: Spread | None, concurrency: int) -> dict[str, Any] | None:
    """Tokens a second of each user's requests, and of all together."""
    return {"per_user": total.divided(concurrency), "total": total} if total else None


def _drafted(row: SpeedRow) -> dict[str, Any] | None:
    return _rates(row.drafted, row.concurrency)


def _plain(row: SpeedRow) -> dict[str, Any] | None:
    return _rates(row.plain, row.concurrency)


def _target(published: Published) -> str | None:
    return published.target or None


def _source(published: Published) -> str | None:
    return published.how or None


def _preset(published: Published) -> str | None:
    return published.settings.preset if published.settings else None


def _otherwise(published: Published) -> int:
    return len(published.otherwise)


MEASUREMENT: Parts = {
    **COVERAGE,
    Estimate: ("value", "interval"),
    Measurement: (
        "acceptance_length=length.value",
        "interval=length.interval",
        "per_position",
        "drafts",
        "tokens",
        "prompts",
    ),
    Spread: ("median", "least=low", "most=high"),
    SpeedRow: (
        "k",
        "concurrency",
        ("drafted", _drafted),
        ("plain", _plain),
        "ratio",
        "acceptance_length=length",
    ),
    Place: ("concurrency", "side"),
    BreakEven: ("k", "*place", "earliest", "latest"),
    FastestK: ("concurrency", "k", "others", "pays"),
    Speed: ("text", "how", "device", "card", "max_tokens", "repeats", "rows", "break_even", "fastest"),
    PublishedLength: ("length", "drafter", "preset", "k", "url"),
    Published: (
        ("target", _target),
        ("by", _source),
        ("like", _preset),
        "alike",
        ("otherwise", _otherwise),
    ),
}
