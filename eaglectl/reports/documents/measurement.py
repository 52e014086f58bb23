"""Measured acceptance as a part of JSON documents."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from eaglectl.base import Interval, Number
from eaglectl.reports.documents.document import INLINE, Part

Length = Annotated[Number, Meta(extra_json_schema={"minimum": 1})]


Forecast = Annotated[
    int | None,
    Meta(
        description="About how many prompts tell whether the bar is kept, where nothing is lost, by the"
        " deviation between the first eight; null where none would"
    ),
]


class EstimatePart(Part, frozen=True):
    """A value with its 95 % interval."""

    value: Number
    interval: Interval


class LengthPart(Part, frozen=True):
    """An acceptance length with its 95 % interval."""

    value: Annotated[Length, Meta(description="1 + accepted / drafts")] = field(name="acceptance_length")
    interval: Interval


class MeasurementPart(Part, frozen=True):
    """Acceptance over a set of prompts."""

    length: LengthPart = field(name=INLINE)
    per_position: tuple[EstimatePart, ...]
    drafts: int
    tokens: int
    prompts: int


class PublishedLengthPart(Part, frozen=True):
    """A published acceptance length."""

    length: Number
    drafter: str
    preset: str | None
    k: int | None
    url: str


class PublishedPart(Part, frozen=True):
    """What others reach with drafters of the target"""

    target: Annotated[
        str | None, Meta(description="What the target is taken for; null where it is not known")
    ]
    how: Annotated[str | None, Meta(description="Where that name is from")] = field(name="by")
    like: Annotated[str | None, Meta(description="The preset of the run")]
    alike: Annotated[
        tuple[PublishedLengthPart, ...],
        Meta(description="Published lengths that were measured as this run was"),
    ]
    otherwise: Annotated[int, Meta(description="The number of lengths that were measured otherwise")]

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        return {
            "target": record.target or None,
            "how": record.how or None,
            "like": record.settings.preset if record.settings else None,
            "otherwise": len(record.otherwise),
        }
