"""What a conversion is asked to write, as values."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, field

from eaglectl.formats.catalogue import default_format
from eaglectl.options import Option, Options

if TYPE_CHECKING:
    from eaglectl.conversion.rewriting import TargetMatrix, TargetRotation
else:  # what the options do not make; numpy's modules
    TargetRotation = TargetMatrix = Any

DEFAULT_LAYOUT = default_format().name
FC_NORM_MODES = ("refit", "calibrated", "ones", "off")
REWRITING = "MLA, pruning and other rewriting"


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


class UpgradeRecipe(Struct, frozen=True, eq=False):
    """How EAGLE-3 becomes 3.1: the treatment of each switch, and the target's statistics.

    `fc_norm` is one of FC_NORM_MODES, `statistics` are Statistics of the upgrade, or None.

    `is_start`: the output is a trainer's start, not a drafter to serve (--init-only). `dtype`: the dtype that
    is written, where it differs from the drafter's; scales are rounded to it. `refits` caches refit results:
    one conversion is planned several times (for the terminal, the gate and the writer) and solved once.
    """

    fc_norm: str = "refit"
    is_norm_output: bool = True
    statistics: Any = None
    is_start: bool = False
    dtype: str | None = None
    refits: dict[bytes, tuple[Any, Mapping[str, float]]] = field(default_factory=dict)


class ConversionRequest(Struct, frozen=True):
    """What to write: the layout (None: the default), the EAGLE version (None: unchanged), and the changes.

    `recipe`, `head` and `rotation` are what other modules opened or measured for it; `record` is added to
    eaglectl.json.
    """

    layout: str | None = None
    version: str | None = None
    engines: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    dtype: str | None = None
    recipe: UpgradeRecipe | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    rope_style: str | None = None
    has_query_lora: bool = False
    pruning: Pruning | None = None
    head: TargetMatrix | None = None
    fixes: tuple[tuple[str, str], ...] = ()
    rotation: TargetRotation | None = None
