"""Limits of processor time that hold on slow machines too: multiples of a fixed piece of work."""

import functools
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ADDITIONS = 1_000_000


def seconds(act: Callable[[], object]) -> float:
    """Return the processor time of a call; objects that other tests left are not collected in it."""
    gc.collect()
    gc.freeze()
    start = time.process_time()
    act()
    return time.process_time() - start


def _add() -> None:
    total = 0
    for number in range(ADDITIONS):
        total += number


@functools.cache
def unit() -> float:
    """Return the processor time of a million additions: 0.04 s on a fast core, 0.2 s on a slow one."""
    return min(seconds(_add) for _ in range(3))


@contextmanager
def within(units: float) -> Iterator[None]:
    """Fail where the body takes more processor time than so many units.

    What takes as long as the square of its input takes hundreds of times more: limits are wide.
    """
    limit = units * unit()
    start = time.process_time()
    yield
    assert (taken := time.process_time() - start) < limit, f"{taken:.2f} s, at most {limit:.2f} s"
