"""The JSON document of `engines`."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from eaglectl.base import Count
from eaglectl.engines.behaviour import EvidenceKind
from schemas.parts.document import Document, Part


class FactCounts(Part, frozen=True):
    """How many facts of a release were run, and how many read only."""

    run: int
    read: int


class ReleasePart(Part, frozen=True):
    """A release of an engine."""

    release: str
    runners: tuple[Literal["V1", "V2"], ...]
    run: Annotated[tuple[str, ...], Meta(description="the runners that ran recorded cases")]
    ids: Annotated[EvidenceKind, Meta(description="whether the functions that resolve layer ids were run")]
    facts: FactCounts


class GpuRunPart(Part, frozen=True):
    """A release of an engine on a card, and how the commands ended that ran it there."""

    release: str | None
    card: str
    date: str
    eaglectl: Annotated[str, Meta(description="The commit of eaglectl")]
    passed: Count
    failed: Count


class FactPart(Part, frozen=True):
    """What an engine does with drafters of a kind."""

    rule: Annotated[str, Meta(pattern="^EGL1[0-2][0-9]{2}$")]
    id: str
    releases: str
    source: str
    run_in: Annotated[
        Mapping[str, str],
        Meta(description="the recorded case that shows the fact, by release; in others it was read"),
    ]


class ServicePart(Part, frozen=True):
    """Which releases serve a kind of drafter from a layout."""

    layout: str
    version: Literal["3", "3.1", "3.1-joint"] = field(name="drafter")
    attention: Literal["GQA", "Qwen3", "MLA"]
    releases: tuple[str, ...]
    reasons: tuple[str, ...] = field(name="newest_says")


class EnginePart(Part, frozen=True):
    """An engine whose releases are followed."""

    name: str = field(name="engine")
    title: str
    source: str
    releases: tuple[ReleasePart, ...]
    gpu_runs: Annotated[
        tuple[GpuRunPart, ...], Meta(description="What was run on a GPU; empty where nothing was")
    ]
    facts: tuple[FactPart, ...]
    serves: tuple[ServicePart, ...]
    notes: Annotated[
        tuple[str, ...],
        Meta(description="What is known of serving in parallel and with structured output."),
    ]


class NotFollowedPart(Part, frozen=True):
    """An engine whose releases are not followed."""

    engine: str
    evidence: EvidenceKind
    notes: tuple[str, ...]


class EnginesDocument(Document, frozen=True, tag="eaglectl/engines/1"):
    """What eaglectl engines --json prints."""

    engines: tuple[EnginePart, ...]
    not_followed: tuple[NotFollowedPart, ...]
