"""A canonical drafter as a part of JSON documents."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import field
from msgspec.structs import asdict

from eaglectl.base import Count, CountFrom1, Number
from eaglectl.drafter.boundaries import Convention
from eaglectl.drafter.drafter import Level, Norms
from eaglectl.reports.documents.document import Part
from eaglectl.verdicts import ServedAs

Version = Literal["3", "3.1", "3.1-joint", "3 or 3.1"]


class NotePart(Part, frozen=True):
    """A note of a drafter or of a plan."""

    level: Level
    about: str
    text: str


class AuxPart(Part, frozen=True):
    """What is known of the aux layers."""

    count: int
    boundaries: tuple[Count, ...] | None
    is_default: bool
    how: str
    ids: tuple[Count, ...] | None
    convention: Convention | None


class RopePart(Part, frozen=True):
    """Rotary embedding."""

    theta: Number
    scaling: Mapping[str, Any] | None
    is_interleaved: bool


class TargetPart(Part, frozen=True):
    """What is known of the target."""

    name: str | None
    model_type: str | None
    depth: int | None
    hidden: int | None
    vocab: int | None


class DrafterPart(Part, frozen=True):
    """A drafter without its tensors."""

    producer: str
    evidence: str
    version: Version = field(name="eagle")
    attention: Literal["MHA", "GQA", "MQA", "MLA"]
    dimensions: Mapping[str, CountFrom1]
    norms: Norms
    aux: AuxPart
    rope: RopePart
    target: TargetPart
    features: tuple[str, ...]
    is_quantised: bool
    notes: tuple[NotePart, ...]

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        return {
            "attention": record.dims.attention,
            "dimensions": {key: number for key, number in asdict(record.dims).items() if number},
            "features": sorted(feature.name.lower() for feature in record.features()),
            "is_quantised": record.quantisation is not None,
        }


class VerdictPart(Part, frozen=True):
    """What an engine's release does with a drafter."""

    engine: str
    release: str
    outcome: ServedAs
    reasons: tuple[str, ...]
