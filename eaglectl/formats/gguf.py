"""What llama.cpp's GGUF file of an EAGLE-3 drafter has: names of tensors, and keys of facts.

conversion/llama.py and src/models/eagle3.cpp of llama-cpp-python 0.3.36. There, the rows of q and k alternate
between the halves of a head, d2t holds the target's tokens, and t2d is absent.
"""

from collections.abc import Mapping
from typing import Any

from eaglectl.drafter.tensors import Tensor
from eaglectl.files.gguf import ARCHITECTURE, ARCHITECTURE_KEY, FACTORS
from eaglectl.formats.format import TOP_IDS

# module in the file: canonical module
NAMES: Mapping[str, str] = {
    "token_embd":        "embed_tokens",
    "fc":                "fc",
    "enc.output_norm":   "input_norm",
    "blk.0.attn_norm":   "layers.0.input_layernorm",
    "blk.0.attn_norm_2": "layers.0.hidden_norm",
    "blk.0.attn_q":      "layers.0.self_attn.q_proj",
    "blk.0.attn_k":      "layers.0.self_attn.k_proj",
    "blk.0.attn_v":      "layers.0.self_attn.v_proj",
    "blk.0.attn_output": "layers.0.self_attn.o_proj",
    "blk.0.ffn_norm":    "layers.0.post_attention_layernorm",
    "blk.0.ffn_gate":    "layers.0.mlp.gate_proj",
    "blk.0.ffn_up":      "layers.0.mlp.up_proj",
    "blk.0.ffn_down":    "layers.0.mlp.down_proj",
    "output_norm":       "norm",
    "output":            "lm_head",
}  # fmt: skip
# key of the file, after the architecture: key of a config.json
KEYS: Mapping[str, str] = {
    "target_layers":                    TOP_IDS,
    "target_hidden_size":               "target_hidden_size",
    "norm_before_residual":             "norm_before_residual",
    "norm_before_fc":                   "norm_before_fc",
    "block_count":                      "num_hidden_layers",
    "context_length":                   "max_position_embeddings",
    "embedding_length":                 "hidden_size",
    "feed_forward_length":              "intermediate_size",
    "attention.head_count":             "num_attention_heads",
    "attention.head_count_kv":          "num_key_value_heads",
    "attention.key_length":             "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base":                   "rope_theta",
    "vocab_size":                       "vocab_size",
}  # fmt: skip
SCALING: Mapping[str, str] = {
    "rope.scaling.type":                    "rope_type",
    "rope.scaling.factor":                  "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast":          "beta_fast",
    "rope.scaling.yarn_beta_slow":          "beta_slow",
}  # fmt: skip
# of each head, as long as its key; another length is a setting of its own, which is asked about
LENGTHS = ("attention.value_length", "rope.dimension_count")
# tensors whose rows alternate between the halves of a head
ROTATED = ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight")
# a rope scaling that is stated by its factors alone
BY_FACTORS = "factors"


def flat_gguf(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of a GGUF file as a drafter's config; any other config as it is.

    Facts of the architecture that no key stands for keep theirs, with `_` for the dots.
    """
    if ARCHITECTURE_KEY not in config:
        return config
    own = {
        key.removeprefix(f"{ARCHITECTURE}."): value
        for key, value in config.items()
        if key.startswith(f"{ARCHITECTURE}.")
    }
    head_dim = own.get("attention.key_length")
    flat = {KEYS[key]: value for key, value in own.items() if key in KEYS}
    if scaling := {SCALING[key]: value for key, value in own.items() if key in SCALING}:
        flat["rope_scaling"] = scaling
    if factors := config.get(FACTORS):
        flat["rope_scaling"] = {**scaling, "rope_type": BY_FACTORS, BY_FACTORS: factors}
    known = (*KEYS, *SCALING, *(key for key in LENGTHS if own.get(key) == head_dim))
    return flat | {key.replace(".", "_"): value for key, value in own.items() if key not in known}


def with_rows_by_halves(tensors: Mapping[str, Tensor], head_dim: int) -> dict[str, Tensor]:
    """The tensors with q and k as checkpoints store them: of each head, the first of its pairs first."""
    pairs = [*range(0, head_dim, 2), *range(1, head_dim, 2)]
    moved = {
        name: tensor.with_rows([head + row for head in range(0, tensor.shape[0], head_dim) for row in pairs])
        for name, tensor in tensors.items()
        if name in ROTATED
    }
    return {**tensors, **moved}
