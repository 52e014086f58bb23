"""The JSON documents of `inspect`, for one source or several."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from eaglectl.base import Count
from schemas.parts.document import INLINE, Document, ErrorPart, Part
from schemas.parts.parts import CoveragePart, DrafterPart, VerdictPart


class WeightsPart(Part, frozen=True):
    """The files of the tensors."""

    files: tuple[str, ...]
    bytes: int
    dtypes: tuple[str, ...]
    unchecked: tuple[str, ...]


class CapturedPart(Part, frozen=True):
    """The aux layers that a runner of an engine captures."""

    engine: str
    key: str = field(name="from")
    ids: tuple[int, ...] | None
    boundaries: tuple[Count, ...] | None
    is_default: bool
    as_trained: bool | None


class TensorPart(Part, frozen=True):
    """A stored tensor."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    nbytes: int = field(name="bytes")
    file: str


class InspectionPart(Part, frozen=True):
    """What a checkpoint is."""

    source: str
    target: Annotated[str, Meta(description="The target and how it was found; empty where there was none")]
    target_digest: Annotated[str, Meta(description="SHA-256 of the target's config.json, or empty")]
    drafter: DrafterPart
    weights: WeightsPart
    aux_readings: tuple[CapturedPart, ...]
    engines: tuple[VerdictPart, ...]
    commands: Mapping[str, str]
    next: Annotated[
        str,
        Meta(
            description="The conversion to run where the newest vLLM does not serve it as trained, else"
            " empty."
        ),
    ]
    tensors: tuple[TensorPart, ...]
    coverage: Annotated[
        CoveragePart | None,
        Meta(description="There with --prompts or --token-counts: what the draft vocabulary holds of them"),
    ] = None


class InspectedPart(Part, frozen=True):
    """One of several checkpoints; path is the source as it was given"""

    path: str
    inspection: InspectionPart = field(name=INLINE)


class FailedPart(Part, frozen=True):
    """One of several sources that could not be inspected"""

    path: str
    error: ErrorPart


class InspectDocument(Document, frozen=True, tag="eaglectl/inspect/1"):
    """What eaglectl inspect --json prints: one checkpoint, or several under inspections; with
    --json-version 2 always so.
    """

    inspection: InspectionPart = field(name=INLINE)


class InspectionsDocument(Document, frozen=True, tag="eaglectl/inspect/1"):
    """Several checkpoints."""

    inspections: tuple[
        Annotated[
            Any,
            Meta(
                extra_json_schema={
                    "oneOf": [{"$ref": "#/$defs/InspectedPart"}, {"$ref": "#/$defs/FailedPart"}]
                }
            ),
        ],
        ...,
    ]


class InspectionsDocument2(InspectionsDocument, frozen=True, tag="eaglectl/inspect/2"):
    """One checkpoint or several."""
