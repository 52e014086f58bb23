"""Ranges of releases: whether one holds a release, and how releases are written as ranges."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

RELEASE = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?:\.post([0-9]+))?")
# the numbers of a release, and of its post-release; -1 for none
Order = tuple[tuple[int, ...], int]
COMPARISONS: Mapping[str, Callable[[Order, Order], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
}


@cache
def is_within(specifier: str, release: str) -> bool:
    """Whether a release is in a range such as ">=0.22.0,<0.25.0"; an empty range holds all.

    Raises KeyError for another comparison, ValueError for another kind of release: the data files have none.
    packaging takes as long to load as all that validate needs.
    """
    bounds = re.findall(r"([<>=!~]+)([^,]+)", specifier)
    order = release_order(release)
    return all(COMPARISONS[comparison](order, release_order(bound)) for comparison, bound in bounds)


def is_since(first: str, release: str) -> bool:
    """Whether a release is `first` or a later one."""
    return is_within(f">={first}", release)


@cache
def release_order(release: str) -> Order:
    """What releases are compared by, zeros at the end left out.

    Raises ValueError for one with letters but .post1.
    """
    match = RELEASE.fullmatch(release)
    if not match:
        raise ValueError(f"{release}: releases are numbers")
    numbers = tuple(map(int, re.sub(r"(\.0+)+$", "", match[1]).split(".")))
    return numbers, int(match[2]) if match[2] else -1


def ranges(releases: Iterable[str], known: Sequence[str]) -> str:
    """Releases in few words, consecutive ones of `known` as ranges: "0.22.0 - 0.33.0"."""
    position = {release: index for index, release in enumerate(known)}
    runs: list[list[str]] = []
    for release in sorted(set(releases), key=position.__getitem__):
        if runs and position[release] == position[runs[-1][-1]] + 1:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} - {run[-1]}" for run in runs)
