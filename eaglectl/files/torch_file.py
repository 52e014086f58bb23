"""Tables of tensors that torch wrote, read by range and without torch: where the bytes of each tensor lie.

Files of torch.save since torch 1.6 (torch/serialization.py) are zips that hold data.pkl and one record a
storage; what makes a tensor stands in torch/_utils.py (_rebuild functions). The table of a distributed
checkpoint is a pickle, `.metadata` (torch/distributed/checkpoint/metadata.py and filesystem.py, torch 2.6 to
2.13). Both pickles are read opcode by opcode (opcodes.py): nothing is imported or called.
"""

import io
import itertools
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import mul
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
    Persistent,
    PickleError,
    Tuple,
    Value,
    kind,
    read_pickle,
    refuse,
    shortened,
)
from eaglectl.files.source import Source

# bytes of an element, by torch's names; other dtypes hold no weights of a drafter
ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8,
    "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
MAX_AXES = 16
MAX_ELEMENTS = 1 << 60
# dtype and bytes of an element, by the class of the storage
STORAGES: Mapping[str, tuple[str, int]] = {
    "BoolStorage": ("bool", 1), "ByteStorage": ("uint8", 1), "CharStorage": ("int8", 1),
    "ShortStorage": ("int16", 2), "IntStorage": ("int32", 4), "LongStorage": ("int64", 8),
    "HalfStorage": ("float16", 2), "BFloat16Storage": ("bfloat16", 2), "FloatStorage": ("float32", 4),
    "DoubleStorage": ("float64", 8), "ComplexFloatStorage": ("complex64", 8),
    "ComplexDoubleStorage": ("complex128", 16), "QInt8Storage": ("qint8", 1), "QUInt8Storage": ("quint8", 1),
    "QInt32Storage": ("qint32", 4), "QUInt4x2Storage": ("quint4x2", 1), "QUInt2x4Storage": ("quint2x4", 1),
    "UntypedStorage": ("uint8", 1),
}  # fmt: skip
# what makes a tensor: plain ones, parameters around them, and what safetensors cannot hold
PLAIN = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
UNFIT: Mapping[str, str] = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_meta_tensor_no_storage": "on the meta device, without its data",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_qtensor": "quantized",
    "_rebuild_device_tensor_from_numpy": "saved through numpy",
    "_rebuild_device_tensor_from_cpu_tensor": "on a device of its own",
    "_rebuild_wrapper_subclass": "a subclass of a tensor",
}
TYPED = "_rebuild_from_type_v2"
PLAIN_TYPES = (Named("torch", "Tensor"), Named("torch.nn.parameter", "Parameter"))
DTYPES = (*ITEM_BYTES, "complex32", "complex64", "complex128")
# every class and function that the pickle of a file may name; torch's own list for weights_only, without what
# only other devices and quantization need
NAMES: frozenset[tuple[str, str]] = frozenset(
    {("torch", name) for name in (*DTYPES, *STORAGES, "Size", "device", "Tensor")}
    | {("torch._utils", name) for name in (*PLAIN, *PARAMETERS, *UNFIT)}
    | {(module, name) for module in ("builtins", "__builtin__") for name in ("set", "bytearray", "complex")}
    | {("_codecs", "encode")}
    | {("torch._tensor", TYPED), ("torch.tensor", TYPED), ("torch.serialization", "_get_layout")}
    | {("torch.nn.parameter", "Parameter"), ("torch.storage", "UntypedStorage")}
    | {("torch", "per_tensor_affine"), ("torch", "per_channel_affine"), ("torch", "per_tensor_symmetric")}
    | {("collections", "OrderedDict"), ("collections", "Counter")}
)
# keys under which trainers keep a state dict (SpecForge's training_state.pt), and how deep they nest it
STATES = ("draft_state_dict", "model_state_dict", "state_dict", "model", "draft_model", "module")
NESTING = 5


class UnfitTensorError(ValueError):
    """A tensor that safetensors cannot hold, or that does not fit its storage; its text follows "NAME is"."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


class Storage(Struct, frozen=True):
    """A storage by its key: the dtype of its class, and its bytes."""

    key: str
    dtype: str
    nbytes: int


class StorageView(Struct, frozen=True):
    """A tensor inside a storage; `offset` and `strides` count elements, as torch does."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: Storage

    @property
    def nbytes(self) -> int:
        """Bytes of data once it is contiguous."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements follow each other in the order of its axes."""
        steps = itertools.accumulate(reversed(self.shape), mul, initial=1)
        axes = zip(reversed(self.shape), reversed(self.strides), steps, strict=False)
        return not self.nbytes or all(size == 1 or stride == step for size, stride, step in axes)

    @property
    def span(self) -> tuple[int, int]:
        """First byte in the storage, and the byte past the last; equal where it has no elements."""
        item = ITEM_BYTES[self.dtype]
        if not self.nbytes:
            return 0, 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return self.offset * item, (self.offset + last + 1) * item


def state_views(value: Value) -> tuple[StorageView, ...]:
    """The tensors of a state dict, or of one inside a trainer's state; empty where there are none.

    Raises UnfitTensorError for a tensor that safetensors cannot hold, and PickleError for storages that
    contradict each other; whether these are in the file is for the caller to see.
    """
    for _ in range(NESTING):
        if not isinstance(value, Dict):
            break
        if tensors := {name: item for name, item in value.entries.items() if is_tensor(item)}:
            for name in tensors:
                if not isinstance(name, str) or not name.isprintable():
                    raise PickleError(f"it has a tensor under {ascii(name)[:80]}, which is no tensor's name")
            views = tuple(tensor_view(name, item) for name, item in tensors.items())
            storages(views)
            return views
        value = next((value.entries[key] for key in STATES if isinstance(value.entries.get(key), Dict)), None)
    return ()


def storages(views: Iterable[StorageView]) -> Mapping[str, Storage]:
    """The storages of tensors by key. Raises PickleError where a key stands for storages of two sizes."""
    by_key: dict[str, Storage] = {}
    for item in views:
        refuse(
            by_key.setdefault(item.storage.key, item.storage).nbytes != item.storage.nbytes,
            f"storage {item.storage.key[:80]} has two sizes",
        )
    return by_key


def is_tensor(value: Value) -> TypeGuard[Object]:
    """Whether a value makes a tensor of any kind."""
    makers = (*PLAIN, *PARAMETERS, *UNFIT, TYPED, "Tensor", "Parameter")
    return isinstance(value, Object) and value.named.name in makers


def tensor_view(name: str, value: Object) -> StorageView:
    """Where the data of a tensor lies.

    Raises UnfitTensorError, or PickleError for arguments that torch does not write.
    """
    maker = value.named.name
    match value.arguments:
        case (inner, *_) if maker in PARAMETERS and is_tensor(inner):
            return tensor_view(name, inner)
        case (Named() as function, Named() as kind_of, Tuple(items=items), *_) if maker == TYPED:
            if kind_of not in PLAIN_TYPES:
                raise UnfitTensorError(name, f"a {kind_of.name}")
            return tensor_view(name, Object(function, items))
        case (Persistent() as reference, int() as offset, size, strides, *rest) if maker in PLAIN:
            storage, flags = read_storage(reference), rest[2:]
            dtype = storage.dtype
            if maker == PLAIN[-1]:
                stated, *flags = flags or [None]
                if not isinstance(stated, Named) or stated.name not in DTYPES:
                    raise PickleError(f"{shortened(name)} has no dtype")
                dtype = stated.name
            if any(isinstance(item, Dict) and item.entries for item in flags):
                raise UnfitTensorError(name, "a view with a flag (conj or neg)")
            return _checked(name, dtype, _sizes(size), _sizes(strides), offset, storage)
    if maker not in (*PLAIN, *PARAMETERS, TYPED):
        raise UnfitTensorError(name, UNFIT.get(maker, f"a {kind(value)}"))
    raise PickleError(f"{shortened(name)} is not made as torch makes a tensor")


def read_storage(reference: Persistent) -> Storage:
    """A storage by its reference. Raises PickleError."""
    match reference.identity:
        case Tuple(items=("storage", Named(name=name), str() as key, str(), int() as count)) if (
            name in STORAGES and 0 <= count < MAX_ELEMENTS
        ):
            dtype, item = STORAGES[name]
            return Storage(key, dtype, item * count)
    raise PickleError("it refers to something outside it that is no storage")


def _checked(
    name: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, storage: Storage
) -> StorageView:
    if dtype not in ITEM_BYTES:
        raise UnfitTensorError(name, f"of dtype {dtype}")
    refuse(
        offset < 0 or len(strides) != len(shape),
        f"{shortened(name)} has {len(shape)} sizes, {len(strides)} strides and offset {offset}",
    )
    tensor = StorageView(name, dtype, shape, strides, offset, storage)
    if tensor.nbytes > storage.nbytes:
        raise UnfitTensorError(name, f"expanded to {tensor.nbytes} bytes from {storage.nbytes}")
    if tensor.span[1] > storage.nbytes:
        raise UnfitTensorError(
            name, f"at bytes {tensor.span[0]} to {tensor.span[1]} of a storage of {storage.nbytes}"
        )
    return tensor


def _sizes(value: Value) -> tuple[int, ...]:
    match value:
        case Tuple(items=items) | Object(named=Named("torch", "Size"), arguments=(Tuple(items=items),)):
            sizes = tuple(item for item in items if type(item) is int and 0 <= item < MAX_ELEMENTS)
            if len(sizes) == len(items) <= MAX_AXES and math.prod(max(size, 1) for size in sizes) < 1 << 120:
                return sizes
    raise PickleError("a tensor's sizes or strides are not natural numbers")


# zipfile makes an object of every record: 2 MB of directory is some 20,000 storages
MAX_DIRECTORY = 2 << 20
RECORD, LOCAL_HEADER = b"PK\x03\x04", 30
# read at once from both ends: the pickle is the first record, the directory the last; a drafter's have less
ENDS = 8 << 10
ENCRYPTED = 1


class TorchFile(Struct, frozen=True):
    """The value that was saved, and the bytes [start, stop) of the file that keep each storage."""

    value: Value
    places: Mapping[str, tuple[int, int]]

    def place(self, storage: Storage) -> tuple[int, int]:
        """The bytes of a storage. Raises PickleError where the file has fewer."""
        start, stop = self.places.get(storage.key, (0, -1))
        if stop - start < storage.nbytes:
            kept = f"{stop - start} bytes" if stop >= start else "nothing"
            raise PickleError(f"storage {storage.key[:80]} has {storage.nbytes} bytes, and the file {kept}")
        return start, start + storage.nbytes

    def check(self, views: Iterable[StorageView]) -> None:
        """Raise PickleError where a storage of `views` is not whole in the file, or is inside another."""
        end = 0
        for start, stop, key in sorted((*self.place(item), key) for key, item in storages(views).items()):
            refuse(start < end and stop > start, f"storage {key[:80]} overlaps another")
            end = max(end, stop)


def read_torch_file(
    source: Source, name: str, start: int = 0, stop: int | None = None, *, has_places: bool = True
) -> TorchFile:
    """Bytes [start, stop) of a file that torch.save wrote; the places are offsets in the whole file.

    Without `has_places` they are as the file's directory states them: nothing is read at the storages, and
    no data may be read there.

    Raises PickleError, its subclass ForeignNameError where it asks for what no state dict needs, and
    UnreadableError where the file itself cannot be read.
    """
    size = (source.size(name) if stop is None else stop) - start
    archive = _Archive(partial(source.read, name), start, size)
    root = archive.root()
    refuse(
        f"{root}byteorder" in archive.records and archive.content(f"{root}byteorder") != b"little",
        "it was not saved on a little-endian machine",
    )
    reading = read_pickle(archive.content(f"{root}data.pkl"), NAMES, has_references=True)
    places = {}
    for key in {read_storage(reference).key for reference in reading.references}:
        if (record := f"{root}data/{key}") in archive.records:
            first, last = archive.place(record, is_exact=has_places)
            places[key] = start + first, start + last
    return TorchFile(reading.value, places)


class _Archive:
    """A zip in `size` bytes from `start` on of what `read` reads; its two ends are read once."""

    def __init__(self, read: Callable[[int, int], bytes], start: int, size: int) -> None:
        self.read, self.start = read, start
        self.head = read(start, start + min(size, ENDS))
        refuse(
            not self.head.startswith(RECORD),
            "it is no zip, as torch.save writes since 1.6; open and save an older one with torch >= 1.6",
        )
        fault = ""
        for most in (ENDS, MAX_DIRECTORY):
            # zipfile takes what it is given for the end of a whole file
            self.before = max(0, size - most)
            self.tail = read(start + self.before, start + size)
            try:
                with zipfile.ZipFile(io.BytesIO(self.tail)) as archive:
                    self.end, infos = archive.start_dir + self.before, archive.infolist()
                break
            except (zipfile.BadZipFile, NotImplementedError, EOFError, OverflowError, ValueError) as error:
                fault = str(error)[:120]
        else:
            raise PickleError(f"{fault}; its directory has at most {MAX_DIRECTORY} bytes")
        self.records = {info.filename: info for info in infos}
        refuse(len(self.records) != len(infos), "two records have one name")

    def root(self) -> str:
        """What the names of all records begin with."""
        pickles = [name for name in self.records if name.endswith("/data.pkl") and name.count("/") == 1]
        refuse(
            len(pickles) != 1, f"it has {len(pickles)} records of the name data.pkl, and torch.save writes 1"
        )
        return pickles[0].removesuffix("data.pkl")

    def content(self, name: str) -> bytes:
        """The bytes of a small record."""
        first, last = self.place(name)
        refuse(last - first > MAX_BYTES, f"it has {last - first} bytes where at most {MAX_BYTES} are read")
        return self.at(first, last)

    def at(self, first: int, last: int) -> bytes:
        """Bytes [first, last) of the zip."""
        if last <= len(self.head):
            return self.head[first:last]
        if first >= self.before:
            return self.tail[first - self.before : last - self.before]
        return self.read(self.start + first, self.start + last)

    def place(self, name: str, *, is_exact: bool = True) -> tuple[int, int]:
        """The bytes of a record, or bytes of it as many as it has, where nothing is read there."""
        info = self.records[name]
        refuse(
            info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size,
            f"record {name[:80]} is compressed; torch compresses no file of its own",
        )
        header_at = info.header_offset + self.before
        first = header_at + LOCAL_HEADER + len(info.orig_filename.encode())
        if is_exact and 0 <= header_at < self.end - LOCAL_HEADER:
            header = self.at(header_at, header_at + LOCAL_HEADER)
            refuse(
                not header.startswith(RECORD) or info.flag_bits & ENCRYPTED, f"record {name[:80]} is broken"
            )
            names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
            first = header_at + LOCAL_HEADER + names + extra
        refuse(
            header_at < 0 or first + info.file_size > self.end,
            f"record {name[:80]} is past the end of the file",
        )
        return first, first + info.file_size


# every class that a table may name
TABLE_NAMED: Mapping[str, tuple[str, ...]] = {
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
TABLE_NAMES = frozenset((module, name) for module, names in TABLE_NAMED.items() for name in names)
NOT_THE_MODEL = re.compile(r"(^|[._])(optim|optimizer|scheduler|rng)")


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
        fields = _fields(read_pickle(source.read(table), TABLE_NAMES).value, "Metadata")
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
    _check_apart(what, [chunk for entry in entries for chunk in entry.chunks])
    return tuple(entries)


def _check_apart(what: str, chunks: Iterable[Chunk]) -> None:
    """Raise UnreadableError where pieces lie in one another: together they are no more than their files."""
    pieces = sorted((chunk.file, chunk.start, chunk.stop) for chunk in chunks)
    for (file, _, stop), (other, start, _) in itertools.pairwise(pieces):
        if file == other and start < stop:
            raise UnreadableError(f"{what} keeps two pieces in byte {start} of {file}")


def _entry(
    source: Source, table: str, name: str, value: Value, places: Mapping[Any, Value]
) -> DistributedTensor:
    fields = _fields(value, "TensorStorageMetadata")
    shape, stored = _sizes(fields.get("size")), fields.get("chunks")
    match fields.get("properties"):
        case Object(state=Tuple(items=(Named(module="torch", name=dtype), *_))) if dtype in ITEM_BYTES:
            pass
        case _:
            raise ValueError("its dtype is missing, or is none of a drafter's weights")
    if not isinstance(stored, List):
        raise ValueError("it has no list of pieces")
    chunks = tuple(_chunk(source, table, name, item, shape, places) for item in stored.items)
    for chunk in chunks:
        refuse(
            math.prod(chunk.shape) * ITEM_BYTES[dtype] > chunk.stop - chunk.start,
            f"its piece {list(chunk.shape)} of {dtype} is larger than the {chunk.stop - chunk.start} bytes"
            " kept for it",
        )
    held = sum(math.prod(chunk.shape) for chunk in chunks)
    refuse(held != math.prod(shape), f"it has {math.prod(shape)} elements and its pieces {held}")
    return DistributedTensor(name, dtype, shape, chunks)


def _chunk(
    source: Source, table: str, name: str, item: Value, shape: tuple[int, ...], places: Mapping[Any, Value]
) -> Chunk:
    """A piece of a tensor, which must lie inside `shape` and in a file beside the table."""
    block = _fields(item, "ChunkStorageMetadata")
    offsets, sizes = _sizes(block.get("offsets")), _sizes(block.get("sizes"))
    is_alike = len(offsets) == len(sizes) == len(shape)
    refuse(
        not is_alike or any(offsets[axis] + sizes[axis] > size for axis, size in enumerate(shape)),
        f"a piece {list(sizes)} at {list(offsets)} is not inside {list(shape)}",
    )
    fields = _fields(places.get((name, offsets)), "_StorageInfo")
    path, start, length = fields.get("relative_path"), fields.get("offset"), fields.get("length")
    if not isinstance(path, str) or not _is_natural(start) or not _is_natural(length):
        raise ValueError("a place needs a file, an offset and a length")
    file = table.removesuffix(".metadata") + path
    refuse(fields.get("transform_descriptors"), f"{path} is compressed or encrypted; save it plain")
    refuse("/" in path or file not in source.names(), f"{path} is not beside it; copy the whole checkpoint")
    refuse(
        start + length > (there := source.size(file)),
        f"bytes {start} to {start + length} of {file} were expected, which has {there}; it is truncated",
    )
    return Chunk(file, start, start + length, offsets, sizes)


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


def _is_natural(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0
