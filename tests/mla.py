"""Small drafters of finite random numbers in float32, MLA or not, and their attention spelt in other ways."""

import json
import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.builders import Stored, write_safetensors

HIDDEN, MLP, VOCAB = 8, 12, 40
YARN = {
    "rope_type": "yarn",
    "factor": 64.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
}
AT, IDS = "layers.0.self_attn.", "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Heads:
    """Sizes of an MLA attention; a `query_rank` of 0 is q_lora_rank: null."""

    heads: int = 2
    query_rank: int = 6
    rank: int = 10
    nope: int = 4
    rope: int = 4
    value: int = 3
    layers: int = 1


heads = st.builds(
    Heads,
    heads=st.integers(1, 4),
    query_rank=st.integers(1, 7),
    rank=st.integers(1, 9),
    nope=st.integers(1, 5),
    rope=st.sampled_from([2, 4, 8]),
    value=st.integers(1, 5),
    layers=st.integers(1, 2),
)


def numbers(dice: random.Random, *shape: int, size: float = 0.5, near: float = 0.0) -> Stored:
    """A float32 tensor of normal numbers around `near`."""
    count = 1
    for axis in shape:
        count *= axis
    return "F32", shape, struct.pack(f"<{count}f", *(near + dice.gauss(0.0, size) for _ in range(count)))


def values(stored: Stored) -> list[float]:
    """The numbers of a float32 tensor."""
    return list(struct.unpack(f"<{len(stored[2]) // 4}f", stored[2]))


def rows(stored: Stored) -> list[bytes]:
    """The bytes of each row."""
    size = len(stored[2]) // stored[1][0]
    return [stored[2][start : start + size] for start in range(0, len(stored[2]), size)]


def stacked(dtype: str, parts: list[bytes], *shape: int) -> Stored:
    """A tensor of these rows."""
    return dtype, shape, b"".join(parts)


def mla_tensors(sizes: Heads, seed: int = 0, *, embedding: float = 0.05) -> dict[str, Stored]:
    """The canonical tensors of an MLA drafter; `embedding` is the embeddings' size."""
    dice = random.Random(seed)
    tensors = {
        "embed_tokens.weight": numbers(dice, VOCAB, HIDDEN, size=embedding),
        "fc.weight": numbers(dice, HIDDEN, 3 * HIDDEN),
    }
    query, rank = sizes.heads * (sizes.nope + sizes.rope), sizes.query_rank
    for layer in range(sizes.layers):
        inner = HIDDEN if layer else 2 * HIDDEN
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            **({} if layer else {"hidden_norm": (HIDDEN,)}),
            "self_attn.kv_a_proj_with_mqa": (sizes.rank + sizes.rope, inner),
            "self_attn.kv_a_layernorm": (sizes.rank,),
            "self_attn.kv_b_proj": (sizes.heads * (sizes.nope + sizes.value), sizes.rank),
            "self_attn.o_proj": (HIDDEN, sizes.heads * sizes.value),
            "mlp.gate_proj": (MLP, HIDDEN),
            "mlp.up_proj": (MLP, HIDDEN),
            "mlp.down_proj": (HIDDEN, MLP),
        }
        in_two = {"q_a_proj": (rank, inner), "q_a_layernorm": (rank,), "q_b_proj": (query, rank)}
        shapes |= {f"self_attn.{name}": shape for name, shape in in_two.items() if rank}
        shapes |= {} if rank else {"self_attn.q_proj": (query, inner)}
        for name, shape in shapes.items():
            near = {"size": 0.2, "near": 1.0} if len(shape) == 1 else {}
            tensors[f"layers.{layer}.{name}.weight"] = numbers(dice, *shape, **near)
    tensors["norm.weight"] = numbers(dice, HIDDEN, size=0.2, near=1.0)
    tensors["lm_head.weight"] = numbers(dice, VOCAB, HIDDEN)
    return tensors


def mla_config(sizes: Heads, **changes: Any) -> dict[str, Any]:
    """A config in vLLM's layout."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": sizes.layers,
        "vocab_size": VOCAB,
        "num_attention_heads": sizes.heads,
        "draft_vocab_size": VOCAB,
        "target_hidden_size": HIDDEN,
        "q_lora_rank": sizes.query_rank or None,
        "kv_lora_rank": sizes.rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.value,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": 10000.0,
        "rope_scaling": YARN,
        "norm_before_residual": False,
        "fc_norm": False,
        "norm_output": False,
        "norm_before_fc": False,
        "num_aux_hidden_states": 3,
        IDS: [2, 4, 5],
        **changes,
    }


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]) -> Path:
    """A checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def mla_folder(folder: Path, sizes: Heads = Heads(), seed: int = 0, **changes: Any) -> Path:
    """An MLA drafter in vLLM's layout."""
    return write(folder, mla_config(sizes, **changes), mla_tensors(sizes, seed))


def nemo_folder(folder: Path, sizes: Heads = Heads(), seed: int = 0, **changes: Any) -> Path:
    """The same weights as NeMo would have written them, trained without yarn's mscale."""
    tensors = {f"model.{name}": tensor for name, tensor in mla_tensors(sizes, seed).items()}
    tensors["lm_head.weight"] = tensors.pop("model.lm_head.weight")
    named = {"architectures": ["LlamaEagle3DraftModel"], "model_type": "deepseek_v3", "num_hidden_layers": 8}
    absent = ("norm_before_residual", "norm_before_fc", "num_aux_hidden_states", IDS)
    config = mla_config(sizes, **named, **changes)
    return write(folder, {key: value for key, value in config.items() if key not in absent}, tensors)


def fused(tensors: Mapping[str, Stored], name: str = "fused_qkv_a_proj") -> dict[str, Stored]:
    """q_a_proj and kv_a_proj_with_mqa as one, as engines keep them in memory."""
    found = dict(tensors)
    for at in {key.rpartition("q_a_proj.")[0] for key in tensors if key.endswith(".q_a_proj.weight")}:
        one, other = found.pop(f"{at}q_a_proj.weight"), found.pop(f"{at}kv_a_proj_with_mqa.weight")
        found[f"{at}{name}.weight"] = ("F32", (one[1][0] + other[1][0], one[1][1]), one[2] + other[2])
    return found


def absorbed(tensors: Mapping[str, Stored], sizes: Heads) -> dict[str, Stored]:
    """kv_b_proj as w_kc [heads, nope, rank] and w_vc [heads, rank, value]."""
    found = dict(tensors)
    for at in {key.rpartition("kv_b_proj.")[0] for key in tensors if key.endswith(".kv_b_proj.weight")}:
        each = rows(found.pop(f"{at}kv_b_proj.weight"))
        keys, transposed, step = [], [], sizes.nope + sizes.value
        for head in range(sizes.heads):
            keys += each[head * step : head * step + sizes.nope]
            value_rows = each[head * step + sizes.nope : (head + 1) * step]
            transposed += [
                row[4 * place : 4 * place + 4] for place in range(sizes.rank) for row in value_rows
            ]
        found[f"{at}w_kc"] = stacked("F32", keys, sizes.heads, sizes.nope, sizes.rank)
        found[f"{at}w_vc"] = stacked("F32", transposed, sizes.heads, sizes.rank, sizes.value)
    return found


def by_halves(tensors: Mapping[str, Stored], sizes: Heads) -> dict[str, Stored]:
    """The rotary rows in the order of a trainer that pairs i with i + half: firsts, then seconds."""
    found = dict(tensors)
    order = [*range(0, sizes.rope, 2), *range(1, sizes.rope, 2)]
    for layer in range(sizes.layers):
        query = f"layers.{layer}.self_attn.{'q_b_proj' if sizes.query_rank else 'q_proj'}.weight"
        found[query] = _shuffled(found[query], sizes.nope, order, sizes.heads)
        key = f"layers.{layer}.self_attn.kv_a_proj_with_mqa.weight"
        found[key] = _shuffled(found[key], sizes.rank, order, 1)
    return found


def _shuffled(stored: Stored, first: int, order: list[int], groups: int) -> Stored:
    each, step = rows(stored), first + len(order)
    picked = []
    for group in range(groups):
        picked += each[group * step : group * step + first] + [
            each[group * step + first + place] for place in order
        ]
    return stored[0], stored[1], b"".join(picked)
