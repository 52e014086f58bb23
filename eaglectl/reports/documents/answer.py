"""What a drafter's files left open and a measurement answered, as a part of JSON documents."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from eaglectl.base import CountFrom1, Interval, Number
from eaglectl.reports.documents.document import Part
from eaglectl.verdicts import AnswerOutcome


class TriedReading(Part, frozen=True):
    """A choice that was tried."""

    option: str
    acceptance_length: Number
    interval: Annotated[Interval, Meta(description="95 % over prompts")]


class AnswerPart(Part, frozen=True):
    """A question that the files leave open, and how it was measured."""

    about: Annotated[str, Meta(description="What the files leave open")]
    question: Annotated[str, Meta(description="The question as it would be asked")]
    outcome: AnswerOutcome
    answer: Annotated[
        str | None, Meta(description="The option that answers it; null where the prompts do not tell")
    ]
    summary: Annotated[str, Meta(description="What was tried and by how much the best wins, in words")]
    readings: Annotated[tuple[TriedReading, ...], Meta(description="Every choice, the best first")]
    ratio: Annotated[
        Number, Meta(description="Acceptance length of the best over the choice that comes nearest")
    ]
    interval: Annotated[Interval, Meta(description="95 % of the ratio over paired prompts")]
    p_value: Annotated[
        Number,
        Meta(description="Of the rival that is hardest to tell from the best; two-sided, Holm's correction"),
    ]
    judged_by: Annotated[CountFrom1, Meta(description="Number of prompts")]
    k: Annotated[CountFrom1, Meta(description="Draft tokens from every position")]


class RecordedAnswer(AnswerPart, frozen=True):
    """An answer as eaglectl.json keeps it."""

    prompts: Annotated[
        Mapping[str, Any] | None, Meta(description="Name, SHA-256 and number of the prompts")
    ] = None
    target: str | None = None
    eaglectl: Annotated[str | None, Meta(description="eaglectl's version")] = None


Measured = Annotated[tuple[AnswerPart, ...], Meta(description="What the files leave open and was measured")]


def measured_part(result: Any) -> list[Mapping[str, Any]]:
    """Return the answers of a result."""
    return [answer.record for answer in result.measured]
