"""Tensors out of files: a drafter's weights, a target's embedding, the states that vLLM wrote."""

from collections.abc import Sequence
from pathlib import Path

import torch

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.matrices import EMBEDDINGS, matrix
from eaglectl.errors import Refused, Unreadable
from eaglectl.reference.model import DraftModel

FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def load_drafter(folder: Path, drafter: Drafter, *, dtype: str, device: str) -> DraftModel:
    """The reference model of `drafter`, whose safetensors files in `folder` have canonical names."""
    from safetensors.torch import load_file

    if drafter.quantisation is not None:
        raise Refused("the reference engine runs no quantised drafters; use --engine vllm")
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path, device=device).items():
            weights[name] = tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
    return DraftModel(weights, drafter.dims, drafter.norms, drafter.rope, float(drafter.settings["rms_norm_eps"]))


def load_embedding(target: Checkpoint, vocab: int, hidden: int) -> torch.Tensor:
    """The embedding [rows, hidden] of a target that is not loaded here, by its name. Raises Unreadable where no tensor is it.

    Targets pad it to more rows than the `vocab` that a drafter knows, never to fewer.
    """
    name = matrix(target.tensors, EMBEDDINGS)
    shape = (0, 0) if name is None else target.tensors[name].shape
    if name is None or shape[0] < vocab or shape[1] != hidden:
        found = "none of plain numbers" if name is None else f"{name} {list(shape)}"
        raise Unreadable(
            f"the drafter shares the target's embedding, [{vocab} rows or more, {hidden}], and {target.source.label} has {found};"
            " calibrate with --engine transformers"
        )
    raw = bytearray(target.read(name))
    return torch.frombuffer(raw, dtype=FLOATS[target.tensors[name].dtype]).view(shape)


def load_states(path: Path, tokens: Sequence[int], layers: int, width: int) -> torch.Tensor:
    """What vLLM's connector wrote of one sequence: [time, layers, width]. Raises Unreadable unless it is of these tokens, whole."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
        states, ids = found["hidden_states"], found["token_ids"].tolist()
    except (OSError, KeyError, SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unreadable(
            f"vLLM's hidden states {path.name} cannot be read: {reason}; if {path.parent} is full, set TMPDIR to a larger place"
        ) from None
    if ids != list(tokens) or states.shape != (len(tokens), layers, width):
        raise Unreadable(
            f"vLLM wrote hidden states {list(states.shape)} of {len(ids)} tokens; [{len(tokens)}, {layers}, {width}] of those it"
            " was given were expected"
        )
    return states
