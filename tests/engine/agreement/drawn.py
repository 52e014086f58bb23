"""Cases made by rule and by seeded dice: tensors dropped, names, shapes, numbers and keys changed."""

import random
from collections.abc import Callable
from typing import Any

from tests.builders import ABSENT
from tests.engine.agreement.bases import BASES, Files, drafter
from tests.engine.agreement.edits import (
    Edit,
    add,
    cast,
    config,
    drop,
    fill,
    noise,
    rename,
    spot,
    transpose,
    uniform,
)

# bases whose every tensor is dropped once
WHOLE = ("llama31", "qwen3", "mla3")
DRAWS = {
    "llama3": 36, "llama31": 24, "llama-shared": 8, "llama-fresh": 6, "qwen3": 20, "qwen31": 14, "mla3": 20,
    "mla31": 12, "speculators31": 14,
}  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, 3, -1, 31, 64, 96, 100, 512, "32", None, ABSENT, 2.5),
    "bool": (True, False, None, ABSENT, "true", 1),
    "float": (1e-05, 10000, 0.0, None, ABSENT, "1e-6", 500000.0),
    "list": (None, ABSENT, [], {}, "x"),
    "str": (None, ABSENT, "x", 3),
    "dict": (None, ABSENT, {}, []),
    "NoneType": (ABSENT, {}, 7, "x"),
}


def drawn(name: str) -> dict[str, Edit]:
    """The generated cases of a base."""
    found: dict[str, Edit] = {}
    files = drafter(name)
    for tensor in files.tensors:
        if name in WHOLE or (BASES[name].is_fresh and "norm" in tensor):
            found[f"without {tensor}"] = drop(tensor)
    dice = random.Random(f"agreement {name}")
    wanted = len(found) + DRAWS.get(name, 0)
    while len(found) < wanted:
        title, edit = dice.choice(KINDS)(dice, files)
        found.setdefault(title, edit)
    return found


def _tensor(dice: random.Random, files: Files) -> str:
    return dice.choice(sorted(name for name in files.tensors if name != "d2t"))


def _renamed(dice: random.Random, files: Files) -> tuple[str, Edit]:
    name = _tensor(dice, files)
    other_layer, plural = name.replace("layers.0", "layers.1"), name.replace("weight", "weights")
    new = dice.choice((plural, f"{name}.weight", f"decoder.{name}", other_layer, name.upper()))
    return f"{name} named {new}", rename(name, new)


def _dropped(dice: random.Random, files: Files) -> tuple[str, Edit]:
    one, other = dice.sample(sorted(files.tensors), 2)
    return f"without {one} and {other}", drop(one, other)


def _reshaped(dice: random.Random, files: Files) -> tuple[str, Edit]:
    name = _tensor(dice, files)
    shape = files.tensors[name][1]
    first, behind, ahead, last = shape[0], shape[1:], shape[:-1], shape[-1]
    rows = (tuple(size + 1 for size in shape), (first * 2, *behind), (first // 2, *behind))
    new = dice.choice((*rows, (*ahead, last * 2), (1, *shape), (*ahead, last - 1), ahead or (1,)))
    return f"{name} of {list(new)}", noise(name, *new)


def _turned(dice: random.Random, files: Files) -> tuple[str, Edit]:
    name = dice.choice([key for key, stored in sorted(files.tensors.items()) if len(stored[1]) == 2])
    return f"{name} transposed", transpose(name)


def _poisoned(dice: random.Random, files: Files) -> tuple[str, Edit]:
    name, value = _tensor(dice, files), dice.choice(("nan", "inf", "-inf", "0", "1e30"))
    if dice.random() < 0.5:
        return f"{name} all {value}", fill(name, float(value))
    return f"{name} with one {value}", spot(name, float(value), dice.randrange(30))


def _retyped(dice: random.Random, files: Files) -> tuple[str, Edit]:
    name, dtype = _tensor(dice, files), dice.choice(("F16", "BF16", "F64", "I64", "U8"))
    return f"{name} as {dtype}", cast(name, dtype)


def _other(dice: random.Random, files: Files) -> tuple[str, Edit]:
    name = _tensor(dice, files)
    return f"{name} of other numbers", add(name, uniform(f"other {name}", *files.tensors[name][1]))


def _rekeyed(dice: random.Random, files: Files) -> tuple[str, Edit]:
    key = dice.choice(sorted(files.config))
    value = dice.choice(VALUES[type(files.config[key]).__name__])
    return f"{key} {'gone' if value is ABSENT else repr(value)}", config(**{key: value})


KINDS: tuple[Callable[[random.Random, Files], tuple[str, Edit]], ...] = (
    _renamed, _dropped, _reshaped, _turned, _poisoned, _poisoned, _retyped, _other, _rekeyed, _rekeyed,
    _rekeyed,
)  # fmt: skip
