"""Acceptance length and acceptance by position, with their intervals, and the thresholds of a dead drafter.

Acceptance length is 1 + accepted tokens / drafts (vLLM's "mean acceptance length"): the tokens that one
forward pass of the target yields.

Tokens of one prompt are not independent, so intervals are over prompts: Student's t with the variance of a
ratio estimator. A rate gets Wilson's interval at its effective number of drafts, which stays within 0 and 1;
a ratio of lengths is taken as a logarithm. On the pair of fixtures/tiny they cover 94 to 100 % from 2 prompts
on, where a bootstrap over prompts covers 79 to 80 % at 4 and 91 % at 16 (benchmarks/intervals.py).

Tokens a second are compared with and without a drafter, and measured by the same loop for an installed
engine and for a server (`time_repeats`).
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from eaglectl.errors import UnreadableError

# a drafter at or below either is dead, whatever the thresholds
DEAD_LENGTH = 1.05
DEAD_POSITION_0 = 0.10
# with less than either, the verdict is "could not look", or fail for a dead drafter
FEWEST_PROMPTS = 4
FEWEST_DRAFTS = 50
# with fewer prompts, a ratio whose interval contains the tolerance decides nothing
ENOUGH_PROMPTS = 16

NOTHING_DRAFTED = (
    "nothing was drafted, so there is nothing to measure; use longer prompts or more --max-tokens"
)
Floats = np.ndarray[Any, np.dtype[np.float64]]

STEPS = 2000  # of the integral of a t distribution
LEVEL = 0.05  # of tests; intervals are of 1 - LEVEL
MOST_PROMPTS = 100_000  # a larger number of needed prompts is not reported


class PromptResult(Struct, frozen=True):
    """The result of one prompt: its set, drafts, accepted drafts by position, and new tokens.

    `rounds` are the accepted tokens of each draft, if the engine reports them: the first new token is the
    target's, and each draft gives its accepted tokens and one more of the target's. `text` is a server's
    answer.
    """

    set: str
    drafts: int
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    rounds: tuple[int, ...] = ()
    text: str = ""


class Estimate(Struct, frozen=True):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        """Its ends."""
        return self.low, self.high

    @property
    def words(self) -> str:
        """The value and its interval, with two decimals."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Measurement(Struct, frozen=True):
    """Acceptance over a set of prompts."""

    length: Estimate
    per_position: tuple[Estimate, ...]
    drafts: int
    tokens: int
    prompts: int


def measure(results: Sequence[PromptResult]) -> Measurement:
    """Measure acceptance over `results`, with intervals over prompts.

    Raises UnreadableError if nothing was drafted.
    """
    drafts, accepted = _counts(results)
    if drafts.sum() == 0:
        raise UnreadableError(NOTHING_DRAFTED, options=("--max-tokens",))
    k = accepted.shape[1]
    share = _rate(drafts, accepted.sum(1) / k)
    return Measurement(
        length=Estimate(*(1 + k * value for value in (share.value, share.low, share.high))),
        per_position=tuple(_rate(drafts, accepted[:, position]) for position in range(k)),
        drafts=int(drafts.sum()),
        tokens=sum(len(result.tokens) for result in results),
        prompts=len(results),
    )


def look_level(look: int) -> float:
    """Return the level of the interval at look number `look` (from 1) at a growing number of prompts.

    LEVEL is spent over all looks, however many: look n takes LEVEL / (n (n + 1)), and these sum up to LEVEL,
    so that by the union bound all intervals together hold the true value with 1 - LEVEL, whichever look ends
    the measurement. Error spending: Lan and DeMets, Biometrika 70 (1983) 659; the intervals are the repeated
    confidence intervals of Jennison and Turnbull, JRSS B 51 (1989) 305.
    """
    return LEVEL / (look * (look + 1))


def ratio(
    results: Sequence[PromptResult], baseline: Sequence[PromptResult], level: float = LEVEL
) -> Estimate:
    """Return the acceptance length of `results` over that of `baseline`, on the same (paired) prompts.

    The interval is of 1 - `level`; the bounds of one prompt are those that no drafter can exceed. Raises
    UnreadableError if nothing was drafted.
    """
    (length, changes), (base, base_changes) = map(_length_changes, (results, baseline))
    value, most = length / base, 1 + max(len(results[0].accepted), len(baseline[0].accepted))
    drafting = min(sum(result.drafts > 0 for result in side) for side in (results, baseline))
    if drafting < 2:
        return Estimate(value, 1 / most, most)
    spread = math.exp(t_quantile(drafting - 1, level) * float(np.linalg.norm(changes - base_changes)))
    return Estimate(value, max(value / spread, 1 / most), min(value * spread, most))


def prompts_to_tell(
    estimate: Estimate, bound: float, prompts: int, level: float = LEVEL, next_level: float = LEVEL
) -> int | None:
    """Return about how many prompts would exclude `bound` from the interval; None if none would.

    The estimate's interval is of 1 - `level`, that of the next measurement of 1 - `next_level`.
    """
    distance = abs(math.log(estimate.value / bound))
    low, high = math.log(estimate.value / estimate.low), math.log(estimate.high / estimate.value)
    width = low if estimate.value > bound else high
    if distance == 0 or width <= distance:
        return prompts if distance else None
    deviation = width / t_quantile(max(prompts, 2) - 1, level) * math.sqrt(prompts)
    needed = prompts_needed(distance / deviation, next_level / 2)
    return needed and max(prompts, needed)


def shortcomings(measured: Measurement) -> tuple[str, ...]:
    """Return why the measurement does not show that a drafter without shortfalls is alive."""
    counts = (("prompts", measured.prompts, FEWEST_PROMPTS), ("drafts", measured.drafts, FEWEST_DRAFTS))
    few = [f"{name} {count} of the {least} needed" for name, count, least in counts if count < least]
    if few:
        return (f"too few to judge by: {', '.join(few)}; use more --prompts, or more --max-tokens",)
    advice = f"use more --prompts than {measured.prompts}"
    length, first = measured.length.low, measured.per_position[0].low
    faults = (
        (
            length <= DEAD_LENGTH,
            f"the interval of the acceptance length, from {length:.3f}, contains that of a dead drafter"
            f" (<= {DEAD_LENGTH}); {advice}",
        ),
        (
            first < DEAD_POSITION_0,
            f"the interval of position 0, from {first:.1%}, contains that of a dead drafter"
            f" (< {DEAD_POSITION_0:.0%}); {advice}",
        ),
    )
    return tuple(text for is_so, text in faults if is_so)[:1]


def shortfalls(
    measured: Measurement, min_length: float | None, min_position_0: float | None
) -> tuple[str, ...]:
    """Return why the drafter fails: it is dead, or below a given threshold."""
    length, position_0 = measured.length.value, measured.per_position[0].value
    faults = (
        (
            length <= DEAD_LENGTH,
            f"acceptance length {length:.3f} is that of a dead drafter (<= {DEAD_LENGTH})",
        ),
        (
            position_0 < DEAD_POSITION_0,
            f"position 0 is accepted in {position_0:.1%} of drafts; a working drafter reaches"
            f" {DEAD_POSITION_0:.0%}",
        ),
    )
    dead = tuple(text for is_so, text in faults if is_so)
    return dead + below_thresholds(measured, min_length, min_position_0)


def below_thresholds(
    measured: Measurement, min_length: float | None, min_position_0: float | None
) -> tuple[str, ...]:
    """Return which of the given thresholds are not reached."""
    length, position_0 = measured.length.value, measured.per_position[0].value
    least, least_0 = min_length or 0.0, min_position_0 or 0.0
    faults = (
        (length < least, f"acceptance length {length:.3f} is below --min-acceptance-length {least:g}"),
        (
            position_0 < least_0,
            f"position 0 is accepted in {position_0:.1%} of drafts, below --min-position-0 {least_0:g}",
        ),
    )
    return tuple(text for is_so, text in faults if is_so)


def _counts(results: Sequence[PromptResult]) -> tuple[Floats, Floats]:
    """Return drafts of each prompt [prompts], and accepted drafts by position [prompts, k]."""
    drafts = np.array([result.drafts for result in results], dtype=np.float64)
    return drafts, np.array([result.accepted for result in results], dtype=np.float64)


def _rate(drafts: Floats, accepted: Floats) -> Estimate:
    """Return the share of drafts [prompts] that were accepted [prompts], with Wilson's interval.

    The effective number of drafts is the one that would give independent drafts the variance over prompts.
    """
    total = float(drafts.sum())
    rate = float(accepted.sum()) / total
    drafting = int(np.count_nonzero(drafts))
    if drafting < 2:
        return Estimate(rate, 0.0, 1.0)
    error = float(np.linalg.norm(_left_out((accepted - rate * drafts) / total, drafts)))
    effective = min(rate * (1 - rate) / error**2, total) if error > 0 else total
    square = t_quantile(drafting - 1) ** 2
    middle = rate + square / (2 * effective)
    half = math.sqrt(square * (rate * (1 - rate) / effective + square / (4 * effective**2)))
    low, high = ((middle + side * half) / (1 + square / effective) for side in (-1, 1))
    return Estimate(rate, min(max(low, 0.0), rate), max(min(high, 1.0), rate))


def _length_changes(results: Sequence[PromptResult]) -> tuple[float, Floats]:
    """Return the acceptance length, and the change of its logarithm [prompts] without each prompt."""
    drafts, accepted = _counts(results)
    if np.count_nonzero(drafts) == 0:
        raise UnreadableError(NOTHING_DRAFTED, options=("--max-tokens",))
    total, count = accepted.sum(1), float(drafts.sum())
    mean = float(total.sum()) / count
    return 1 + mean, _left_out((total - mean * drafts) / (count * (1 + mean)), drafts)


def _left_out(changes: Floats, drafts: Floats) -> Floats:
    """Return first-order `changes` [prompts] of an estimate, scaled to those of leaving each prompt out.

    Their root sum of squares is the standard error HC3, which holds for few prompts.
    """
    share = drafts / drafts.sum()
    without = np.zeros_like(changes)
    # a prompt that makes every draft cannot be left out, and the others change nothing
    np.divide(changes, 1 - share, out=without, where=share < 1)
    return without


def gain_p_value(gains: Floats) -> float:
    """Return the one-sided p of a mean above 0 by Student's t; 1 for fewer than two prompts, or no gain."""
    if len(gains) < 2 or gains.mean() <= 0:
        return 1.0
    if (effect := gain_effect(gains)) is None:
        # the same gain in every prompt: by chance, all signs would have to be equal
        return 0.5 ** len(gains)
    return t_tail(effect * math.sqrt(len(gains)), len(gains) - 1)


def gain_effect(gains: Floats) -> float | None:
    """Return the mean gain over its standard deviation; None without a spread."""
    spread = float(gains.std(ddof=1)) if len(gains) > 1 else 0.0
    return float(gains.mean()) / spread if spread else None


def judge_gain(gains: Sequence[float]) -> tuple[bool, int | None]:
    """Return whether a mean gain is beyond chance, and about how many prompts would show it, if any."""
    values = np.array(gains, dtype=np.float64)
    return gain_p_value(values) < LEVEL, prompts_needed(gain_effect(values) or 0.0, LEVEL)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm); the order stays."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def p_words(p_value: float) -> str:
    """Return a p value as text: one digit, or "<0.001"."""
    return "<0.001" if p_value < 0.001 else f"{p_value:.1g}"


def prompts_needed(effect: float, p_value: float) -> int | None:
    """Return the fewest prompts whose mean of `effect` standard deviations has a one-sided p below `p_value`.

    None for an effect of 0 or less, and if more than MOST_PROMPTS would be needed.
    """
    if effect <= 0:
        return None

    def is_enough(count: int) -> bool:
        return t_tail(effect * math.sqrt(count), count - 1) < p_value

    needed = 2 + bisect_left(range(2, MOST_PROMPTS + 1), True, key=is_enough)
    return needed if needed <= MOST_PROMPTS else None


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return the t of a two-sided interval of 1 - `level`."""
    t = step = 1.0
    # the tail is convex from 0 on, so that Newton's steps rise to the quantile and never pass it
    while step > 1e-7 * t:
        power = -(freedom + 1) / 2 * math.log1p(t * t / freedom)
        density = math.exp(_log_norm(freedom) + power) / math.sqrt(freedom)
        step = (t_tail(t, freedom) - level / 2) / density
        t += step
    return t


def t_tail(t: float, freedom: int) -> float:
    """Return P(T > t) of Student's t.

    With t = sqrt(freedom) tan(a) the density is that of cos(a)^(freedom - 1).
    """
    start = math.atan(t / math.sqrt(freedom))
    # the rest is smaller than a double's precision
    width = min(math.pi / 2 - start, 12 / math.sqrt(freedom))
    # logarithms, since high powers of a cosine underflow
    angles = start + (np.arange(STEPS) + 0.5) * width / STEPS
    density = np.exp(_log_norm(freedom) + (freedom - 1) * np.log(np.cos(angles)))
    return float(density.sum() * width / STEPS)


def _log_norm(freedom: int) -> float:
    return math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2


REPEATS, LEAST_REPEATS = 5, 3
# seconds after which no repeat beyond LEAST_REPEATS begins
BUDGET = 60.0
# the least number of requests of a repeat, and of requests for each concurrent one
REQUESTS, ROUNDS = 8, 3


class Batch(Struct, frozen=True):
    """The requests of one repeat: their new tokens, the seconds they took, drafts and accepted draft tokens.

    `drafts` is 0 without a drafter, or if the engine does not count drafts.
    """

    tokens: int
    seconds: float
    drafts: int = 0
    accepted: int = 0


class Timing(Struct, frozen=True):
    """The repeats of one concurrency, in order: each has its own prompts, the same in every run."""

    concurrency: int
    batches: tuple[Batch, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens a second of all requests, of each repeat."""
        return tuple(batch.tokens / batch.seconds for batch in self.batches)

    @property
    def length(self) -> float | None:
        """The acceptance length over all repeats; None if nothing was counted."""
        drafts = sum(batch.drafts for batch in self.batches)
        return 1 + sum(batch.accepted for batch in self.batches) / drafts if drafts else None


# runs the prompts with these indices at a concurrency
RunBatch = Callable[[int, Sequence[int]], Batch]


def choose_requests(concurrency: int, repeat: int, prompts: int) -> list[int]:
    """Return the prompts of a repeat, by index, in turn; they repeat if there are fewer."""
    return [(repeat * REQUESTS + place) % prompts for place in range(max(REQUESTS, ROUNDS * concurrency))]


def time_repeats(
    run: RunBatch,
    concurrencies: Sequence[int],
    prompts: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timing, ...]:
    """Time each concurrency REPEATS times, after warm-up requests at each.

    Concurrencies take turns, so that a machine that slows down slows all of them.
    """
    for concurrency in concurrencies:
        run(concurrency, choose_requests(concurrency, 0, prompts)[:concurrency])
    batches: dict[int, list[Batch]] = {concurrency: [] for concurrency in concurrencies}
    begin = clock()
    for repeat in range(REPEATS):
        # the next repeat takes as long as those before
        if repeat >= LEAST_REPEATS and (clock() - begin) * (repeat + 1) / repeat > BUDGET:
            break
        for concurrency in concurrencies:
            batches[concurrency].append(run(concurrency, choose_requests(concurrency, repeat, prompts)))
    return tuple(Timing(concurrency, tuple(done)) for concurrency, done in batches.items())


class Spread(Struct, frozen=True):
    """The median, the minimum and the maximum of the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of `values`, at least one."""
        return cls(median(values), min(values), max(values))

    def divided(self, number: int) -> "Spread":
        """Return the spread of the values over `number`."""
        return Spread(self.median / number, self.low / number, self.high / number)


class SpeedRow(Struct, frozen=True):
    """A drafter at one concurrency: tokens a second of all requests together.

    `plain` is without the drafter; `ratio` is that of repeats with and without it on the same prompts. Both
    are None if only the drafter ran. `length` is the acceptance length of these repeats, None if the engine
    does not count drafts.
    """

    k: int
    concurrency: int
    drafted: Spread
    plain: Spread | None
    ratio: Spread | None
    length: float | None


class Place(Struct, frozen=True):
    """A concurrency between measured ones, or beyond the last or the first of them."""

    concurrency: float
    side: Literal["at", "above", "below"]

    def __str__(self) -> str:
        return f"{'about' if self.side == 'at' else self.side} {self.concurrency:.3g}"


class BreakEven(Struct, frozen=True):
    """The concurrency at which a drafter begins to cost time: by the median ratio, the least and the most."""

    k: int
    place: Place
    earliest: Place
    latest: Place

    @property
    def text(self) -> str:
        """The concurrency with its range over the repeats, as text."""
        if self.earliest == self.latest:
            return str(self.place)
        return f"{self.place} ({self.earliest} to {self.latest} by the repeats)"


class Speed(Struct, frozen=True):
    """The result of timing: a row for each concurrency, the device and its name, new tokens of each request.

    `repeats` is the least number of repeats, `how` describes the measurement.
    """

    rows: tuple[SpeedRow, ...]
    device: str
    card: str
    max_tokens: int
    repeats: int
    how: str

    @property
    def text(self) -> str:
        """The ratios in one line; "" without any."""
        return ", ".join(f"{row.ratio.median:.2f}x at {row.concurrency}" for row in self.rows if row.ratio)

    @property
    def break_even(self) -> tuple[BreakEven, ...]:
        """The break-even for the drafter's k; empty if only the drafter was timed."""
        points = [(row.concurrency, row.ratio) for row in self.rows if row.ratio]
        if not points:
            return ()
        places = (
            find_break_even([(number, getattr(ratio, name)) for number, ratio in points])
            for name in ("median", "low", "high")
        )
        return (BreakEven(self.rows[0].k, *places),)


def find_break_even(points: Sequence[tuple[int, float]]) -> Place:
    """Return where the ratio first falls below 1, of (concurrency, ratio) in rising order.

    Between two measurements, the ratio is interpolated over the logarithm of the concurrency.
    """
    first, ratio = points[0]
    if ratio < 1:
        return Place(first, "below")
    for (before, faster), (after, slower) in pairwise(points):
        if slower < 1:
            share = (faster - 1) / (faster - slower)
            return Place(before * (after / before) ** share, "at")
    return Place(points[-1][0], "above")


def compare_timings(
    k: int, drafted: Sequence[Timing], plain: Sequence[Timing] | None
) -> tuple[SpeedRow, ...]:
    """Return a row for each concurrency.

    Both runs use the same concurrencies; repeat i of both uses the same prompts.
    """
    rows = []
    for timing, other in zip(drafted, [None] * len(drafted) if plain is None else plain, strict=True):
        without = ratio = None
        if other is not None:
            without = Spread.of(other.rates)
            # one of the runs may have had time for more repeats
            ratio = Spread.of([fast / slow for fast, slow in zip(timing.rates, other.rates, strict=False)])
        rows.append(SpeedRow(k, timing.concurrency, Spread.of(timing.rates), without, ratio, timing.length))
    return tuple(rows)
