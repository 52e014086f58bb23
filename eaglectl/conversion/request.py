"""What a conversion is asked to write, as values."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from eaglectl.formats.catalogue import default_format

if TYPE_CHECKING:
    from eaglectl.conversion.arithmetic import Array
    from eaglectl.conversion.calibration import Statistics
    from eaglectl.conversion.rotation import TargetRotation
    from eaglectl.conversion.target_head import TargetMatrix

DEFAULT_LAYOUT = default_format().name
FC_NORM_MODES = ("refit", "calibrated", "ones", "off")


class Pruning(Struct, frozen=True):
    """A draft vocabulary reduced to `size` tokens by the counts in a file; token ids in `kept` stay."""

    size: int
    counts: Path
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
    statistics: "Statistics | None" = None
    is_start: bool = False
    dtype: str | None = None
    refits: "dict[bytes, tuple[Array, Mapping[str, float]]]" = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def with_dtype(self, dtype: str | None) -> "UpgradeRecipe":
        """The same upgrade, written in another dtype."""
        return dataclasses.replace(self, dtype=dtype)


class ConversionRequest(Struct, frozen=True):
    """What to write: the layout (None: the default), the EAGLE version (None: unchanged), and the changes.

    `engines` are the engine requirements the output is checked against, `drop` the tensors that may be left
    behind, `dtype` a safetensors dtype to cast floats to. `record` is added to eaglectl.json. `attention`
    (mha), `rope_style` and `has_query_lora` state how attention is rewritten. `has_target_head`: the target's
    lm_head becomes the drafter's own; `head` is that matrix once it is opened. `fixes` are keys and values
    of readings (readings.py) that are repaired. `rotation` is that of the target's residual stream.
    `force_unserved`: it is written though no engine asked for runs it as trained.
    """

    layout: str | None = None
    version: str | None = None
    engines: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    dtype: str | None = None
    recipe: UpgradeRecipe | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    rope_style: str | None = None
    has_query_lora: bool = False
    pruning: Pruning | None = None
    has_target_head: bool = False
    head: "TargetMatrix | None" = None
    fixes: tuple[tuple[str, str], ...] = ()
    rotation: "TargetRotation | None" = None
    force_unserved: bool = False

    @property
    def format_name(self) -> str:
        """The name of the layout."""
        return self.layout or DEFAULT_LAYOUT
