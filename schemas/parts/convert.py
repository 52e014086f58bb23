"""The JSON document of `convert`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, field

from eaglectl.base import Count
from eaglectl.conversion.plan import Action, KeyChange, LeftBehind
from eaglectl.verdicts import GateEnding
from schemas.parts.document import INLINE, Document, Number, Part, Trust
from schemas.parts.parts import (
    DrafterPart,
    EstimatePart,
    Forecast,
    Measured,
    MeasurementPart,
    NotePart,
    VerdictPart,
)


class StepPart(Part, frozen=True):
    """A tensor of the output."""

    name: str
    action: Action
    stored: tuple[str, ...] = field(name="from")
    dtype: str
    shape: tuple[Count, ...]
    nbytes: int = field(name="bytes")
    how: str | None


class PlanPart(Part, frozen=True):
    """What is written."""

    source: str
    layout: str
    drafter: DrafterPart
    steps: tuple[StepPart, ...] = field(name="tensors")
    config: Mapping[str, Any]
    changes: tuple[KeyChange, ...]
    left: tuple[LeftBehind, ...]
    notes: tuple[NotePart, ...]


class ServingPart(Part, frozen=True):
    """What an engine does with the output."""

    verdict: VerdictPart = field(name=INLINE)
    serving: str


class GateRowPart(Part, frozen=True):
    """Acceptance before and after at one k."""

    k: int
    before: MeasurementPart
    after: MeasurementPart
    ratio: Annotated[
        EstimatePart,
        Meta(description="After over before, of the tokens drafted from every position of the same answers"),
    ]
    rounds: Annotated[EstimatePart, Meta(description="After over before, of rounds as an engine makes them")]


class GatePart(Part, frozen=True):
    """Whether a conversion kept its acceptance."""

    is_passed: bool
    ending: Annotated[
        GateEnding,
        Meta(description="kept: every lower bound reaches the tolerance; lost: an upper bound is below it"),
    ]
    forecast: Forecast = field(name="prompts_forecast")
    prompts_needed: Annotated[
        int | None,
        Meta(description="About how many prompts would tell kept from lost; null where none would"),
    ]
    tolerance: Number
    prompts: int
    engine: str
    device: str
    dtype: str
    rows: tuple[GateRowPart, ...]


class ConvertDocument(Document, frozen=True, tag="eaglectl/convert/1"):
    """What eaglectl convert --json prints."""

    out: Path | None
    seconds: Number
    plan: PlanPart
    commands: Mapping[str, str]
    serving: Annotated[
        tuple[ServingPart, ...],
        Meta(
            description="What each engine does with the output: the last release asked for, else the newest."
            " `serving` are its releases that run it as trained."
        ),
    ]
    gate: Annotated[
        GatePart | None, Meta(description="What the gate of --to 3.1 measured; null where none ran")
    ]
    measured: Measured
    trust_remote_code: Trust = False
