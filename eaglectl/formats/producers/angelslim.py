"""Tencent AngelSlim: midlayer names, d2t and t2d always, no flags, and an ids key of its own."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import (
    ALWAYS,
    Answers,
    CheckpointSummary,
    ConfigSchema,
    Format,
    IdsPlace,
    Layout,
    rope_doubt,
)


def _recognise(summary: CheckpointSummary) -> str | None:
    if "modal_type" in summary.config:
        return "config has modal_type"
    if summary.architecture.endswith("Eagle3LlamaForCausalLM") and summary.has("midlayer."):
        return f"architecture {summary.architecture} with midlayer names"
    return None


def _rope(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    has_mrope = "mrope_section" in {**summary.nested("rope_scaling"), **summary.nested("rope_parameters")}
    return rope_doubt(summary, answers, "AngelSlim", is_sure=True, is_exempt=has_mrope)


ANGELSLIM = Format(
    "angelslim",
    "AngelSlim",
    _recognise,
    priority=70,
    ids=(
        IdsPlace("aux_hidden_states_layer_ids", "output", is_certain=True),
    ),  # it takes hidden_states[id + 1]
    doubts=_rope,
    retires=("modal_type",),
    schema=ConfigSchema(
        keys=("target_model_type",),
        own={"modal_type": {"type": "string", "description": "What the target takes in."}},
    ),
    layout=Layout(
        {"llama": "Eagle3LlamaForCausalLM"},
        {"llama": "llama"},
        ALWAYS | {Feature.AUX_LAYERS, Feature.SLIDING_WINDOW, Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS},
        layer="midlayer",
        has_identity_map=True,
        extra={"modal_type": "LLM"},
    ),
)
