"""Numbers from runs: acceptance length, acceptance by position, their uncertainty, and the verdict.

Acceptance length is 1 + accepted tokens / drafts (vLLM's "mean acceptance length"): what one pass of the target yields.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eaglectl.errors import Unreadable

RESAMPLES = 2000
# a drafter below either is dead whatever the user asks for
DEAD_LENGTH = 1.05
DEAD_POSITION_0 = 0.10


@dataclass(frozen=True, slots=True)
class PromptResult:
    """One prompt: its set, its rounds, how many rounds accepted each draft position, and the new tokens."""

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
    """Acceptance over `results`; intervals by bootstrap over prompts, since tokens of one prompt are not independent.

    Raises Unreadable where nothing was drafted: that is no measurement.
    """
    drafts, accepted = _counts(results)
    if drafts.sum() == 0:
        raise Unreadable("no draft was made, so there is nothing to measure; give longer prompts or more --max-tokens")
    picks = _resamples(len(results), seed)
    shares = accepted[picks].sum(1) / np.maximum(drafts[picks].sum(1), 1)[:, None]
    point = accepted.sum(0) / drafts.sum()
    lengths = 1 + shares.sum(1)
    return Measurement(
        _estimate(1 + point.sum(), lengths),
        tuple(_estimate(point[i], shares[:, i]) for i in range(len(point))),
        int(drafts.sum()),
        sum(len(result.tokens) for result in results),
        len(results),
    )


def ratio(results: Sequence[PromptResult], other: Sequence[PromptResult], seed: int = 0) -> Estimate:
    """Acceptance length of `results` over that of `other`, on the same prompts in the same order (paired bootstrap)."""
    picks = _resamples(len(results), seed)
    lengths = []
    for one in (results, other):
        drafts, accepted = _counts(one)
        total = accepted.sum(1)
        lengths.append((1 + total.sum() / drafts.sum(), 1 + total[picks].sum(1) / np.maximum(drafts[picks].sum(1), 1)))
    return _estimate(lengths[0][0] / lengths[1][0], lengths[0][1] / lengths[1][1])


def shortfalls(found: Measurement, min_length: float | None, min_position_0: float | None) -> tuple[str, ...]:
    """Why the drafter fails: it is dead, or below what was asked."""
    first = found.per_position[0].value
    said = []
    if found.length.value <= DEAD_LENGTH:
        said.append(f"acceptance length {found.length.value:.3f} is that of a dead drafter (<= {DEAD_LENGTH})")
    if first < DEAD_POSITION_0:
        said.append(f"position 0 is accepted in {first:.1%} of drafts; a live drafter reaches {DEAD_POSITION_0:.0%}")
    if min_length is not None and found.length.value < min_length:
        said.append(f"acceptance length {found.length.value:.3f} is below --min-acceptance-length {min_length:g}")
    if min_position_0 is not None and first < min_position_0:
        said.append(f"position 0 is accepted in {first:.1%} of drafts, below --min-position-0 {min_position_0:g}")
    return tuple(said)


def _counts(results: Sequence[PromptResult]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    drafts = np.array([result.drafts for result in results], dtype=np.int64)
    return drafts, np.array([result.accepted for result in results], dtype=np.int64)


def _resamples(size: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, size, (RESAMPLES, size))


def _estimate(value: float, samples: npt.NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(samples, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))
