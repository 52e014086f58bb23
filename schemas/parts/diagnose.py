"""The JSON document of `diagnose`."""

from typing import Annotated

from msgspec import Meta, field

from eaglectl.verdicts import DiagnosisEnding, ReadingOutcome
from schemas.parts.document import INLINE, CountFrom1, Document, Ended, Number, NumberOrNull, Part, Trust
from schemas.parts.parts import (
    EstimatePart,
    Length,
    Measured,
    MeasurementPart,
    PublishedPart,
)


class NotLookedPart(Part, frozen=True):
    """A cause on which the evidence has nothing."""

    cause: str
    reason: str


class EngineNamePart(Part, frozen=True):
    """The engine of a run."""

    engine: str
    version: str


class RunPart(Part, frozen=True):
    """A run of the drafter."""

    run: EngineNamePart = field(name=f"{INLINE}run")
    k: int
    temperature: Number
    prompts_digest: str
    measured: MeasurementPart = field(name=f"{INLINE}measured")


class RunsPart(Part, frozen=True):
    """The runs that were made."""

    reference: RunPart | None
    engine: RunPart | None
    sampled: RunPart | None
    templated: RunPart | None


class ReadingPart(Part, frozen=True):
    """Another reading of the file."""

    name: str
    option: str
    outcome: ReadingOutcome
    ratio: EstimatePart


class PromptPart(Part, frozen=True):
    """A prompt of the run that is judged."""

    number: CountFrom1
    set: str
    drafts: int
    length: Length = field(name="acceptance_length")


class TextPositionsPart(Part, frozen=True):
    """A span of positions in the text."""

    start: int
    end: int
    share: EstimatePart = field(name=INLINE)


class DiagnoseDocument(Document, frozen=True, tag="eaglectl/diagnose/1"):
    """What eaglectl diagnose --json prints."""

    source: str
    target: str
    verdict: Ended
    ending: Annotated[
        DiagnosisEnding, Meta(description="What the cause is in; docs/reference/causes.md is the tree")
    ]
    cause: Annotated[str, Meta(description="The id of the cause, as in docs/reference/causes.md")]
    title: str
    words: Annotated[str, Meta(description="What shows it")]
    commands: Annotated[tuple[str, ...], Meta(description="What to run or change next")] = field(name="next")
    ruled_out: tuple[str, ...]
    not_looked: tuple[NotLookedPart, ...]
    measured: Measured
    expected: Annotated[NumberOrNull, Meta(description="The acceptance length of --expected")]
    evidence: RunsPart = field(name="runs")
    published: PublishedPart | None
    readings: Annotated[
        tuple[ReadingPart, ...],
        Meta(description="Other readings of the file that were tried, with their ratio to the stated one"),
    ]
    prompts: Annotated[
        tuple[PromptPart, ...],
        Meta(
            description="The prompts of the run that is judged, those of the lowest acceptance length first"
        ),
    ]
    text_positions: Annotated[
        tuple[TextPositionsPart, ...],
        Meta(
            description="Right first draft tokens by position in the text, from start up to and without end"
        ),
    ]
    trust_remote_code: Trust = False
