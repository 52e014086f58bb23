"""Rotary position embedding as engines compute it: default, linear, llama3 and yarn.

Sources: transformers modeling_rope_utils.py (5.19), vLLM
rotary_embedding/{base,linear_scaling_rope,llama3_rope, yarn_scaling_rope,deepseek_scaling_rope}.py (0.33.0).
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from eaglectl.drafter.drafter import Rope, yarn_scale
from eaglectl.errors import RefusedError


class Rotary:
    """Rotates queries and keys by position; angles are float32, and states keep their dtype."""

    def __init__(self, rope: Rope, dim: int, *, is_mla: bool, device: torch.device) -> None:
        frequencies, self.scale = _frequencies(rope, int(dim * rope.rotated_part))
        if is_mla:
            self.scale = rope.mla_factors[0]
        self.frequencies = frequencies.to(device)
        self.is_interleaved = rope.is_interleaved

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate x [batch, heads, time, dim] at positions [batch, time]; a partial rotary, its first part."""
        if (size := 2 * len(self.frequencies)) < x.shape[-1]:
            return torch.cat((self.rotate(x[..., :size], positions), x[..., size:]), -1)
        angles = positions[:, None, :, None].float() * self.frequencies
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        cos, sin = (wave(angles).to(wide.dtype) * self.scale for wave in (torch.cos, torch.sin))
        if self.is_interleaved:
            first, second = wide[..., ::2], wide[..., 1::2]
        else:
            first, second = wide.chunk(2, dim=-1)
        pair = (first * cos - second * sin, second * cos + first * sin)
        if self.is_interleaved:
            return torch.stack(pair, -1).flatten(-2).to(x.dtype)
        return torch.cat(pair, -1).to(x.dtype)


def _frequencies(rope: Rope, dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [dim/2], and the factor on cos and sin of attention other than MLA."""
    base = 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    scaling = rope.scaling or {}
    match scaling.get("rope_type", "default"):
        case "default" | "mrope":  # text positions are the same on all three axes of mrope
            return base, 1.0
        case "linear":
            return base / float(scaling["factor"]), 1.0
        case "llama3":
            return _llama3(base, scaling), 1.0
        case "yarn":
            return _yarn(base, rope.theta, dim, scaling), _yarn_scale(scaling)
        case kind:
            raise RefusedError(
                f"the reference engine has no rope_type {kind}; it has default, linear, llama3 and yarn"
            )


def _llama3(base: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / base
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return torch.where(
        wavelength > original / low,
        base / factor,
        torch.where(wavelength < original / high, base, (1 - smooth) * base / factor + smooth * base),
    )


def _yarn(base: torch.Tensor, theta: float, dim: int, scaling: Mapping[str, Any]) -> torch.Tensor:
    original = float(scaling["original_max_position_embeddings"])

    def dimension(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(float(scaling.get("beta_fast") or 32))), 0)
    high = min(math.ceil(dimension(float(scaling.get("beta_slow") or 1))), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return base / float(scaling["factor"]) * ramp + base * (1 - ramp)


def _yarn_scale(scaling: Mapping[str, Any]) -> float:
    factor, mscale, all_dim = float(scaling["factor"]), scaling.get("mscale"), scaling.get("mscale_all_dim")
    stated = scaling.get("attention_factor")
    if stated is not None:
        return float(stated)
    if mscale and all_dim:
        return yarn_scale(factor, float(mscale)) / yarn_scale(factor, float(all_dim))
    return yarn_scale(factor, 1.0)
