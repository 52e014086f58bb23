"""A drafter's weights from a folder in vLLM's layout, whose names are the canonical ones."""

from pathlib import Path

import torch

from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Refused
from eaglectl.reference.model import DraftModel


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
