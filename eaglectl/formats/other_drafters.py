"""Checkpoints that are not EAGLE-3 drafters: recognised by their tensors and keys, and refused by name."""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from eaglectl.checkpoint.header import StoredTensor
from eaglectl.drafter.tensors import LAYER
from eaglectl.errors import RefusedError
from eaglectl.formats.names import canonical_name

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

_GEMMA = (
    "a Gemma-4 draft head (four norms in a layer, a scaled embedding, softcapped logits and layer_scalar),"
    " which no engine has a class for"
)
_EXPERTS = "an EAGLE-3 variant whose MLP is a mixture of experts, which no engine has a class for"
_BY_TENSOR: tuple[tuple[str, str], ...] = (
    (r"(.*\.)?(enorm|hnorm|eh_proj|shared_head)\b.*", "a multi-token-prediction (MTP) head"),
    (r"(.*\.)?medusa_head\..*|\d+\.\d+\.(linear|weight).*", "a Medusa head"),
    (r"(.*\.)?(context_proj|mask_token)\b.*", "a DFlash drafter"),
    (r".*\.lora_[AB]\..*", "a LoRA adapter, not a whole drafter; merge it into its drafter first"),
    (
        r"(.*\.)?layers\.\d+\.self_attn\.g_proj\..*",
        "a Kimi-K3 draft head (NoPE MLA with a gate), which no EAGLE-3 class serves",
    ),
    (
        r"(.*\.)?(layers\.\d+|midlayer)\.(layer_scalar|(pre|post)_feedforward_layernorm\.weight)",
        _GEMMA,
    ),
    (
        r"(.*\.)?(layers\.\d+|midlayer)\.mlp\.(experts|shared_experts?)\..*",
        _EXPERTS,
    ),
)

_BY_KEY: Mapping[str, str] = {
    "dflash_config": "a DFlash drafter",
    "dspark_config": "a DSpark drafter",
    "medusa_num_heads": "a Medusa head",
    "medusa_num_layers": "a Medusa head",
    "eagle_aux_layer_bands": "an EAGLE-3 variant that mixes target layers in bands, by weights that no engine"
    " reads",
}
# class names that are another family whatever the tensors are called
_BY_CLASS: tuple[tuple[str, str], ...] = (
    ("DSpark", "a DSpark drafter"),
    ("DFlash", "a DFlash drafter"),
    ("Gemma4Eagle3", _GEMMA),
    ("MoeForCausalLMEagle3", _EXPERTS),
)

_SPECULATORS = {
    "eagle": "an EAGLE-1/2 drafter",
    "mtp": "a multi-token-prediction (MTP) head",
    "dflash": "a DFlash drafter",
    "dflash2": "a DFlash drafter",
    "dspark": "a DSpark drafter",
    "mlp": "an MLP speculator",
    "independent": "an independent draft model",
}


_QUERY = re.compile(r"layers\.0\.self_attn\.(q_proj|q_a_proj|qkv_proj)\.weight")
_LAYER_NORM = re.compile(r"layers\.\d+\.hidden_norm\.weight")


def refuse_other_families(label: str, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise RefusedError, naming what `label` is, unless it can be an EAGLE-3 drafter."""
    family = other_family(config, tensors)
    if family:
        raise RefusedError(
            f"{label} is {family}; eaglectl reads EAGLE-3 and EAGLE-3.1 drafters only", "not-a-drafter"
        )


def other_family(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    """What the checkpoint is when it is not an EAGLE-3 drafter, else None (formats.md, 4.3)."""
    if family := speculators_family(config):
        return family
    if family := _by_class(config):  # before keys: DSpark keeps its own in dflash_config
        return family
    for key, family in _BY_KEY.items():
        if config.get(key) is not None:
            return f"{family} (config.json has {key})"
    shapes = {canonical_name(name): tensor.shape for name, tensor in tensors.items()}
    return _by_tensor(tensors) or _by_layer(config, shapes) or _by_shape(config, shapes)


def speculators_family(config: Mapping[str, Any]) -> str | None:
    """What a speculators config says that it is, where that is no EAGLE-3 drafter."""
    kind = config.get("speculators_model_type")
    if isinstance(kind, str) and kind not in ("eagle3", "peagle"):
        return _SPECULATORS.get(kind, f'a speculators "{kind}" model')
    return None


def _by_class(config: Mapping[str, Any]) -> str | None:
    if config.get("use_moe") is True:
        return f"{_EXPERTS} (config.json has use_moe: true)"
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else ():
        for part, family in _BY_CLASS:
            if part in str(name):
                return f"{family} (architecture {name})"
    return None


def _by_tensor(tensors: Mapping[str, StoredTensor]) -> str | None:
    for pattern, family in _BY_TENSOR:
        found = next(filter(re.compile(pattern).fullmatch, tensors), None)
        if found:
            return f"{family} (it has {found})"
    return None


def _by_layer(config: Mapping[str, Any], shapes: Shapes) -> str | None:
    if config.get("target_layer_ids") is not None and not any(map(_LAYER_NORM.fullmatch, shapes)):
        # an EAGLE-3 layer norms the fed-back state; DFlash norms its context once, before its layers
        return "a DFlash drafter (config.json has target_layer_ids, and no layer has a hidden_norm)"
    if wide := _later_wide_layer(shapes):
        return (
            "an EAGLE-3 variant in which each layer takes the embedding beside the hidden state"
            f" ({wide} is as wide as that of layer 0), which no engine has a class for"
        )
    return None


def _by_shape(config: Mapping[str, Any], shapes: Shapes) -> str | None:
    if any("hidden_norm" in name.rsplit(".", 2) for name in shapes):
        return None
    if "fc.weight" in shapes:
        return _by_fc(shapes["fc.weight"])
    if _nested(config).get("use_aux_hidden_state") is False:
        return (
            "a head on the target's last hidden state (use_aux_hidden_state: false, no fc, no hidden_norm),"
            " to be served as it is by TensorRT-LLM or SGLang"
        )
    query = next((shape for name, shape in shapes.items() if _QUERY.fullmatch(name)), None)
    if query and len(query) == 2 and query[1] == config.get("hidden_size"):
        return "a full language model (its first layer takes one hidden state, and there is no fc)"
    if query is None and not any("self_attn" in name for name in shapes):
        return "not a drafter that eaglectl knows (no attention layer under any known name)"
    return None


def _later_wide_layer(shapes: Shapes) -> str | None:
    """The query of a layer after the first that takes two states; a first layer that does is EAGLE-3's."""
    for name, shape in shapes.items():
        if (match := LAYER.fullmatch(name)) and int(match[1]) > 0 and len(shape) == 2:
            first = shapes.get(f"layers.0.{match[2]}", ())
            both = {f"layers.{match[1]}.{norm}.weight" for norm in ("hidden_norm", "input_layernorm")}
            if _QUERY.fullmatch(f"layers.0.{match[2]}") and first[1:] == shape[1:] and both <= set(shapes):
                return name
    return None


def _by_fc(fc: tuple[int, ...]) -> str | None:
    if len(fc) != 2 or fc[1] != 2 * fc[0]:
        return None
    return f"an EAGLE-1/2 drafter (fc.weight is {list(fc)}, two inputs wide, and there is no hidden_norm)"


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    value = config.get("eagle_config")
    return value if isinstance(value, Mapping) else {}
