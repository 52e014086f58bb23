"""Several checkpoints: one that cannot be opened, or that crashes a rule, never stops the others."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct, field

from eaglectl.errors import EaglectlError, input_error
from eaglectl.files.hub_cache import shared_repositories
from eaglectl.progress import OnProgress, Progress
from eaglectl.results import FailedSource, Inspection

if TYPE_CHECKING:
    from eaglectl.judge.judgement import Report

T = TypeVar("T")
CRASH = 70


class SeveralResults(Struct, Generic[T]):
    """The result for each source, in their order; `crashes` are the tracebacks of faults of eaglectl."""

    reports: list[T] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def validate_all(
    sources: Sequence[str],
    validate: "Callable[[str], Report]",
    unopened: "Callable[[str, str], Report] | None" = None,
    *,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> "SeveralResults[Report]":
    """`validate` each source, at most `jobs` at once.

    `unopened` makes the report of a source that cannot be validated, from the source and the message.
    """
    from eaglectl.judge.judgement import unopened_report

    def report_failure(failure: FailedSource) -> "Report":
        return (unopened or unopened_report)(failure.source, failure.message)

    return _run_all(sources, validate, report_failure, jobs, on_progress)


def inspect_all(
    sources: Sequence[str],
    inspect: Callable[[str], Inspection],
    *,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> SeveralResults[Inspection | FailedSource]:
    """`inspect` each source, at most `jobs` at once; one that cannot be inspected becomes a FailedSource."""
    act: Callable[[str], Inspection | FailedSource] = inspect
    return _run_all(sources, act, lambda failure: failure, jobs, on_progress)


def _run_all(
    sources: Sequence[str],
    act: Callable[[str], T],
    report_failure: Callable[[FailedSource], T],
    jobs: int,
    on_progress: OnProgress | None,
) -> SeveralResults[T]:
    results: SeveralResults[T] = SeveralResults()
    count = itertools.count(1)

    def run(source: str) -> T:
        try:
            result = act(source)
        except (EaglectlError, MemoryError) as raised:
            error = raised if isinstance(raised, EaglectlError) else input_error(raised)
            assert error is not None
            result = report_failure(FailedSource(source, error.kind, error.exit_code, str(error)))
        except Exception as error:
            results.crashes.append(traceback.format_exc())
            message = f"this is a fault of eaglectl: {type(error).__name__}: {error}"
            result = report_failure(FailedSource(source, "fault", CRASH, message))
        if on_progress:
            on_progress(Progress("checkpoints", next(count), len(sources), "checkpoints"))
        return result

    if jobs == 1 or len(sources) == 1:
        with shared_repositories():
            results.reports += map(run, sources)
        return results
    from concurrent.futures import ThreadPoolExecutor

    with shared_repositories(), ThreadPoolExecutor(jobs) as pool:
        results.reports += pool.map(run, sources)
    return results
