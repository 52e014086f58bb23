"""The data files of engines."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])
FOLDER = Path(__file__).parent
# functions that clear the caches of `cached` functions, for tools that read the files of another folder
FORGETTING: list[Callable[[], None]] = []


def cached(function: Function) -> Function:
    """Cache the results of a function for as long as the same data files are in use."""
    cached_function = cache(function)
    FORGETTING.append(cached_function.cache_clear)
    return cast(Function, cached_function)


def load(engine: str) -> Mapping[str, Any]:
    """Return the releases and facts of an engine."""
    return read(f"{engine}_releases.json")


@cached
def read(name: str) -> Mapping[str, Any]:
    """Read a data file."""
    value: Mapping[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return value
