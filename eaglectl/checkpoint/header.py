"""A strict reader of safetensors headers; it never reads tensor data.

The safetensors library gives no byte ranges and cannot read bfloat16 without torch, and both are needed here.
Format: https://github.com/huggingface/safetensors#format (8 bytes of little-endian length, JSON, data).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isinf
from typing import Any

from eaglectl.errors import Unreadable

# rules of validate that a fault met here is a case of
HEADER = "safetensors-header"
POINTER = "lfs-pointer"
MAX_HEADER = 100_000_000
LIMIT = 2**64
LFS_POINTER = b"version https://git-lfs.github.com/spec/"

# bits an element takes; the names are safetensors' own
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in a file: `start` and `stop` are byte offsets in that file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.stop - self.start

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first axis."""
        return self.nbytes // self.shape[0] if self.shape and self.shape[0] else 0


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header: its tensors in file order, its metadata, and where the data begins."""

    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]
    data_start: int


def header_length(file: str, first8: bytes, file_size: int) -> int:
    """Bytes of JSON that follow the first 8; raises Unreadable if the file cannot be safetensors."""
    if first8.startswith(LFS_POINTER[:8]) and file_size < 1024:
        raise Unreadable(
            f"{file} is a Git LFS pointer ({file_size} bytes), not the weights; run `git lfs pull` in its repository",
            POINTER,
            file,
        )
    if len(first8) < 8:
        raise Unreadable(f"{file} has {file_size} bytes; a safetensors file has at least 8", HEADER, file)
    length = int.from_bytes(first8, "little")
    if length > MAX_HEADER:
        raise Unreadable(
            f"{file}: header length {length} is over the format's {MAX_HEADER}; this is not a safetensors file",
            HEADER,
            file,
        )
    if 8 + length > file_size:
        raise Unreadable(
            f"{file}: header of {length} bytes does not fit in {file_size} bytes; the file is truncated or not"
            " safetensors",
            HEADER,
            file,
        )
    return length


def parse_json(what: str, raw: bytes, topic: str = "", where: str = "") -> Any:
    """JSON of one meaning: no duplicate keys, numbers beyond floats, lone surrogates or bytes that are not UTF-8.

    `what` names the file in messages, `topic` and `where` go into errors. -0 is read as a float, as the safetensors library reads it.
    """
    if raw.startswith(LFS_POINTER):
        about = f"{what} is a Git LFS pointer, not the file; run `git lfs pull` in its repository"
        raise Unreadable(about, POINTER, where or what)
    try:
        return _one_meaning(raw)
    except Unreadable as error:
        fault = f"{what}: {error}"
    except UnicodeDecodeError as error:
        fault = f"{what} is not UTF-8 text (byte {error.start})"
    except UnicodeEncodeError:
        fault = f"{what} has an escape of a lone surrogate, which is no character; remove it"
    except RecursionError:
        fault = f"{what} is nested too deeply to be a real file"
    except ValueError as error:
        fault = f"{what} is not valid JSON: {error}"
    raise Unreadable(fault, topic, where or what)


def _one_meaning(raw: bytes) -> Any:
    value = json.loads(
        raw.decode("utf-8"),
        object_pairs_hook=_unique,
        parse_constant=_constant,
        parse_float=_finite,
        parse_int=_integer,
    )
    # UTF-8 holds no surrogates, so only an escape can have made one
    if b"\\u" in raw:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise Unreadable(f'key "{key}" appears twice in one object; remove one')
        seen[key] = value
    return seen


def _constant(text: str) -> Any:
    raise Unreadable(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise Unreadable(f"{text[:40]} is not a JSON number that a 64-bit float can hold")
    return value


def _integer(text: str) -> int | float:
    if len(text) > 308:
        raise ValueError(f"a number of {len(text)} digits")  # no 64-bit float holds it either
    return -0.0 if text == "-0" else int(text)


def parse_header(file: str, raw: bytes, file_size: int) -> Header:
    """Check and parse the JSON part of `file`, whose whole size is `file_size` bytes.

    Raises Unreadable where a tensor's type is unknown, a shape and its bytes disagree, or the offsets overlap, leave a
    hole, or do not end with the file.
    """
    try:
        return _header(file, raw, file_size)
    except Unreadable as error:
        raise Unreadable(str(error), HEADER, file) from None


def _header(file: str, raw: bytes, file_size: int) -> Header:
    table = parse_json(f"{file} (header)", raw)
    if not isinstance(table, dict):
        raise Unreadable(f"{file}: the header is a JSON {type(table).__name__}, not an object")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Unreadable(f"{file}: __metadata__ must map text to text")
    base = 8 + len(raw)
    tensors = sorted(
        (_tensor(file, name, entry, base) for name, entry in table.items()), key=lambda t: (t.start, t.stop)
    )
    position = base
    for tensor in tensors:
        if tensor.start != position:
            kind = "overlaps the one before" if tensor.start < position else "leaves a hole before it"
            raise Unreadable(
                f"{file}: {tensor.name} starts at byte {tensor.start - base} of the data and {kind} (expected"
                f" {position - base})"
            )
        position = tensor.stop
    if position != file_size:
        state = "truncated" if position > file_size else "followed by bytes that no tensor owns"
        raise Unreadable(f"{file}: the header describes {position} bytes and the file has {file_size}; it is {state}")
    return Header(tuple(tensors), metadata, base)


def _tensor(file: str, name: str, entry: object, base: int) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Unreadable(f"{file}: {name} needs exactly dtype, shape and data_offsets in the header")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise Unreadable(f"{file}: {name} has dtype {dtype!r}, which this reader does not know")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Unreadable(
            f"{file}: {name} has shape {shape!r} and data_offsets {offsets!r}; both must be 64-bit non-negative"
            " integers in order"
        )
    bits = _bits(dtype, shape)
    if bits is None:
        raise Unreadable(f"{file}: {name} is {dtype} {shape}, which is more bits than a 64-bit integer can count")
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        raise Unreadable(
            f"{file}: {name} is {dtype} {shape} = {bits // 8} bytes, and its offsets span {offsets[1] - offsets[0]}"
        )
    return StoredTensor(name, dtype, tuple(shape), file, base + offsets[0], base + offsets[1])


def _bits(dtype: str, shape: list[int]) -> int | None:
    """Bits of data; None where the count leaves 64 bits on the way, axis by axis, as in the safetensors library."""
    count = 1
    for size in (*shape, DTYPE_BITS[dtype]):
        count *= size
        if count >= LIMIT:
            return None
    return count


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < LIMIT for item in value)
