"""Files that torch.save writes, read by range and without torch: their tensors, and the storages they lie in.

The format since torch 1.6 (torch/serialization.py): a zip that holds data.pkl and one record a storage. What
makes a tensor stands in torch/_utils.py (_rebuild functions).
"""

import io
import math
import zipfile
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeGuard

from msgspec import Struct

from eaglectl.errors import EaglectlError
from eaglectl.files.distributed import ITEM_BYTES, MAX_AXES, MAX_ELEMENTS
from eaglectl.files.opcodes import (
    MAX_BYTES,
    Dict,
    Named,
    Object,
    Persistent,
    PickleError,
    Tuple,
    Value,
    kind,
    read_pickle,
    shortened,
)
from eaglectl.files.source import Source

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
# every class and function that a torch pickle may name; torch's own list for weights_only, without what only
# other devices and quantization need
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
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return not self.nbytes
            step *= size
        return True

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
            views = tuple(tensor_view(_name(name), item) for name, item in tensors.items())
            storages(views)
            return views
        value = next((value.entries[key] for key in STATES if isinstance(value.entries.get(key), Dict)), None)
    return ()


def storages(views: Iterable[StorageView]) -> Mapping[str, Storage]:
    """The storages of tensors by key. Raises PickleError where a key stands for storages of two sizes."""
    by_key: dict[str, Storage] = {}
    for item in views:
        if by_key.setdefault(item.storage.key, item.storage).nbytes != item.storage.nbytes:
            raise PickleError(f"storage {item.storage.key[:80]} has two sizes")
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
        case (Named() as function, Named() as of_type, Tuple(items=items), *_) if maker == TYPED:
            if of_type not in PLAIN_TYPES:
                raise UnfitTensorError(name, f"a {of_type.name}")
            return tensor_view(name, Object(function, items))
        case (Persistent() as reference, int() as offset, size, strides, *rest) if maker in PLAIN:
            storage, flags = read_storage(reference), rest[2:]
            dtype = storage.dtype
            if maker == PLAIN[-1]:
                dtype, flags = _dtype(name, flags[:1]), flags[1:]
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
    if offset < 0 or len(strides) != len(shape):
        raise PickleError(
            f"{shortened(name)} has {len(shape)} sizes, {len(strides)} strides and offset {offset}"
        )
    tensor = StorageView(name, dtype, shape, strides, offset, storage)
    if tensor.nbytes > storage.nbytes:
        raise UnfitTensorError(name, f"expanded to {tensor.nbytes} bytes from {storage.nbytes}")
    if tensor.span[1] > storage.nbytes:
        raise UnfitTensorError(
            name, f"at bytes {tensor.span[0]} to {tensor.span[1]} of a storage of {storage.nbytes}"
        )
    return tensor


def _dtype(name: str, values: list[Value]) -> str:
    match values:
        case [Named(module="torch", name=dtype)] if dtype in DTYPES:
            return dtype
    raise PickleError(f"{shortened(name)} has no dtype")


def _sizes(value: Value) -> tuple[int, ...]:
    match value:
        case Tuple(items=items) | Object(named=Named("torch", "Size"), arguments=(Tuple(items=items),)):
            sizes = tuple(item for item in items if type(item) is int and 0 <= item < MAX_ELEMENTS)
            if len(sizes) == len(items) <= MAX_AXES and math.prod(max(size, 1) for size in sizes) < 1 << 120:
                return sizes
    raise PickleError("a tensor's sizes or strides are not natural numbers")


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isprintable():
        raise PickleError(f"it has a tensor under {ascii(name)[:80]}, which is no tensor's name")
    return name


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
            if start < end and stop > start:
                raise PickleError(f"storage {key[:80]} overlaps another")
            end = max(end, stop)


class _Window:
    """Bytes [start, stop) of a file as a file of its own, whose two ends are read once."""

    def __init__(self, source: Source, name: str, start: int, stop: int) -> None:
        self.range = partial(source.read, name)
        self.start, self.size, self.position = start, stop - start, 0
        firsts = {0, max(0, self.size - ENDS)}
        self.ends = {first: self.range(start + first, min(start + first + ENDS, stop)) for first in firsts}

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = (0, self.position, self.size)[whence] + offset
        if self.position < 0:
            raise PickleError("its directory is broken")
        return self.position

    def read(self, size: int = -1) -> bytes:
        """The next bytes, for zipfile; those of a large directory are refused."""
        left = max(0, self.size - self.position)
        size = left if size < 0 else min(size, left)
        if size > MAX_DIRECTORY:
            raise PickleError(f"its directory has {size} bytes, and at most {MAX_DIRECTORY} are read")
        self.position += size
        return self.at(self.position - size, self.position)

    def at(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the window."""
        for first, data in self.ends.items():
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        return self.range(self.start + start, self.start + stop)


def read_torch_file(
    source: Source, name: str, start: int = 0, stop: int | None = None, *, has_places: bool = True
) -> TorchFile:
    """Bytes [start, stop) of a file that torch.save wrote; the places are offsets in the whole file.

    Without `has_places` they are as the file's directory states them: nothing is read at the storages, and
    no data may be read there.

    Raises PickleError, its subclass ForeignNameError where it asks for what no state dict needs, and
    UnreadableError where the file itself cannot be read.
    """
    window = _Window(source, name, start, source.size(name) if stop is None else stop)
    if window.read(4) != RECORD:
        raise PickleError(
            "it is no zip, as torch.save writes since 1.6; open and save an older one with torch >= 1.6"
        )
    try:
        return _Archive(window).torch_file(has_places=has_places)
    except (PickleError, EaglectlError):
        raise
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OverflowError, ValueError) as error:
        raise PickleError(str(error)[:120]) from None


class _Archive:
    """The zip of torch's format."""

    def __init__(self, window: _Window) -> None:
        self.window = window
        with zipfile.ZipFile(window) as archive:
            self.end, infos = archive.start_dir, archive.infolist()
        self.records = {info.filename: info for info in infos}
        if len(self.records) != len(infos):
            raise PickleError("two records have one name")

    def torch_file(self, *, has_places: bool) -> TorchFile:
        pickles = [name for name in self.records if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise PickleError(f"it has {len(pickles)} records of the name data.pkl, and torch.save writes 1")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in self.records and self.content(f"{root}byteorder") != b"little":
            raise PickleError("it was not saved on a little-endian machine")
        reading = read_pickle(self.content(pickles[0]), NAMES, has_references=True)
        names = {
            key: f"{root}data/{key}"
            for key in (read_storage(reference).key for reference in reading.references)
        }
        places = {
            key: self.place(name, is_exact=has_places) for key, name in names.items() if name in self.records
        }
        start = self.window.start
        return TorchFile(
            reading.value, {key: (start + first, start + last) for key, (first, last) in places.items()}
        )

    def content(self, name: str) -> bytes:
        first, last = self.place(name)
        if last - first > MAX_BYTES:
            raise PickleError(f"it has {last - first} bytes where at most {MAX_BYTES} are read")
        return self.window.at(first, last)

    def place(self, name: str, *, is_exact: bool = True) -> tuple[int, int]:
        """The bytes of a record in the window, or bytes of it as many as it has, where nothing is read."""
        info = self.records[name]
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise PickleError(f"record {name[:80]} is compressed; torch compresses no file of its own")
        first = self._checked(info, info.header_offset + LOCAL_HEADER + len(info.orig_filename.encode()))
        if is_exact:
            header = self.window.at(info.header_offset, info.header_offset + LOCAL_HEADER)
            if not header.startswith(RECORD) or info.flag_bits & ENCRYPTED:
                raise PickleError(f"record {name[:80]} is broken")
            names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
            first = self._checked(info, info.header_offset + LOCAL_HEADER + names + extra)
        return first, first + info.file_size

    def _checked(self, info: zipfile.ZipInfo, first: int) -> int:
        """Where a record's content begins, which ends before the directory."""
        if info.header_offset < 0 or first + info.file_size > self.end:
            raise PickleError(f"record {info.filename[:80]} is past the end of the file")
        return first
