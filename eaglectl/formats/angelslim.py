"""Tencent AngelSlim: midlayer names, d2t and t2d always, no ids and no flags."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import ALWAYS, Answers, Format, Layout, Sighting, rope_doubt


def _recognise(sighting: Sighting) -> str | None:
    if "modal_type" in sighting.config:
        return "config has modal_type"
    if sighting.architecture.endswith("Eagle3LlamaForCausalLM") and sighting.has("midlayer."):
        return f"architecture {sighting.architecture} with midlayer names"
    return None


def _rope(sighting: Sighting, answers: Answers) -> Iterable[Note]:
    if "mrope_section" not in {**sighting.nested("rope_scaling"), **sighting.nested("rope_parameters")}:
        yield from rope_doubt(sighting, answers, "AngelSlim", is_sure=True)


ANGELSLIM = Format(
    "angelslim", "AngelSlim", _recognise, doubts=_rope, retires=("modal_type",),
    layout=Layout(
        {"llama": "Eagle3LlamaForCausalLM"}, {"llama": "llama"}, ALWAYS | {Feature.SLIDING_WINDOW, Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS},
        layer="midlayer", has_identity_map=True, extra={"modal_type": "LLM"},
    ),
)  # fmt: skip
