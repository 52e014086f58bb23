"""Weights kept as pickles, opened only to be converted and only in ways that run no code from the file.

`.bin` and `.pt` go through torch's weights_only=True. The `.metadata` of a torch distributed checkpoint is a plain pickle,
so it is read by an unpickler that knows the dozen classes such a file needs and refuses every other.
The home of torch and of the safetensors library outside tests.
"""

import io
import pickle
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.checkpoint.checkpoint import PICKLES, SINGLE, VOCABULARY_PICKLES, pickle_files
from eaglectl.checkpoint.source import FolderSource, Source
from eaglectl.errors import Refused, Unreadable, Usage

if TYPE_CHECKING:
    import torch

# what trainers wrap a drafter's names in (FSDP, torch.compile, TorchSpec's and SpecForge's own state)
WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "module.")
PREFIXES = (
    "model_state.model.draft_model.",
    "model_state.draft_model.",
    "model_state.model.",
    "model_state.",
    "draft_model.",
)
ALLOWED_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.tensor",
)
ALLOWED = {
    ("torch", "Size"), ("torch", "device"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
    ("builtins", "set"), ("builtins", "frozenset"), ("datetime", "timedelta"), ("pathlib", "PosixPath"), ("torch._utils", "_rebuild_tensor_v2"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnpickledSource(FolderSource):
    """The safetensors rewriting of a pickled source, under the source's own name."""

    origin: str = ""

    @property
    def label(self) -> str:
        """The name of the source that was pickled."""
        return self.origin


def unpickle(source: Source, folder: Path) -> UnpickledSource:
    """Rewrite the pickled weights of `source` as one safetensors file in `folder`, beside copies of its other files."""
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError:
        raise Usage(
            "reading pickled weights needs torch; install eaglectl with its torch extra: pip install '.[torch]' in a"
            " checkout"
        ) from None

    files = pickle_files(source)
    tensors = _distributed(source, files[0]) if files[0].endswith(".metadata") else _pickled(source, files)
    named = {_drafter_name(name): tensor for name, tensor in tensors.items()}
    if len(named) != len(tensors):
        raise Refused(f"{source.label}: two tensors have one name once the trainer's prefixes are removed")
    # views share storage with each other, which safetensors cannot express
    save_file(
        {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in named.items()
        },
        folder / SINGLE,
        {"format": "pt"},
    )
    for name in source.names():
        path = source.path(name)
        if (
            path
            and not name.startswith(".")
            and "/" not in name
            and not name.endswith((*PICKLES, ".distcp", ".safetensors"))
        ):
            shutil.copyfile(path, folder / name)
    return UnpickledSource(folder, origin=source.label)


def selected_tokens(source: Source) -> tuple[int, ...] | None:
    """Target token of each draft token, as a trainer's small pickle lists them (NeMo, SpecForge); None where there is none.

    The order is the file's: NeMo lists tokens by falling frequency, and lm_head rows follow that order.
    """
    for name in VOCABULARY_PICKLES:
        if name not in source.names():
            continue
        value = _load(source, name)
        import torch

        if isinstance(value, dict) and isinstance(offsets := value.get("d2t"), torch.Tensor):
            return tuple(int(i) for i in offsets + torch.arange(len(offsets)))
        found = value.get("selected_token_ids") if isinstance(value, dict) else value
        if isinstance(found, torch.Tensor):
            return tuple(int(i) for i in found.flatten())
    return None


def _pickled(source: Source, files: tuple[str, ...]) -> dict[str, "torch.Tensor"]:
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        value = _load(source, file)
        for name, tensor in _state(value).items():
            if name in tensors:
                raise Refused(f"{name} is in more than one of {', '.join(files)}; keep one")
            tensors[name] = tensor
    if not tensors:
        raise Unreadable(f"{source.label}: {', '.join(files)} holds no tensors")
    return tensors


def _state(value: object) -> dict[str, "torch.Tensor"]:
    """The tensors of a loaded pickle: a state dict, or one inside a trainer's state (SpecForge's training_state.pt)."""
    import torch

    if not isinstance(value, Mapping):
        return {}
    tensors = {str(name): item for name, item in value.items() if isinstance(item, torch.Tensor)}
    if tensors:
        return tensors
    for key in ("draft_state_dict", "model_state_dict", "state_dict", "model", "draft_model", "module"):
        if isinstance(value.get(key), Mapping):
            return _state(value[key])
    return {}


def _load(source: Source, name: str) -> Any:
    import torch

    path = source.path(name)
    if path is None:
        raise Unreadable(f"{name} of {source.label} is not on this machine, and pickles are not read from elsewhere")
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise Unreadable(f"{name} is a Git LFS pointer, not the weights; run `git lfs pull` in its repository")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Unreadable(
            f"{name} holds more than tensors and was not loaded ({_first_line(error)}); save its state_dict alone"
        ) from None
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        raise Unreadable(f"{name} is not a torch file, or is truncated ({_first_line(error)})") from None


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (
            module.startswith(ALLOWED_MODULES)
            or (module, name) in ALLOWED
            or (module == "torch" and re.fullmatch(r"b?float\w*|u?int\w*|bool|strided", name))
        ):
            return super().find_class(module, name)
        raise Unreadable(
            f".metadata asks for {module}.{name}, which no torch distributed checkpoint needs; it was not loaded"
        )


def _distributed(source: Source, table: str) -> dict[str, "torch.Tensor"]:
    """The model's tensors of a torch distributed checkpoint; optimizer and scheduler states are never loaded."""
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

    try:
        metadata = _MetadataUnpickler(io.BytesIO(source.read(table))).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
        raise Unreadable(f".metadata of {source.label} is not a torch distributed checkpoint's: {error}") from None
    if not isinstance(metadata, Metadata):
        raise Unreadable(
            f".metadata of {source.label} holds a {type(metadata).__name__}, not a torch distributed checkpoint's table"
        )

    class Reader(dcp.FileSystemReader):  # type: ignore[misc,unused-ignore]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            if metadata.storage_meta is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    wanted = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata) and not re.search(r"(^|[._])(optim|optimizer|scheduler|rng)", name)
    }
    folder = source.path(table)
    if folder is None or not wanted:
        raise Unreadable(f"{source.label}: the torch distributed checkpoint holds no model tensors")
    try:
        with warnings.catch_warnings():
            # no_dist is meant: torch says so each time
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(wanted, storage_reader=Reader(folder.parent), no_dist=True)
    except Exception as error:
        raise Unreadable(
            f"{source.label}: the torch distributed checkpoint cannot be read ({type(error).__name__}:"
            f" {_first_line(error)})"
        ) from None
    return wanted


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _drafter_name(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
