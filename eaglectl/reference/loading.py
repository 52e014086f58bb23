"""Loads tensors from files: a drafter's weights, a target's embedding, and a target's hidden states."""

import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.matrices import EMBEDDINGS, matrix
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.reference.model import DraftModel

# bytes of one gzipped file: 100,000 tokens of 5 layers of 8,192 in 16 bits
MAX_UNPACKED = 8 << 30
FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def load_drafter(folder: Path, drafter: Drafter, *, dtype: str, device: str) -> DraftModel:
    """The reference model of `drafter`, from safetensors files in `folder` with canonical tensor names.

    Raises RefusedError for a quantised drafter.
    """
    from safetensors.torch import load_file

    if drafter.quantisation is not None:
        raise RefusedError("the reference engine runs no quantised drafters; use --engine vllm")
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path, device=device).items():
            weights[name] = tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
    return DraftModel(
        weights, drafter.dims, drafter.norms, drafter.rope, float(drafter.settings["rms_norm_eps"])
    )


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
            f" {target.source.place} has {stored}; calibrate with --engine transformers"
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


def load_tensors(path: Path) -> Mapping[str, Any]:
    """What a safetensors file, or one of torch.save, gzipped or not, holds by name.

    Pickles are read with torch's `weights_only`, which runs no code. Raises UnreadableError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with _opened(path) as file:
            value = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, UnpicklingError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise UnreadableError(f"{path} cannot be read: {reason}; is it truncated?") from None
    return value if isinstance(value, Mapping) else {}


def _opened(path: Path) -> IO[bytes]:
    """The file, unpacked into memory where it is gzipped."""
    if path.suffix != ".gz":
        return path.open("rb")
    with gzip.open(path, "rb") as packed:
        data = packed.read(MAX_UNPACKED + 1)
    if len(data) > MAX_UNPACKED:
        raise ValueError(f"it unpacks to more than {MAX_UNPACKED} bytes")
    return io.BytesIO(data)
