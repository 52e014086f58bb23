"""A strict reader of safetensors headers; it never reads tensor data.

The safetensors library gives no byte ranges and cannot read bfloat16 without torch, and both are needed here.
Format: https://github.com/huggingface/safetensors#format (8 bytes of little-endian length, JSON, data).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isinf
from operator import mul
from typing import Any, TypeGuard

from msgspec import Struct

from eaglectl.errors import UnreadableError, check
from eaglectl.files.budgets import (
    HEADER_ENTRIES,
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_HEADER,
    MAX_METADATA,
    MAX_NAME,
    MAX_TENSORS,
)

# the `topic` of errors met while a checkpoint is read: names of the `validate` rules that report them
HEADER = "safetensors-header"
POINTER = "lfs-pointer"
WEIGHTS = "one-weight-source"
SHARDS = "shard-index"
JSON = "readable-json"
UNSAFE = "unsafe-file"


LIMIT = 2**64
# a text in JSON, and what ends an entry of an object or a list or begins one
TEXT, MARKS = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', (b",", b"[", b"{")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# the advice if the folder is not known
PULL = "`git lfs pull` in its repository"

# bits an element takes; the names are safetensors' own
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class StoredTensor(Struct, frozen=True):
    """A tensor as stored in a file: `start` and `stop` are byte offsets in that file."""

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


class Header(Struct, frozen=True):
    """A parsed header: its tensors in file order, and its metadata."""

    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]


def header_length(file: str, first8: bytes, file_size: int) -> int:
    """Return the bytes of JSON after the first 8. Raises UnreadableError for another kind of file."""
    length = int.from_bytes(first8, "little")
    pointer = f"{file} is a Git LFS pointer ({file_size} bytes), not the weights; run {PULL}"
    short = f"{file} has {file_size} bytes; a safetensors file has at least 8"
    long = f"{file}: header length {length} is over the format's {MAX_HEADER}; this is not a safetensors file"
    cut = (
        f"{file}: header of {length} bytes does not fit in {file_size} bytes; the file is truncated or not"
        " safetensors"
    )
    check(
        (first8.startswith(LFS_POINTER[:8]) and file_size < 1024, pointer, POINTER, file),
        (len(first8) < 8, short, HEADER, file),
        (length > MAX_HEADER, long, HEADER, file),
        (8 + length > file_size, cut, HEADER, file),
        error=UnreadableError,
    )
    return length


def parse_json(
    what: str,
    raw: bytes,
    topic: str = "",
    where: str = "",
    *,
    has_constants: bool = False,
    most: int = MAX_ENTRIES,
) -> Any:
    """Parse strict JSON: no duplicate keys, infinite numbers, lone surrogates or bytes that are not UTF-8.

    `what` names the file in messages, `topic` and `where` go into errors. -0 is read as a float, as the
    safetensors library reads it. NaN and Infinity are refused, or read as texts with `has_constants`. Raises
    UnreadableError, for more than `most` entries of all objects and lists, and for a longer key, too.
    """
    if raw.startswith(LFS_POINTER):
        raise UnreadableError(
            f"{what} is a Git LFS pointer, not the file; run {PULL}", POINTER, where or what
        )
    try:
        _check_entries(raw, most)
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=str if has_constants else _constant,
            parse_float=_finite,
            parse_int=_integer,
        )
        _check_depth(value)
        # UTF-8 holds no surrogates, so only an escape can have made one
        if b"\\u" in raw:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnreadableError as error:
        fault = f"{what}: {error}"
    except UnicodeDecodeError as error:
        fault = f"{what} is not UTF-8 text (byte {error.start}); fetch or write the file again"
    except UnicodeEncodeError:
        fault = f"{what} has an escape of a lone surrogate, which is not a character; remove it"
    except RecursionError:
        fault = f"{what} is nested too deeply to be a real file"
    except ValueError as error:
        fault = f"{what} is not valid JSON: {error}; fetch or write the file again"
    raise UnreadableError(fault, topic, where or what)


def _check_entries(raw: bytes, most: int) -> None:
    # count marks outside of texts only if those of all bytes are too many
    if sum(map(raw.count, MARKS)) > most:
        bare = re.sub(TEXT, b"", raw, flags=re.DOTALL)
        count = sum(map(bare.count, MARKS))
        _refuse((count > most, f"objects and lists have {count} entries; at most {most} are read"))


def _check_depth(value: Any) -> None:
    # level by level, as a recursion would itself fail on deep nesting
    level, depth = [value], 0
    while level := [item for item in level if type(item) in (dict, list)]:
        level = [inner for item in level for inner in (item.values() if type(item) is dict else item)]
        depth += 1
    check(
        (
            depth > MAX_DEPTH,
            f"objects and lists are nested {depth} levels deep; at most {MAX_DEPTH} are read",
        ),
        error=UnreadableError,
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # an object's keys and values; json would keep the last of two equal keys without an error
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise UnreadableError(f'key "{key}" appears twice in one object; remove one')
        if len(key) > MAX_NAME:
            raise UnreadableError(f"a key has {len(key)} characters; at most {MAX_NAME} are read")
        unique[key] = value
    return unique


def _constant(text: str) -> Any:
    raise UnreadableError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise UnreadableError(f"{text[:40]} is not a JSON number that a 64-bit float can hold")
    return value


def _integer(text: str) -> int | float:
    if len(text) > 308:
        raise ValueError(f"a number of {len(text)} digits")  # no 64-bit float holds it either
    return -0.0 if text == "-0" else int(text)


def header_json(metadata: Mapping[str, str], entries: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """Return a header's JSON, padded to 8 bytes, for the name, dtype, shape and byte size of each tensor."""
    table: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    position = 0
    for name, dtype, shape, nbytes in entries:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    raw = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    return raw + b" " * (-len(raw) % 8)


def parse_header(file: str, raw: bytes, file_size: int) -> Header:
    """Check and parse the JSON part of `file`, whose whole size is `file_size` bytes.

    Raises UnreadableError where a tensor's type is unknown, a shape and its bytes disagree, or the offsets
    overlap, leave a hole, or do not end with the file.
    """
    base = 8 + len(raw)
    try:
        table = parse_json("the header", raw, most=HEADER_ENTRIES)
        _refuse((not isinstance(table, dict), f"the header is a JSON {type(table).__name__}, not an object"))
        metadata = table.pop("__metadata__", {})
        is_text = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
        _refuse(
            (not is_text, "__metadata__ must map text to text"),
            (is_text and len(metadata) > MAX_METADATA, f"__metadata__ has more than {MAX_METADATA} keys"),
        )
        count = len(table)
        _refuse((count > MAX_TENSORS, f"the header has {count} tensors; at most {MAX_TENSORS} are read"))
        tensors = [_tensor(file, name, entry, base) for name, entry in table.items()]
        tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
        _check_cover(tensors, base, file_size)
    except UnreadableError as error:
        raise UnreadableError(f"{file}: {error}", HEADER, file) from None
    return Header(tuple(tensors), metadata)


def _refuse(*faults: tuple[object, str]) -> None:
    check(*faults, error=UnreadableError)


def _check_cover(tensors: list[StoredTensor], base: int, file_size: int) -> None:
    # raise UnreadableError unless the tensors cover the data exactly: bytes that nothing describes could hide
    # anything
    position = base
    for tensor in tensors:
        kind = "overlaps the one before" if tensor.start < position else "leaves a hole before it"
        place = f"starts at byte {tensor.start - base} of the data and {kind} (expected {position - base})"
        _refuse((tensor.start != position, f"{tensor.name} {place}"))
        position = tensor.stop
    state = "truncated" if position > file_size else "followed by bytes that no tensor owns"
    text = f"the header describes {position} bytes and the file has {file_size}; it is {state}"
    _refuse((position != file_size, text))


def _tensor(file: str, name: str, entry: object, base: int) -> StoredTensor:
    # one entry of a header, checked; offsets in it count from the end of the header, `base`
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise UnreadableError(f"{name} needs exactly dtype, shape and data_offsets in the header")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise UnreadableError(f"{name} has dtype {dtype!r}, which this reader does not know")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UnreadableError(
            f"{name} has shape {shape!r} and data_offsets {offsets!r}; both must be 64-bit non-negative"
            " integers in order"
        )
    *partial_products, bits = accumulate((*shape, DTYPE_BITS[dtype]), mul)
    span, about = offsets[1] - offsets[0], f"{name} is {dtype} {shape}"
    # the limit applies to every partial product, as in safetensors; this check comes first, as Python refuses
    # to format a longer int in the next message
    _refuse(
        (
            max((*partial_products, bits)) >= LIMIT,
            f"{about}, which is more bits than a 64-bit integer can count",
        )
    )
    _refuse((bits % 8 or bits // 8 != span, f"{about} = {bits // 8} bytes, and its offsets span {span}"))
    return StoredTensor(name, dtype, tuple(shape), file, base + offsets[0], base + offsets[1])


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < LIMIT for item in value)
