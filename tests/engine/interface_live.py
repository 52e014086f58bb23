"""Run by test_interface, with an engine installed: which names of its interface table its own objects have.

Arguments: the engine, and an answer's path.
"""

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.scan.interface import Name, names, split


def main() -> None:
    """Write for each name of imports and arguments whether it is there."""
    engine, answer = sys.argv[1], Path(sys.argv[2])
    answer.write_text(json.dumps(dict(found_live(engine))))


def found_live(engine: str) -> Iterator[tuple[str, bool]]:
    """The names that an import or a call shows, and whether the installed engine has them."""
    for row in names(engine):
        if row.kind == "import":
            is_there = is_importable(engine, row.name)
            yield from () if is_there is None else [(row.name, is_there)]
        elif row.kind == "argument" and (places := named(row)):
            yield row.name, any(takes(engine, place) for place in places)


def named(row: Name) -> list[str]:
    """The places of a row that name a class or a function."""
    places = [part for place in row.where.values() for part in place.split(" | ")]
    return [place for place in places if split(place)[3] not in ("", "*")]


def is_importable(engine: str, name: str) -> bool | None:
    """Whether a module, or a name of one, can be imported; None where it asks for another package."""
    module, _, last = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module or name), last if module else "__name__") or is_module(
            name
        )
    except ModuleNotFoundError as error:
        return False if (error.name or "").partition(".")[0] == engine else None


def is_module(name: str) -> bool:
    """Whether a module of this name is there."""
    return importlib.util.find_spec(name) is not None


def takes(engine: str, place: str) -> bool:
    """Whether the function or the record of a place takes the argument."""
    path, _, _, outer, member, parameter = split(place)
    module = importlib.import_module(
        f"{engine}.{path.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    )
    thing = getattr(module, outer)
    if parameter:
        return parameter in inspect.signature(getattr(thing, member) if member else thing).parameters
    return member in annotations(thing) or member in inspect.signature(thing).parameters


def annotations(cls: Any) -> Mapping[str, Any]:
    """The fields that a class and its bases annotate."""
    return {
        name: of
        for base in reversed(cls.__mro__)
        for name, of in vars(base).get("__annotations__", {}).items()
    }


if __name__ == "__main__":
    main()
