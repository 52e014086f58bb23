"""NVIDIA NeMo Automodel: `model.` names, the target's config with the drafter's keys added, ids left out."""

from collections.abc import Iterable, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.config_keys import MLA_KEYS
from eaglectl.formats.format import ALWAYS, Answers, CheckpointSummary, ConfigSchema, Format, Layout


def _recognise(summary: CheckpointSummary) -> str | None:
    if summary.architecture.endswith("Eagle3DraftModel"):
        return f"architecture {summary.architecture}"
    return (
        "names begin with model.layers.0.hidden_norm"
        if summary.has_any("model.layers.0.hidden_norm")
        else None
    )


def _mscale(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    scaling = summary.nested("rope_scaling") or summary.nested("rope_parameters")
    is_scaled = scaling.get("rope_type", scaling.get("type")) == "yarn" and scaling.get("factor", 1) != 1
    if summary.has_any("kv_a_proj_with_mqa") and is_scaled:
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
    doubts=_mscale,
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
