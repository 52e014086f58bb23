"""The tensors that a torch pickle names, without torch or unpickling: where each lies in which storage.

Layout: torch/_utils.py (_rebuild functions) and torch/serialization.py (persistent ids); torch 1.0 to 2.13.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from msgspec import Struct

from eaglectl.checkpoint.distributed import ITEM_BYTES, MAX_AXES, MAX_ELEMENTS
from eaglectl.checkpoint.opcodes import (
    Dict,
    Named,
    Object,
    Persistent,
    PickleError,
    Tuple,
    Value,
    kind,
    shortened,
)

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
