"""The drafter's forward pass: EAGLE-3 and 3.1, Llama, Qwen3 and MLA attention, any number of layers.

One step (vLLM llama_eagle3.py, qwen3_eagle3.py, deepseek_eagle3.py, 0.33.0):

    g  = fc(cat(fc_norm_i(aux_i)))  or  fc(input_norm(cat(aux_i)))   first step; later the fed-back state
    a  = cat(input_layernorm(e), hidden_norm(g))                     e: embedding of the next token
         (ModelOpt since 0.41.0 trains with hidden_norm(input_layernorm(g)): Norms.hidden_twice)
    r  = hidden_norm(g) if norm_before_residual else g
    y  = r + attention(a);  y = y + mlp(post_attention_layernorm(y))
    logits = lm_head(norm(y));  fed back: norm(y) if norm_output else y

Rotary position embedding as transformers computes it, and engines do: default, linear, llama3 and yarn (vLLM
rotary_embedding/{base,linear_scaling_rope,llama3_rope,yarn_scaling_rope,deepseek_scaling_rope}.py, 0.33.0).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from msgspec import Struct
from safetensors.torch import load_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from eaglectl.drafter.drafter import Drafter, Norms, Rope
from eaglectl.drafter.tensors import Dimensions
from eaglectl.errors import RefusedError
from eaglectl.reference.quantised import dequantised


class Rotary:
    """Rotates queries and keys by position, in float32 or in float64; states keep their dtype."""

    def __init__(self, rope: Rope, dim: int, *, is_mla: bool, device: torch.device | str) -> None:
        frequencies, self.scale = _frequencies(rope, int(dim * rope.rotated_part))
        if is_mla:
            self.scale = rope.mla_factors[0]
        self.frequencies = frequencies.to(device)
        self.is_interleaved = rope.is_interleaved

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate x [batch, heads, time, dim] at positions [batch, time]; a partial rotary, its first part."""
        if (size := 2 * len(self.frequencies)) < x.shape[-1]:
            return torch.cat((self.rotate(x[..., :size], positions), x[..., size:]), -1)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        angles = positions[:, None, :, None].to(wide.dtype) * self.frequencies
        cos, sin = (wave(angles) * self.scale for wave in (torch.cos, torch.sin))
        is_interleaved = self.is_interleaved
        first, second = (wide[..., ::2], wide[..., 1::2]) if is_interleaved else wide.chunk(2, dim=-1)
        pair = (first * cos - second * sin, second * cos + first * sin)
        return (torch.stack(pair, -1).flatten(-2) if is_interleaved else torch.cat(pair, -1)).to(x.dtype)


def _frequencies(rope: Rope, dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [dim/2], and the factor on cos and sin of attention other than MLA."""
    scaling = {**(rope.scaling or {}), "partial_rotary_factor": 1.0}  # `dim` is what turns
    kind = scaling.get("rope_type", "default")
    if kind in ("default", "mrope"):  # text positions are the same on all three axes of mrope
        return 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim), 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise RefusedError(
            f"the reference engine does not support rope_type {kind}; it supports default, linear, llama3 and"
            " yarn"
        )
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.utils import logging

    needed = {"factor", *(["original_max_position_embeddings"] if kind != "linear" else [])}
    if lost := needed - scaling.keys():
        raise RefusedError(f"the rope scaling lacks {', '.join(sorted(lost))}, which {kind} needs")
    original = 1 if kind == "linear" else scaling["original_max_position_embeddings"]
    length, verbosity = round(scaling["factor"] * original), logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it warns of odd values, which rules report
    try:
        config = LlamaConfig(
            head_dim=dim, rope_theta=rope.theta, rope_scaling=scaling, max_position_embeddings=length
        )
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    finally:
        logging.set_verbosity(verbosity)
    return frequencies, float(scale)


Weights = Mapping[str, torch.Tensor]


def concatenated(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all matrices as one matrix."""
    return torch.cat(tuple(parts))


class Slots(NamedTuple):
    """The inputs of attention at some slots: `x` [batch, slots, input] and `positions` [batch, slots]."""

    x: torch.Tensor
    positions: torch.Tensor


def _pick(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """values[batch, kept] of [batch, slots, ...]."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


class Cache(Struct):
    """One layer's keys and values [batch, kv_heads, slots, dim], and their positions [batch, 1, slots]."""

    parts: tuple[torch.Tensor, ...] = ()

    def extend(self, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Append keys, values and positions, and return those of all slots."""
        if self.parts:
            parts = tuple(torch.cat(pair, 2) for pair in zip(self.parts, parts, strict=True))
        self.parts = parts
        return parts

    def crop(self, slots: int) -> None:
        """Keep the first `slots` slots."""
        self.parts = tuple(part[:, :, :slots] for part in self.parts)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep these sequences of the batch."""
        self.parts = tuple(part[rows] for part in self.parts)


def causal_mask(valid: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Return which slots [batch, queries, slots] the queries at slots [..., queries, 1] attend to.

    `valid` [batch, slots] is not padding. A query attends to itself too, since softmax over no slot is NaN.
    """
    slots = torch.arange(valid.shape[1], device=valid.device)
    return (valid[:, None] & (slots <= queries)) | (slots == queries)


class HasEmbedding(Protocol):
    """A target, or what gives its states."""

    @property
    def embedding(self) -> torch.Tensor:
        """Its input embedding [vocab, hidden]."""
        ...


class DraftModel:
    """A drafter as a function of its canonical weights; KV caches are arguments."""

    def __init__(
        self,
        weights: Weights,
        dims: Dimensions,
        norms: Norms,
        rope: Rope,
        eps: float,
        windows: Sequence[int] = (),
    ) -> None:
        self.weights, self.dims, self.norms, self.eps = weights, dims, norms, eps
        # tokens that each layer attends to, its own included; 0 for all
        self.windows = tuple(windows) or (0,) * dims.layers
        # a list gets the last query's attention of each call: [batch, slots], mean over heads
        self.attention_log: list[torch.Tensor] | None = None
        self.is_mla = dims.attention == "MLA"
        rotary_dim, query_dim, factor = dims.head_dim, dims.head_dim, 1.0
        if self.is_mla:
            rotary_dim, query_dim = dims.qk_rope_head_dim, dims.qk_nope_head_dim + dims.qk_rope_head_dim
            factor = rope.mla_factors[1]
        self.device, self.dtype = weights["fc.weight"].device, weights["fc.weight"].dtype
        self.rotary = Rotary(rope, rotary_dim, is_mla=self.is_mla, device=self.device)
        self.softmax_scale = query_dim**-0.5 * factor

    @property
    def draft_id_to_target_id(self) -> torch.Tensor | None:
        """Target token id of each draft token id, [draft_vocab] int64; None for a full vocabulary."""
        d2t = self.weights.get("d2t")
        return None if d2t is None else d2t + torch.arange(len(d2t), device=d2t.device)

    def new_caches(self) -> list[Cache]:
        """Return an empty KV cache for each layer."""
        return [Cache() for _ in range(self.dims.layers)]

    def embeddings(self, tokens: torch.Tensor, target: HasEmbedding) -> torch.Tensor:
        """Return the input embeddings [batch, time, hidden] of `tokens`, of the drafter or else the target.

        Raises RefusedError for a token without a row in the drafter's own embedding.
        """
        draft_rows = self.weights.get("embed_tokens.weight")
        rows = target.embedding if draft_rows is None else draft_rows
        if draft_rows is not None and (last := int(tokens.max())) >= len(draft_rows):
            raise RefusedError(
                f"the target's token {last} is past the {len(draft_rows)} rows of the drafter's embedding; it"
                " belongs to another target"
            )
        return rows[tokens.to(rows.device)].to(self.device, self.dtype)

    def combine_hidden_states(self, aux: torch.Tensor) -> torch.Tensor:
        """Compute the first g [..., hidden] from aux hidden states [..., aux*target_hidden]."""
        if "input_norm.weight" in self.weights:
            aux = self._norm(aux, "input_norm")
        if self.norms.fc_norm:
            parts = aux.chunk(self.dims.aux, dim=-1)
            aux = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        return linear(aux, self.weights["fc.weight"], self.weights.get("fc.bias"))

    def forward(
        self,
        embeddings: torch.Tensor,
        state: torch.Tensor,
        positions: torch.Tensor,
        caches: list[Cache],
        mask: torch.Tensor,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the residual stream after the last layer, [batch, time, hidden].

        `embeddings` and `state` (g) are [batch, time, hidden], `positions` [batch, time]; `mask` [batch,
        time, slots] is true where a query attends to a cache slot, the new ones included. With `kept`
        [batch, kept], indices in time, the result is [batch, kept, hidden], of these alone.
        """
        for index, cache in enumerate(caches):
            name = f"layers.{index}."
            if index == 0:
                inner = self.inner_norm(state) if self.norms.hidden_twice else state
                normed = self._norm(inner, name + "hidden_norm")
                residual = normed if self.norms.norm_before_residual else state
                inner = torch.cat((self._norm(embeddings, name + "input_layernorm"), normed), -1)
            else:
                residual = state
                inner = self._norm(state, name + "input_layernorm")
            slots = queries = Slots(inner, positions)
            if kept is not None and index == len(caches) - 1:
                queries = Slots(_pick(inner, kept), _pick(positions, kept))
                residual, mask = _pick(residual, kept), _pick(mask, kept)
            project = self._project_mla if self.is_mla else self._project_heads
            query, key, value = project(slots, queries, name + "self_attn.")
            keys, values, places = cache.extend(key, value, positions[:, None])
            seen = mask
            if window := self.windows[index]:  # vLLM 0.33.0 llama.py:185-206
                seen = mask & (queries.positions[:, :, None] - places < window)
            state = residual + self._linear(
                self._attend(query, keys, values, seen), name + "self_attn.o_proj"
            )
            inner = self._norm(state, name + "post_attention_layernorm")
            gate, up = (self._linear(inner, f"{name}mlp.{part}_proj") for part in ("gate", "up"))
            state = state + self._linear(silu(gate) * up, name + "mlp.down_proj")
        return state

    def inner_norm(self, state: torch.Tensor) -> torch.Tensor:
        """Return a state after the first of two norms (Norms.hidden_twice)."""
        return self._norm(state, "layers.0.input_layernorm")

    def feedback(self, state: torch.Tensor) -> torch.Tensor:
        """Return the state that the next draft step takes as g."""
        return self._norm(state, "norm") if self.norms.norm_output else state

    def logits(self, state: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """Compute logits over the draft vocabulary; `head` is the drafter's lm_head or the target's."""
        return linear(self._norm(state, "norm"), head)

    def tokens(self, state: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """Return target token ids [batch, time] of the most likely draft tokens."""
        choice, ids = self.logits(state, head).argmax(-1), self.draft_id_to_target_id
        return choice if ids is None else ids[choice]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.to(x.dtype) * self.weights[f"{name}.weight"]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _project_heads(self, slots: Slots, queries: Slots, name: str) -> tuple[torch.Tensor, ...]:
        """Return rotated query [batch, heads, queries, head_dim], and key and value [batch, kv_heads, slots,
        head_dim].
        """
        dims = self.dims

        def heads(x: torch.Tensor, part: str, count: int) -> torch.Tensor:
            return self._linear(x, f"{name}{part}_proj").unflatten(-1, (count, dims.head_dim)).transpose(1, 2)

        query = heads(queries.x, "q", dims.heads)
        key, value = (heads(slots.x, part, dims.kv_heads) for part in "kv")
        if f"{name}q_norm.weight" in self.weights:
            query, key = self._norm(query, f"{name}q_norm"), self._norm(key, f"{name}k_norm")
        return self.rotary.rotate(query, queries.positions), self.rotary.rotate(key, slots.positions), value

    def _project_mla(self, slots: Slots, queries: Slots, name: str) -> tuple[torch.Tensor, ...]:
        """Return rotated query [batch, heads, queries, dim], and key and value [batch, heads, slots, dim].

        `dim` of query and key is qk_nope_head_dim + qk_rope_head_dim, that of value v_head_dim.
        """
        dims = self.dims
        nope, rope = dims.qk_nope_head_dim, dims.qk_rope_head_dim
        latent, part = queries.x, "q_proj"
        if dims.q_lora_rank:
            latent = self._norm(self._linear(latent, name + "q_a_proj"), name + "q_a_layernorm")
            part = "q_b_proj"
        query = self._linear(latent, name + part).unflatten(-1, (dims.heads, nope + rope)).transpose(1, 2)
        rotated = self.rotary.rotate(query[..., nope:], queries.positions)
        latent, key_rope = self._linear(slots.x, name + "kv_a_proj_with_mqa").split(
            (dims.kv_lora_rank, rope), -1
        )
        both = self._linear(self._norm(latent, name + "kv_a_layernorm"), name + "kv_b_proj")
        both = both.unflatten(-1, (dims.heads, nope + dims.v_head_dim)).transpose(1, 2)
        key, value = both.split((nope, dims.v_head_dim), -1)
        key_rope = self.rotary.rotate(key_rope[:, None], slots.positions).expand(-1, dims.heads, -1, -1)
        return torch.cat((query[..., :nope], rotated), -1), torch.cat((key, key_rope), -1), value

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        # attention over all keys; the last query's weights are logged if a log is set
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if self.attention_log is not None:
            last = query[:, :, -1:].float() @ key.float().transpose(2, 3) * self.softmax_scale
            last = last.masked_fill(~mask[:, None, -1:], float("-inf")).softmax(-1)
            self.attention_log.append(last.mean(1)[:, 0])
        mixed = scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None], scale=self.softmax_scale
        )
        return mixed.transpose(1, 2).flatten(2)


def load_drafter(folder: Path, drafter: Drafter, *, dtype: str, device: str) -> DraftModel:
    """Load the reference model of `drafter` from safetensors files in `folder`, with canonical names.

    Quantised weights are multiplied out. Raises RefusedError for a quantisation that the reference cannot
    multiply out, and as `check_runs` does.
    """
    check_runs(drafter)
    stored: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        # one device, where the target is spread over several
        stored |= load_file(path, device="cuda" if device == "auto" else device)
    weights = {
        name: tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
        for name, tensor in (
            dequantised(stored, drafter.quantisation) if drafter.quantisation is not None else stored
        ).items()
    }
    eps = float(drafter.settings["rms_norm_eps"])
    return DraftModel(weights, drafter.dims, drafter.norms, drafter.rope, eps, drafter.windows)


def check_runs(drafter: Drafter) -> None:
    """Raise RefusedError for an activation other than SiLU."""
    if (activation := drafter.settings["hidden_act"]) != "silu":
        raise RefusedError(f"the reference engine supports only SiLU, but hidden_act is {activation!r}")
