"""Edits of a drafter's files: each returns a function that changes a Files in place."""

import json
import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tests.builders import ABSENT, Stored, framed, integers, safetensors_bytes
from tests.engine.agreement.bases import DRAFTED, Files, uniform
from tests.pickles import archive, tensor, text

Edit = Callable[[Files], None]
UNSIGNED = {"U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
TYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8", "I32": "<i4", **UNSIGNED}
WEIGHTS = "model.safetensors"


def config(**changes: Any) -> Edit:
    """Config keys (ABSENT: gone)."""
    return inside("", **changes)


def inside(key: str, **changes: Any) -> Edit:
    """Keys of a mapping in the config (ABSENT: gone); of the config itself where `key` is empty."""

    def edit(files: Files) -> None:
        place = files.config.setdefault(key, {}) if key else files.config
        place.update(changes)
        for name in [name for name, value in place.items() if value is ABSENT]:
            del place[name]

    return edit


def both(*edits: Edit) -> Edit:
    """One edit after the other."""

    def edit(files: Files) -> None:
        for one in edits:
            one(files)

    return edit


def drop(*names: str) -> Edit:
    """Tensors gone."""

    def edit(files: Files) -> None:
        for name in names:
            del files.tensors[name]

    return edit


def rename(old: str, new: str) -> Edit:
    """A part of tensor names replaced by another; an empty one puts `new` before all."""

    def edit(files: Files) -> None:
        files.tensors = {name.replace(old, new, 1): stored for name, stored in files.tensors.items()}

    return edit


def add(name: str, stored: Stored) -> Edit:
    """A tensor more, or another one of this name."""

    def edit(files: Files) -> None:
        files.tensors[name] = stored

    return edit


def noise(name: str, *shape: int) -> Edit:
    """A tensor of random numbers, new or in another shape."""
    return add(name, uniform(f"noise {name}", *shape))


def transpose(name: str) -> Edit:
    """A matrix turned round."""
    return over(name, lambda array: array.T)


def fill(name: str, value: float) -> Edit:
    """Every number of a tensor made `value`."""
    return over(name, lambda array: np.full_like(array, value))


def spot(name: str, value: float, place: int = 7) -> Edit:
    """One number of a tensor made `value`."""

    def change(array: Any) -> Any:
        changed = array.copy()
        changed.reshape(-1)[place] = value
        return changed

    return over(name, change)


def scale(name: str, factor: float) -> Edit:
    """Every number of a tensor times `factor`."""
    return over(name, lambda array: (array * factor).astype(array.dtype))


def cast(name: str, dtype: str) -> Edit:
    """A tensor (or all floats, where `name` is empty) in another dtype, by value."""

    def edit(files: Files) -> None:
        for one in [name] if name else [key for key, stored in files.tensors.items() if stored[0] == "F32"]:
            kind, shape, data = files.tensors[one]
            array = np.frombuffer(data, TYPES[kind])
            if dtype == "BF16":  # the upper halves of float32 numbers
                array = (array.astype("<f4").view("<u4") >> 16).astype("<u2")
            else:
                array = array.astype(TYPES[dtype])
            files.tensors[one] = dtype, shape, array.tobytes()

    return edit


def over(name: str, change: Callable[[Any], Any]) -> Edit:
    """A tensor's array changed, in its own dtype."""

    def edit(files: Files) -> None:
        dtype, shape, data = files.tensors[name]
        array = np.ascontiguousarray(change(np.frombuffer(data, TYPES[dtype]).reshape(shape)))
        files.tensors[name] = dtype, array.shape, array.tobytes()

    return edit


def targets(change: Callable[[list[int]], Sequence[int]]) -> Edit:
    """Other target tokens in d2t."""
    changed = change(list(DRAFTED))
    return add("d2t", integers(*(token - place for place, token in enumerate(changed))))


def file(name: str, data: bytes | str | None) -> Edit:
    """A file more, another one of this name, or (None) one less."""

    def edit(files: Files) -> None:
        files.files[name] = data.encode() if isinstance(data, str) else data

    return edit


def weights(change: Callable[[bytes], bytes], name: str = WEIGHTS) -> Edit:
    """The bytes of the weights' file changed, under its own name or another one beside it."""

    def edit(files: Files) -> None:
        files.files[name] = change(files.contents()[WEIGHTS])

    return edit


def moved(name: str) -> Edit:
    """The weights' file under another name."""
    return both(weights(bytes, name), file(WEIGHTS, None))


def metadata(value: dict[str, str] | None) -> Edit:
    """Another metadata block in the weights' file."""

    def edit(files: Files) -> None:
        files.metadata = value

    return edit


def sharded(
    *, lost: str = "", swapped: str = "", twice: str = "", without_file: int = 0, has_index: bool = True
) -> Edit:
    """The weights in two files with an index, of which something may be lost or wrong."""

    def edit(files: Files) -> None:
        names, index = sorted(files.tensors), {}
        for number in (1, 2):
            shard = f"model-{number:05}-of-00002.safetensors"
            held = names[number - 1 :: 2]
            index |= dict.fromkeys(held, shard)
            if number != without_file:
                more = [twice] if twice and twice not in held else []
                tensors = {name: files.tensors[name] for name in (*held, *more)}
                files.files[shard] = safetensors_bytes(tensors, files.metadata)
        index.pop(lost, None)
        if swapped:
            index[swapped] = next(shard for shard in set(index.values()) if shard != index[swapped])
        if has_index:
            table = {"metadata": {}, "weight_map": index}
            files.files["model.safetensors.index.json"] = json.dumps(table).encode()
        files.files[WEIGHTS] = None

    return edit


def header(change: Callable[[dict[str, Any]], Any]) -> Edit:
    """The weights' header as JSON changed in place, the data as it is."""

    def spoil(raw: bytes) -> bytes:
        (length,) = struct.unpack("<Q", raw[:8])
        table = json.loads(raw[8 : 8 + length])
        change(table)
        return framed(json.dumps(table).encode(), raw[8 + length :])

    return weights(spoil)


def head_swapped() -> Edit:
    """Two rows of lm_head and of d2t's targets changed places: another order, the same meaning."""
    order = [1, 0, *range(2, len(DRAFTED))]
    return both(
        over("lm_head.weight", lambda rows: rows[order]),
        targets(lambda every: [every[place] for place in order]),
    )


def in_float8(module: str) -> Edit:
    """A module of numbers in FP8 that are not its own, with one scale."""

    def edit(files: Files) -> None:
        _, shape, _ = files.tensors[f"{module}.weight"]
        numbers = bytes(range(64, 72)) * (shape[0] * shape[1] // 8)
        files.tensors[f"{module}.weight"] = ("F8_E4M3", shape, numbers)
        files.tensors[f"{module}.weight_scale"] = ("F32", (1,), np.array([0.01], "<f4").tobytes())

    return edit


def in_int8(module: str) -> Edit:
    """A module in INT8, with a scale for each row."""

    def edit(files: Files) -> None:
        _, shape, data = files.tensors[f"{module}.weight"]
        rows = np.frombuffer(data, "<f4").reshape(shape)
        scales = np.abs(rows).max(1, keepdims=True) / 127
        files.tensors[f"{module}.weight"] = "I8", shape, np.round(rows / scales).astype("i1").tobytes()
        files.tensors[f"{module}.weight_scale"] = "F32", scales.shape, scales.tobytes()

    return edit


def in_four_bits(module: str) -> Edit:
    """A module packed by compressed-tensors: numbers that are not its own, in groups of 16."""

    def edit(files: Files) -> None:
        _, (rows, columns), _ = files.tensors.pop(f"{module}.weight")
        scales = np.full((rows, columns // 16), 0.05, "<f4")
        files.tensors |= {
            f"{module}.weight_packed": (
                "I32",
                (rows, columns // 8),
                bytes(range(8)) * (rows * columns // 16),
            ),
            f"{module}.weight_scale": ("F32", scales.shape, scales.tobytes()),
            f"{module}.weight_shape": integers(rows, columns),
        }

    return edit


def in_training_state(files: Files) -> None:
    """The weights in a file of torch, inside of one item: as trainers keep them beside other state."""
    items, storages = b"", {}
    for key, (name, (dtype, shape, data)) in enumerate(files.tensors.items()):
        kind = {"F32": "FloatStorage", "I64": "LongStorage"}[dtype]
        strides, count = (*shape[1:], 1), prod(shape)
        items += text(name) + tensor(_tuple(shape), _tuple(strides), kind=kind, key=str(key), count=count)
        storages[str(key)] = data
    state = b"\x80\x02}" + text("model") + b"}(" + items + b"us."
    files.files |= {"pytorch_model.bin": archive(state, storages), WEIGHTS: None}


def _tuple(numbers: Sequence[int]) -> bytes:
    """The opcodes of a tuple of one or two small numbers."""
    return b"".join(struct.pack("<cH", b"M", number) for number in numbers) + bytes([0x84 + len(numbers)])
