"""Whether a gain over prompts is beyond chance, among several that were tried."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

STEPS = 2000  # of the integral of a t distribution
LEVEL = 0.05
MOST_PROMPTS = 100_000  # beyond which no number of prompts is stated


def gain_p_value(gains: npt.NDArray[np.float64]) -> float:
    """One-sided p of a mean above 0 by Student's t over prompts; 1 for fewer than two, or no gain."""
    if len(gains) < 2 or gains.mean() <= 0:
        return 1.0
    spread = float(gains.std(ddof=1))
    # the same gain in every prompt: chance would need all the signs alike
    if spread == 0:
        return 0.5 ** len(gains)
    return _t_tail(float(gains.mean()) / spread * math.sqrt(len(gains)), len(gains) - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number (Holm), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def prompts_needed(gains: npt.NDArray[np.float64], tries: int) -> int | None:
    """How many prompts like these make this gain significant among `tries` (Bonferroni).

    None where there is no gain, or nothing to judge its spread by.
    """
    if len(gains) < 2 or gains.mean() <= 0:
        return None
    spread = float(gains.std(ddof=1))
    if spread == 0:
        return None
    effect = float(gains.mean()) / spread

    def is_enough(count: int) -> bool:
        return _t_tail(effect * math.sqrt(count), count - 1) * tries < LEVEL

    high = 2
    while not is_enough(high):
        high *= 2
        if high > MOST_PROMPTS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _t_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t: with t = sqrt(freedom) tan(a) the density is that of cos(a)^(freedom - 1)."""
    half = math.pi / 2
    start = math.atan(t / math.sqrt(freedom))
    # logarithms, since high powers of a cosine underflow
    log_norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    angles = np.linspace(start, half, STEPS, endpoint=False) + (half - start) / STEPS / 2
    density = np.exp(log_norm + (freedom - 1) * np.log(np.cos(angles)))
    return float(density.sum() * (half - start) / STEPS)
