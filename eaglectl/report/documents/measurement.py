"""The keys of measured acceptance and speed in JSON documents."""

from collections.abc import Mapping
from typing import Any

from eaglectl.report.documents.document import Parts
from eaglectl.run.coverage import Coverage
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


def _sets(coverage: Coverage) -> dict[str, Any]:
    return _shares(coverage.sets)


def _scripts(coverage: Coverage) -> dict[str, Any]:
    return _shares(coverage.scripts)


def _shares(parts: Mapping[str, Coverage]) -> dict[str, Any]:
    return {name: {key: getattr(part, key) for key in SHARE} for name, part in parts.items()}


# the keys of coverage in all, and of each set and script
SHARE = ("tokens", "covered", "share", "most_length")
COVERAGE: Parts = {Coverage: (*SHARE, ("sets", _sets), ("scripts", _scripts))}
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
