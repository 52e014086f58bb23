"""SafeAILab EAGLE, and nebius in its spelling: midlayer names, no flags, fixed aux layers."""

from eaglectl.drafter.drafter import Feature
from eaglectl.formats.config_schema import SHAPE_KEYS
from eaglectl.formats.format import ALWAYS, CheckpointSummary, ConfigSchema, Format, Layout


def _eagle(summary: CheckpointSummary) -> str | None:
    is_own = summary.architecture == "LlamaForCausalLM" and summary.has("midlayer.")
    return "architecture LlamaForCausalLM with midlayer names" if is_own else None


def _nebius(summary: CheckpointSummary) -> str | None:
    return "config has truncated_vocab_size" if "truncated_vocab_size" in summary.config else None


_LAYOUT = Layout(
    architectures={"llama": "LlamaForCausalLM"},
    model_types={"llama": "llama"},
    expresses=ALWAYS | {Feature.SLIDING_WINDOW},
    layer="midlayer",
)

EAGLE = Format("eagle", "SafeAILab EAGLE", _eagle, priority=100, layout=_LAYOUT)
NEBIUS = Format(
    "nebius",
    "nebius",
    _nebius,
    priority=80,
    retires=("truncated_vocab_size",),
    schema=ConfigSchema(
        own={
            "truncated_vocab_size": {
                "type": "integer",
                "minimum": 1,
                "description": "nebius' name of draft_vocab_size, beside it.",
            }
        },
        required=(*SHAPE_KEYS, "truncated_vocab_size"),
    ),
    layout=_LAYOUT,
)
