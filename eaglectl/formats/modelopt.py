"""NVIDIA ModelOpt: the Hugging Face export (layers.N names) and the Megatron one (midlayer names, Deep heads)."""

from collections.abc import Iterable

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import ALWAYS, Answers, Format, Layout, Sighting

_MARKS = ("use_last_layernorm", "next_layer_regular", "parallel_draft_step", "use_mtp_layernorm")
_EXPRESSES = ALWAYS | {
    Feature.MLA, Feature.MULTI_LAYER, Feature.AUX_COUNT, Feature.AUX_LAYERS, Feature.QUANTISED, Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS,
    Feature.NORM_BEFORE_FC,
}  # fmt: skip


def _mark(sighting: Sighting) -> str | None:
    found = [key for key in _MARKS if key in sighting.nested("eagle_config")]
    return f"eagle_config has {found[0]}" if found else None


def _hf(sighting: Sighting) -> str | None:
    if sighting.has("midlayer.") or "embed_tokens.weight" in sighting.names:
        return None
    return _mark(sighting)


def _megatron(sighting: Sighting) -> str | None:
    if sighting.architecture == "LlamaForCausalLMEagle3Deep" or sighting.has("midlayer.0."):
        return "numbered midlayer names" if sighting.has("midlayer.0.") else "architecture LlamaForCausalLMEagle3Deep"
    return _mark(sighting) if sighting.has("midlayer.") and "embed_tokens.weight" not in sighting.names else None


def _double_norm(sighting: Sighting, answers: Answers) -> Iterable[Note]:
    if sighting.has("hidden_norm"):
        yield Note(
            "warning",
            "training",
            "ModelOpt since its pull request 689 trains with the hidden state normed twice (input_layernorm, then"
            " hidden_norm) and engines norm it once; nothing in the file tells when it was made",
            "double-norm",
        )


MODELOPT = Format(
    "modelopt", "NVIDIA ModelOpt", _hf, aux_convention="output", orders_ids=True, doubts=_double_norm,
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}, {"llama": "llama", "mla": "kimi_k2"}, _EXPRESSES,
        nested_ids="output", extra={"eagle_config": {"use_last_layernorm": True}},
    ),
)  # fmt: skip

MEGATRON = Format(
    "modelopt-megatron", "NVIDIA ModelOpt (Megatron)", _megatron, aux_convention="output", orders_ids=True,
    layout=Layout(
        {"llama": "LlamaForCausalLMEagle3Deep"}, {"llama": "llama"}, _EXPRESSES - {Feature.MLA}, layer="midlayer.{}",
        later_norm="hidden_norm", nested_ids="output", extra={"eagle_config": {"use_last_layernorm": True}},
    ),
)  # fmt: skip
