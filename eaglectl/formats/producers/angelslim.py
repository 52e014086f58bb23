"""Tencent AngelSlim: midlayer names, d2t and t2d always, no flags, and an ids key of its own."""

from collections.abc import Iterable, Mapping

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import (
    ALWAYS,
    TOP_IDS,
    Answers,
    CheckpointSummary,
    ConfigSchema,
    Format,
    IdsPlace,
    Layout,
    rope_doubt,
    untrained_scaling,
)

# it trains none of these; vLLM's own class has the same name as AngelSlim's
_OF_VLLM = (
    TOP_IDS,
    "num_aux_hidden_states",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
)


_COSYVOICE = "CosyVoice3Eagle3LlamaForCausalLM"


def _recognise(summary: CheckpointSummary) -> str | None:
    # a mark of AngelSlim's trainer; vLLM's own class has the same name, and its files have keys or norms that
    # the trainer does not write
    if "modal_type" in summary.config:
        return "config has modal_type"
    is_of_vllm = any(summary.config.get(key) for key in _OF_VLLM) or summary.has_any(
        "input_norm.", "fc_norm."
    )
    has_maps = {"d2t", "t2d"} <= {name.rpartition(".")[2] for name in summary.names}
    if summary.architecture.endswith("Eagle3LlamaForCausalLM") and has_maps and not is_of_vllm:
        return (
            f"architecture {summary.architecture} with midlayer names"
            if summary.has_any("midlayer.")
            else None
        )
    return None


def _scaling(summary: CheckpointSummary) -> Mapping[str, object]:
    return {**summary.nested("rope_scaling"), **summary.nested("rope_parameters")}


def _trained_rope(summary: CheckpointSummary) -> Mapping[str, str]:
    """Return the rope answer for drafters of its published trainer, whose rotary embedding gets no base.

    llama_eagle3.py has done so in every commit from 917de3a (October 2025) to 67394ce (August 2026), except
    for mrope. The trainer has needed transformers 5 since e138f05, and has had CosyVoice3's class from the
    beginning; drafters that AngelSlim published before are of neither kind.
    """
    is_of_trainer = summary.architecture == _COSYVOICE or str(
        summary.config.get("transformers_version")
    ).startswith("5.")
    is_open = {"mrope_section", "alpha"} & set(_scaling(summary))
    return {"rope": "10000"} if is_of_trainer and not is_open else {}


def _rope(summary: CheckpointSummary, answers: Answers) -> Iterable[Note]:
    # doubts about rope settings that the trainer does not read, and engines do
    scaling = _scaling(summary)
    if scaling.get("alpha") is not None:
        yield untrained_scaling(
            answers, "AngelSlim's trainer reads no alpha of a rope scaling, by which vLLM multiplies the base"
        )
    yield from rope_doubt(
        summary,
        answers,
        "AngelSlim's trainer",
        is_exempt="mrope_section" in scaling,
        is_known=bool(_trained_rope(summary)),
    )


ANGELSLIM = Format(
    "angelslim",
    "AngelSlim",
    _recognise,
    priority=70,
    ids=(
        IdsPlace("aux_hidden_states_layer_ids", "output", is_certain=True),
    ),  # it takes hidden_states[id + 1]
    settles=_trained_rope,
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
        scalings=("linear", "dynamic", "default", "mrope"),
    ),
)
