"""A target whose residual stream is rotated, as QuaRot's and SpinQuant's offline rotations leave it."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

# linear layers behind each norm of a decoder layer, and those that write to the residual stream
BEHIND = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
READERS = ("embed_tokens", "lm_head", *(module for modules in BEHIND.values() for module in modules))
WRITERS = ("self_attn.o_proj", "mlp.down_proj")


def random_rotation(size: int, seed: int = 7) -> torch.Tensor:
    """An orthogonal matrix [size, size] in float64."""
    noise = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(noise)
    return (q * r.diagonal().sign()).contiguous()


def rotate_target(source: Path, folder: Path, rotation: torch.Tensor, dtype: str = "float32") -> Path:
    """The Llama or Qwen3 target with its stream h as h Q: norms folded into what follows, then rotated."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, folder)
    config = json.loads((source / "config.json").read_text()) | {"dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: value.double() for name, value in load_file(source / "model.safetensors").items()}
    _fold_norms(tensors, config["num_hidden_layers"])
    for name in tensors:
        module = name.removesuffix(".weight")
        if module.endswith(WRITERS):
            tensors[name] = rotation.T @ tensors[name]
        elif module.endswith(READERS):
            tensors[name] = tensors[name] @ rotation
    kept: dict[str, Any] = {name: value.to(getattr(torch, dtype)) for name, value in tensors.items()}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def _fold_norms(tensors: dict[str, torch.Tensor], depth: int) -> None:
    places = [("model.norm", ("lm_head",))]
    for layer in range(depth):
        start = f"model.layers.{layer}."
        places += [(start + norm, tuple(start + name for name in names)) for norm, names in BEHIND.items()]
    for norm, modules in places:
        weight = tensors[f"{norm}.weight"]
        for module in modules:
            tensors[f"{module}.weight"] = tensors[f"{module}.weight"] * weight
        tensors[f"{norm}.weight"] = torch.ones_like(weight)
