"""Acceptance length and acceptance by position, with their intervals, and the thresholds of a dead drafter.

Acceptance length is 1 + accepted tokens / drafts (vLLM's "mean acceptance length"): the tokens that one
forward pass of the target yields.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eaglectl.errors import UnreadableError

RESAMPLES = 2000
# a drafter at or below either is dead, whatever thresholds were given
DEAD_LENGTH = 1.05
DEAD_POSITION_0 = 0.10


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt: its set, its drafts, how many drafts had each position accepted, and the new tokens."""

    set: str
    drafts: int
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """Acceptance over a set of prompts."""

    length: Estimate
    per_position: tuple[Estimate, ...]
    drafts: int
    tokens: int
    prompts: int


def measure(results: Sequence[PromptResult], seed: int = 0) -> Measurement:
    """Acceptance over `results`, with intervals by bootstrap over prompts: tokens are not independent.

    Raises UnreadableError where nothing was drafted.
    """
    drafts, accepted = _counts(results)
    if drafts.sum() == 0:
        raise UnreadableError(
            "no draft was made, so there is nothing to measure; give longer prompts or more --max-tokens"
        )
    samples = _resamples(len(results), seed)
    rates = accepted[samples].sum(1) / np.maximum(drafts[samples].sum(1), 1)[:, None]
    point = accepted.sum(0) / drafts.sum()
    return Measurement(
        length=_estimate(1 + point.sum(), 1 + rates.sum(1)),
        per_position=tuple(_estimate(point[i], rates[:, i]) for i in range(len(point))),
        drafts=int(drafts.sum()),
        tokens=sum(len(result.tokens) for result in results),
        prompts=len(results),
    )


def ratio(results: Sequence[PromptResult], baseline: Sequence[PromptResult], seed: int = 0) -> Estimate:
    """Acceptance length of `results` over that of `baseline`, on the same prompts (paired bootstrap)."""
    samples = _resamples(len(results), seed)
    (length, lengths), (base, bases) = (_lengths(side, samples) for side in (results, baseline))
    return _estimate(length / base, lengths / bases)


def shortfalls(
    measured: Measurement, min_length: float | None, min_position_0: float | None
) -> tuple[str, ...]:
    """Why the drafter fails: it is dead, or below a threshold that was given."""
    return tuple(
        _shortfalls(measured.length.value, measured.per_position[0].value, min_length, min_position_0)
    )


def _shortfalls(
    length: float, position_0: float, min_length: float | None, min_position_0: float | None
) -> Iterator[str]:
    if length <= DEAD_LENGTH:
        yield f"acceptance length {length:.3f} is that of a dead drafter (<= {DEAD_LENGTH})"
    rate = f"position 0 is accepted in {position_0:.1%} of drafts"
    if position_0 < DEAD_POSITION_0:
        yield f"{rate}; a live drafter reaches {DEAD_POSITION_0:.0%}"
    if min_length is not None and length < min_length:
        yield f"acceptance length {length:.3f} is below --min-acceptance-length {min_length:g}"
    if min_position_0 is not None and position_0 < min_position_0:
        yield f"{rate}, below --min-position-0 {min_position_0:g}"


def _counts(results: Sequence[PromptResult]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Drafts of each prompt [prompts], and accepted drafts by position [prompts, k]."""
    drafts = np.array([result.drafts for result in results], dtype=np.int64)
    return drafts, np.array([result.accepted for result in results], dtype=np.int64)


def _lengths(
    results: Sequence[PromptResult], samples: npt.NDArray[np.int64]
) -> tuple[float, npt.NDArray[np.float64]]:
    """Acceptance length over all prompts, and over each resample."""
    drafts, accepted = _counts(results)
    total = accepted.sum(1)
    resampled = 1 + total[samples].sum(1) / np.maximum(drafts[samples].sum(1), 1)
    return 1 + total.sum() / drafts.sum(), resampled


def _resamples(size: int, seed: int) -> npt.NDArray[np.int64]:
    """Indices of prompts, [RESAMPLES, size]."""
    return np.random.default_rng(seed).integers(0, size, (RESAMPLES, size))


def _estimate(value: float, samples: npt.NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(samples, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))
