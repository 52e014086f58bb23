"""Several checkpoints: one that cannot be opened, or that crashes a rule, never stops the others."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct, field

from eaglectl.errors import EaglectlError, input_error
from eaglectl.files.hub_cache import shared_repositories
from eaglectl.progress import OnProgress, Progress
from eaglectl.results import FailedSource

T = TypeVar("T")


class SeveralResults(Struct, Generic[T]):
    """The result for each source, in their order; `crashes` are the tracebacks of faults of eaglectl."""

    reports: list[T] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def run_all(
    sources: Sequence[str],
    act: Callable[[str], T],
    report_failure: Callable[[FailedSource], T],
    *,
    jobs: int,
    on_progress: OnProgress | None = None,
) -> SeveralResults[T]:
    """`act` on each source, at most `jobs` at once; of one that fails the result is made of the failure."""
    from concurrent.futures import ThreadPoolExecutor  # late: one source needs none

    results: SeveralResults[T] = SeveralResults()
    count = itertools.count(1)

    def run(source: str) -> T:
        try:
            result = act(source)
        except Exception as raised:
            error = raised if isinstance(raised, EaglectlError) else input_error(raised)
            if error is not None:
                failure = FailedSource(source, error.kind, error.exit_code, str(error))
            else:
                results.crashes.append(traceback.format_exc())
                message = f"this is a fault of eaglectl: {type(raised).__name__}: {raised}"
                failure = FailedSource(source, "fault", EaglectlError.exit_code, message)
            result = report_failure(failure)
        if on_progress:
            on_progress(Progress("checkpoints", next(count), len(sources), "checkpoints"))
        return result

    with shared_repositories(), ThreadPoolExecutor(jobs) as pool:
        results.reports += (pool.map if min(jobs, len(sources)) > 1 else map)(run, sources)
    return results
