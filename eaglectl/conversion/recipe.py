"""What is asked of an upgrade to EAGLE-3.1, as a value."""

from dataclasses import dataclass, field

from eaglectl.conversion.arithmetic import Array
from eaglectl.conversion.calibration import Statistics

FC_NORM = ("refit", "calibrated", "ones", "off")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How EAGLE-3 becomes 3.1: what is done for each switch (`fc_norm` one of FC_NORM), and what is known of the states.

    `dtype` is the one that is written, where it is another than the drafter's: sizes are what it holds of them.
    `solved` keeps what a refit gave: a conversion is planned for the screen, for the gate and for the writer, and solved once.
    """

    fc_norm: str = "refit"
    is_norm_output: bool = True
    statistics: Statistics | None = None
    is_start: bool = False  # --init-only: a trainer's start, not a drafter
    dtype: str | None = None
    solved: dict[bytes, tuple[Array, float]] = field(default_factory=dict, compare=False, repr=False)
