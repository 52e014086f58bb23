"""The JSON document of `calibrate`."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from eaglectl.base import Count, Digest
from schemas.parts.document import CountFrom1, Document, NotNegative, Number, Part, Positive, Trust
from schemas.parts.parts import RecordedAnswer


class Digests(Part, frozen=True):
    """SHA-256 of what the statistics are of."""

    drafter: Digest
    target: Digest
    prompts: Digest


class MassivePart(Part, frozen=True):
    """Tokens with a state of ten times its layer's median, such as the first one of many targets"""

    tokens: int
    positions: tuple[int, ...]
    channels: Annotated[
        tuple[tuple[int, ...], ...], Meta(description="In which the states of each boundary are massive")
    ]
    times: Annotated[
        tuple[Number, ...],
        Meta(
            description="The largest RMS of a massive state of each boundary over its median, 0 where none is"
        ),
    ]


# what ran the target
Ran = Annotated[
    Mapping[str, str],
    Meta(
        extra_json_schema={
            "properties": {
                "name": {"enum": ["transformers", "vllm", "states"]},
                "device": {"type": "string"},
                "dtype": {"type": "string"},
            },
            "required": ["name", "device", "dtype"],
        }
    ),
]


class CalibrateDocument(Document, frozen=True, tag="eaglectl/calibrate/1"):
    """What eaglectl calibrate --json prints."""

    out: Annotated[str, Meta(description="The folder that --calibration takes")]
    digests: Digests
    boundaries: tuple[Count, ...]
    rms_norm_eps: NotNegative
    tokens: Annotated[CountFrom1, Meta(description="Tokens of prompts and answers that were counted")]
    rms: Annotated[
        tuple[Positive, ...], Meta(description="Median RMS of the state at each boundary, in their order")
    ]
    log_ratio_sd: Annotated[
        tuple[NotNegative, ...],
        Meta(description="How each layer's size varies against the others' from token to token"),
    ]
    sigma: Annotated[Positive, Meta(description="Median RMS of the first two fed-back states")]
    sigma_by_set: Mapping[str, Positive]
    is_direction: Annotated[
        bool, Meta(description="norm_before_residual: only the direction of what fc makes is fitted")
    ]
    engine: Ran
    massive: MassivePart | None = None
    measured: Annotated[
        tuple[RecordedAnswer, ...],
        Meta(description="What the drafter's files left open and was measured; absent where nothing was"),
    ] = ()
    trust_remote_code: Trust = False
