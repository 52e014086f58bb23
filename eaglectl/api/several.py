"""Several checkpoints side by side: one that cannot be opened, or that crashes a rule, never stops the others."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from eaglectl.errors import EaglectlError
from eaglectl.reports.findings import Failure, Inspection

if TYPE_CHECKING:
    from eaglectl.validation.judging import Report

T = TypeVar("T")
CRASH = 70


@dataclass(slots=True)
class Several(Generic[T]):
    """What became of each source, in the order of the sources; `crashes` are the tracebacks of faults of our own."""

    reports: list[T] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def validate_all(
    sources: Sequence[str], judge: "Callable[[str], Report]", blind: "Callable[[str, str], Report] | None" = None,
    *, jobs: int = 1, told: Callable[[int, int], None] | None = None,
) -> "Several[Report]":  # fmt: skip
    """`judge` each source, at most `jobs` at once. What cannot be judged becomes the report that `blind` makes of it.

    `told` hears after each how many of how many are done.
    """
    from eaglectl.validation.judging import unopened

    def failed(source: str, failure: Failure) -> "Report":
        return (blind or unopened)(source, failure.message)

    return _each(sources, judge, failed, jobs, told)


def inspect_all(
    sources: Sequence[str], look: Callable[[str], Inspection], *, jobs: int = 1, told: Callable[[int, int], None] | None = None
) -> Several[Inspection | Failure]:  # fmt: skip
    """`look` at each source, at most `jobs` at once; one that cannot be inspected becomes a Failure."""
    act: Callable[[str], Inspection | Failure] = look
    return _each(sources, act, lambda _, failure: failure, jobs, told)


def _each(
    sources: Sequence[str], act: Callable[[str], T], failed: Callable[[str, Failure], T], jobs: int, told: Callable[[int, int], None] | None
) -> Several[T]:  # fmt: skip
    done: Several[T] = Several()
    count = itertools.count(1)

    def one(source: str) -> T:
        try:
            result = act(source)
        except EaglectlError as error:
            result = failed(source, Failure(source, type(error).__name__.lower(), error.exit_code, str(error)))
        except Exception as error:
            done.crashes.append(traceback.format_exc())
            message = f"this is a fault of eaglectl: {type(error).__name__}: {error}"
            result = failed(source, Failure(source, "fault", CRASH, message))
        if told:
            told(next(count), len(sources))
        return result

    if jobs == 1 or len(sources) == 1:
        done.reports += map(one, sources)
        return done
    with ThreadPoolExecutor(jobs) as pool:
        done.reports += pool.map(one, sources)
    return done
