"""An MLA target and an MLA drafter with the sizes that GPU kernels are built for, of made-up weights.

A text is a walk through one cycle of the vocabulary: the target says the token behind the one it reads, the
drafter the one behind that. Attention and MLPs have random weights that are small enough to leave most
answers as they are, so that a drafter which is run as it is written has four fifths of its first draft
tokens accepted, and at half as much again as this attention next to none.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eaglectl.drafter.tensors import Dimensions, expected_shape

WIDTH, INNER, VOCAB, LAYERS, HEADS = 256, 512, 512, 6, 16
QUERY_RANK, RANK, NOPE, ROPE, VALUE = 96, 512, 128, 64, 128
BOUNDARIES = (1, 3, 5)
END = VOCAB - 1
PROMPTS, PROMPT = 24, 12
# before 0.28.0 vLLM starts no MLA drafter without it
YARN = {
    "rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
ATTENTION = {
    "q_lora_rank": QUERY_RANK, "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
}  # fmt: skip
SHARED = {
    **ATTENTION,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rope_theta": 50_000.0,
    "rope_scaling": YARN,
    "bos_token_id": 0,
    "eos_token_id": END,
    "tie_word_embeddings": False,
}
PARTS = (
    "q_a_proj",
    "q_a_layernorm",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_a_layernorm",
    "kv_b_proj",
    "o_proj",
)
LAYER = (
    *("hidden_norm", "input_layernorm", "post_attention_layernorm"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
# how large the drafter's attention is beside what it is added to
WEIGHT = 0.08


def write_pair(folder: Path) -> tuple[Path, Path, Path]:
    """Write target, drafter and prompts; their places."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(VOCAB, WIDTH, generator=generator)
    cycle = torch.randperm(VOCAB - 1, generator=generator)
    behind = torch.arange(VOCAB)
    behind[cycle] = cycle.roll(-1)
    target, drafter, prompts = folder / "target", folder / "drafter", folder / "prompts.jsonl"
    _write_target(target, words, behind)
    drafter.mkdir(parents=True)
    tensors = {name: tensor.bfloat16() for name, tensor in _tensors(words, behind[behind], generator).items()}
    save_file(tensors, drafter / "model.safetensors", {"format": "pt"})
    (drafter / "config.json").write_text(json.dumps(_drafter_config()))
    starts = range(0, VOCAB - 1, (VOCAB - 1) // PROMPTS)
    texts = [cycle.roll(-start)[:PROMPT].tolist() for start in starts[:PROMPTS]]
    prompts.write_text("".join(json.dumps({"prompt_token_ids": text}) + "\n" for text in texts))
    return target, drafter, prompts


def _write_target(folder: Path, words: torch.Tensor, behind: torch.Tensor) -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        **SHARED | {"rope_scaling": dict(YARN)},  # to which transformers adds the base
        moe_intermediate_size=64,
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        pad_token_id=END,
        initializer_range=0.02,
    )
    torch.manual_seed(0)
    model = DeepseekV3ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(words)
        model.lm_head.weight[behind] = words
    model.bfloat16().save_pretrained(folder)


def _tensors(words: torch.Tensor, said: torch.Tensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The drafter's tensors; `said` is the token that it says for each token of the target's position."""
    ranks = (QUERY_RANK, RANK, NOPE, ROPE, VALUE)
    dims = Dimensions(WIDTH, WIDTH, len(BOUNDARIES), VOCAB, VOCAB, INNER, 1, HEADS, 0, 0, *ranks)
    tensors = random_weights(dims, PARTS, WEIGHT, generator=generator)
    tensors["embed_tokens.weight"] = words.clone()
    tensors["fc.weight"] = torch.cat([torch.eye(WIDTH) / len(BOUNDARIES)] * len(BOUNDARIES), 1)
    tensors["lm_head.weight"][said] = words
    return tensors


def random_weights(
    dims: Dimensions, attention: Iterable[str], size: float, **options: Any
) -> dict[str, torch.Tensor]:
    """A drafter of one layer: normal numbers of this size, norms of ones; `options` are torch.randn's."""
    parts = (*LAYER, *(f"self_attn.{part}" for part in attention))
    weights = {}
    for name in ("fc", "norm", "lm_head", *(f"layers.0.{part}" for part in parts)):
        shape = expected_shape(f"{name}.weight", dims)
        assert shape is not None, name
        numbers = torch.randn(shape, **options)
        weights[f"{name}.weight"] = numbers * size if len(shape) > 1 else torch.ones_like(numbers)
    return weights


def _drafter_config() -> dict[str, object]:
    """A config in vLLM's layout."""
    switches = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm", "attention_bias")
    return {
        **SHARED,
        **dict.fromkeys(switches, False),
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "target_hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "num_aux_hidden_states": len(BOUNDARIES),
        "eagle_aux_hidden_state_layer_ids": list(BOUNDARIES),
        "torch_dtype": "bfloat16",
    }
