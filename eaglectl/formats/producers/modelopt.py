"""NVIDIA ModelOpt: the Hugging Face export (layers.N names) and Megatron's (midlayer names, Deep heads)."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.config_schema import MLA_KEYS, SHAPE_KEYS, TRAINER_KEYS
from eaglectl.formats.format import (
    ALWAYS,
    NESTED_IDS,
    Answers,
    CheckpointSummary,
    ConfigSchema,
    Format,
    IdsPlace,
    Layout,
)

_MARKS = ("use_last_layernorm", "next_layer_regular", "parallel_draft_step", "use_mtp_layernorm")
_IDS = (IdsPlace(NESTED_IDS, "output"),)
_SCHEMA_KEYS = (
    *TRAINER_KEYS,
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
    "norm_before_fc",
)
_EXPRESSES = ALWAYS | {
    Feature.MLA,
    Feature.MULTI_LAYER,
    Feature.AUX_COUNT,
    Feature.AUX_LAYERS,
    Feature.QUANTISED,
    Feature.ATTENTION_BIAS,
    Feature.OUTPUT_BIAS,
    Feature.NORM_BEFORE_FC,
}


def _mark(summary: CheckpointSummary) -> str | None:
    found = [key for key in _MARKS if key in summary.nested("eagle_config")]
    return f"eagle_config has {found[0]}" if found else None


def _hf(summary: CheckpointSummary) -> str | None:
    if summary.has("midlayer.") or "embed_tokens.weight" in summary.names:
        return None
    return _mark(summary)


def _megatron(summary: CheckpointSummary) -> str | None:
    if summary.architecture == "LlamaForCausalLMEagle3Deep" or summary.has("midlayer.0."):
        return (
            "numbered midlayer names"
            if summary.has("midlayer.0.")
            else "architecture LlamaForCausalLMEagle3Deep"
        )
    return _mark(summary) if summary.has("midlayer.") and "embed_tokens.weight" not in summary.names else None


def _double_norm(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    if summary.has("hidden_norm"):
        yield Note(
            "warning",
            "training",
            "ModelOpt since its pull request 689 trains with the hidden state normed twice (input_layernorm,"
            " then hidden_norm) and engines norm it once; nothing in the file tells when it was made",
            "double-norm",
        )


MODELOPT = Format(
    "modelopt",
    "NVIDIA ModelOpt",
    _hf,
    priority=60,
    ids=_IDS,
    aux_convention="output",
    states_layers=False,
    orders_ids=True,
    doubts=_double_norm,
    schema=ConfigSchema(keys=MLA_KEYS, eagle_config=_SCHEMA_KEYS, required=(*SHAPE_KEYS, "eagle_config")),
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"},
        {"llama": "llama", "mla": "kimi_k2"},
        _EXPRESSES,
        extra={"eagle_config": {"use_last_layernorm": True}},
    ),
)

MEGATRON = Format(
    "modelopt-megatron",
    "NVIDIA ModelOpt (Megatron)",
    _megatron,
    priority=61,
    ids=_IDS,
    aux_convention="output",
    states_layers=False,
    schema=ConfigSchema(eagle_config=_SCHEMA_KEYS),
    orders_ids=True,
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3Deep"},
        {"llama": "llama"},
        _EXPRESSES - {Feature.MLA},
        layer="midlayer.{}",
        later_norm="hidden_norm",
        extra={"eagle_config": {"use_last_layernorm": True}},
    ),
)
