"""vLLM's speculators: the decoder layer's config in an object of its own, flags and boundaries at the top."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.formats.config_keys import DECODER_KEYS, WINDOW_KEYS, common_keys
from eaglectl.formats.format import (
    ALL_FACTORS,
    ALWAYS,
    TOP_IDS,
    CheckpointSummary,
    ConfigSchema,
    Format,
    IdsPlace,
    Layout,
)

# speculators saves only what differs from LlamaConfig / Qwen3Config, so what is absent has the class's value
_LAYER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"num_attention_heads": 32},
    "qwen3": {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128},
}
# carried keys that belong to the decoder layer's own config
_LAYER_KEYS = (
    *WINDOW_KEYS,
    "attention_dropout",
    "initializer_range",
    "pretraining_tp",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)

_EXPRESSES = ALWAYS | {
    Feature.QK_NORM,
    Feature.MULTI_LAYER,
    Feature.AUX_COUNT,
    Feature.AUX_LAYERS,
    Feature.FC_NORM,
    Feature.NORM_OUTPUT,
    Feature.NORM_BEFORE_FC,
    Feature.NORM_BEFORE_RESIDUAL,
    Feature.ATTENTION_BIAS,
    Feature.OUTPUT_BIAS,
    Feature.MLP_BIAS,
    Feature.SLIDING_WINDOW,
    Feature.QUANTISED,
}

_TARGET = "speculators_config.verifier.name_or_path"
_WANTS_EMBEDDING = (
    "speculators' own trainer (run: 0.9.0) wants embed_tokens in the file, and without it trains on"
    " whatever its memory held; add the target's, as docs/trainers.md shows. vLLM serves without"
)
_RETIRES = (
    "speculators_model_type",
    "speculators_version",
    "speculators_config",
    "auto_map",
    "embed_requires_grad",
    "has_no_defaults_at_init",
)


def _recognise(summary: CheckpointSummary, kind: str) -> str | None:
    if summary.config.get("speculators_model_type") != kind:
        return None
    return f"config has speculators_model_type: {kind}"


def flatten(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with transformer_layer_config lifted to the top; the top wins, as in vLLM."""
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        return config
    defaults = _LAYER_DEFAULTS.get(str(layer.get("model_type", "llama")), {})
    top = {
        key: value for key, value in config.items() if key != "transformer_layer_config" and value is not None
    }
    return {**defaults, **layer, **top}


def nest(
    drafter: Drafter, decoder: dict[str, Any], rest: dict[str, Any], carried: dict[str, Any]
) -> dict[str, Any]:
    """Return the config with the decoder's keys in transformer_layer_config, and a speculators_config."""
    layer = decoder | {key: carried.pop(key) for key in _LAYER_KEYS if key in carried}
    if drafter.dims.aux != 3:
        layer["num_aux_hidden_states"] = (
            drafter.dims.aux
        )  # vLLM's reader keeps it from nowhere else (vllm#54526)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    use: dict[str, Any] = {
        "algorithm": drafter.kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [proposal],
        "verifier": {"name_or_path": drafter.target.name, "architectures": []},
    }
    return {"transformer_layer_config": layer, **rest, "speculators_config": use}


_TOP_KEYS = (
    "draft_vocab_size",
    "target_hidden_size",
    "architectures",
    "torch_dtype",
    "quantization_config",
    "rope_interleave",
)
_PROPOSAL = {
    "type": "object",
    "properties": {
        "proposal_type": {"type": "string", "description": "How tokens are chosen: greedy."},
        "speculative_tokens": {
            "type": "integer",
            "minimum": 1,
            "description": "Tokens proposed in one step.",
        },
        "accept_tolerance": {
            "type": "number",
            "minimum": 0,
            "description": "How much less likely than the best a token may be.",
        },
        "verifier_accept_k": {
            "type": "integer",
            "minimum": 1,
            "description": "The verifier accepts its k likeliest tokens.",
        },
    },
}
_VERIFIER = {
    "type": "object",
    "description": "The target.",
    "properties": {
        "name_or_path": {
            "type": ["string", "null"],
            "description": "The target's name on the Hub; a path of one machine serves nobody else.",
        },
        "architectures": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The target's class.",
        },
    },
}
_KINDS = ["eagle3", "peagle"]
_KEYS: Mapping[str, Mapping[str, Any]] = {
    "speculators_model_type": {"enum": _KINDS, "description": "What kind of speculator this is."},
    "speculators_version": {"type": "string", "description": "Version of speculators that wrote the file."},
    "speculators_config": {
        "type": "object",
        "description": "How the speculator is meant to be used, and with which target.",
        "properties": {
            "algorithm": {"enum": _KINDS, "description": "The same as speculators_model_type."},
            "default_proposal_method": {
                "type": "string",
                "description": "Which of proposal_methods is used.",
            },
            "proposal_methods": {
                "type": "array",
                "items": _PROPOSAL,
                "minItems": 1,
                "description": "Ways to propose tokens.",
            },
            "verifier": _VERIFIER,
        },
    },
    "transformer_layer_config": {
        "type": "object",
        "description": "The decoder layer's own config; what is absent has its class's value.",
        "properties": common_keys(
            *(key for key in DECODER_KEYS if key not in _TOP_KEYS), "num_aux_hidden_states"
        ),
        "required": ["model_type"],
    },
    "embed_requires_grad": {"type": "boolean", "description": "Trainer's switch: the embedding is trained."},
    "norm_before_residual": {
        "type": "boolean",
        "description": "The residual is the hidden state after its norm; true where absent (P-EAGLE: false).",
    },
}
_SCHEMA = ConfigSchema(
    name="speculators",
    title="speculators",
    keys=(
        "architectures",
        "dtype",
        "torch_dtype",
        "draft_vocab_size",
        "target_hidden_size",
        "tie_word_embeddings",
        "fc_norm",
        "norm_output",
        "norm_before_fc",
        "mask_token_id",
        "transformers_version",
        "quantization_config",
    ),
    own=_KEYS,
    required=("architectures", "speculators_model_type", "speculators_config", "transformer_layer_config"),
    has_decoder=False,
)

SPECULATORS = Format(
    "speculators",
    "speculators",
    partial(_recognise, kind="eagle3"),
    priority=10,
    # its converter, which copies ids from others' files, writes Eagle3Speculator
    ids=(IdsPlace(TOP_IDS, "boundary", certain_in=("Eagle3DraftModel",)),),
    aux_convention="boundary",
    residual_default=True,
    retires=_RETIRES,
    flat=flatten,
    target_key=_TARGET,
    schema=_SCHEMA,
    layout=Layout(
        {"llama": "Eagle3DraftModel", "qwen3": "Eagle3DraftModel"},
        {"llama": "llama", "qwen3": "qwen3"},
        _EXPRESSES,
        states_flags=True,
        nest=nest,
        needs_embedding=_WANTS_EMBEDDING,
        extra={"speculators_model_type": "eagle3"},
        engines=("vllm",),
        factor_keys=ALL_FACTORS,
        training="speculators train --from-pretrained OUT, with the target's embed_tokens in its file and"
        " without --draft-vocab-size (with it, the data's vocabulary takes the place of OUT's, and lm_head"
        " does not fit); lm_head and embedding are not trained",
    ),
)

PEAGLE = Format(
    "peagle",
    "speculators (P-EAGLE)",
    partial(_recognise, kind="peagle"),
    priority=11,
    is_parallel=True,
    ids=(IdsPlace(TOP_IDS, "boundary", certain_in=("PEagleDraftModel",)),),
    aux_convention="boundary",
    retires=_RETIRES,
    flat=flatten,
    target_key=_TARGET,
    schema=_SCHEMA,
    layout=Layout(
        {"llama": "PEagleDraftModel", "qwen3": "PEagleDraftModel"},
        {"llama": "llama", "qwen3": "qwen3"},
        (_EXPRESSES | {Feature.PARALLEL}) - {Feature.FC_NORM, Feature.NORM_OUTPUT},
        states_flags=True,
        nest=nest,
        needs_embedding=_WANTS_EMBEDDING,
        extra={"speculators_model_type": "peagle"},
        factor_keys=ALL_FACTORS,
    ),
)
