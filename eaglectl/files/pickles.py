"""Weights in pickles, which are never unpickled.

`.bin`, `.pt` and the shards of a torch distributed checkpoint are read as tables of tensors
(torch_file): a few KB, without torch. To be converted, the weights are then copied out of their storages as
bytes.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError, UsageError
from eaglectl.files.files import naming
from eaglectl.files.header import LFS_POINTER, POINTER, PULL, UNSAFE, WEIGHTS, StoredTensor
from eaglectl.files.layout import (
    CONFIG,
    PICKLES,
    SINGLE,
    STATE,
    VOCABULARY_PICKLES,
    config_name,
    pickle_files,
)
from eaglectl.files.opcodes import Dict, ForeignNameError, List, PickleError, Value, shortened
from eaglectl.files.source import FolderSource, Source
from eaglectl.files.torch_file import (
    DistributedTensor,
    StorageView,
    TorchFile,
    UnfitTensorError,
    is_tensor,
    read_table,
    read_torch_file,
    state_views,
    tensor_view,
)
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
DTYPES: Mapping[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


class PickledTable(Struct, frozen=True):
    """The tensors of pickled weights by name, and `scattered`: those whose bytes cannot be read at one place.

    `metadata` are marks of the producer in the names, `nested` a file whose tensors are inside of an item.
    """

    tensors: Mapping[str, StoredTensor]
    scattered: frozenset[str]
    metadata: Mapping[str, str]
    nested: str = ""


def read_pickled_table(source: Source) -> PickledTable:
    """The tensors of pickled weights, by the table of each file; from the Hub by a few ranges.

    Raises RefusedError where two tensors have one name, and UnreadableError as `unpickle` does.
    """
    files = pickle_files(source)
    if files[0].endswith(".metadata"):
        entries = read_table(source, files[0])
        stored = {
            entry.name: StoredTensor(entry.name, DTYPES[entry.dtype], entry.shape, files[0], 0, entry.nbytes)
            for entry in entries
        }
        scattered, nested = set(stored), ""
    else:
        stored, scattered, nested = _stored(source, files)
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        short = _drafter_name(name)
        if short in named:
            raise RefusedError(
                f"{source.place}: two tensors are {short} once the trainer's prefixes are removed; keep one"
            )
        named[short] = replace(tensor, name=short)
    metadata = {"format": "pt"}
    if any(name.startswith(TORCHSPEC_PREFIX) for name in stored):
        metadata["torchspec_version"] = "training state"  # its prefix, which is removed, is its only mark
    return PickledTable(named, frozenset(map(_drafter_name, scattered)), metadata, nested)


def _stored(source: Source, files: Sequence[str]) -> tuple[dict[str, StoredTensor], set[str], str]:
    """The tensors of files that torch.save wrote, those scattered over their storages, and a nested file."""
    stored: dict[str, StoredTensor] = {}
    scattered, nested = set(), ""
    for file in files:
        is_local = source.path(file) is not None
        saved, views = _views(source, file, has_places=is_local)
        top = saved.value.entries if isinstance(saved.value, Dict) else {}
        nested = nested or ("" if any(view.name in top for view in views) else file)
        for view in views:
            if view.name in stored:
                raise RefusedError(f"{view.name} is in more than one of {listed(files)}; keep one")
            first = saved.place(view.storage)[0] + view.span[0]
            dtype = DTYPES[view.dtype]
            stored[view.name] = StoredTensor(view.name, dtype, view.shape, file, first, first + view.nbytes)
            if not (is_local and view.is_contiguous):
                scattered.add(view.name)
    if not stored:
        raise UnreadableError(f"{source.place}: {listed(files)} holds no tensors", WEIGHTS, files[0])
    return stored, scattered, nested


def training_progress(source: Source) -> str:
    """How far the training had come whose state this is: "step 12, epoch 0"; "" where it says nothing."""
    with _named(STATE):
        value = _load(source, STATE, has_places=False).value
    stated = value.entries if isinstance(value, Dict) else {}
    counts = ((word, stated.get(key)) for word, key in (("step", "global_step"), ("epoch", "epoch")))
    return ", ".join(f"{word} {count}" for word, count in counts if type(count) is int)


def unpickle(source: Source, folder: Path) -> FolderSource:
    """Write the pickled weights of `source` as one safetensors file in `folder`, and copy its other files.

    Raises UsageError without a safe torch, RefusedError where two tensors have one name, and UnreadableError
    for files that are broken or hold anything but tensors that safetensors can hold.
    """
    _torch()
    table = read_pickled_table(source)
    tensors: dict[str, torch.Tensor] = {}
    for file in pickle_files(source):
        if file.endswith(".metadata"):
            tensors |= {entry.name: _assemble(source, entry) for entry in read_table(source, file)}
        elif not file.endswith(".distcp"):
            tensors |= read_tensors(source, file)
    named = {_drafter_name(name): tensor for name, tensor in tensors.items()}
    with naming(f"{folder.parent}: cannot keep the unpickled weights there"):
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            save_file(named, folder / SINGLE, dict(table.metadata))
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
    """Target token of each draft token, from a trainer's small pickle (NeMo, SpecForge); None without one.

    The order is the file's: NeMo lists tokens by falling frequency, and lm_head rows follow that order.
    """
    files = [name for name in VOCABULARY_PICKLES if name in source.names()]
    for name in files:
        with _named(name):
            saved = _load(source, name)
            if not isinstance(saved.value, Dict):
                return _token_ids(source, name, saved, saved.value)
            if "d2t" in saved.value.entries:
                drafts = _token_ids(source, name, saved, saved.value.entries["d2t"])
                return tuple(token + draft for draft, token in enumerate(drafts))
            if "selected_token_ids" in saved.value.entries:
                return _token_ids(source, name, saved, saved.value.entries["selected_token_ids"])
    if files:
        raise UnreadableError(f"{listed(files)} of {source.place}: no d2t and no selected_token_ids in it")
    return None


def _token_ids(source: Source, file: str, saved: TorchFile, value: Value) -> tuple[int, ...]:
    items: list[Any] | None = None
    if is_tensor(value):
        view = tensor_view("its token list", value)
        saved.check([view])
        if len(view.shape) == 1 and view.shape[0] <= MAX_TOKENS:
            items = _tensor(source, file, saved, view).tolist()
    elif isinstance(value, List):
        items = value.items
    if items is None or not all(type(item) is int and abs(item) < 1 << 31 for item in items):
        raise UnreadableError(f"{file} holds no list of token ids; integers in one axis were needed")
    return tuple(items)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UsageError(
            "reading pickled weights needs torch; install eaglectl with its torch extra: pip install"
            " '.[torch]' in a"
            " checkout"
        ) from None
    return torch


def read_tensors(source: Source, file: str) -> dict[str, "torch.Tensor"]:
    """The tensors of a file that torch.save wrote, by name. Raises UnreadableError."""
    saved, views = _views(source, file)
    return {view.name: _tensor(source, file, saved, view) for view in views}


def _views(
    source: Source, file: str, *, has_places: bool = True
) -> tuple[TorchFile, tuple[StorageView, ...]]:
    """A file's table, and its tensors, whose storages are in it and apart. Raises UnreadableError."""
    with _named(file):
        saved = _load(source, file, has_places=has_places)
        views = state_views(saved.value)
        saved.check(views)
    size = source.size(file)
    if (held := sum(view.nbytes for view in views)) > MAX_REPEATS * size:
        raise UnreadableError(
            f"{file} has {size} bytes and names {held} bytes of tensors, the same ones many times",
            UNSAFE,
            file,
        )
    return saved, views


def _tensor(source: Source, file: str, saved: TorchFile, view: StorageView) -> "torch.Tensor":
    """A tensor of `file`, contiguous and with memory of its own."""
    torch = _torch()
    dtype = getattr(torch, view.dtype)
    if not view.nbytes:
        return torch.empty(view.shape, dtype=dtype)
    first, last = (saved.place(view.storage)[0] + offset for offset in view.span)
    flat = torch.frombuffer(bytearray(source.read(file, first, last)), dtype=torch.uint8).view(dtype)
    return flat.as_strided(view.shape, view.strides).contiguous()


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Name `file` in what the reading of its pickle raises, as UnreadableError."""
    try:
        yield
    except (UnfitTensorError, PickleError) as problem:
        text = f"{file} is not a torch file, or is truncated ({problem})"
        if isinstance(problem, UnfitTensorError):
            name = shortened(problem.name)
            text = f"{file}: {name} is {problem}; save it as a plain tensor, as safetensors holds them"
        if isinstance(problem, ForeignNameError):
            text = f"{file} holds more than tensors and was not loaded ({problem}); save its state_dict alone"
        raise UnreadableError(text, UNSAFE, file) from None


def _load(source: Source, name: str, *, has_places: bool = True) -> TorchFile:
    """Read `name`. Raises UnreadableError where its data is not on this machine, or it is an LFS pointer."""
    if has_places and source.path(name) is None:
        raise UnreadableError(
            f"{name} of {source.place} is not on this machine, and pickles are not read from elsewhere"
        )
    if (size := source.size(name)) < MAX_POINTER and source.read(name, 0, size).startswith(LFS_POINTER):
        raise UnreadableError(
            f"{name} is a Git LFS pointer, not the weights; run {PULL}",
            POINTER,
            name,
        )
    return read_torch_file(source, name, has_places=has_places)


def _assemble(source: Source, entry: DistributedTensor) -> "torch.Tensor":
    """A tensor of its pieces, each of which torch.save wrote into its own bytes of a file."""
    torch = _torch()
    whole = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    is_filled = torch.zeros(entry.shape, dtype=torch.bool)
    for chunk in entry.chunks:
        with _named(chunk.file):
            saved = read_torch_file(source, chunk.file, chunk.start, chunk.stop)
            view = tensor_view(entry.name, saved.value) if is_tensor(saved.value) else None
            if view is None or (view.shape, view.dtype) != (chunk.shape, entry.dtype):
                raise UnreadableError(
                    f"{chunk.file} does not hold {entry.name} as .metadata says: {entry.dtype}"
                    f" {list(chunk.shape)}"
                )
            saved.check([view])
        places = zip(chunk.offsets, chunk.shape, strict=True)
        block = tuple(slice(start, start + size) for start, size in places)
        whole[block] = _tensor(source, chunk.file, saved, view)
        is_filled[block] = True
    if not is_filled.all():
        raise UnreadableError(
            f"the pieces of {entry.name} in {source.place} overlap and leave a hole; save them again"
        )
    return whole


def _drafter_name(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
