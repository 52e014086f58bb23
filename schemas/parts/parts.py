"""Parts that several JSON documents have: answers, measured acceptance, a canonical drafter."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from eaglectl.base import Count
from eaglectl.drafter.boundaries import Convention
from eaglectl.drafter.drafter import Level, Norms
from eaglectl.verdicts import AnswerOutcome, ServedAs
from schemas.parts.document import INLINE, CountFrom1, Interval, Number, NumberOrNull, Part, RuleId

Length = Annotated[Number, Meta(extra_json_schema={"minimum": 1})]


Forecast = Annotated[
    int | None,
    Meta(
        description="About how many prompts tell whether the bar is kept, where nothing is lost, by the"
        " deviation between the first eight; null where none would"
    ),
]

Version = Literal["3", "3.1", "3.1-joint", "3 or 3.1"]


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


class ShareOfTokensPart(Part, frozen=True):
    """The share of tokens that have a draft token."""

    tokens: int
    covered: int
    share: Number
    most_length: Annotated[Number, Meta(description="The acceptance length that the share allows at most")]


class CoveragePart(ShareOfTokensPart, frozen=True):
    """What a draft vocabulary holds of the tokens, and by set and by script where there are several"""

    sets: Mapping[str, ShareOfTokensPart]
    scripts: Annotated[
        Mapping[str, ShareOfTokensPart], Meta(description="By the script of most letters of each text")
    ]
    commands: Annotated[
        tuple[str, ...], Meta(description="There where the share is low: count such tokens, take others")
    ] = field(name="next", default=())


class SpreadPart(Part, frozen=True):
    """The median of the repeats, the least and the most."""

    median: Number
    low: Number = field(name="least")
    high: Number = field(name="most")


class RatesPart(Part, frozen=True):
    """Tokens a second of each user's requests, and of all together."""

    per_user: SpreadPart
    total: SpreadPart


class SpeedRowPart(Part, frozen=True):
    """A drafter at one k and one concurrency."""

    k: int
    concurrency: Annotated[CountFrom1, Meta(description="Requests at a time")]
    drafted: RatesPart
    plain: RatesPart | None
    ratio: Annotated[
        SpreadPart | None,
        Meta(description="With the drafter over without, of repeats with the same prompts; null of a server"),
    ]
    length: Annotated[
        NumberOrNull,
        Meta(description="1 + accepted / drafts in these repeats; null where the engine does not count"),
    ] = field(name="acceptance_length")


class PlacePart(Part, frozen=True):
    """A concurrency, interpolated between those measured (at), or beyond the last or the first of them."""

    concurrency: Number
    side: Literal["at", "above", "below"]


class BreakEvenPart(Part, frozen=True):
    """The concurrency from which on the drafter costs time: by the median ratio, the least and the most."""

    k: int
    place: PlacePart = field(name=INLINE)
    earliest: PlacePart
    latest: PlacePart


class FastestPart(Part, frozen=True):
    """The fastest k at a concurrency; others are within its spread; pays: it is faster than no drafter."""

    concurrency: int
    k: int
    others: tuple[int, ...]
    pays: bool | None


class SpeedPart(Part, frozen=True):
    """What --speed measured."""

    text: Annotated[str, Meta(description='The ratios in a line: "2.03x at 1, 1.71x at 4"')]
    how: Annotated[str, Meta(description="What was timed, or that it is no measure of serving")]
    device: str
    card: Annotated[str, Meta(description="The GPU's name")]
    max_tokens: Annotated[int, Meta(description="New tokens of each request")]
    repeats: int
    rows: tuple[SpeedRowPart, ...]
    break_even: tuple[BreakEvenPart, ...]
    fastest: tuple[FastestPart, ...]


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


class VerdictPart(Part, frozen=True):
    """What an engine's release does with a drafter."""

    engine: str
    release: str
    outcome: ServedAs
    reasons: tuple[str, ...]
    rules: Annotated[tuple[RuleId, ...], Meta(description="The rules that report the reasons")]
    unread: Annotated[str, Meta(description="What of the files was not read, where it is as trained")]
