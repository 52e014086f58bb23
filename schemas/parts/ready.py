"""The JSON document of `ready`."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from eaglectl.verdicts import ServedAs
from schemas.parts.diagnose import EngineNamePart
from schemas.parts.document import INLINE, Document, Ended, Number, Part
from schemas.parts.parts import (
    CoveragePart,
    EstimatePart,
    Measured,
    MeasurementPart,
    PublishedLengthPart,
    SpeedPart,
)


class RunPart(Part, frozen=True):
    """A run of the drafter."""

    run: EngineNamePart = field(name=f"{INLINE}run")
    verdict: Ended
    k: int
    prompts_digest: str
    measured: MeasurementPart = field(name=f"{INLINE}measured")
    coverage: Annotated[
        CoveragePart | None,
        Meta(description="There where the draft vocabulary is reduced and the engine tells its tokens"),
    ] = None


class FilesPart(Part, frozen=True):
    """What an engine does with the files as stored, or as converted."""

    outcome: ServedAs
    reasons: tuple[str, ...]
    acceptance: RunPart | None
    gap: Annotated[str, Meta(description="Why there is no run")]
    reading: Annotated[
        str | None,
        Meta(
            description="How the reference ran the files, where it read them as the engine does and not as"
            " they were trained"
        ),
    ]


class GainPart(Part, frozen=True):
    """What the conversion gained."""

    ratio: EstimatePart = field(name=INLINE)
    prompts_needed: int | None


class EnginePart(Part, frozen=True):
    """What one engine does with the drafter."""

    engine: str
    release: str
    stored: FilesPart
    converted: FilesPart | None
    gain: Annotated[
        GainPart | None,
        Meta(
            description="Acceptance length converted over stored, of the same prompts; null where the engine"
            " did not run both. prompts_needed: about how many tell it from 1; null where none would"
        ),
    ]
    command: Annotated[
        str | None, Meta(description="Starts the engine with the files that it runs as trained")
    ]
    measure: Annotated[
        str | None,
        Meta(description="Measures the engine once it is started; null where ready runs it itself"),
    ]

    speed: Annotated[
        SpeedPart | None, Meta(description="There with --speed: tokens a second with the files to serve")
    ] = None


class ReadyDocument(Document, frozen=True, tag="eaglectl/ready/1"):
    """What eaglectl ready --json prints."""

    source: str
    verdict: Annotated[
        Ended,
        Meta(description="Whether an engine, or each that was asked for, serves the drafter as trained"),
    ]
    reason: Annotated[str, Meta(description="Why it is not ready, or what to look into where it is")]
    line: Annotated[str, Meta(description="The last line of the text report")]
    out: Annotated[Path | None, Meta(description="Where the conversion is; null where none was kept")]
    is_converted: bool
    convert: Annotated[str | None, Meta(description="The command that writes the conversion")]
    measured: Measured
    engines: tuple[EnginePart, ...]
    cause: Annotated[str | None, Meta(description="Of low acceptance, as in docs/reference/causes.md")]
    next: tuple[str, ...]
    published: Annotated[
        tuple[PublishedLengthPart, ...],
        Meta(description="Published acceptance lengths that were measured alike"),
    ]
    reused: Annotated[tuple[str, ...], Meta(description="What an earlier call measured")]
    seconds: Number
    speed_gap: Annotated[str, Meta(description="There where --speed measured nothing: why")] = ""
