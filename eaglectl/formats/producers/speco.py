"""verl-SpeCo's P-EAGLE drafters: a model_type of their own, and layers that its config does not state."""

from collections.abc import Mapping
from typing import Any

from eaglectl.formats.config_keys import SHAPE_KEYS
from eaglectl.formats.format import CheckpointSummary, ConfigSchema, Format

_KEYS: Mapping[str, Mapping[str, Any]] = {
    "num_draft_layers": {"type": "integer", "minimum": 1, "description": "Decoder layers of the drafter."},
    "num_depths": {"type": "integer", "minimum": 1, "description": "Training: depths predicted in parallel."},
    "down_sample_ratio": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1,
        "description": "Training: share of positions kept from one depth to the next.",
    },
    "down_sample_ratio_min": {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "description": "Training: the least share of positions kept.",
    },
    "parallel_drafting": {
        "type": "boolean",
        "description": "P-EAGLE: several tokens are proposed at once, which needs mask_hidden.",
    },
}


def _recognise(summary: CheckpointSummary) -> str | None:
    if summary.config.get("model_type") == "llama_peagle":
        return "model_type llama_peagle"
    return (
        "architecture LlamaForCausalLMPeagle" if (summary.architecture == "LlamaForCausalLMPeagle") else None
    )


SPECO = Format(
    "speco",
    "verl-SpeCo (P-EAGLE)",
    _recognise,
    priority=35,
    is_parallel=True,
    training_default=None,  # the layers are an option of the run, which its config does not keep
    schema=ConfigSchema(
        keys=("fc_norm", "norm_output", "num_aux_hidden_states", "mask_token_id"),
        own=_KEYS,
        required=(*SHAPE_KEYS, "num_aux_hidden_states"),
    ),
)
