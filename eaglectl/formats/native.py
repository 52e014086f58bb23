"""The layouts that engines read: the one eaglectl writes for vLLM (and nearly everyone), SGLang's, and unsigned files."""

from collections.abc import Mapping

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.format import Family, Format, Layout, Sighting

_FLAGS = ("norm_before_residual", "fc_norm", "norm_output", "norm_before_fc", "num_aux_hidden_states")
_SGLANG_LACKS = {
    Feature.QK_NORM,
    Feature.NORM_BEFORE_RESIDUAL,
    Feature.ATTENTION_BIAS,
    Feature.OUTPUT_BIAS,
    Feature.MLP_BIAS,
    Feature.PARALLEL,
}


def _vllm(sighting: Sighting) -> str | None:
    if "speculators_model_type" not in sighting.config and all(key in sighting.config for key in _FLAGS):
        return "config states every norm switch and the number of aux states"
    return None


def _sglang(sighting: Sighting) -> str | None:
    if "use_aux_norm" in sighting.config or sighting.has("aux_norm_low"):
        return "SGLang's use_aux_norm or aux_norm names"
    return None


def _sglang_mla(sighting: Sighting) -> str | None:
    return (
        "SGLang's runtime names (w_kc, fused_qkv_a_proj_with_mqa)"
        if sighting.has("w_kc", "fused_qkv_a_proj_with_mqa")
        else None
    )


def _unsigned(sighting: Sighting) -> str | None:
    return "no producer's marks; names that engines read"


_VLLM_ARCHITECTURES: Mapping[Family, str] = {
    "llama": "LlamaForCausalLMEagle3",
    "mla": "Eagle3DeepseekV2ForCausalLM",
    "qwen3": "Eagle3Qwen3ForCausalLM",
}
# deepseek_v3 raises in vLLM and kimi_k2 is half recognised (vllm#45760), so MLA heads say deepseek_v2
_VLLM_TYPES: Mapping[Family, str] = {"llama": "llama", "mla": "deepseek_v2", "qwen3": "qwen3"}

VLLM = Format(
    "vllm", "vLLM's layout, everything stated", _vllm, aux_convention="boundary",
    layout=Layout(
        _VLLM_ARCHITECTURES, _VLLM_TYPES, frozenset(Feature) - {Feature.FC_BIAS},
        has_top_ids=True, nested_ids="sglang", states_flags=True, has_aux_count=True,
    ),
)  # fmt: skip

SGLANG = Format(
    "sglang", "SGLang's layout", _sglang, aux_convention="output",
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}, {"llama": "llama", "mla": "deepseek_v2"},
        frozenset(Feature) - _SGLANG_LACKS - {Feature.FC_BIAS},
        later_norm="hidden_norm", has_top_ids=True, nested_ids="sglang", states_flags=True, has_aux_count=True,
    ),
)  # fmt: skip

# SGLang adds one to a DeepSeek or Kimi target's ids only when the first is 1, so the producer alone decides nothing
SGLANG_MLA = Format("sglang-mla", "SGLang's runtime layout (MLA)", _sglang_mla)

UNSIGNED = Format("native", "an unnamed trainer", _unsigned)
