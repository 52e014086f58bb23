"""NVIDIA NeMo Automodel: `model.` names, the target's config with the drafter's keys added, ids left out."""

from collections.abc import Iterable, Mapping
from typing import Any

from eaglectl.drafter.drafter import SLIDING, Feature, Note
from eaglectl.formats.config_keys import MLA_KEYS, WINDOW_KEYS
from eaglectl.formats.format import (
    ALWAYS,
    STORED,
    Answers,
    CheckpointSummary,
    ConfigSchema,
    Format,
    Layout,
    RopeAnswer,
    rope_question,
)


def _recognise(summary: CheckpointSummary) -> str | None:
    if summary.architecture.endswith("Eagle3DraftModel"):
        return f"architecture {summary.architecture}"
    return (
        "names begin with model.layers.0.hidden_norm"
        if summary.has_any("model.layers.0.hidden_norm")
        else None
    )


def _doubts(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    scaling = summary.nested("rope_scaling") or summary.nested("rope_parameters")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    is_mla, model_type = summary.has_any("kv_a_proj_with_mqa"), summary.config.get("model_type")
    if isinstance(kinds := summary.config.get("layer_types"), list) and SLIDING in kinds:
        yield Note(
            "note",
            "layer_types",
            "layer_types and sliding_window are the target's, and NeMo's drafters attend to the whole"
            " context; convert leaves them out",
        )
    # its pull request 2825, after 0.5.0; gpt-oss had a class of its own with yarn from the beginning
    if not is_mla and kind not in ("default", "llama3") and model_type != "gpt_oss":
        about = f"NeMo Automodel up to 0.5.0 rotates by llama3's schedule where the config says {kind}"
        values = {"stored": STORED, "llama3": "what 0.5.0 trained"}
        if RopeAnswer.of(answers).scaling is None:
            yield rope_question(answers, "rope_scaling", about, "rope-untrained", values, "stored")
    if is_mla and kind == "yarn" and scaling.get("factor", 1) != 1:
        yield Note(
            "problem",
            "rope_scaling",
            "NeMo trains MLA heads without YaRN's mscale, by which engines multiply the softmax scale;"
            " convert divides q_b_proj by it",
            "training-unservable",
        )


_KEYS: Mapping[str, Mapping[str, Any]] = {
    "num_hidden_layers": {
        "type": "integer",
        "minimum": 1,
        "description": "NeMo copies the target's depth; the drafter has as many layers as its weights.",
    },
    "parallel_drafting": {
        "type": "boolean",
        "description": "P-EAGLE: several tokens are proposed at once, which needs mask_hidden.",
    },
    "num_depths": {
        "type": "integer",
        "minimum": 1,
        "description": "P-EAGLE, training: depths that are predicted in parallel.",
    },
    "down_sample_ratio": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1,
        "description": "P-EAGLE, training: share of positions kept from one depth to the next.",
    },
}

AUTOMODEL = Format(
    "automodel",
    "NeMo Automodel",
    _recognise,
    priority=40,
    doubts=_doubts,
    retires=WINDOW_KEYS,
    has_mla_factors=False,
    copies_target=True,
    states_layers=False,
    has_unordered_rows=True,  # lm_head is in the order of frequency
    schema=ConfigSchema(keys=(*MLA_KEYS, "fc_norm", "norm_output", "mask_token_id"), own=_KEYS),
    layout=Layout(
        {"llama": "LlamaEagle3DraftModel"},
        {"llama": "llama"},
        ALWAYS | {Feature.FC_NORM, Feature.NORM_OUTPUT, Feature.AUX_COUNT, Feature.PARALLEL},
        prefix="model.",
    ),
)
