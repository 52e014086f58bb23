"""The JSON documents of `smoke` and `smoke --load-only`."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from eaglectl.base import Count, Digest
from eaglectl.verdicts import GateEnding, MatchEnding, ReadingOutcome
from schemas.parts.document import (
    INLINE,
    Document,
    Ended,
    NotNegative,
    Number,
    NumberOrNull,
    Part,
    Positive,
    Trust,
)
from schemas.parts.parts import (
    CoveragePart,
    EstimatePart,
    Forecast,
    MeasurementPart,
    PublishedPart,
    SpeedPart,
)


class EnginePart(Part, frozen=True):
    """What ran the drafter."""

    engine: Annotated[str, Meta(extra_json_schema={"enum": ["vllm", "sglang", "reference", "server"]})] = (
        field(name="name")
    )
    version: str
    device: str
    dtype: str
    proves: str
    resolved: Mapping[str, Any]
    differences: tuple[str, ...]
    arguments: Annotated[
        Mapping[str, Any],
        Meta(
            description="The engine's own arguments that were given: --tensor-parallel-size and --engine-arg"
        ),
    ]


class SecondsPart(Part, frozen=True):
    """The time of all prompts with and without the drafter."""

    drafted: Number
    plain: NumberOrNull
    meaning: Annotated[str, Meta(description="What these times are a measure of")]


class PromptsFilePart(Part, frozen=True):
    """Where the prompts are from; name and sha256 are null for the built-in ones"""

    file: str | None = field(name="name")
    sha256: Annotated[Digest | None, Meta(description="Of the bytes of the file")]
    total: Annotated[int, Meta(description="Their number in the file")] = field(name="prompts")
    sample: Annotated[int | None, Meta(description="--sample, drawn by seed")]


class SetPart(Part, frozen=True):
    """The first drafter's acceptance length over the second's on one set of prompts."""

    prompts: int
    ratio: EstimatePart
    rounds: EstimatePart
    outcome: Ended
    ending: GateEnding
    needed: int | None = field(name="prompts_needed")


class AgainstPart(Part, frozen=True):
    """A second drafter on the same prompts."""

    source: str
    measured: MeasurementPart = field(name=INLINE)
    ending: GateEnding
    ratio: EstimatePart
    rounds: EstimatePart
    meaning: Annotated[str, Meta(description="What the ratios are of")]
    max_regression: Positive
    forecast: Forecast = field(name="prompts_forecast")
    sets: Mapping[str, SetPart]
    failures: Annotated[
        tuple[str, ...], Meta(description="Sets on which the first drafter is not shown to be as good")
    ]
    gaps: Annotated[tuple[str, ...], Meta(description="Sets of too few prompts to tell")]


class VariantPart(Part, frozen=True):
    """Another reading of the file."""

    name: str
    option: str
    is_better: bool
    outcome: ReadingOutcome
    p_value: Annotated[
        Number,
        Meta(
            description="Of no gain, one-sided, over prompts, corrected for the number of readings",
            extra_json_schema={"minimum": 0, "maximum": 1},
        ),
    ]
    prompts_needed: Annotated[
        int | None,
        Meta(description="Prompts like these that would show a gain which these cannot tell from chance"),
    ]
    is_verified: Annotated[
        bool, Meta(description="The figures are of draft-and-verify, and not of the first pass")
    ]
    measured: MeasurementPart = field(name=INLINE)
    ratio: EstimatePart


class DriftPart(Part, frozen=True):
    """One kind of prompts, by draft depth."""

    name: str
    measured: MeasurementPart = field(name=INLINE)
    state_growth: tuple[Number, ...]
    attention_on_first: tuple[Number, ...]
    attention_on_own: tuple[Number, ...]


class ProbesPart(Part, frozen=True):
    """What the probes gave."""

    sensitivity: tuple[VariantPart, ...]
    drift: tuple[DriftPart, ...]


class FilesMatchPart(Part, frozen=True):
    """The rounds of the server beside those of one drafter's files."""

    source: str
    ending: MatchEnding
    compared: Annotated[int, Meta(description="Prompts with equal answers and enough rounds")]
    equal: Annotated[int, Meta(description="Of these, those with equal rounds")]
    length: EstimatePart
    ratio: Annotated[EstimatePart, Meta(description="The server's acceptance length over the files'")]
    needed: Annotated[
        int | None, Meta(description="About how many prompts would tell; null where none would")
    ] = field(name="prompts_needed")


class MatchPart(Part, frozen=True):
    """Whether the server drafts as the first of these files do"""

    ending: MatchEnding
    nearest: Annotated[str, Meta(description="The source of the files that it drafts as; empty for none")]
    words: str
    prompts: int
    alike: Annotated[int, Meta(description="Prompts whose answers begin as the target's files answer")]
    files: tuple[FilesMatchPart, ...]


class SmokeDocument(Document, frozen=True, tag="eaglectl/smoke/1"):
    """What eaglectl smoke --json prints."""

    source: str
    run: EnginePart = field(name="engine")
    verdict: Ended
    failures: tuple[str, ...]
    gaps: Annotated[
        tuple[str, ...], Meta(description="Why the verdict is could-not-look: too little was measured")
    ]
    notes: tuple[str, ...]
    measured: MeasurementPart = field(name=INLINE)
    by_set: Mapping[str, MeasurementPart] = field(name="sets")
    is_lossless: bool | None = field(name="lossless")
    seconds: SecondsPart
    k: int
    max_tokens: int
    seed: int
    prompts_digest: Digest
    choice: PromptsFilePart | None = field(name="prompts_file")
    ignores_eos: Annotated[bool, Meta(description="Whether answers went on past the end of a sequence")] = (
        field(name="ignore_eos")
    )
    temperature: Annotated[NotNegative, Meta(description="0 is greedy")]
    files: Annotated[
        Mapping[str, Digest],
        Meta(
            description="SHA-256 of the config and weights that were measured, by which upload knows whose"
            " figures these are"
        ),
    ]
    published: PublishedPart | None
    against: AgainstPart | None
    probes: ProbesPart
    speed: Annotated[SpeedPart | None, Meta(description="There with --speed: tokens a second")] = None
    speed_gap: Annotated[str, Meta(description="There where --speed could not measure: why")] = ""
    coverage: Annotated[
        CoveragePart | None,
        Meta(description="There where the draft vocabulary is reduced and the engine tells its tokens"),
    ] = None
    match: Annotated[
        MatchPart | None,
        Meta(description="There for a server that was compared with the files of drafters"),
    ] = None
    trust_remote_code: Trust = False


class LoadedClass(Part, frozen=True):
    """Settings that the class reads from the checkpoint"""

    name: str = field(name="class")
    layers: Count
    fc_norm: bool
    norm_output: bool
    norm_before_fc: bool
    norm_before_residual: bool | None
    fc: Annotated[tuple[int, int] | None, Meta(description="Output and input size")]
    own_embed_tokens: bool
    own_lm_head: bool


class LoadDocument(Document, frozen=True, tag="eaglectl/load/1"):
    """What eaglectl smoke --load-only --json prints."""

    version: Annotated[str, Meta(description="The release of vLLM that loaded the drafter")]
    unfilled: Annotated[
        tuple[str, ...], Meta(description="Parameters of vLLM's drafter class that the files do not fill")
    ]
    resolved: LoadedClass
    trust_remote_code: Trust = False
    shared: Annotated[
        tuple[str, ...],
        Meta(description="Parameters that vLLM takes from the target; absent where there are none"),
    ] = ()
