"""The repeats of a measurement of speed: the same loop for an installed engine and for a server."""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

REPEATS, LEAST_REPEATS = 5, 3
# seconds after which no repeat beyond LEAST_REPEATS begins
BUDGET = 60.0
# requests of a repeat, of which the last ones run with fewer beside them: that many for each at a time
REQUESTS, ROUNDS = 8, 3


class Batch(Struct, frozen=True):
    """The requests of one repeat: their new tokens, the seconds they took, drafts and accepted draft tokens.

    `drafts` is 0 where nothing drafts, or where the engine does not count.
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
        """The acceptance length over all repeats; None where nothing was counted."""
        drafts = sum(batch.drafts for batch in self.batches)
        return 1 + sum(batch.accepted for batch in self.batches) / drafts if drafts else None


# runs the prompts of these indices, so many at a time
RunBatch = Callable[[int, Sequence[int]], Batch]


def choose_requests(concurrency: int, repeat: int, prompts: int) -> list[int]:
    """The prompts of a repeat, by index, taken in turn, and again where there are fewer."""
    number = max(REQUESTS, ROUNDS * concurrency)
    return [(repeat * REQUESTS + place) % prompts for place in range(number)]


def time_repeats(
    run: RunBatch,
    concurrencies: Sequence[int],
    prompts: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Timing, ...]:
    """Time each concurrency REPEATS times, after requests of each that are not counted.

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
