"""NVIDIA ModelOpt: the Hugging Face export (layers.N names) and Megatron's (midlayer names, Deep heads)."""

import re
from collections.abc import Iterable

from eaglectl.drafter.drafter import (
    DOUBLE_NORM,
    HIDDEN_NORM,
    ONE_NORM,
    TWICE,
    Choice,
    Feature,
    Note,
    question,
)
from eaglectl.formats.config_keys import MLA_KEYS, SHAPE_KEYS, TRAINER_KEYS
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
_RELEASE, _TWICE_SINCE = r"(\d{1,4})\.(\d{1,4})", (0, 41)
_ERAS = (
    Choice("--source-semantics", "modelopt=post-689", "by 0.41.0 or later: normed twice", is_usual=True),
    Choice("--source-semantics", "modelopt=pre-689", "by an earlier release: normed once"),
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
    """Return the evidence, in words, that ModelOpt wrote the file; None without any."""
    if summary.architecture not in _CLASSES:
        return None  # another tool made it of ModelOpt's file, and kept the keys
    marks = [
        key
        for key in (_OWN_MARKS if "embed_tokens.weight" in summary.names else _MARKS)
        if key in summary.nested("eagle_config")
    ]
    return f"eagle_config has {marks[0]}" if marks else None


def _hf(summary: CheckpointSummary) -> str | None:
    return None if summary.has_any("midlayer.") else _mark(summary)


def _megatron(summary: CheckpointSummary) -> str | None:
    if summary.has_any("midlayer.0."):
        return "numbered midlayer names"
    if summary.architecture == "LlamaForCausalLMEagle3Deep":
        return "architecture LlamaForCausalLMEagle3Deep"
    return _mark(summary) if summary.has_any("midlayer.") else None


def _version(summary: CheckpointSummary) -> tuple[int, ...] | None:
    for quantisation in (summary.nested("quantization_config"), summary.quantisation):
        match quantisation.get("producer"):
            case {"name": "modelopt", "version": str(text)} if release := re.match(_RELEASE, text):
                return tuple(map(int, release.groups()))
    return None


def _hidden_twice(summary: CheckpointSummary, answers: Answers) -> bool | None:
    """Whether the state was normed twice; None where neither an answer nor the file says it.

    transformers.py of 0.41.0 to 0.44.0 and modeling_eagle.py since: layer 0 keeps its input_layernorm, whose
    output the hook of its attention norms again. 0.40.0 put an Identity there. The exporter's names are
    layers.N since 0.43.0, midlayer before, and it writes no metadata; Megatron's norms once, its names are
    midlayer, and its metadata is {"format": "pt"}. next_layer_regular is written since 0.41.0.
    """
    if not summary.has_any("hidden_norm"):
        return False
    if (era := answers.semantics.get("modelopt")) is not None:
        return era == "post-689"
    if (version := _version(summary)) is not None:
        return version >= _TWICE_SINCE and not (summary.has_any("midlayer.") and summary.metadata)
    if summary.has_any("midlayer."):
        return not summary.metadata and "next_layer_regular" in summary.nested("eagle_config")
    return None if summary.metadata else True


def _double_norm(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    # ask, or warn, about a hidden state that was normed twice in training: engines norm it once
    if answers.semantics.get("hidden_norm") or _mark(summary) is None:
        return
    match _hidden_twice(summary, answers):
        case None:
            yield question(
                HIDDEN_NORM,
                "ModelOpt up to 0.40 trains with the hidden state normed once, as engines norm it, and since"
                " 0.41.0 (its pull request 689) twice; this file was written again since, and does not show"
                " by which",
                DOUBLE_NORM,
                _ERAS,
            )
        case True:
            yield Note("warning", HIDDEN_NORM, TWICE, DOUBLE_NORM, is_open=True, advice=ONE_NORM)


def _untrained_rope(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    """Its Llama trainer rotates plainly and its exporter writes yarn (run: 6e-7 plain, 0.2 as written)."""
    scaling = summary.nested("rope_scaling") or summary.nested("rope_parameters")
    if scaling.get("rope_type", scaling.get("type")) != "yarn" or summary.has_any("kv_a_proj_with_mqa"):
        return
    yield untrained_scaling(
        answers, "ModelOpt's exporter writes a yarn scaling, and its trainer rotates without any"
    )


def _hf_doubts(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
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
    hidden_twice=_hidden_twice,
    answers={"modelopt": ("pre-689", "post-689")},
    doubts=_hf_doubts,
    schema=ConfigSchema(keys=MLA_KEYS, eagle_config=_SCHEMA_KEYS, required=(*SHAPE_KEYS, "eagle_config")),
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"},
        {"llama": "llama", "mla": "kimi_k2"},
        _EXPRESSES,
        extra={"eagle_config": {"use_last_layernorm": True}},
        cautions=_CAUTIONS,
        norms_twice=True,
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
    hidden_twice=_hidden_twice,
    doubts=_double_norm,
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
