"""Weights in pickles, which are never unpickled.

`.bin`, `.pt` and the shards of a torch distributed checkpoint are read as tables of tensors, by range and
without torch: where the bytes of each tensor lie. To be converted, the weights are then copied out of their
storages as bytes.

Files of torch.save since torch 1.6 (torch/serialization.py) are zips that hold data.pkl and one record a
storage; what makes a tensor stands in torch/_utils.py (_rebuild functions). The table of a distributed
checkpoint is a pickle, `.metadata` (torch/distributed/checkpoint/metadata.py and filesystem.py, torch 2.6 to
2.13). Both pickles are read opcode by opcode (opcodes.py): nothing is imported or called.
"""

import io
import itertools
import math
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError, UsageError, check
from eaglectl.files.files import errors_about
from eaglectl.files.header import DTYPE_BITS, LFS_POINTER, POINTER, PULL, UNSAFE, WEIGHTS, StoredTensor
from eaglectl.files.layout import (
    CONFIG,
    PICKLES,
    SINGLE,
    STATE,
    VOCABULARY_PICKLES,
    check_parts,
    config_name,
    pickle_files,
)
from eaglectl.files.opcodes import (
    MAX_BYTES,
    ForeignNameError,
    Named,
    Object,
    PersistentId,
    PickleError,
    Value,
    kind,
    read_pickle,
    refuse,
    shortened,
)
from eaglectl.files.source import FolderSource, Source
from eaglectl.text import listed

if TYPE_CHECKING:
    import torch

# prefixes that trainers add to a drafter's names (FSDP, torch.compile, states of TorchSpec and SpecForge)
WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "module.")
TORCHSPEC_PREFIX = "model_state.model.draft_model."
PREFIXES = (
    "model_state.model.draft_model.",
    "model_state.draft_model.",
    "model_state.model.",
    "model_state.",
    "draft_model.",
)
WEIGHTS_ENDINGS = (*PICKLES, ".distcp", ".safetensors")
# tied names may share a storage; thousands would fill the disk from one small file
MAX_REPEATS = 8
# a Git LFS pointer is smaller
MAX_POINTER = 1 << 10
# more than any vocabulary has
MAX_TOKENS = 1 << 22
# torch's dtypes, as safetensors names them
SAFETENSORS_DTYPES: Mapping[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
# bytes of an element; other dtypes hold no weights of a drafter
ITEM_BYTES = {name: DTYPE_BITS[stored] // 8 for name, stored in SAFETENSORS_DTYPES.items()}
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
    "UntypedStorage": ("untyped", 1),
}  # fmt: skip
# the functions that make a tensor: plain ones, parameters around them, and those that safetensors cannot hold
PLAIN = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
TYPED = "_rebuild_from_type_v2"
UNFIT: Mapping[str, str] = {
    "_rebuild_sparse_tensor": "sparse",
    "_rebuild_meta_tensor_no_storage": "on the meta device, without its data",
    "_rebuild_nested_tensor": "nested",
    "_rebuild_qtensor": "quantized",
    "_rebuild_device_tensor_from_numpy": "saved through numpy",
    "_rebuild_device_tensor_from_cpu_tensor": "on a device of its own",
    "_rebuild_wrapper_subclass": "a subclass of a tensor",
    TYPED: "a subclass of a tensor, or has attributes of its own",
    "Tensor": "a call of a class",
    "Parameter": "a call of a class",
}
MAKERS = frozenset((*PLAIN, *PARAMETERS, *UNFIT))
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
# how many dictionaries deep the tensors may be
NESTING = 5
# read at once from both ends: the pickle is the first record, the directory the last; a drafter's have less
ENDS = 8 << 10
# zipfile makes an object of every record: 2 MB of directory is some 20,000 storages
MAX_DIRECTORY = 2 << 20
RECORD, LOCAL_HEADER = b"PK\x03\x04", 30
ENCRYPTED = 1
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


class UnfitTensorError(PickleError):
    """A tensor that safetensors cannot hold, or that does not fit its storage."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{shortened(name)} is {reason}; save it as a plain tensor, as safetensors holds them"
        )


class _View(Struct, frozen=True):
    """A tensor inside a storage of `size` bytes; `offset` and `strides` count elements, as torch does."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: str
    size: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        steps = itertools.accumulate(reversed(self.shape), mul, initial=1)
        axes = zip(reversed(self.shape), reversed(self.strides), steps, strict=False)
        return not self.nbytes or all(size == 1 or stride == step for size, stride, step in axes)

    @property
    def span(self) -> tuple[int, int]:
        """First byte in the storage, and the byte past the last; equal where it has no elements."""
        item = ITEM_BYTES[self.dtype]
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (self.offset * item, (self.offset + last + 1) * item) if self.nbytes else (0, 0)


def state_views(value: Value) -> tuple[_View, ...]:
    """Return the tensors of a state dict, or of one inside a trainer's state; empty if there are none.

    The bytes are checked by `TorchFile.check`. Raises UnfitTensorError for a tensor that safetensors cannot
    hold, and PickleError.
    """
    for _ in range(NESTING):
        if not isinstance(value, dict):
            break
        if tensors := {name: item for name, item in value.items() if is_tensor(item)}:
            for name in tensors:
                is_name = isinstance(name, str) and name.isprintable()
                refuse(not is_name, f"it has a tensor under {ascii(name)[:80]}, which is no tensor's name")
            return tuple(tensor_view(name, item) for name, item in tensors.items())
        value = next((value[key] for key in STATES if isinstance(value.get(key), dict)), None)
    return ()


def is_tensor(value: Value) -> TypeGuard[Object]:
    """Whether a value makes a tensor of any kind."""
    return isinstance(value, Object) and value.named.name in MAKERS


def tensor_view(name: str, value: Object) -> _View:
    """Return where the data of a tensor lies in its storage.

    Raises UnfitTensorError for a tensor that safetensors cannot hold, PickleError for arguments that torch
    does not write.
    """
    maker = value.named.name
    if maker in UNFIT:
        raise UnfitTensorError(name, UNFIT[maker])
    match value.arguments:
        case (Object(named=Named(name=inner)) as plain, *_) if maker in PARAMETERS and inner in (
            *PLAIN,
            *UNFIT,
        ):
            return tensor_view(name, plain)
        case (
            PersistentId(identity=("storage", Named(name=storage), str() as key, str(), int() as count)),
            int() as offset,
            size,
            strides,
            *options,
        ) if maker in PLAIN and storage in STORAGES and 0 <= count < MAX_ELEMENTS:
            dtype, item_bytes = STORAGES[storage]
            # torch's order: requires_grad, the hooks' OrderedDict, then a dtype and a dict of flags
            dtype = next((option.name for option in options if isinstance(option, Named)), dtype)
            if any(isinstance(option, dict) and option for option in options[2:]):
                raise UnfitTensorError(name, "a view with a flag (conj or neg)")
            view = _View(name, dtype, _sizes(size), _sizes(strides), offset, key, item_bytes * count)
            return _checked(view)
    raise PickleError(f"{shortened(name)} is not made as torch makes a tensor")


def _checked(view: _View) -> _View:
    # raise for a tensor that reads outside of its storage, or whose dtype no drafter has
    name, shape, strides = view.name, view.shape, view.strides
    if view.dtype not in ITEM_BYTES:
        raise UnfitTensorError(name, f"of dtype {view.dtype}")
    refuse(
        view.offset < 0 or len(strides) != len(shape),
        f"{shortened(name)} has {len(shape)} sizes, {len(strides)} strides and offset {view.offset}",
    )
    if view.nbytes > view.size:
        raise UnfitTensorError(name, f"expanded to {view.nbytes} bytes from {view.size}")
    if view.span[1] > view.size:
        raise UnfitTensorError(name, f"at bytes {view.span[0]} to {view.span[1]} of a storage of {view.size}")
    return view


def _sizes(value: Value) -> tuple[int, ...]:
    match value:
        case tuple(items) | Object(named=Named("torch", "Size"), arguments=(tuple(items),)):
            sizes = tuple(item for item in items if type(item) is int and 0 <= item < MAX_ELEMENTS)
            if len(sizes) == len(items) <= MAX_AXES and math.prod(max(size, 1) for size in sizes) < 1 << 120:
                return sizes
    raise PickleError("a tensor's sizes or strides are not natural numbers")


class TorchFile:
    """Bytes [start, stop) of a file, which torch.save wrote: a zip, whose two ends are read once.

    `value` is what was saved. Without `has_places` storages are where the zip's directory states them:
    nothing is read there, and no data may be. Raises PickleError, its subclass ForeignNameError where the
    file asks for what no state dict needs, and UnreadableError where it cannot be read.
    """

    def __init__(
        self, source: Source, name: str, start: int = 0, stop: int | None = None, *, has_places: bool = True
    ) -> None:
        size = (source.size(name) if stop is None else stop) - start
        self.read, self.start, self.has_places = partial(source.read, name), start, has_places
        self.head = self.read(start, start + min(size, ENDS))
        refuse(
            not self.head.startswith(RECORD),
            "it is no zip, as torch.save writes since 1.6; open and save an older one with torch >= 1.6",
        )
        fault = ""
        for most in (ENDS, MAX_DIRECTORY):
            # zipfile takes what it is given for the end of a whole file
            self.before = max(0, size - most)
            self.tail = self.read(start + self.before, start + size)
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
        pickles = [name for name in self.records if name.endswith("/data.pkl") and name.count("/") == 1]
        refuse(len(pickles) != 1, f"it has {len(pickles)} records named data.pkl instead of 1")
        self.root = pickles[0].removesuffix("data.pkl")
        order = f"{self.root}byteorder"
        is_other = order in self.records and self._content(order) != b"little"
        refuse(is_other, "it was not saved on a little-endian machine")
        self.value = read_pickle(self._content(pickles[0]), NAMES, has_references=True)

    def place(self, storage: str, size: int) -> tuple[int, int]:
        """Return the byte range of a storage in the whole file. Raises PickleError if the file has fewer
        bytes.
        """
        record, first, last = f"{self.root}data/{storage}", 0, -1
        if record in self.records:
            first, last = self._place(record, is_exact=self.has_places)
        available = f"{last - first} bytes" if last >= first else "nothing"
        refuse(last - first < size, f"storage {storage[:80]} has {size} bytes, and the file {available}")
        return self.start + first, self.start + first + size

    def check(self, views: Iterable[_View]) -> None:
        """Raise PickleError where a storage of `views` is not whole in the file, or is inside another."""
        sizes: dict[str, int] = {}
        for view in views:
            is_same = sizes.setdefault(view.storage, view.size) == view.size
            refuse(not is_same, f"storage {view.storage[:80]} has two sizes")
        end = 0
        for start, stop, key in sorted((*self.place(*item), item[0]) for item in sizes.items()):
            refuse(start < end and stop > start, f"storage {key[:80]} overlaps another")
            end = max(end, stop)

    def _content(self, name: str) -> bytes:
        first, last = self._place(name)
        refuse(last - first > MAX_BYTES, f"it has {last - first} bytes where at most {MAX_BYTES} are read")
        return self._at(first, last)

    def _at(self, first: int, last: int) -> bytes:
        if last <= len(self.head):
            return self.head[first:last]
        if first >= self.before:
            return self.tail[first - self.before : last - self.before]
        return self.read(self.start + first, self.start + last)

    def _place(self, name: str, *, is_exact: bool = True) -> tuple[int, int]:
        """Return the byte range of a record; one of the same length if nothing is read from it."""
        info = self.records[name]
        refuse(
            info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size,
            f"record {name[:80]} is compressed; torch compresses no file of its own",
        )
        header_at = info.header_offset + self.before
        first = header_at + LOCAL_HEADER + len(info.orig_filename.encode())
        if is_exact and 0 <= header_at < self.end - LOCAL_HEADER:
            header = self._at(header_at, header_at + LOCAL_HEADER)
            is_broken = not header.startswith(RECORD) or info.flag_bits & ENCRYPTED
            refuse(is_broken, f"record {name[:80]} is broken")
            names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
            first = header_at + LOCAL_HEADER + names + extra
        is_past = header_at < 0 or first + info.file_size > self.end
        refuse(is_past, f"record {name[:80]} is past the end of the file")
        return first, first + info.file_size


class _Chunk(Struct, frozen=True):
    """A block of a tensor, saved in bytes [start, stop) of a file; `offsets` and `shape` place it."""

    file: str
    start: int
    stop: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class _DistributedTensor(Struct, frozen=True):
    """A tensor of the table; its chunks are inside it and hold as many elements as it has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[_Chunk, ...]


def read_table(source: Source, table: str) -> tuple[_DistributedTensor, ...]:
    """Read the model's tensors from the table; those of optimizers and schedulers are left out.

    Raises UnreadableError where the file is no such table, or does not fit the files beside it: every chunk
    is in a file of `source`, and the tensors together are no larger than those files.
    """
    what, entries = f"{table} of {source.place}", []
    try:
        fields = _fields(read_pickle(source.read(table), TABLE_NAMES), "Metadata")
        places = _places(fields.get("storage_data"))
        for name, value in _fields(fields.get("state_dict_metadata")).items():
            if not isinstance(name, str):
                raise PickleError(f"it lists a {kind(name)} where a tensor's name belongs")
            if kind(value) != "BytesStorageMetadata" and not NOT_THE_MODEL.search(name):
                entries.append(_entry(source, table, name, value, places))
    except ForeignNameError as error:
        raise UnreadableError(
            f".metadata refers to {error.named}, which no torch distributed checkpoint needs; it was not"
            " loaded"
        ) from None
    except PickleError as problem:
        raise UnreadableError(
            f"{what} is broken, or does not fit the files of a torch distributed checkpoint: {problem}",
            source=source.place,
        ) from None
    check(
        (not entries, f"{what} lists no model tensors"), error=partial(UnreadableError, source=source.place)
    )
    # pieces are apart: together they are no more than their files
    pieces = sorted((chunk.file, chunk.start, chunk.stop) for entry in entries for chunk in entry.chunks)
    for (file, _, stop), (other, start, _) in itertools.pairwise(pieces):
        if file == other and start < stop:
            raise UnreadableError(f"{what} has two pieces at byte {start} of {file}", source=source.place)
    return tuple(entries)


def _entry(
    source: Source, table: str, name: str, value: Value, places: Mapping[Any, Value]
) -> _DistributedTensor:
    # a tensor of torch's distributed checkpoints, whose pieces must fill it exactly
    fields, about = _fields(value, "TensorStorageMetadata"), shortened(name)
    shape, stored = _sizes(fields.get("size")), fields.get("chunks")
    match fields.get("properties"):
        case Object(state=(Named(module="torch", name=dtype), *_)) if dtype in ITEM_BYTES:
            pass
        case _:
            raise PickleError(f"{about}: its dtype is missing, or is none of a drafter's weights")
    if not isinstance(stored, list):
        raise PickleError(f"{about} has no list of pieces")
    chunks = tuple(_chunk(source, table, name, item, shape, places) for item in stored)
    for chunk in chunks:
        refuse(
            math.prod(chunk.shape) * ITEM_BYTES[dtype] > chunk.stop - chunk.start,
            f"{about}: its piece {list(chunk.shape)} of {dtype} is larger than the"
            f" {chunk.stop - chunk.start} bytes kept for it",
        )
    held = sum(math.prod(chunk.shape) for chunk in chunks)
    refuse(held != math.prod(shape), f"{about} has {math.prod(shape)} elements and its pieces {held}")
    return _DistributedTensor(name, dtype, shape, chunks)


def _chunk(
    source: Source, table: str, name: str, item: Value, shape: tuple[int, ...], places: Mapping[Any, Value]
) -> _Chunk:
    # where one piece of a distributed tensor is stored, checked against the tensor and the file
    block = _fields(item, "ChunkStorageMetadata")
    offsets, sizes = _sizes(block.get("offsets")), _sizes(block.get("sizes"))
    is_alike = len(offsets) == len(sizes) == len(shape)
    refuse(
        not is_alike or any(offsets[axis] + sizes[axis] > size for axis, size in enumerate(shape)),
        f"{shortened(name)}: a piece {list(sizes)} at {list(offsets)} is not inside {list(shape)}",
    )
    fields = _fields(places.get((name, offsets)), "_StorageInfo")
    match fields:
        case {"relative_path": str(path), "offset": int(start), "length": int(length)} if (
            type(start) is type(length) is int and start >= 0 <= length
        ):
            pass
        case _:
            raise PickleError(f"{shortened(name)}: a place needs a file, an offset and a length")
    file = table.removesuffix(".metadata") + path
    refuse(fields.get("transform_descriptors"), f"{path} is compressed or encrypted; save it plain")
    refuse("/" in path or file not in source.names(), f"{path} is not beside it; copy the whole checkpoint")
    refuse(
        start + length > (available := source.size(file)),
        f"bytes {start} to {start + length} of {file} were expected, which has {available}; it is truncated",
    )
    return _Chunk(file, start, start + length, offsets, sizes)


def _places(value: Value) -> Mapping[tuple[str, tuple[int, ...]], Value]:
    """Return the storage records by tensor and offsets; those without offsets are no tensors."""
    places: dict[tuple[str, tuple[int, ...]], Value] = {}
    for key, place in _fields(value).items():
        index = _fields(key, "MetadataIndex")
        name = index.get("fqn")
        if isinstance(name, str) and index.get("offset") is not None:
            piece = (name, _sizes(index["offset"]))
            refuse(piece in places, f"a piece of {shortened(name)} has two places")
            places[piece] = place
    return places


def _fields(value: Value, name: str = "") -> Mapping[Any, Value]:
    """Return the entries of a dict, or of the state of an object of this name."""
    match value:
        case dict() if not name:
            return value
        case Object(named=Named(name=object_name), state=dict() as entries) if object_name == name:
            return entries
    raise PickleError(f"a {kind(value)} stands where {name or 'a dict'} belongs")


def read_pickled_table(
    source: Source,
) -> tuple[Mapping[str, StoredTensor], Mapping[str, str], frozenset[str], str]:
    """Read the tensors of pickled weights from the table of each file; from the Hub, by a few ranges.

    Returns the tensors, the producer's marks in their names, the tensors without one byte range, and the file
    whose tensors are inside another item. Raises RefusedError for two tensors of one name, and
    UnreadableError as `unpickle` does.
    """
    files = pickle_files(source)
    check_parts(source, files)
    if files[0].endswith(".metadata"):
        stored, nested = {}, ""
        for entry in read_table(source, files[0]):
            nbytes = math.prod(entry.shape) * ITEM_BYTES[entry.dtype]
            stored[entry.name] = StoredTensor(
                entry.name, SAFETENSORS_DTYPES[entry.dtype], entry.shape, files[0], 0, nbytes
            )
        scattered = set(stored)
    else:
        stored, scattered, nested = _stored(source, files)
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if (short := _drafter_name(name)) in named:
            raise RefusedError(
                f"{source.place}: two tensors are {short} once the trainer's prefixes are removed; keep one",
                source=source.place,
            )
        named[short] = replace(tensor, name=short)
    metadata = {"format": "pt"}
    if any(name.startswith(TORCHSPEC_PREFIX) for name in stored):
        metadata["torchspec_version"] = "training state"  # its prefix, which is removed, is its only mark
    return named, metadata, frozenset(map(_drafter_name, scattered)), nested


def _stored(source: Source, files: Sequence[str]) -> tuple[dict[str, StoredTensor], set[str], str]:
    # the tensors of torch files, those without one byte range, and a file with nested tensors
    stored: dict[str, StoredTensor] = {}
    scattered, nested = set(), ""
    for file in files:
        is_local = source.path(file) is not None
        saved, views = _views(source, file, has_places=is_local)
        top = saved.value if isinstance(saved.value, dict) else {}
        nested = nested or ("" if any(view.name in top for view in views) else file)
        for view in views:
            if view.name in stored:
                raise RefusedError(f"{view.name} is in more than one of {listed(files)}; keep one")
            first = saved.place(view.storage, view.size)[0] + view.span[0]
            stored[view.name] = StoredTensor(
                view.name, SAFETENSORS_DTYPES[view.dtype], view.shape, file, first, first + view.nbytes
            )
            if not (is_local and view.is_contiguous):
                scattered.add(view.name)
    if not stored:
        raise UnreadableError(f"{listed(files)} holds no tensors", WEIGHTS, files[0])
    return stored, scattered, nested


def training_progress(source: Source) -> str:
    """Return how far a training state had come ("step 12, epoch 0"); "" if the state does not say it."""
    with _named(STATE):
        value = _load(source, STATE, has_places=False).value
    state = value if isinstance(value, dict) else {}
    counts = ((word, state.get(key)) for word, key in (("step", "global_step"), ("epoch", "epoch")))
    return ", ".join(f"{word} {count}" for word, count in counts if type(count) is int)


def unpickle(source: Source, folder: Path) -> FolderSource:
    """Write the pickled weights of `source` as one safetensors file in `folder`, and copy its other files.

    Raises UsageError without a safe torch, RefusedError where two tensors have one name, and UnreadableError
    for files that are broken or hold anything but tensors that safetensors can hold.
    """
    _torch()
    _, metadata, _, _ = read_pickled_table(source)
    tensors: dict[str, torch.Tensor] = {}
    for file in pickle_files(source):
        if file.endswith(".metadata"):
            tensors |= {entry.name: _assemble(source, entry) for entry in read_table(source, file)}
        elif not file.endswith(".distcp"):
            tensors |= read_tensors(source, file)
    named = {_drafter_name(name): tensor for name, tensor in tensors.items()}
    with errors_about(f"{folder.parent}: cannot keep the unpickled weights there"):
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(named, folder / SINGLE, dict(metadata))
        except SafetensorError as error:
            raise OSError(0, str(error)) from None
        config = config_name(source.names())
        for name in source.names():
            is_weights = name.endswith(WEIGHTS_ENDINGS) and name not in VOCABULARY_PICKLES
            is_beside = not (is_weights or name.startswith(".") or "/" in name)
            if (path := source.path(name)) and is_beside:
                shutil.copyfile(path, folder / (CONFIG if name == config else name))
    return FolderSource(folder, name=source.label, shown=source.place)


def selected_tokens(source: Source) -> tuple[int, ...] | None:
    """Return the target token of each draft token from a trainer's pickle (NeMo, SpecForge); None without
    one.

    The order is the file's: NeMo lists tokens by falling frequency, and lm_head rows follow that order.
    """
    files = [name for name in VOCABULARY_PICKLES if name in source.names()]
    for name in files:
        with _named(name):
            saved = _load(source, name)
            if not isinstance(saved.value, dict):
                return _token_ids(source, name, saved, saved.value)
            if "d2t" in saved.value:
                drafts = _token_ids(source, name, saved, saved.value["d2t"])
                return tuple(token + draft for draft, token in enumerate(drafts))
            if "selected_token_ids" in saved.value:
                return _token_ids(source, name, saved, saved.value["selected_token_ids"])
    check(
        (files, f"{listed(files)} of {source.place}: no d2t and no selected_token_ids in it"),
        error=UnreadableError,
    )
    return None


def _token_ids(source: Source, file: str, saved: TorchFile, value: Value) -> tuple[int, ...]:
    # a trainer's list of target tokens, as a tensor of one axis or a plain list
    items: list[Any] | None = None
    if is_tensor(value):
        view = tensor_view("its token list", value)
        saved.check([view])
        if len(view.shape) == 1 and view.shape[0] <= MAX_TOKENS:
            items = _tensor(source, file, saved, view).tolist()
    elif isinstance(value, list):
        items = value
    if items is None or not all(type(item) is int and abs(item) < 1 << 31 for item in items):
        raise UnreadableError(f"{file} has no list of token ids; integers in one axis were expected")
    return tuple(items)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UsageError(
            "reading pickled weights needs torch; install eaglectl with its torch extra: pip install"
            " '.[torch]' in a checkout"
        ) from None
    return torch


def read_tensors(source: Source, file: str) -> dict[str, "torch.Tensor"]:
    """Read the tensors of a file that torch.save wrote, by name. Raises UnreadableError."""
    saved, views = _views(source, file)
    return {view.name: _tensor(source, file, saved, view) for view in views}


def _views(source: Source, file: str, *, has_places: bool = True) -> tuple[TorchFile, tuple[_View, ...]]:
    # a file's tensors; a small file that describes huge tensors by repeating bytes is refused
    with _named(file):
        saved = _load(source, file, has_places=has_places)
        views = state_views(saved.value)
        saved.check(views)
    size = source.size(file)
    if (held := sum(view.nbytes for view in views)) > MAX_REPEATS * size:
        raise UnreadableError(
            f"{file} has {size} bytes and describes {held} bytes of tensors, the same ones many times",
            UNSAFE,
            file,
        )
    return saved, views


def _tensor(source: Source, file: str, saved: TorchFile, view: _View) -> "torch.Tensor":
    torch = _torch()
    dtype = getattr(torch, view.dtype)
    if not view.nbytes:
        return torch.empty(view.shape, dtype=dtype)
    first, last = (saved.place(view.storage, view.size)[0] + offset for offset in view.span)
    flat = torch.frombuffer(bytearray(source.read(file, first, last)), dtype=torch.uint8).view(dtype)
    return flat.as_strided(view.shape, view.strides).contiguous()


@contextmanager
def _named(file: str) -> Iterator[None]:
    # errors of a pickle get the file's name, and become errors of the user's file
    try:
        yield
    except PickleError as problem:
        texts = {
            UnfitTensorError: f"{file}: {problem}",
            ForeignNameError: f"{file} holds more than tensors and was not loaded ({problem}); save its"
            " state_dict alone",
        }
        text = texts.get(type(problem), f"{file} is not a torch file, or is truncated ({problem})")
        raise UnreadableError(text, UNSAFE, file) from None


def _load(source: Source, name: str, *, has_places: bool = True) -> TorchFile:
    # open a torch file; it must be on this machine if the places of its data are needed
    check(
        (
            has_places and source.path(name) is None,
            f"{name} of {source.place} is not on this machine, and only local pickles are read",
        ),
        error=partial(UnreadableError, source=source.place),
    )
    if (size := source.size(name)) < MAX_POINTER and source.read(name, 0, size).startswith(LFS_POINTER):
        raise UnreadableError(
            f"{name} is a Git LFS pointer, not the weights; run {PULL}",
            POINTER,
            name,
        )
    return TorchFile(source, name, has_places=has_places)


def _assemble(source: Source, entry: _DistributedTensor) -> "torch.Tensor":
    """Assemble a tensor from its pieces; torch.save wrote each into its own bytes of a file."""
    torch = _torch()
    whole = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    is_filled = torch.zeros(entry.shape, dtype=torch.bool)
    for chunk in entry.chunks:
        with _named(chunk.file):
            saved = TorchFile(source, chunk.file, chunk.start, chunk.stop)
            view = tensor_view(entry.name, saved.value) if is_tensor(saved.value) else None
            if view is None or (view.shape, view.dtype) != (chunk.shape, entry.dtype):
                raise UnreadableError(
                    f"{chunk.file} does not hold {entry.name} as in .metadata: {entry.dtype}"
                    f" {list(chunk.shape)}"
                )
            saved.check([view])
        places = zip(chunk.offsets, chunk.shape, strict=True)
        block = tuple(slice(start, start + size) for start, size in places)
        whole[block] = _tensor(source, chunk.file, saved, view)
        is_filled[block] = True
    check(
        (
            not is_filled.all(),
            f"the pieces of {entry.name} in {source.place} overlap and leave a hole; save them again",
        ),
        error=UnreadableError,
    )
    return whole


def _drafter_name(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
