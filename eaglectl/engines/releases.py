"""Ranges of releases: whether one holds a release, and how releases are written as ranges."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

COMPARISONS: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


@cache
def is_within(specifier: str, release: str) -> bool:
    """Whether a release is in a PEP 508 range; an empty range holds all."""
    numbers = release_numbers(release)
    bounds = [re.fullmatch(r"\s*(>=|<=|==|>|<)\s*([0-9.]+)\s*", bound) for bound in specifier.split(",")]
    if not specifier:
        return True
    if numbers and all(bounds):  # packaging takes as long to load as everything else that validate needs
        return all(
            COMPARISONS[bound[1]](numbers, release_numbers(bound[2]) or ()) for bound in bounds if bound
        )
    from packaging.specifiers import SpecifierSet

    return release in SpecifierSet(specifier)


def release_numbers(release: str) -> tuple[int, ...] | None:
    """The numbers of a release without zeros at the end; None for one with letters in it."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", release):
        return None
    return tuple(map(int, re.sub(r"(\.0+)+$", "", release).split(".")))


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
