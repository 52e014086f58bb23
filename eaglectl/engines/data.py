"""The data files of engines, and a way to read those of another folder in their place."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])
_folder = Path(__file__).parent
_caches: list[Callable[[], None]] = []


def folder() -> Path:
    """The folder whose data files are in use."""
    return _folder


@contextmanager
def data_from(path: Path) -> Iterator[None]:
    """Use the data files in `path`, for the whole process, until the block ends."""
    before = _folder
    _use(path)
    try:
        yield
    finally:
        _use(before)


def _use(path: Path) -> None:
    global _folder
    _folder = path
    for clear in _caches:
        clear()


def cached(function: Function) -> Function:
    """The function, which works each result out once for as long as the same data files are in use."""
    kept = cache(function)
    _caches.append(kept.cache_clear)
    return cast(Function, kept)


def load(engine: str) -> Mapping[str, Any]:
    """The releases and facts of an engine."""
    return read(f"{engine}_releases.json")


@cached
def read(name: str) -> Mapping[str, Any]:
    """A data file."""
    value: Mapping[str, Any] = json.loads((_folder / name).read_text(encoding="utf-8"))
    return value


def check_evidence(row: Mapping[str, Any], what: str, holds: Callable[[str], bool]) -> None:
    """Raise ValueError unless `run_in` states the releases in which a row was run, and it `holds` in each."""
    if not isinstance(run_in := row.get("run_in"), Mapping):
        raise ValueError(
            f"{what}: run_in has to name the releases in which it was run; {{}} where it was read"
        )
    for release in run_in:
        if not holds(release):
            raise ValueError(f"{what}: run_in names {release}, in which it does not hold")
