"""TorchSpec (Llama and MLA) and the Kimi heads that lightseekorg published from it."""

from collections.abc import Iterable, Mapping

from eaglectl.drafter.drafter import Feature, Note
from eaglectl.formats.format import ALWAYS, Answers, Family, Format, Layout, Sighting, rope_doubt

_EXPRESSES = ALWAYS | {Feature.MLA, Feature.AUX_COUNT, Feature.AUX_LAYERS, Feature.FC_NORM, Feature.NORM_OUTPUT}
_ARCHITECTURES: Mapping[Family, str] = {"llama": "LlamaForCausalLMEagle3", "mla": "Eagle3DeepseekV2ForCausalLM"}


def _torchspec(sighting: Sighting) -> str | None:
    if "_torchspec_version" in sighting.config:
        return "config has _torchspec_version"
    return "file metadata has torchspec_version" if "torchspec_version" in sighting.metadata else None


def _for_vllm(sighting: Sighting) -> str | None:
    """Its `--vllm` export of a Kimi head, which adds one to the ids (tools/convert_to_hf.py)."""
    marks = _torchspec(sighting)
    return (
        f"{marks}, names and model_type of its --vllm export"
        if marks and not sighting.has("midlayer.") and sighting.config.get("model_type") == "kimi_k2"
        else None
    )


def _lightseekorg(sighting: Sighting) -> str | None:
    is_mla = sighting.architecture == "Eagle3DeepseekV2ForCausalLM" and sighting.has("kv_a_proj_with_mqa")
    nested = sighting.nested("eagle_config").get("eagle_aux_hidden_state_layer_ids")
    if is_mla and isinstance(nested, list) and nested and nested[0] == 2 and "embed_tokens.weight" in sighting.names:
        return "Eagle3DeepseekV2ForCausalLM with its own embedding and eagle_config ids from 2"
    return None


def _rope(sighting: Sighting, answers: Answers) -> Iterable[Note]:
    if sighting.has("kv_a_proj_with_mqa", "fused_qkv_a_proj"):
        yield from rope_doubt(sighting, answers, "TorchSpec's MLA attention", is_sure=_torchspec(sighting) is not None)


TORCHSPEC = Format(
    "torchspec", "TorchSpec", _torchspec, aux_convention="output", retires=("_torchspec_version",), doubts=_rope,
    layout=Layout(
        _ARCHITECTURES, {"llama": "llama", "mla": "kimi_k2"}, _EXPRESSES, layer="midlayer", nested_ids="output",
        extra={"_torchspec_version": "written by eaglectl"},
    ),
)  # fmt: skip

TORCHSPEC_VLLM = Format(
    "torchspec-vllm", "TorchSpec (--vllm)", _for_vllm, aux_convention="boundary", retires=("_torchspec_version",), doubts=_rope,
    layout=Layout(
        {"mla": _ARCHITECTURES["mla"]}, {"mla": "kimi_k2"}, _EXPRESSES, nested_ids="boundary", extra={"_torchspec_version": "written by eaglectl"},
    ),
)  # fmt: skip

LIGHTSEEKORG = Format(
    "lightseekorg",
    "lightseekorg (TorchSpec, Kimi MLA)",
    _lightseekorg,
    aux_convention="boundary",
    doubts=_rope,
    layout=Layout(_ARCHITECTURES, {"llama": "llama", "mla": "kimi_k2"}, _EXPRESSES, nested_ids="boundary"),
)
