"""Student's t over prompts: quantiles of intervals, whether a gain is beyond chance, prompts that show it."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

STEPS = 2000  # of the integral of a t distribution
LEVEL = 0.05  # of tests; intervals are of 1 - LEVEL
MOST_PROMPTS = 100_000  # beyond which no number of prompts is stated


def gain_p_value(gains: npt.NDArray[np.float64]) -> float:
    """One-sided p of a mean above 0 by Student's t over prompts; 1 for fewer than two, or no gain."""
    if len(gains) < 2 or gains.mean() <= 0:
        return 1.0
    effect = gain_effect(gains)
    # the same gain in every prompt: chance would need all the signs alike
    if effect is None:
        return 0.5 ** len(gains)
    return t_tail(effect * math.sqrt(len(gains)), len(gains) - 1)


def gain_effect(gains: npt.NDArray[np.float64]) -> float | None:
    """The mean gain over its standard deviation; None where there is no spread to judge it by."""
    spread = float(gains.std(ddof=1)) if len(gains) > 1 else 0.0
    return float(gains.mean()) / spread if spread else None


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number (Holm), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def p_words(p_value: float) -> str:
    """A p value for people: one digit, or "<0.001"."""
    return "<0.001" if p_value < 0.001 else f"{p_value:.1g}"


def prompts_needed(effect: float, p_value: float) -> int | None:
    """The fewest prompts whose mean of `effect` standard deviations has a one-sided p below `p_value`.

    None for an effect of 0 or less, and where more than MOST_PROMPTS would be needed.
    """
    if effect <= 0:
        return None

    def is_enough(count: int) -> bool:
        return t_tail(effect * math.sqrt(count), count - 1) < p_value

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


@lru_cache(maxsize=1024)
def t_quantile(freedom: int) -> float:
    """The t of a two-sided interval of 1 - LEVEL."""
    t = step = 1.0
    # the tail is convex from 0 on, so that Newton's steps rise to the quantile and never pass it
    while step > 1e-7 * t:
        step = (t_tail(t, freedom) - LEVEL / 2) / _t_density(t, freedom)
        t += step
    return t


def t_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t: with t = sqrt(freedom) tan(a) the density is that of cos(a)^(freedom - 1)."""
    start = math.atan(t / math.sqrt(freedom))
    # further on is less than a double can add
    width = min(math.pi / 2 - start, 12 / math.sqrt(freedom))
    # logarithms, since high powers of a cosine underflow
    angles = start + (np.arange(STEPS) + 0.5) * width / STEPS
    density = np.exp(_log_norm(freedom) + (freedom - 1) * np.log(np.cos(angles)))
    return float(density.sum() * width / STEPS)


def _t_density(t: float, freedom: int) -> float:
    power = -(freedom + 1) / 2 * math.log1p(t * t / freedom)
    return math.exp(_log_norm(freedom) + power) / math.sqrt(freedom)


def _log_norm(freedom: int) -> float:
    return math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
