"""The table (`.metadata`) of a torch distributed checkpoint: the bytes of each tensor in its files.

The table is a pickle, read opcode by opcode (opcodes.py): nothing is imported or called; torch is not needed.
Layout: torch/distributed/checkpoint/metadata.py and filesystem.py (torch 2.6 to 2.13).
"""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.opcodes import (
    MAX_BYTES,
    Dict,
    ForeignNameError,
    List,
    Named,
    Object,
    Tuple,
    Value,
    kind,
    read_pickle,
    shortened,
)
from eaglectl.files.source import Source

# bytes of an element, by torch's names; other dtypes hold no weights of a drafter
ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8,
    "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
# every class that a table may name
NAMED: Mapping[str, tuple[str, ...]] = {
    "torch": ("Size", "complex32", "complex64", "complex128", *ITEM_BYTES),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.checkpoint.metadata": (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    # the folder's own name, in StorageMeta
    "pathlib": ("PosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),
    # how Python 3.11.0 to 3.11.3 pickles a member of an Enum; a record like the others
    "builtins": ("getattr",),
}  # fmt: skip
NAMES = frozenset((module, name) for module, names in NAMED.items() for name in names)
NOT_THE_MODEL = re.compile(r"(^|[._])(optim|optimizer|scheduler|rng)")
MAX_AXES = 16
MAX_ELEMENTS = 1 << 60


class Chunk(Struct, frozen=True):
    """A block of a tensor, saved in bytes [start, stop) of a file; `offsets` and `shape` place it."""

    file: str
    start: int
    stop: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class DistributedTensor(Struct, frozen=True):
    """A tensor of the table; its chunks are inside it and hold as many elements as it has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def read_table(source: Source, table: str) -> tuple[DistributedTensor, ...]:
    """The model's tensors; those of optimizers and schedulers are left out.

    Raises UnreadableError where the file is no such table, or does not fit the files beside it: every chunk
    is in a file of `source`, and the tensors together are no larger than those files.
    """
    what = f"{table} of {source.place}"
    if (size := source.size(table)) > MAX_BYTES:
        raise UnreadableError(f"{what} has {size} bytes; the table of a drafter has at most {MAX_BYTES}")
    try:
        fields = _fields(read_pickle(source.read(table), NAMES).value, "Metadata")
        if fields.get("storage_meta") is not None:
            _fields(fields["storage_meta"], "StorageMeta")
        tensors, places = _dict(fields.get("state_dict_metadata")), _places(fields.get("storage_data"))
    except ForeignNameError as error:
        raise UnreadableError(
            f".metadata asks for {error.named}, which no torch distributed checkpoint needs; it was not"
            " loaded"
        ) from None
    except ValueError as problem:
        raise UnreadableError(
            f"{what} is broken, or is not the table of a torch distributed checkpoint: {problem}"
        ) from None
    entries = []
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise UnreadableError(f"{what} lists a {kind(name)} where a tensor's name belongs")
        if kind(value) == "BytesStorageMetadata" or NOT_THE_MODEL.search(name):
            continue
        try:
            entries.append(_entry(source, table, name, value, places))
        except ValueError as problem:
            raise UnreadableError(f"{what} does not fit its files: {shortened(name)}: {problem}") from None
    if not entries:
        raise UnreadableError(f"{what} lists no model tensors")
    _check_places(source, what, entries)
    return tuple(entries)


def _entry(
    source: Source, table: str, name: str, value: Value, places: Mapping[Any, Value]
) -> DistributedTensor:
    fields = _fields(value, "TensorStorageMetadata")
    shape, stored = _sizes(fields.get("size")), fields.get("chunks")
    dtype = _dtype(fields.get("properties"))
    if not isinstance(stored, List):
        raise ValueError("it has no list of pieces")
    chunks = []
    for item in stored.items:
        offsets, block = _block(item, shape)
        if (name, offsets) not in places:
            raise ValueError(f"the place of its piece at {list(offsets)} is missing")
        file, start, stop = _place(source, table, places[name, offsets])
        if math.prod(block) * ITEM_BYTES[dtype] > stop - start:
            raise ValueError(
                f"its piece {list(block)} of {dtype} is larger than the {stop - start} bytes kept for it"
            )
        chunks.append(Chunk(file, start, stop, offsets, block))
    held = sum(math.prod(chunk.shape) for chunk in chunks)
    if held != math.prod(shape):
        raise ValueError(f"it has {math.prod(shape)} elements and its pieces {held}")
    return DistributedTensor(name, dtype, shape, tuple(chunks))


def _block(chunk: Value, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of a piece, which must lie inside `shape`."""
    fields = _fields(chunk, "ChunkStorageMetadata")
    offsets, sizes = _sizes(fields.get("offsets")), _sizes(fields.get("sizes"))
    is_alike = len(offsets) == len(sizes) == len(shape)
    if not is_alike or any(offsets[axis] + sizes[axis] > size for axis, size in enumerate(shape)):
        raise ValueError(f"a piece {list(sizes)} at {list(offsets)} is not inside {list(shape)}")
    return offsets, sizes


def _place(source: Source, table: str, value: Value) -> tuple[str, int, int]:
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
            f"bytes {start} to {start + length} of {file} were expected, which has {source.size(file)};"
            " it is truncated"
        )
    return file, start, start + length


def _places(value: Value) -> Mapping[tuple[str, tuple[int, ...]], Value]:
    """The storage records by tensor and offsets; those without offsets are no tensors."""
    places: dict[tuple[str, tuple[int, ...]], Value] = {}
    for key, place in _dict(value).items():
        index = _fields(key, "MetadataIndex")
        name = index.get("fqn")
        if isinstance(name, str) and index.get("offset") is not None:
            if (piece := (name, _sizes(index["offset"]))) in places:
                raise ValueError(f"a piece of {shortened(name)} has two places")
            places[piece] = place
    return places


def _fields(value: Value, name: str) -> Mapping[str, Value]:
    if not isinstance(value, Object) or value.named.name != name or not isinstance(value.state, Dict):
        raise ValueError(f"a {kind(value)} stands where {name} belongs")
    return value.state.entries


def _dict(value: Value) -> Mapping[Any, Value]:
    if not isinstance(value, Dict):
        raise ValueError(f"a {kind(value)} stands where a dict belongs")
    return value.entries


def _dtype(properties: Value) -> str:
    match properties:
        case Object(state=Tuple(items=(Named(module="torch", name=dtype), *_))):
            if dtype in ITEM_BYTES:
                return dtype
            raise ValueError(f"it is {dtype}, and no weights of a drafter are")
    raise ValueError("its dtype is missing")


def _sizes(value: Value) -> tuple[int, ...]:
    match value:
        case Object(arguments=(Tuple(items=items),)):
            sizes = tuple(size for size in items if _is_natural(size))
            if len(sizes) == len(items) <= MAX_AXES and math.prod(size or 1 for size in sizes) < MAX_ELEMENTS:
                return sizes
    raise ValueError("a torch.Size is missing, or is not one of a tensor")


def _is_natural(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _check_places(source: Source, what: str, entries: list[DistributedTensor]) -> None:
    """Raise UnreadableError where the pieces are more than their files, or lie in one another."""
    pieces = sorted((chunk.file, chunk.start, chunk.stop) for entry in entries for chunk in entry.chunks)
    there = sum(map(source.size, {file for file, _, _ in pieces}))
    needed = sum(entry.nbytes for entry in entries)
    if needed > there:
        raise UnreadableError(f"{what} lists {needed} bytes of tensors, and the files beside it have {there}")

    for (file, _, stop), (other, start, _) in itertools.pairwise(pieces):
        if file == other and start < stop:
            raise UnreadableError(f"{what} keeps two pieces in byte {start} of {file}")
