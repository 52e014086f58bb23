"""Weights kept as pickles, opened only to be converted and only in ways that run no code from the file.

`.bin`, `.pt` and the shards of a torch distributed checkpoint go through torch's weights_only=True, which torch 2.6 made
safe; what comes out is checked before anything is made of it.
The home of torch and of the safetensors library outside tests.
"""

import io
import pickle
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from eaglectl.checkpoint.checkpoint import PICKLES, SINGLE, VOCABULARY_PICKLES, pickle_files
from eaglectl.checkpoint.distributed import ITEM, Entry, read_table
from eaglectl.checkpoint.source import FolderSource, Source
from eaglectl.errors import Refused, Unreadable, Usage

if TYPE_CHECKING:
    import torch

# what trainers wrap a drafter's names in (FSDP, torch.compile, TorchSpec's and SpecForge's own state)
WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "module.")
TORCHSPEC_PREFIX = "model_state.model.draft_model."
PREFIXES = (
    "model_state.model.draft_model.",
    "model_state.draft_model.",
    "model_state.model.",
    "model_state.",
    "draft_model.",
)
# where trainers keep a state dict inside their own state (SpecForge's training_state.pt), and how deep they nest it
STATES = ("draft_state_dict", "model_state_dict", "state_dict", "model", "draft_model", "module")
NESTING = 5
# tied names may share a storage; thousands that do would fill the disk from one small file
MOST_REPEATS = 8


@dataclass(frozen=True, slots=True)
class UnpickledSource(FolderSource):
    """The safetensors rewriting of a pickled source, under the source's own name."""

    origin: str = ""

    @property
    def label(self) -> str:
        """The name of the source that was pickled."""
        return self.origin


def unpickle(source: Source, folder: Path) -> UnpickledSource:
    """Rewrite the pickled weights of `source` as one safetensors file in `folder`, beside copies of its other files.

    Raises Usage without a safe torch, Unreadable for files that are broken, hold more than tensors or tensors that
    safetensors cannot hold, Refused where two tensors would have one name.
    """
    _torch()
    files = pickle_files(source)
    tensors = _distributed(source, files[0]) if files[0].endswith(".metadata") else _pickled(source, files)
    named: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if (short := _drafter_name(name)) in named:
            raise Refused(f"{source.label}: two tensors are {short} once the trainer's prefixes are removed; keep one")
        named[short] = tensor
    try:
        _write(named, folder / SINGLE, _marks(tensors))
        for name in source.names():
            is_pickled = name.endswith((*PICKLES, ".distcp", ".safetensors")) and name not in VOCABULARY_PICKLES
            if (path := source.path(name)) and not name.startswith(".") and "/" not in name and not is_pickled:
                shutil.copyfile(path, folder / name)
    except OSError as error:
        raise Unreadable(f"{folder.parent}: cannot keep the unpickled weights there: {error.strerror}") from None
    return UnpickledSource(folder, origin=source.label)


def selected_tokens(source: Source) -> tuple[int, ...] | None:
    """Target token of each draft token, as a trainer's small pickle lists them (NeMo, SpecForge); None where there is none.

    The order is the file's: NeMo lists tokens by falling frequency, and lm_head rows follow that order.
    """
    files = [name for name in VOCABULARY_PICKLES if name in source.names()]
    for name in files:
        value = _load(source, name)
        if not isinstance(value, Mapping):
            return _token_ids(name, value)
        if "d2t" in value:
            return tuple(token + draft for draft, token in enumerate(_token_ids(name, value["d2t"])))
        if "selected_token_ids" in value:
            return _token_ids(name, value["selected_token_ids"])
    if files:
        raise Unreadable(f"{', '.join(files)} of {source.label}: no d2t and no selected_token_ids in it")
    return None


def _token_ids(file: str, value: Any) -> tuple[int, ...]:
    torch = _torch()
    if isinstance(value, torch.Tensor):
        _check(file, "its token list", value)
        value = value.tolist() if value.ndim == 1 else None
    if not isinstance(value, list) or not all(type(item) is int and abs(item) < 1 << 31 for item in value):
        raise Unreadable(f"{file} holds no list of token ids; integers in one axis were needed")
    return tuple(value)


def _torch() -> Any:
    """torch, in a version whose weights_only=True runs no code."""
    try:
        import torch
    except ImportError:
        raise Usage(
            "reading pickled weights needs torch; install eaglectl with its torch extra: pip install '.[torch]' in a"
            " checkout"
        ) from None
    if tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2]) < (2, 6):
        raise Usage(
            f"torch {torch.__version__} may run code that a pickle holds (CVE-2025-32434); install torch 2.6 or newer"
        )
    return torch


def _pickled(source: Source, files: tuple[str, ...]) -> dict[str, "torch.Tensor"]:
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        state = _state(_load(source, file))
        for name, tensor in state.items():
            if not isinstance(name, str) or not name.isprintable():
                raise Unreadable(f"{file} has a tensor under {name!a}, which is no tensor's name")
            if name in tensors:
                raise Refused(f"{name} is in more than one of {', '.join(files)}; keep one")
            _check(file, name, tensor)
            tensors[name] = tensor
        size = source.size(file)
        if (held := sum(tensor.nbytes for tensor in state.values())) > MOST_REPEATS * size:
            raise Unreadable(f"{file} has {size} bytes and names {held} bytes of tensors, the same ones many times")
    if not tensors:
        raise Unreadable(f"{source.label}: {', '.join(files)} holds no tensors")
    return tensors


def _state(value: object) -> dict[Any, "torch.Tensor"]:
    """The tensors of a loaded pickle: a state dict, or one inside a trainer's state."""
    torch = _torch()
    for _ in range(NESTING):
        if not isinstance(value, Mapping):
            break
        if tensors := {name: item for name, item in value.items() if isinstance(item, torch.Tensor)}:
            return tensors
        value = next((value[key] for key in STATES if isinstance(value.get(key), Mapping)), None)
    return {}


def _check(file: str, name: str, tensor: "torch.Tensor") -> None:
    if oddity := _oddity(tensor):
        raise Unreadable(f"{file}: {name} is {oddity}; save it as a plain tensor, as safetensors holds them")


def _oddity(tensor: "torch.Tensor") -> str | None:
    torch = _torch()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return "nested" if tensor.is_nested else f"sparse ({tensor.layout})"
    if tensor.device.type != "cpu":
        return f"on the {tensor.device.type} device, without its data"
    if dtype not in ITEM:
        return f"of dtype {dtype}"
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        return f"expanded to {tensor.nbytes} bytes from {tensor.untyped_storage().nbytes()}"
    return None


def _load(source: Source, name: str) -> Any:
    """What `name` holds, once it is known to be no pointer."""
    path = source.path(name)
    if path is None:
        raise Unreadable(f"{name} of {source.label} is not on this machine, and pickles are not read from elsewhere")
    if source.read(name, 0, min(40, source.size(name))).startswith(b"version https://git-lfs"):
        raise Unreadable(f"{name} is a Git LFS pointer, not the weights; run `git lfs pull` in its repository")
    with path.open("rb") as file:
        return _loaded(name, file, source.size(name))


def _loaded(name: str, file: IO[bytes], size: int) -> Any:
    """What a file of `size` bytes holds; it is not asked to be good, only to hold no code that runs."""
    torch = _torch()
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                whole = sum(part.file_size for part in archive.infolist())
            if whole > size:
                raise Unreadable(
                    f"{name} would unpack to {whole} bytes from {size}; torch compresses no file of its own"
                )
        file.seek(0)
        with warnings.catch_warnings():
            # on pickle protocols and layouts, which are judged here
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except Unreadable:
        raise
    except pickle.UnpicklingError as error:
        raise Unreadable(
            f"{name} holds more than tensors and was not loaded ({_asked(error)}); save its state_dict alone"
        ) from None
    except Exception as error:
        raise Unreadable(f"{name} is not a torch file, or is truncated ({_first_line(error)})") from None


def _distributed(source: Source, table: str) -> dict[str, "torch.Tensor"]:
    """The model's tensors of a torch distributed checkpoint; optimizer and scheduler states are never loaded."""
    return {entry.name: _assembled(source, entry) for entry in read_table(source, table)}


def _assembled(source: Source, entry: Entry) -> "torch.Tensor":
    torch = _torch()
    whole = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    is_filled = torch.zeros(entry.shape, dtype=torch.bool)
    for piece in entry.pieces:
        raw = source.read(piece.file, piece.start, piece.stop)
        part = _loaded(piece.file, io.BytesIO(raw), len(raw))
        if not isinstance(part, torch.Tensor) or (tuple(part.shape), part.dtype) != (piece.shape, whole.dtype):
            raise Unreadable(
                f"{piece.file} does not hold {entry.name} as .metadata says: {entry.dtype} {list(piece.shape)}"
            )
        _check(piece.file, entry.name, part)
        block = tuple(slice(start, start + size) for start, size in zip(piece.offsets, piece.shape, strict=True))
        whole[block] = part.detach()
        is_filled[block] = True
    if not is_filled.all():
        raise Unreadable(f"the pieces of {entry.name} in {source.label} overlap and leave a hole; save them again")
    return whole


def _write(tensors: Mapping[str, "torch.Tensor"], path: Path, metadata: dict[str, str]) -> None:
    torch = _torch()
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # views share storage with each other, which safetensors cannot express
    apart = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    try:
        save_file(apart, path, metadata)
    except SafetensorError as error:
        raise Unreadable(f"{path.parent.parent}: cannot keep the unpickled weights there: {error}") from None


def _asked(error: Exception) -> str:
    """What torch's unpickler refused, out of a page of advice on how to load it all the same."""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it asks for {found[1][:120]}"
    found = re.search(r"(Unsupported [^\n]+)", str(error))
    return found[1][:120] if found else "torch's weights_only refuses it"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _marks(names: Iterable[str]) -> dict[str, str]:
    """File metadata that keeps the one mark which removing the trainer's prefix would lose."""
    is_torchspec = any(name.startswith(TORCHSPEC_PREFIX) for name in names)
    return {"format": "pt"} | ({"torchspec_version": "training state"} if is_torchspec else {})


def _drafter_name(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
