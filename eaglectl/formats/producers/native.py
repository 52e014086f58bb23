"""The layouts of engines: the default, which vLLM and most others read, SGLang's, llama.cpp's, and unsigned
files.
"""

from collections.abc import Mapping

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.config_keys import MLA_KEYS, SHAPE_KEYS, SWITCH_KEYS
from eaglectl.formats.format import (
    ALL_FACTORS,
    NESTED_IDS,
    TOP_IDS,
    CheckpointSummary,
    ConfigSchema,
    Format,
    IdsPlace,
    Layout,
    ModelClass,
)

_FLAGS = ("norm_before_residual", "fc_norm", "norm_output", "norm_before_fc", "num_aux_hidden_states")
_SGLANG_LACKS = {
    Feature.QK_NORM,
    Feature.NORM_BEFORE_RESIDUAL,
    Feature.ATTENTION_BIAS,
    Feature.OUTPUT_BIAS,
    Feature.MLP_BIAS,
    Feature.PARALLEL,
}

# src/models/eagle3.cpp: one Llama layer on three states, no norm of each, the state before the norm fed back
_LLAMACPP_HAS = {
    Feature.AUX_LAYERS,
    Feature.NORM_BEFORE_FC,
    Feature.NORM_BEFORE_RESIDUAL,
    Feature.WIDE_TARGET,
    Feature.REDUCED_VOCABULARY,
}


# each returns the evidence for its layout, or None


def _vllm(summary: CheckpointSummary) -> str | None:
    return (
        "config states every norm switch and the number of aux states"
        if ("speculators_model_type" not in summary.config and all(key in summary.config for key in _FLAGS))
        else None
    )


def _sglang(summary: CheckpointSummary) -> str | None:
    return (
        "SGLang's use_aux_norm or aux_norm names"
        if ("use_aux_norm" in summary.config or summary.has_any("aux_norm_low"))
        else None
    )


def _sglang_mla(summary: CheckpointSummary) -> str | None:
    return (
        "SGLang's runtime names (w_kc or fused_qkv_a_proj_with_mqa)"
        if summary.has_any("w_kc", "fused_qkv_a_proj_with_mqa")
        else None
    )


_VLLM_ARCHITECTURES: Mapping[ModelClass, str] = {
    "llama": "LlamaForCausalLMEagle3",
    "mla": "Eagle3DeepseekV2ForCausalLM",
    "qwen3": "Eagle3Qwen3ForCausalLM",
}
# deepseek_v3 raises in vLLM and kimi_k2 is half recognised (vllm#45760), so MLA heads are written as
# deepseek_v2
_VLLM_TYPES: Mapping[ModelClass, str] = {"llama": "llama", "mla": "deepseek_v2", "qwen3": "qwen3"}
_EAGLE_CONFIG = ("use_aux_hidden_state", "norm_before_fc")

_VLLM_SCHEMA = ConfigSchema(
    name="vllm-native",
    title="vLLM's own layout",
    keys=(*MLA_KEYS, *SWITCH_KEYS, "mask_token_id", "target_model_type"),
    eagle_config=_EAGLE_CONFIG,
    required=(*SHAPE_KEYS, *SWITCH_KEYS),
)
_SGLANG_SCHEMA = ConfigSchema(
    name="sglang-native",
    title="SGLang's own layout",
    keys=(*MLA_KEYS, *SWITCH_KEYS, "use_aux_norm", "target_model_type"),
    eagle_config=_EAGLE_CONFIG,
    own={
        "norm_before_residual": {
            "type": "boolean",
            "description": "Ignored by SGLang: only false is served as it was trained.",
        }
    },
    required=(*SHAPE_KEYS, "draft_vocab_size"),
)

VLLM = Format(
    "vllm",
    "vLLM's layout",
    _vllm,
    priority=20,
    is_layout=True,
    has_config_class=False,
    ids=(IdsPlace(TOP_IDS, "boundary", is_certain=True), IdsPlace(NESTED_IDS, "sglang")),
    aux_convention="boundary",
    schema=_VLLM_SCHEMA,
    layout=Layout(
        _VLLM_ARCHITECTURES,
        _VLLM_TYPES,
        frozenset(Feature) - {Feature.FC_BIAS},
        states_flags=True,
        has_aux_count=True,
        engines=("vllm",),
        factor_keys=ALL_FACTORS,
        is_default=True,
    ),
)

SGLANG = Format(
    "sglang",
    "SGLang's layout",
    _sglang,
    priority=50,
    is_layout=True,
    has_config_class=False,
    tensor_names={"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"},
    ids=(IdsPlace(NESTED_IDS, "sglang", is_required=True),),
    aux_convention="output",
    schema=_SGLANG_SCHEMA,
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"},
        {"llama": "llama", "mla": "deepseek_v2"},
        frozenset(Feature) - _SGLANG_LACKS - {Feature.FC_BIAS},
        later_norm="hidden_norm",
        extra_ids=(IdsPlace(TOP_IDS, "boundary"),),
        states_flags=True,
        has_aux_count=True,
        lacks={"mla": frozenset({Feature.MULTI_LAYER})},  # kimi_k25_eagle3.py builds one layer
        engines=("sglang",),
        factor_keys=ALL_FACTORS,
        has_null_size=True,
    ),
)

LLAMACPP = Format(
    "llama.cpp",
    "llama.cpp's layout",
    lambda summary: None,  # every folder of it is one of vLLM's too, and is read as such
    priority=52,
    is_layout=True,
    has_config_class=False,
    ids=(IdsPlace(TOP_IDS, "boundary", is_certain=True),),
    aux_convention="boundary",
    schema=_VLLM_SCHEMA,
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3"},
        {"llama": "llama"},
        frozenset(_LLAMACPP_HAS),
        states_flags=True,
        has_aux_count=True,
        engines=("llama.cpp",),
        factor_keys=(),
    ),
)

# SGLang adds one to a DeepSeek or Kimi target's ids only when the first is 1, so the producer alone decides
# nothing
SGLANG_MLA = Format(
    "sglang-mla",
    "SGLang's runtime layout (MLA)",
    _sglang_mla,
    priority=51,
    is_layout=True,
    has_config_class=False,
    schema=_SGLANG_SCHEMA,
)

UNSIGNED = Format(
    "native",
    "an unnamed trainer",
    lambda summary: "no producer's marks; names that engines read",
    priority=999,
    has_config_class=False,
    schema=_VLLM_SCHEMA,
)
