"""TorchSpec (Llama and MLA) and the Kimi heads that lightseekorg published from it."""

from collections.abc import Iterable, Mapping

from eaglectl.drafter.drafter import Choice, Feature, Note, question
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
    ModelClass,
    rope_doubt,
)

_EXPRESSES = ALWAYS | {
    Feature.MLA,
    Feature.AUX_COUNT,
    Feature.AUX_LAYERS,
    Feature.FC_NORM,
    Feature.NORM_OUTPUT,
}
_BEFORE_97 = (
    "TorchSpec up to 0.1.0 (commit 6f21829) has neither fc_norm nor norm_output and leaves both out without a"
    " word: train this start with sources that have its pull request 97, or use --for speculators"
)
_ARCHITECTURES: Mapping[ModelClass, str] = {
    "llama": "LlamaForCausalLMEagle3",
    "mla": "Eagle3DeepseekV2ForCausalLM",
}


# the name of its MLA class until 6897040 (6 April 2026), which rotated by halves until d34954b (4 April)
_BEFORE_61 = "DeepSeekForCausalLMEagle3"
_PAIRINGS = (
    Choice("--source-semantics", "rope_interleave=false", "trained before 4 April 2026", is_usual=True),
    Choice("--source-semantics", "rope_interleave=true", "trained since"),
)


def _torchspec(summary: CheckpointSummary) -> str | None:
    if summary.architecture == _BEFORE_61:
        return f"TorchSpec's architecture {_BEFORE_61}"
    if "_torchspec_version" in summary.config:
        return "config has _torchspec_version"
    return "file metadata has torchspec_version" if "torchspec_version" in summary.metadata else None


def _for_vllm(summary: CheckpointSummary) -> str | None:
    """Its `--vllm` export of a Kimi head, which adds one to the ids (tools/convert_to_hf.py)."""
    marks = _torchspec(summary)
    return (
        f"{marks}, names and model_type of its --vllm export"
        if marks and not summary.has_any("midlayer.") and summary.config.get("model_type") == "kimi_k2"
        else None
    )


def _lightseekorg(summary: CheckpointSummary) -> str | None:
    # a mark of the organisation's published MLA drafters, whose ids count from 2
    is_mla = summary.architecture == "Eagle3DeepseekV2ForCausalLM" and summary.has_any("kv_a_proj_with_mqa")
    nested = summary.nested("eagle_config").get("eagle_aux_hidden_state_layer_ids")
    if (
        is_mla
        and isinstance(nested, list)
        and nested
        and nested[0] == 2
        and "embed_tokens.weight" in summary.names
    ):
        return "Eagle3DeepseekV2ForCausalLM with its own embedding and eagle_config ids from 2"
    return None


def _rope(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    # doubts about base and pairing of MLA attention, which depend on the trainer's version
    if summary.has_any("kv_a_proj_with_mqa", "fused_qkv_a_proj"):
        yield from rope_doubt(summary, answers, "TorchSpec's MLA attention")
    is_stated = "rope_interleave" in summary.config or "rope_interleave" in answers.semantics
    if summary.architecture == _BEFORE_61 and not is_stated:
        yield question(
            "rope_interleave",
            "TorchSpec's MLA attention paired rotary dimensions by halves before its pull request 58",
            "rope-pairing",
            _PAIRINGS,
        )


_KEYS = (*MLA_KEYS, "fc_norm", "norm_output")
_VERSION = {"type": "string", "description": "Version of TorchSpec that wrote the file."}
_SCHEMA = ConfigSchema(keys=_KEYS, eagle_config=TRAINER_KEYS, own={"_torchspec_version": _VERSION})

TORCHSPEC = Format(
    "torchspec",
    "TorchSpec",
    _torchspec,
    priority=31,
    ids=(IdsPlace(NESTED_IDS, "output"),),
    aux_convention="output",
    schema=_SCHEMA,
    retires=("_torchspec_version",),
    doubts=_rope,
    layout=Layout(
        _ARCHITECTURES,
        {"llama": "llama", "mla": "kimi_k2"},
        _EXPRESSES,
        layer="midlayer",
        extra={"_torchspec_version": "written by eaglectl"},
        cautions={Feature.FC_NORM: _BEFORE_97, Feature.NORM_OUTPUT: _BEFORE_97},
        training='"fc_norm": {fc_norm}, "norm_output": {norm_output} in the draft model\'s config; its'
        " training.load_path takes its own distributed checkpoints",
    ),
)

TORCHSPEC_VLLM = Format(
    "torchspec-vllm",
    "TorchSpec (--vllm)",
    _for_vllm,
    priority=30,
    ids=(IdsPlace(NESTED_IDS, "boundary"),),
    aux_convention="boundary",
    schema=_SCHEMA,
    retires=("_torchspec_version",),
    doubts=_rope,
    layout=Layout(
        {"mla": _ARCHITECTURES["mla"]},
        {"mla": "kimi_k2"},
        _EXPRESSES,
        extra={"_torchspec_version": "written by eaglectl"},
    ),
)

LIGHTSEEKORG = Format(
    "lightseekorg",
    "lightseekorg (TorchSpec, Kimi MLA)",
    _lightseekorg,
    priority=110,
    ids=(IdsPlace(NESTED_IDS, "boundary"),),
    aux_convention="boundary",
    schema=ConfigSchema(keys=_KEYS, eagle_config=TRAINER_KEYS, required=(*SHAPE_KEYS, "eagle_config")),
    doubts=_rope,
    layout=Layout(_ARCHITECTURES, {"llama": "llama", "mla": "kimi_k2"}, _EXPRESSES),
)
