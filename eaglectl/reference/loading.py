"""Loads tensors from files: a drafter's weights, a target's embedding, and a target's hidden states."""

import gzip
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import EMBEDDINGS, matrix
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import MIB, open_regular
from eaglectl.files.header import header_length, parse_header
from eaglectl.files.pickles import DTYPES, read_tensors
from eaglectl.files.scratch import scratch_folder
from eaglectl.files.source import FolderSource
from eaglectl.reference.model import DraftModel

# bytes of one gzipped file: 100,000 tokens of 5 layers of 8,192 in 16 bits; and bytes of one that is packed:
# hidden states shrink by a third
MAX_UNPACKED, MAX_RATIO = 8 << 30, 50
# times the size of a batch of states that must be free for it: engines write their own to the same disk
ROOM = 4
TORCH_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def load_drafter(folder: Path, drafter: Drafter, *, dtype: str, device: str) -> DraftModel:
    """The reference model of `drafter`, from safetensors files in `folder` with canonical tensor names.

    Raises RefusedError for a quantised drafter, and for an activation other than SiLU.
    """
    from safetensors.torch import load_file

    if drafter.quantisation is not None:
        raise RefusedError("the reference engine runs no quantised drafters; use --run-in vllm")
    if (activation := drafter.settings["hidden_act"]) != "silu":
        raise RefusedError(f"the reference engine runs SiLU alone, and hidden_act is {activation!r}")
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path, device=device).items():
            weights[name] = tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
    eps = float(drafter.settings["rms_norm_eps"])
    return DraftModel(weights, drafter.dims, drafter.norms, drafter.rope, eps, drafter.windows)


def load_embedding(target: Checkpoint, vocab: int, hidden: int) -> torch.Tensor:
    """The input embedding [rows, hidden] of a target that is not loaded here, found by its name.

    Targets may pad it to more rows than `vocab`. Raises UnreadableError where no tensor has that name and
    shape.
    """
    name = matrix(target.tensors, EMBEDDINGS)
    shape = (0, 0) if name is None else target.tensors[name].shape
    if name is None or shape[0] < vocab or shape[1] != hidden:
        stored = "none of plain numbers" if name is None else f"{name} {list(shape)}"
        raise UnreadableError(
            f"the drafter shares the target's embedding, [{vocab} rows or more, {hidden}], and"
            f" {target.source.place} has {stored}; calibrate with --run-in transformers"
        )
    data = bytearray(target.read(name))
    return torch.frombuffer(data, dtype=FLOATS[target.tensors[name].dtype]).view(shape)


def load_states(path: Path, tokens: Sequence[int], layers: int, width: int) -> torch.Tensor:
    """Hidden states of one sequence, written by vLLM's connector: [time, layers, width].

    Raises UnreadableError where the file cannot be read, or is not of these tokens.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        states, ids = tensors["hidden_states"], tensors["token_ids"].tolist()
    except (OSError, KeyError, SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(
            f"vLLM's hidden states {path.name} cannot be read: {reason}; if {path.parent} is full, set TMPDIR"
            " to a larger place"
        ) from None
    if ids != list(tokens) or states.shape != (len(tokens), layers, width):
        raise UnreadableError(
            f"vLLM wrote hidden states {list(states.shape)} of {len(ids)} tokens; [{len(tokens)}, {layers},"
            f" {width}] of the tokens that it was given were expected"
        )
    return states


def load_tensors(path: Path) -> Mapping[str, torch.Tensor]:
    """The tensors by name of a safetensors file, or of one of torch.save, gzipped or not.

    Pickles are read opcode by opcode and never unpickled. Raises UnreadableError.
    """
    try:
        with _unpacked(path) as unpacked:
            file = unpacked.resolve()
            read = _read_safetensors if path.suffix == ".safetensors" else read_tensors
            return read(FolderSource(file.parent), file.name)
    except EOFError:
        raise UnreadableError(f"{path} cannot be read: it is truncated") from None
    except (OSError, zlib.error, EaglectlError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"{path} cannot be read: {reason}") from None


def save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> bool:
    """Write a safetensors file; false where it cannot be written, or less than ROOM of its sizes are free."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    size = sum(tensor.nbytes for tensor in tensors.values())
    try:
        if shutil.disk_usage(path.parent).free < ROOM * size:
            return False
        save_file(tensors, path)
    except (OSError, SafetensorError):
        return False
    return True


def _read_safetensors(source: FolderSource, name: str) -> Mapping[str, torch.Tensor]:
    size = source.size(name)
    length = header_length(name, source.read(name, 0, min(8, size)), size)
    tensors: dict[str, torch.Tensor] = {}
    for stored in parse_header(name, source.read(name, 8, 8 + length), size).tensors:
        if stored.dtype not in TORCH_NAMES:
            raise UnreadableError(f"{stored.name} is {stored.dtype}, which no hidden states are")
        dtype = getattr(torch, TORCH_NAMES[stored.dtype])
        data = bytearray(source.read(name, stored.start, stored.stop))
        flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)
        tensors[stored.name] = flat.view(stored.shape)
    return tensors


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """The file, or where it is gzipped a temporary one with its content, which is counted by pieces."""
    if path.suffix != ".gz":
        yield path
        return
    with scratch_folder() as folder, open_regular(path) as raw:
        limit = min(MAX_UNPACKED, MAX_RATIO * path.stat().st_size + MIB)
        file, size = folder / path.stem, 0
        with gzip.open(raw, "rb") as packed, file.open("wb") as unpacked:
            while piece := packed.read(MIB):
                size += len(piece)
                if size > limit:
                    raise UnreadableError(f"it unpacks to more than {limit} bytes")
                unpacked.write(piece)
        yield file
