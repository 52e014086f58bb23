"""Ranges of releases: whether one holds a release, and how releases are written as ranges."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

RELEASE = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?:\.post([0-9]+))?")
BOUND = re.compile(r"\s*(>=|<=|==|>|<)\s*([0-9.]+(?:\.post[0-9]+)?)\s*")
# the numbers of a release, and of its post-release; -1 for none
Order = tuple[tuple[int, ...], int]
COMPARISONS: Mapping[str, Callable[[Order, Order], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@cache
def is_within(specifier: str, release: str) -> bool:
    """Whether a release is in a PEP 508 range; an empty range holds all."""
    if not specifier:
        return True
    order, bounds = release_order(release), _bounds(specifier)
    # packaging takes as long to load as everything else that validate needs
    if order and bounds and all(_is_plain(comparison, order) for comparison, _ in bounds):
        return all(COMPARISONS[comparison](order, bound) for comparison, bound in bounds)
    from packaging.specifiers import SpecifierSet

    return release in SpecifierSet(specifier)


def is_since(first: str, release: str) -> bool:
    """Whether a release is `first` or a later one."""
    return is_within(f">={first}", release)


@cache
def _bounds(specifier: str) -> tuple[tuple[str, Order], ...]:
    """The comparisons of a range and what they compare with; empty where one is of another kind."""
    bounds = []
    for text in specifier.split(","):
        match = BOUND.fullmatch(text)
        if not match:
            return ()
        bounds.append((match[1], release_order(match[2]) or ((), -1)))
    return tuple(bounds)


def _is_plain(comparison: str, order: Order) -> bool:
    """Whether the comparison is of numbers alone: 1.0.post1 is not > 1.0."""
    return comparison != ">" or order[1] < 0


@cache
def release_order(release: str) -> Order | None:
    """What releases are compared by, zeros at the end left out; None for one with letters but .post1."""
    match = RELEASE.fullmatch(release)
    if not match:
        return None
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
