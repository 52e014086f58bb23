"""SafeAILab EAGLE, and nebius in its spelling: midlayer names, no flags, fixed aux layers."""

from collections.abc import Iterable

from msgspec.structs import replace

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.config_keys import SHAPE_KEYS
from eaglectl.formats.format import (
    ALWAYS,
    Answers,
    CheckpointSummary,
    ConfigSchema,
    Format,
    Layout,
    rope_doubt,
)


def _eagle(summary: CheckpointSummary) -> str | None:
    return (
        "architecture LlamaForCausalLM with midlayer names"
        if (summary.architecture == "LlamaForCausalLM" and summary.has_any("midlayer."))
        else None
    )


def _nebius(summary: CheckpointSummary) -> str | None:
    return "config has truncated_vocab_size" if "truncated_vocab_size" in summary.config else None


def _doubts(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    """Its trainer's attention asks for no base and stops at other scalings (traineagle3/cnets.py:207-224).

    SpecJAX, which writes its spelling without hidden_act, reads the base.
    """
    scaling = summary.nested("rope_scaling") or summary.nested("rope_parameters")
    is_exempt = (
        scaling.get("rope_type", scaling.get("type")) not in (None, "default")
    ) or "hidden_act" not in summary.config
    yield from rope_doubt(summary, answers, "SafeAILab's trainer", is_exempt=is_exempt)


_LAYOUT = Layout(
    architectures={"llama": "LlamaForCausalLM"},
    model_types={"llama": "llama"},
    expresses=ALWAYS | {Feature.SLIDING_WINDOW},
    layer="midlayer",
)

EAGLE = Format(
    "eagle",
    "SafeAILab EAGLE",
    _eagle,
    priority=100,
    doubts=_doubts,
    layout=replace(_LAYOUT, scalings=("linear", "dynamic", "default")),
)
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
