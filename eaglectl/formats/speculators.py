"""vLLM's speculators: the decoder layer's config in an object of its own, flags and boundaries at the top."""

from collections.abc import Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.format import ALWAYS, Format, Layout, Sighting

# speculators saves only what differs from LlamaConfig / Qwen3Config, so what is absent has the class's value
_LAYER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"num_attention_heads": 32},
    "qwen3": {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128},
}

_EXPRESSES = ALWAYS | {
    Feature.QK_NORM, Feature.MULTI_LAYER, Feature.AUX_COUNT, Feature.AUX_LAYERS, Feature.FC_NORM, Feature.NORM_OUTPUT,
    Feature.NORM_BEFORE_FC, Feature.NORM_BEFORE_RESIDUAL, Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS, Feature.SLIDING_WINDOW,
    Feature.QUANTISED,
}  # fmt: skip

_RETIRES = (
    "speculators_model_type",
    "speculators_version",
    "speculators_config",
    "auto_map",
    "embed_requires_grad",
    "has_no_defaults_at_init",
)


def _kind(sighting: Sighting, kind: str) -> str | None:
    return (
        f"config has speculators_model_type: {kind}" if sighting.config.get("speculators_model_type") == kind else None
    )


def flatten(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with transformer_layer_config lifted to the top; the top wins, as in vLLM's reader."""
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        return config
    defaults = _LAYER_DEFAULTS.get(str(layer.get("model_type", "llama")), {})
    top = {key: value for key, value in config.items() if key != "transformer_layer_config" and value is not None}
    return {**defaults, **layer, **top}


SPECULATORS = Format(
    "speculators", "speculators", lambda sighting: _kind(sighting, "eagle3"), aux_convention="boundary", residual_default=True,
    retires=_RETIRES, flatten=flatten,
    layout=Layout(
        {"llama": "Eagle3DraftModel", "qwen3": "Eagle3DraftModel"}, {"llama": "llama", "qwen3": "qwen3"}, _EXPRESSES,
        has_top_ids=True, states_flags=True, is_nested_config=True, extra={"speculators_model_type": "eagle3"},
    ),
)  # fmt: skip

PEAGLE = Format(
    "peagle", "speculators (P-EAGLE)", lambda sighting: _kind(sighting, "peagle"), aux_convention="boundary",
    retires=_RETIRES, flatten=flatten,
    layout=Layout(
        {"llama": "PEagleDraftModel", "qwen3": "PEagleDraftModel"}, {"llama": "llama", "qwen3": "qwen3"},
        (_EXPRESSES | {Feature.PARALLEL}) - {Feature.FC_NORM, Feature.NORM_OUTPUT},
        has_top_ids=True, states_flags=True, is_nested_config=True, extra={"speculators_model_type": "peagle"},
    ),
)  # fmt: skip
