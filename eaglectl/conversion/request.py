"""What a conversion is asked to write, as values."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import field

from eaglectl.formats.catalogue import default_format
from eaglectl.options import ANSWERS, ENGINE, Option, Options

if TYPE_CHECKING:
    from eaglectl.conversion.arithmetic import Array
    from eaglectl.conversion.calibration import Statistics
    from eaglectl.conversion.rotation import TargetRotation
    from eaglectl.conversion.target_head import TargetMatrix
else:  # what the options do not make; numpy's modules
    Array = Statistics = TargetRotation = TargetMatrix = Any

DEFAULT_LAYOUT = default_format().name
FC_NORM_MODES = ("refit", "calibrated", "ones", "off")
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
REWRITING = "MLA, pruning and other rewriting"


def read_dtype(text: str) -> str:
    """The name of a dtype in safetensors, which may be given itself. Raises ValueError."""
    if text not in DTYPES and text not in DTYPES.values():
        raise ValueError("bfloat16, float16 or float32")
    return DTYPES.get(text, text)


def parse_reading(text: str) -> tuple[str, str]:
    """KEY and VALUE of one --fix-reading; `exchanged` where only KEY is given."""
    key, _, value = text.partition("=")
    return key, value or "exchanged"


class Pruning(Options, frozen=True):
    """A draft vocabulary reduced to `size` tokens by the counts in a file; token ids in `kept` stay."""

    size: Annotated[
        int, Option("Keep only this many draft tokens, by --token-counts.", "--draft-vocab", group=REWRITING)
    ]
    counts: Annotated[
        Path,
        Option(
            "How often each target token was seen: JSON, or lines of an id and a count.",
            "--token-counts",
            value="FILE",
            group=REWRITING,
            complete="files",
        ),
    ]
    kept: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UpgradeRecipe:
    """How EAGLE-3 becomes 3.1: the treatment of each switch, and the target's statistics.

    `fc_norm` is one of FC_NORM_MODES.

    `is_start`: the output is a trainer's start, not a drafter to serve (--init-only). `dtype`: the dtype that
    is written, where it differs from the drafter's; scales are rounded to it. `refits` caches refit results:
    one conversion is planned several times (for the terminal, the gate and the writer) and solved once.
    """

    fc_norm: str = "refit"
    is_norm_output: bool = True
    statistics: Statistics | None = None
    is_start: bool = False
    dtype: str | None = None
    refits: "dict[bytes, tuple[Array, Mapping[str, float]]]" = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )


class ConversionRequest(Options, frozen=True):
    """What to write: the layout (None: the default), the EAGLE version (None: unchanged), and the changes.

    `recipe`, `head` and `rotation` are what other modules opened or measured for it; `record` is added to
    eaglectl.json.
    """

    layout: Annotated[
        str | None,
        Option(
            "The layout: vllm (the default, which the most engines accept), sglang, llama.cpp, speculators,"
            " eagle, or a trainer's. An engine's is refused where none of its releases runs the output as"
            " trained.",
            "--for",
            value="LAYOUT",
            complete="layouts",
        ),
    ] = None
    version: Annotated[
        str | None,
        Option(
            "EAGLE version: 3 or 3.1. Left out, the version stays.",
            "--to",
            value="3|3.1",
            choices=("3", "3.1"),
        ),
    ] = None
    engines: Annotated[tuple[str, ...], ENGINE] = ()
    drop: Annotated[
        tuple[str, ...],
        Option(
            "A tensor without a place in a drafter that may be left behind.", value="TENSOR", group=ANSWERS
        ),
    ] = ()
    dtype: Annotated[
        str | None,
        Option(
            "Cast float tensors: bfloat16, float16 or float32. Never done unasked.",
            value="bfloat16|float16|float32",
            group="Writing",
            read=read_dtype,
        ),
    ] = None
    recipe: UpgradeRecipe | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    attention: Annotated[
        str | None,
        Option(
            "mha: write GQA's shared key and value heads out, for an engine without GQA.",
            value="mha",
            group=REWRITING,
        ),
    ] = None
    rope_style: Annotated[
        str | None,
        Option(
            "interleaved: reorder an MLA drafter's rotary rows that are paired by halves.",
            value="interleaved",
            group=REWRITING,
        ),
    ] = None
    has_query_lora: Annotated[
        bool,
        Option(
            "Write an MLA drafter's q_proj as q_a_proj and q_b_proj; nearly exact.",
            "--mla-query-lora",
            group=REWRITING,
        ),
    ] = False
    pruning: Pruning | None = None
    has_target_head: Annotated[
        bool,
        Option(
            "Give a drafter without an lm_head the target's (--target with weights).",
            "--materialize-lm-head",
            group=REWRITING,
        ),
    ] = False
    head: TargetMatrix | None = None
    fixes: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "Repair tensors stored other than named, as `smoke --probe sensitivity` prints: KEY=VALUE.",
            "--fix-reading",
            value="KEY=VALUE",
            group=REWRITING,
            read=parse_reading,
            complete="readings",
        ),
    ] = ()
    rotation: TargetRotation | None = None
    force_unserved: Annotated[
        bool,
        Option(
            "Write what no release of the engines asked for runs as trained; eaglectl.json and the card say"
            " so.",
            group="Writing",
        ),
    ] = False

    @property
    def format_name(self) -> str:
        """The name of the layout."""
        return self.layout or DEFAULT_LAYOUT
