"""The JSON documents of `inspect`, for one source or several."""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, field

from eaglectl.base import Count
from eaglectl.report.documents.document import INLINE, Document, ErrorPart, Part
from eaglectl.report.documents.parts import DrafterPart, VerdictPart
from eaglectl.report.inspection import next_command
from eaglectl.results import FailedSource, Inspection


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

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        checkpoint, drafter = record.checkpoint, record.drafter
        return {
            "drafter": DrafterPart.of(drafter),
            "weights": {
                "files": checkpoint.weight_files,
                "bytes": checkpoint.nbytes,
                "dtypes": drafter.dtypes,
                "unchecked": record.unchecked,
            },
            "aux_readings": [
                CapturedPart.of(layers, as_trained=layers.same_as(drafter.aux))
                for layers in record.captured_layers
            ],
            "engines": record.requested or record.verdicts,
            "next": next_command(record),
            "tensors": list(checkpoint.tensors.values()),
        }


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


def inspect_document(
    results: Sequence[Inspection | FailedSource], *, names: Sequence[str] = (), version: int = 1
) -> Document:
    """Return eaglectl/inspect/1, in which one result stands without a list, or eaglectl/inspect/2.

    In a list each has its path: of `names`, as given on the command line.
    """
    if version == 1 and len(results) == 1 and isinstance(results[0], Inspection):
        return InspectDocument(InspectionPart.of(results[0]))
    paths = names or [_path(result) for result in results]
    entries = tuple(_entry(path, result) for path, result in zip(paths, results, strict=True))
    return InspectionsDocument(entries) if version == 1 else InspectionsDocument2(entries)


def _path(result: Inspection | FailedSource) -> str:
    return result.source if isinstance(result, FailedSource) else os.fspath(result)


def _entry(path: str, result: Inspection | FailedSource) -> Part:
    if isinstance(result, FailedSource):
        return FailedPart(path, ErrorPart.of(result))
    return InspectedPart(path, InspectionPart.of(result))
