"""Files that torch.save writes, read by range and without torch: their tensors, and the storages they lie in.

Two formats (torch/serialization.py, torch 1.0 to 2.13): a zip that holds data.pkl and one record a storage,
and the old one: several pickles, then the storages, each after its number of elements. What makes a tensor
stands in torch/_utils.py (_rebuild functions).
"""

import io
import math
import zipfile
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from msgspec import Struct

from eaglectl.errors import EaglectlError
from eaglectl.files.distributed import ITEM_BYTES, MAX_AXES, MAX_ELEMENTS
from eaglectl.files.opcodes import (
    MAX_BYTES,
    Dict,
    List,
    Named,
    Object,
    Persistent,
    Pickle,
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
    """A storage by its key: the dtype of its class, bytes of an element, and how many it has."""

    key: str
    dtype: str
    item: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of the whole storage."""
        return self.item * self.count


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
    maker, arguments = value.named.name, value.arguments
    if maker in PARAMETERS and arguments and is_tensor(arguments[0]):
        return tensor_view(name, arguments[0])
    if maker == TYPED:
        return tensor_view(name, _plain_call(name, arguments))
    if reason := UNFIT.get(maker):
        raise UnfitTensorError(name, reason)
    if maker not in PLAIN:
        raise UnfitTensorError(name, f"a {kind(value)}")
    match arguments:
        case (Persistent() as reference, int() as offset, size, strides, *rest):
            storage, start = read_storage(reference)
            dtype = storage.dtype if maker != PLAIN[-1] else _dtype(name, rest[2:3])
            _check_flags(name, rest[3:] if maker == PLAIN[-1] else rest[2:])
            return _checked(name, dtype, _sizes(size), _sizes(strides), start + offset, storage)
    raise PickleError(f"{shortened(name)} is not made as torch makes a tensor")


def read_storage(reference: Persistent) -> tuple[Storage, int]:
    """A storage, and the element of it at which the reference begins (not 0 in the old format's views).

    Raises PickleError.
    """
    match reference.identity:
        case Tuple(items=("storage", Named(name=name), str() as key, str(), int() as count, *rest)) if (
            name in STORAGES and 0 <= count < MAX_ELEMENTS
        ):
            dtype, item = STORAGES[name]
            return Storage(key, dtype, item, count), _view_start(rest, count)
    raise PickleError("it refers to something outside it that is no storage")


def _view_start(rest: list[Value], count: int) -> int:
    """The first element of a view of a storage, as the old format's ids hold it."""
    match rest:
        case [] | [None]:
            return 0
        case [Tuple(items=(str(), int() as offset, int() as size))] if 0 <= offset <= offset + size <= count:
            return offset
    raise PickleError("it refers to a view that is not in its storage")


def _plain_call(name: str, arguments: tuple[Value, ...]) -> Object:
    """The call inside _rebuild_from_type_v2(function, type, arguments, state)."""
    match arguments:
        case (Named() as function, Named() as kind_named, Tuple(items=items), *_):
            if kind_named not in PLAIN_TYPES:
                raise UnfitTensorError(name, f"a {kind_named.name}")
            if function.name in (*PLAIN, *PARAMETERS, *UNFIT):
                return Object(function, items)
    raise PickleError(f"{shortened(name)} is not made as torch makes a tensor")


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


def _check_flags(name: str, values: list[Value]) -> None:
    """Raise UnfitTensorError where the tensor is to be conjugated or negated when it is read."""
    if any(isinstance(item, Dict) and item.entries for item in values):
        raise UnfitTensorError(name, "a view with a flag (conj or neg)")


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
LOCAL_HEADER = 30
# read at once from both ends: the pickle is the first record, the directory the last; a drafter's have less
ENDS = 8 << 10
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
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
    """Bytes [start, stop) of a file as a file of its own, of which little is read at once."""

    def __init__(self, source: Source, name: str, start: int, stop: int) -> None:
        self._source, self._name, self._start, self._size = source, name, start, stop - start
        self._position = 0
        self._ends: dict[int, bytes] = {}

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._position, self._size)[whence]
        if base + offset < 0:
            raise PickleError("its directory is broken")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        size = left if size < 0 else min(size, left)
        if size > max(MAX_BYTES, MAX_DIRECTORY):
            raise PickleError(f"it has {size} bytes where at most {MAX_BYTES} are read")
        data = self._at_an_end(self._position, size) or self._range(self._position, size)
        self._position += size
        return data

    def _range(self, position: int, size: int) -> bytes:
        return self._source.read(self._name, self._start + position, self._start + position + size)

    def _at_an_end(self, position: int, size: int) -> bytes:
        """Bytes that are in the first or in the last ENDS bytes, which are read once; else none."""
        for first in (0, max(0, self._size - ENDS)):
            last = min(first + ENDS, self._size)
            if first <= position and position + size <= last:
                if first not in self._ends:
                    self._ends[first] = self._range(first, last - first)
                return self._ends[first][position - first : position - first + size]
        return b""


def read_torch_file(
    source: Source, name: str, start: int = 0, stop: int | None = None, *, has_places: bool = True
) -> TorchFile:
    """Bytes [start, stop) of a file that torch.save wrote; the places are offsets in the whole file.

    Without `has_places` they are as the file's directory states them: nothing is read at the storages, and
    no data may be read there.

    Raises PickleError, its subclass ForeignNameError where it asks for what no state dict needs, and
    UnreadableError where the file itself cannot be read.
    """
    end = source.size(name) if stop is None else stop
    window = _Window(source, name, start, end)
    if window.read(4) == b"PK\x03\x04":
        try:
            return _Archive(window, start, has_places=has_places).torch_file()
        except (PickleError, EaglectlError):
            raise
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OverflowError, ValueError) as error:
            raise PickleError(str(error)[:120]) from None
    window.seek(0)
    return _old_format(window, start, end, has_places=has_places)


class _Archive:
    """The zip of torch's format since 1.6."""

    def __init__(self, window: _Window, start: int, *, has_places: bool) -> None:
        self.window, self.start, self.has_places = window, start, has_places
        window.seek(0)
        with zipfile.ZipFile(_Directory(window)) as archive:
            self.end = archive.start_dir
            infos = archive.infolist()
        self.records = {info.filename: info for info in infos}
        if len(self.records) != len(infos):
            raise PickleError("two records have one name")

    def torch_file(self) -> TorchFile:
        pickles = [name for name in self.records if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise PickleError(f"it has {len(pickles)} records of the name data.pkl, and torch.save writes 1")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in self.records and self.content(f"{root}byteorder") != b"little":
            raise PickleError("it was not saved on a little-endian machine")
        reading = read_pickle(self.content(pickles[0]), NAMES, has_references=True)
        keys = {read_storage(reference)[0].key for reference in reading.references}
        return TorchFile(
            reading.value,
            {key: self.storage(f"{root}data/{key}") for key in keys if f"{root}data/{key}" in self.records},
        )

    def storage(self, name: str) -> tuple[int, int]:
        """The bytes of a storage, or bytes of its record as many as it has."""
        if self.has_places:
            return self.place(name)
        info = self.records[name]
        _check_stored(info)
        first = info.header_offset + LOCAL_HEADER + len(info.orig_filename.encode())
        return self._span(info, first)

    def content(self, name: str) -> bytes:
        first, last = self.place(name)
        self.window.seek(first - self.start)
        return self.window.read(last - first)

    def place(self, name: str) -> tuple[int, int]:
        """The bytes of a record in the whole file."""
        info = self.records[name]
        _check_stored(info)
        self._span(info, info.header_offset + LOCAL_HEADER)
        self.window.seek(info.header_offset)
        header = self.window.read(LOCAL_HEADER)
        if header[:4] != b"PK\x03\x04" or len(header) < LOCAL_HEADER or info.flag_bits & ENCRYPTED:
            raise PickleError(f"record {name[:80]} is broken")
        names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        first = info.header_offset + LOCAL_HEADER + names + extra
        return self._span(info, first)

    def _span(self, info: zipfile.ZipInfo, first: int) -> tuple[int, int]:
        """The bytes of a record in the whole file, that begin at `first` of the archive."""
        if first + info.file_size > self.end:
            raise PickleError(f"record {info.filename[:80]} is past the end of the file")
        return self.start + first, self.start + first + info.file_size


def _check_stored(info: zipfile.ZipInfo) -> None:
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise PickleError(f"record {info.filename[:80]} is compressed; torch compresses no file of its own")


class _Directory:
    """A window through which no large directory is read."""

    def __init__(self, window: _Window) -> None:
        self._window = window
        self.tell, self.seek, self.seekable = window.tell, window.seek, window.seekable

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY:
            raise PickleError(f"its directory has {size} bytes, and at most {MAX_DIRECTORY} are read")
        return self._window.read(size)


def _old_format(window: _Window, start: int, end: int, *, has_places: bool) -> TorchFile:
    """Five pickles (magic number, protocol, the writer's machine, the value, keys), then the storages."""
    for size in (ENDS, MAX_BYTES >> 4, MAX_BYTES):
        window.seek(0)
        head = window.read(min(end - start, size))
        try:
            reading, keys = _old_pickles(head)
            break
        except PickleError:
            if len(head) < size or size == MAX_BYTES:
                raise
    return TorchFile(reading.value, _old_places(window, reading, keys, (start, end), has_places=has_places))


def _old_pickles(head: bytes) -> tuple[Pickle, Pickle]:
    """The value, and the keys of its storages. Raises PickleError."""
    magic = read_pickle(head, NAMES)
    if magic.value != MAGIC:
        raise PickleError("it is no zip, and does not begin with torch's magic number")
    protocol = read_pickle(head, NAMES, start=magic.stop)
    if protocol.value != PROTOCOL:
        raise PickleError("its protocol is not the one of torch's old format")
    machine = read_pickle(head, NAMES, start=protocol.stop)
    reading = read_pickle(head, NAMES, start=machine.stop, has_references=True)
    keys = read_pickle(head, NAMES, start=reading.stop)
    return reading, keys


def _old_places(
    window: _Window, reading: Pickle, keys: Pickle, span: tuple[int, int], *, has_places: bool
) -> Mapping[str, tuple[int, int]]:
    """Where the storages are: in the order of `keys`, each after its number of elements."""
    start, end = span
    if not isinstance(keys.value, List):
        raise PickleError("it does not list its storages")
    stored = {storage.key: storage for storage, _ in map(read_storage, reading.references)}
    position = keys.stop
    places: dict[str, tuple[int, int]] = {}
    for key in keys.value.items:
        if not isinstance(key, str) or key not in stored or key in places:
            raise PickleError("it lists a storage twice, or that nothing refers to")
        if has_places:
            _check_count(window, position, stored[key])
        first = start + position + 8
        position += 8 + stored[key].nbytes
        if start + position > end:
            raise PickleError(f"storage {key[:80]} is past the end of the file; it is truncated")
        places[key] = (first, start + position)
    return places


def _check_count(window: _Window, position: int, storage: Storage) -> None:
    """Raise PickleError unless the storage at `position` has as many elements as its pickle says."""
    window.seek(position)
    count = int.from_bytes(window.read(8), "little")
    if count * storage.item != storage.nbytes:
        text = f"storage {storage.key[:80]} has {count} elements where its pickle says another number"
        raise PickleError(text)
