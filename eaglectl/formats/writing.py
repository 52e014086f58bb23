"""From the canonical drafter to a layout's names and config."""

from collections.abc import Mapping, Sequence
from typing import Any

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.drafter.tensors import LAYER
from eaglectl.formats.format import Family, Layout

UNPREFIXED = ("lm_head.", "d2t", "t2d", "mask_hidden")
TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
# keys of the decoder layer's own config, which speculators keeps in transformer_layer_config
LAYER_KEYS = (
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "attention_dropout", "initializer_range",
    "pretraining_tp", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip


def written_name(canonical: str, layout: Layout) -> str:
    """A canonical tensor's name in `layout`."""
    name = canonical
    if layer := LAYER.fullmatch(canonical):
        index, rest = int(layer[1]), layer[2]
        if index > 0 and rest == "input_layernorm.weight":
            rest = f"{layout.later_norm}.weight"
        name = f"{layout.layer.format(index)}.{rest}"
    return name if name.startswith(UNPREFIXED) else layout.prefix + name


def write_config(
    drafter: Drafter, layout: Layout, family: Family, nested_ids: Sequence[int] | None, dtypes: Sequence[str]
) -> dict[str, Any]:
    """config.json of `drafter` in `layout`; `nested_ids` are the ids for eagle_config, already in that layout's convention."""
    config: dict[str, Any] = {"architectures": [layout.architectures[family]], **layout.extra}
    decoder = {"model_type": layout.model_types[family], **_decoder(drafter)}
    flags = _flags(drafter, layout)
    aux = _aux(drafter, layout, nested_ids)
    carried = dict(drafter.carried)
    if "rope_interleave" in carried and drafter.dims.attention == "MLA":
        carried["rope_interleave"] = drafter.rope.is_interleaved
    nested = {**layout.extra.get("eagle_config", {}), **carried.pop("eagle_config", {}), **aux.pop("eagle_config", {})}
    vocabulary: dict[str, Any] = {
        "draft_vocab_size": drafter.dims.draft_vocab,
        "target_hidden_size": drafter.dims.target_hidden,
        "tie_word_embeddings": False,
    }
    if dtype := next((TORCH_DTYPES[d] for d in dtypes if d in TORCH_DTYPES), None):
        vocabulary["torch_dtype"] = dtype
    if layout.is_nested_config:
        decoder |= {key: carried.pop(key) for key in LAYER_KEYS if key in carried}
        if drafter.dims.aux != 3:
            decoder["num_aux_hidden_states"] = (
                drafter.dims.aux
            )  # the only place from which vLLM's reader keeps it (vllm#54526)
        config |= {
            "transformer_layer_config": decoder,
            **vocabulary,
            **flags,
            **aux,
            "speculators_config": _speculators_config(drafter),
        }
    else:
        config |= {**decoder, **vocabulary, **flags, **aux}
    config.pop("eagle_config", None)
    if nested:
        config["eagle_config"] = nested
    config |= {key: value for key, value in carried.items() if key not in config}
    return config


def _decoder(drafter: Drafter) -> dict[str, Any]:
    dims, rope = drafter.dims, drafter.rope
    config: dict[str, Any] = {
        "hidden_size": dims.hidden, "intermediate_size": dims.intermediate, "num_hidden_layers": dims.layers, "vocab_size": dims.vocab,
        "num_attention_heads": dims.heads, "num_key_value_heads": dims.kv_heads,
    }  # fmt: skip
    if dims.attention == "MLA":
        # no head_dim: transformers maps that key onto another in DeepseekV2Config
        config |= {
            key: getattr(dims, key)
            for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        }
    else:
        config["head_dim"] = dims.head_dim
    features = drafter.features()
    biases = {
        "attention_bias": bool({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS} & features),
        "mlp_bias": Feature.MLP_BIAS in features,
    }
    return config | {**drafter.settings, **biases, "rope_theta": rope.theta, "rope_scaling": rope.scaling}


def _flags(drafter: Drafter, layout: Layout) -> dict[str, Any]:
    norms = drafter.norms
    flags = {
        "norm_before_residual": norms.norm_before_residual, "fc_norm": norms.fc_norm,
        "norm_output": norms.norm_output, "norm_before_fc": norms.norm_before_fc,
    }  # fmt: skip
    return flags if layout.states_flags else {key: value for key, value in flags.items() if value}


def _aux(drafter: Drafter, layout: Layout, nested_ids: Sequence[int] | None) -> dict[str, Any]:
    aux: dict[str, Any] = {}
    if layout.has_aux_count:
        aux["num_aux_hidden_states"] = drafter.dims.aux
    if layout.has_top_ids and drafter.aux.boundaries is not None:
        aux["eagle_aux_hidden_state_layer_ids"] = list(drafter.aux.boundaries)
    nested: dict[str, Any] = {}
    if nested_ids is not None:
        nested["eagle_aux_hidden_state_layer_ids"] = list(nested_ids)
    if layout.nested_ids is not None:
        nested["use_aux_hidden_state"] = True
    if drafter.norms.norm_before_fc and not layout.is_nested_config:
        nested["norm_before_fc"] = True  # TensorRT-LLM reads it nowhere else
    return {**aux, "eagle_config": nested} if nested else aux


def _speculators_config(drafter: Drafter) -> Mapping[str, Any]:
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier: dict[str, Any] = {"name_or_path": drafter.target.name, "architectures": []}
    return {
        "algorithm": drafter.kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": verifier,
    }
