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
    untrained_scaling,
)

_OWN_MARKS = ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers")
# TorchSpec's MLA drafters have these too, and an embedding, which ModelOpt leaves out
_MARKS = (*_OWN_MARKS, "use_last_layernorm", "use_mtp_layernorm")
_CLASSES = ("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3Deep", "Eagle3DeepseekV2ForCausalLM")
_IDS = (IdsPlace(NESTED_IDS, "output"),)
_SCHEMA_KEYS = (
    *TRAINER_KEYS,
    "next_layer_regular",
    "parallel_draft_step",
    "parallel_draft_heads_num_layers",
    "norm_before_fc",
)
# 0.47.0: no such key in its speculative package
_LACKS = "ModelOpt 0.47.0 trains no EAGLE-3.1; its start is EAGLE-3, by --to 3 or without --to"
_CAUTIONS = {Feature.FC_NORM: _LACKS, Feature.NORM_OUTPUT: _LACKS}
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
    """A mark of its own; where somebody has added an embedding, one that nobody else writes."""
    if summary.architecture not in _CLASSES:
        return None  # written by another from a file of ModelOpt's, whose keys were kept
    known = _OWN_MARKS if "embed_tokens.weight" in summary.names else _MARKS
    found = [key for key in known if key in summary.nested("eagle_config")]
    return f"eagle_config has {found[0]}" if found else None


def _hf(summary: CheckpointSummary) -> str | None:
    return None if summary.has("midlayer.") else _mark(summary)


def _megatron(summary: CheckpointSummary) -> str | None:
    if summary.architecture == "LlamaForCausalLMEagle3Deep" or summary.has("midlayer.0."):
        return (
            "numbered midlayer names"
            if summary.has("midlayer.0.")
            else "architecture LlamaForCausalLMEagle3Deep"
        )
    return _mark(summary) if summary.has("midlayer.") else None


def _double_norm(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    era = answers.semantics.get("modelopt")
    if not summary.has("hidden_norm") or era == "pre-689":
        return
    text = (
        "ModelOpt since its pull request 689 trains with the hidden state normed twice (input_layernorm, then"
        " hidden_norm) and engines norm it once"
    )
    if era is None:
        text += (
            "; nothing in the file tells when it was made: --source-semantics modelopt=pre-689 or post-689"
            " does"
        )
    yield Note("warning", "training", text, "double-norm", is_open=True)


def _untrained_rope(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    """Its Llama trainer rotates plainly and its exporter writes yarn (run: 6e-7 plain, 0.2 as written)."""
    scaling = summary.nested("rope_scaling") or summary.nested("rope_parameters")
    if scaling.get("rope_type", scaling.get("type")) != "yarn" or summary.has("kv_a_proj_with_mqa"):
        return
    yield untrained_scaling(
        answers, "ModelOpt's exporter writes a yarn scaling, and its trainer rotates without any"
    )


def _hf_doubts(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    """Where its trainer computes otherwise than engines do."""
    yield from _double_norm(summary, answers)
    yield from _untrained_rope(summary, answers)


MODELOPT = Format(
    "modelopt",
    "NVIDIA ModelOpt",
    _hf,
    priority=60,
    ids=_IDS,
    aux_convention="output",
    training_default=None,  # vllm#50170: a published head without ids drafts nothing on the default layers
    orders_ids=True,
    answers={"modelopt": ("pre-689", "post-689")},
    doubts=_hf_doubts,
    schema=ConfigSchema(keys=MLA_KEYS, eagle_config=_SCHEMA_KEYS, required=(*SHAPE_KEYS, "eagle_config")),
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"},
        {"llama": "llama", "mla": "kimi_k2"},
        _EXPRESSES,
        extra={"eagle_config": {"use_last_layernorm": True}},
        cautions=_CAUTIONS,
    ),
)

MEGATRON = Format(
    "modelopt-megatron",
    "NVIDIA ModelOpt (Megatron)",
    _megatron,
    priority=61,
    ids=_IDS,
    aux_convention="output",
    training_default=None,
    schema=ConfigSchema(eagle_config=_SCHEMA_KEYS),
    orders_ids=True,
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3Deep"},
        {"llama": "llama"},
        _EXPRESSES - {Feature.MLA},
        layer="midlayer.{}",
        later_norm="hidden_norm",
        extra={"eagle_config": {"use_last_layernorm": True}},
        cautions=_CAUTIONS,
    ),
)
