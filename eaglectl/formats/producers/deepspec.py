"""DeepSpec: an EAGLE-3 layer of Qwen3, the target's own embedding and head, five aux states by default."""

from collections.abc import Iterable, Mapping
from typing import Any

from eaglectl.drafter.drafter import Note
from eaglectl.formats.format import Answers, CheckpointSummary, ConfigSchema, Format, IdsPlace

_IDS = "target_layer_ids"
# its training's own settings, which nothing that serves a drafter reads
_TRAINING = ("ttt_length", "step_loss_decay", "draft_num_hidden_layers")


def _recognise(summary: CheckpointSummary) -> str | None:
    """By its class, or by its key of layer ids where the class was renamed for an engine.

    Beside names that it never writes the key is another's mark in a file, and is asked about.
    """
    if summary.architecture == "Qwen3Eagle3Model":
        return "architecture Qwen3Eagle3Model"
    if summary.has_any("midlayer."):
        return None
    return f"config has {_IDS}" if summary.config.get(_IDS) else None


def _last_layer(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    """Its cache of target states is made with hooks on layers, and its evaluation refuses the last one."""
    ids, depth = summary.config.get(_IDS), summary.config.get("num_target_layers")
    if isinstance(ids, list) and type(depth) is int and depth - 1 in ids:
        yield Note(
            "warning",
            _IDS,
            f"{_IDS} names the target's last layer, {depth - 1}; DeepSpec's own evaluation refuses such a"
            " drafter, as transformers gives that state after the final norm and hooks before it: compare"
            " acceptance before a release",
            "aux-range",
        )


_OWN: Mapping[str, Mapping[str, Any]] = {
    "num_target_layers": {"type": "integer", "minimum": 1, "description": "Layers of the target."},
    "target_model_name_or_path": {"type": "string", "description": "The target."},
    "draft_num_hidden_layers": {
        "type": "integer",
        "minimum": 1,
        "description": "Layers of the drafter; all of them take the embedding beside the hidden state.",
    },
    "ttt_length": {"type": "integer", "minimum": 1, "description": "Draft steps that were trained."},
    "step_loss_decay": {
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Weight of a draft step's loss, as a share of the one before.",
    },
}

DEEPSPEC = Format(
    "deepspec",
    "DeepSpec",
    _recognise,
    priority=35,
    ids=(IdsPlace(_IDS, "output", is_certain=True),),  # it takes hidden_states[id + 1]
    retires=(*_TRAINING, "num_target_layers", "target_model_name_or_path"),
    target_key="target_model_name_or_path",
    doubts=_last_layer,
    schema=ConfigSchema(own=_OWN),
)
