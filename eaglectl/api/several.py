"""Judging several checkpoints side by side: one that cannot be opened, or that crashes a rule, never stops the others."""

import itertools
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from eaglectl.errors import EaglectlError
from eaglectl.validation.judging import Report, unopened


@dataclass(slots=True)
class Several:
    """Reports in the order of the sources; `crashes` are the tracebacks of faults of our own."""

    reports: list[Report] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)


def validate_all(
    sources: Sequence[str], judge: Callable[[str], Report], blind: Callable[[str, str], Report] = unopened,
    *, jobs: int = 1, told: Callable[[int, int], None] | None = None,
) -> Several:  # fmt: skip
    """`judge` each source, at most `jobs` at once. What cannot be judged becomes the report that `blind` makes of it.

    `told` hears after each how many of how many are done.
    """
    done = Several()
    count = itertools.count(1)

    def judged(source: str) -> Report:
        try:
            report = judge(source)
        except EaglectlError as error:
            report = blind(source, str(error))
        except Exception as error:
            done.crashes.append(traceback.format_exc())
            report = blind(source, f"this is a fault of eaglectl: {type(error).__name__}: {error}")
        if told:
            told(next(count), len(sources))
        return report

    if jobs == 1 or len(sources) == 1:
        done.reports += map(judged, sources)
        return done
    with ThreadPoolExecutor(jobs) as pool:
        done.reports += pool.map(judged, sources)
    return done
