"""The table (`.metadata`) of a torch distributed checkpoint: which bytes of which file are which part of which tensor.

The table is a pickle. Here it can only make dictionaries, lists and records: whatever class it names stands for a record
of what it was given, so nothing is imported or called, and torch is not needed.
Layout: torch/distributed/checkpoint/metadata.py and filesystem.py (torch 2.6 to 2.13).
"""

import io
import math
import pickle
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from eaglectl.checkpoint.source import Source
from eaglectl.errors import Unreadable

# bytes of an element, for the dtypes a drafter may be stored in; the names are torch's
ITEM: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
# every class that a table may name
NAMED: Mapping[str, tuple[str, ...]] = {
    "torch": ("Size", "complex32", "complex64", "complex128", *ITEM),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.checkpoint.metadata": (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    # the folder's own name, in StorageMeta
    "pathlib": ("PosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),
    # how Python 3.11.0 to 3.11.3 writes a member of an Enum; a record like the others, nothing is looked up
    "builtins": ("getattr",),
}  # fmt: skip
REFUSED_OPCODES = ("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
NOT_THE_MODEL = re.compile(r"(^|[._])(optim|optimizer|scheduler|rng)")
MAX_AXES = 16
MOST_ELEMENTS = 1 << 60


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a tensor, saved by torch in bytes [start, stop) of a file; `offsets` and `shape` place it."""

    file: str
    start: int
    stop: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of the table; its pieces lie inside it and together hold as many elements as it has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * ITEM[self.dtype]


class _Record:
    """What the pickle gave to a class that it named."""

    given: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *given: Any) -> "_Record":
        record = super().__new__(cls)
        record.given = given
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state


RECORDS = {(module, name): type(name, (_Record,), {}) for module, names in NAMED.items() for name in names}


def read_table(source: Source, table: str) -> tuple[Entry, ...]:
    """The model's tensors; those of optimizers and schedulers are left out.

    Raises Unreadable where the table is none, or does not fit the files beside it: every piece lies in a file of
    `source`, and the tensors are together no larger than those files.
    """
    what = f"{table} of {source.label}"
    value = _unpickled(what, source.read(table))
    try:
        fields = _fields(value, "Metadata")
        tensors, places = _dict(fields.get("state_dict_metadata")), _places(fields.get("storage_data"))
        if fields.get("storage_meta") is not None:
            _fields(fields["storage_meta"], "StorageMeta")
    except ValueError as problem:
        raise Unreadable(f"{what} is not the table of a torch distributed checkpoint: {problem}") from None
    entries = []
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise Unreadable(f"{what} lists a {type(name).__name__} where a tensor's name belongs")
        if type(value).__name__ == "BytesStorageMetadata" or NOT_THE_MODEL.search(name):
            continue
        try:
            entries.append(_entry(source, table, name, value, places))
        except ValueError as problem:
            raise Unreadable(f"{what} does not fit its files: {name}: {problem}") from None
    if not entries:
        raise Unreadable(f"{what} lists no model tensors")
    _check_total(source, what, entries)
    return tuple(entries)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Record]:
        if (module, name) not in RECORDS:
            raise Unreadable(
                f".metadata asks for {f'{module}.{name}'[:120]}, which no torch distributed checkpoint needs; it was not loaded"
            )
        return RECORDS[module, name]


def _unpickled(what: str, raw: bytes) -> object:
    try:
        _check_opcodes(what, raw)
        return _Unpickler(io.BytesIO(raw)).load()
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(
            f"{what} is broken, or is not the table of a torch distributed checkpoint ({type(error).__name__}:"
            f" {str(error)[:120]})"
        ) from None


def _check_opcodes(what: str, raw: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name in REFUSED_OPCODES:
            raise Unreadable(f"{what} asks for an object outside it ({opcode.name}); it was not loaded")
        # CPython makes room for as many objects as the number says
        if opcode.name in ("PUT", "LONG_BINPUT") and isinstance(argument, int) and argument > len(raw):
            raise ValueError(f"memo number {argument} in {len(raw)} bytes")


def _entry(source: Source, table: str, name: str, value: object, places: Mapping[Any, object]) -> Entry:
    fields = _fields(value, "TensorStorageMetadata")
    shape, chunks = _sizes(fields.get("size")), fields.get("chunks")
    dtype = _dtype(fields.get("properties"))
    if not isinstance(chunks, list):
        raise ValueError("it has no list of pieces")
    pieces = []
    for chunk in chunks:
        offsets, block = _block(chunk, shape)
        if (name, offsets) not in places:
            raise ValueError(f"the place of its piece at {list(offsets)} is missing")
        file, start, stop = _place(source, table, places[name, offsets])
        if math.prod(block) * ITEM[dtype] > stop - start:
            raise ValueError(f"its piece {list(block)} of {dtype} is larger than the {stop - start} bytes kept for it")
        pieces.append(Piece(file, start, stop, offsets, block))
    held = sum(math.prod(piece.shape) for piece in pieces)
    if held != math.prod(shape):
        raise ValueError(f"it has {math.prod(shape)} elements and its pieces {held}")
    return Entry(name, dtype, shape, tuple(pieces))


def _block(chunk: object, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of a piece, which must lie inside `shape`."""
    fields = _fields(chunk, "ChunkStorageMetadata")
    offsets, sizes = _sizes(fields.get("offsets")), _sizes(fields.get("sizes"))
    is_alike = len(offsets) == len(sizes) == len(shape)
    if not is_alike or any(offsets[axis] + sizes[axis] > size for axis, size in enumerate(shape)):
        raise ValueError(f"a piece {list(sizes)} at {list(offsets)} is not inside {list(shape)}")
    return offsets, sizes


def _place(source: Source, table: str, value: object) -> tuple[str, int, int]:
    """File and byte range of a piece, which must lie in a file beside the table."""
    fields = _fields(value, "_StorageInfo")
    path, start, length = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if not isinstance(path, str) or not _is_natural(start) or not _is_natural(length):
        raise ValueError("a place needs a file, an offset and a length")
    if fields.get("transform_descriptors"):
        raise ValueError(f"{path} is compressed or encrypted; save it plain")
    file = table.removesuffix(".metadata") + path
    if "/" in path or file not in source.names():
        raise ValueError(f"{path} is not a file beside it; copy the whole checkpoint")
    if start + length > source.size(file):
        raise ValueError(
            f"bytes {start} to {start + length} of {file} were expected, which has {source.size(file)}; it is truncated"
        )
    return file, start, start + length


def _places(value: object) -> Mapping[Any, object]:
    """The storage records by tensor and offsets; those without offsets are no tensors."""
    indexed = [(_fields(key, "MetadataIndex"), place) for key, place in _dict(value).items()]
    return {
        (index["fqn"], _sizes(index["offset"])): place
        for index, place in indexed
        if isinstance(index.get("fqn"), str) and index.get("offset") is not None
    }


def _fields(value: object, kind: str) -> Mapping[str, Any]:
    if not isinstance(value, _Record) or type(value).__name__ != kind or not isinstance(value.state, dict):
        raise ValueError(f"a {type(value).__name__} stands where {kind} belongs")
    return value.state


def _dict(value: object) -> Mapping[Any, object]:
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} stands where a dict belongs")
    return value


def _dtype(properties: object) -> str:
    match properties:
        case _Record(state=(type() as dtype, *_)):
            if dtype.__name__ in ITEM:
                return dtype.__name__
            raise ValueError(f"it is {dtype.__name__}, and no weights of a drafter are")
    raise ValueError("its dtype is missing")


def _sizes(value: object) -> tuple[int, ...]:
    match value:
        case _Record(given=(tuple() as sizes,)) if len(sizes) <= MAX_AXES and all(_is_natural(size) for size in sizes):
            if math.prod(size or 1 for size in sizes) < MOST_ELEMENTS:
                return sizes
    raise ValueError("a torch.Size is missing, or is not one of a tensor")


def _is_natural(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _check_total(source: Source, what: str, entries: list[Entry]) -> None:
    there = sum(source.size(file) for file in {piece.file for entry in entries for piece in entry.pieces})
    needed = sum(entry.nbytes for entry in entries)
    if needed > there:
        raise Unreadable(f"{what} lists {needed} bytes of tensors, and the files beside it have {there}")
