"""The compiled CPU functions that SGLang 0.5.23 needs for the first pass of a gated delta network, in torch.

One request, without a state from before. None of them chooses a layer or captures anything. Install them
after those of tests/engine/sglang and before SGLang.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    x.mul_(gate.sigmoid())


def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, width: int
) -> tuple[Tensor, Tensor]:
    return _norm(q, q_weight, eps, width), _norm(k, k_weight, eps, width)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, width: int, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, gate = q_gate.reshape(-1, heads, 2 * width).chunk(2, -1)
    return _norm(q, q_weight, eps, width), _norm(k, k_weight, eps, width), gate.reshape(-1, width)


def _norm(states: Tensor, weight: Tensor, eps: float, width: int) -> Tensor:
    rows = states.reshape(-1, width).float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return (rows * (1 + weight.float())).to(states.dtype)


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: Tensor, ba: Tensor, key_heads: int, value_heads: int, key_width: int, value_width: int
) -> tuple[Tensor, ...]:
    count = 2 * key_heads * key_width + value_heads * value_width
    b, a = ba.chunk(2, -1)
    return qkvz[:, :count].contiguous(), qkvz[:, count:].reshape(-1, value_heads, value_width), b, a


def causal_conv1d_fn_cpu(x: Tensor, weight: Tensor, bias: Tensor | None, **_: Any) -> Tensor:
    padded = functional.pad(x, (weight.shape[1] - 1, 0)).unsqueeze(0)
    convolved = functional.conv1d(padded, weight.unsqueeze(1), bias, groups=weight.shape[0])
    return functional.silu(convolved.squeeze(0))


def fused_gdn_gating_cpu(a_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    decay = -a_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return decay.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


def chunk_gated_delta_rule_cpu(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, None, None]:
    repeats = v.shape[2] // q.shape[2]
    query, key = (
        functional.normalize(each[0].float(), dim=-1).repeat_interleave(repeats, 1) for each in (q, k)
    )
    value, state, out = v[0].float(), q.new_zeros(v.shape[2], q.shape[3], v.shape[3]).float(), []
    for place in range(value.shape[0]):
        state = state * g[0, place].exp()[:, None, None]
        wrong = value[place] - torch.einsum("hk,hkv->hv", key[place], state)
        state = state + torch.einsum("hk,hv->hkv", key[place], wrong * beta[0, place][:, None])
        out.append(torch.einsum("hk,hkv->hv", query[place], state) * q.shape[3] ** -0.5)
    return torch.stack(out).unsqueeze(0).to(v.dtype), None, None


def _not_here(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a compiled function of sgl_kernel that only decoding or another model needs")


def _gated_norm(self: Any, x: Tensor, z: Tensor, *_: Any, **__: Any) -> Tensor:
    rows = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
    return (rows * self.weight.float() * functional.silu(z.float())).to(x.dtype)


def stand_in_norms() -> None:
    """Put the gated norm where SGLang, once imported, has it in Triton."""
    from sglang.kernels.ops.attention.fla import fused_norm_gate, layernorm_gated

    layernorm_gated.RMSNorm.forward = fused_norm_gate.FusedRMSNormGated.forward = _gated_norm


def stand_in() -> None:
    """Put them where SGLang's modules look for compiled ones when they are imported."""
    import sgl_kernel.mamba

    for name, function in list(globals().items()):
        if name.endswith("_cpu"):
            setattr(torch.ops.sgl_kernel, name, function)
            setattr(sgl_kernel.mamba, name, function)
    for name in (
        "fused_sigmoid_gating_delta_rule_update_cpu",
        "causal_conv1d_update_cpu",
        "fused_moe_router_cpu",
    ):
        setattr(torch.ops.sgl_kernel, name, _not_here)
