"""Checkpoints that are not EAGLE-3 drafters: recognised by their tensors and keys, and refused by name."""

import re
from collections.abc import Mapping
from typing import Any

from eaglectl.checkpoint.header import StoredTensor
from eaglectl.errors import Refused

_BY_TENSOR: tuple[tuple[str, str], ...] = (
    (r"(.*\.)?(enorm|hnorm|eh_proj|shared_head)\b.*", "a multi-token-prediction (MTP) head"),
    (r"(.*\.)?medusa_head\..*|\d+\.\d+\.(linear|weight).*", "a Medusa head"),
    (r"(.*\.)?(context_proj|mask_token)\b.*", "a DFlash drafter"),
    (r".*\.lora_[AB]\..*", "a LoRA adapter, not a whole drafter; merge it into its drafter first"),
    (r"(.*\.)?layers\.\d+\.self_attn\.g_proj\..*", "a Kimi-K3 draft head (NoPE MLA with a gate), which no EAGLE-3 class serves"),
)  # fmt: skip

_BY_KEY: Mapping[str, str] = {
    "dflash_config": "a DFlash drafter",
    "dspark_config": "a DSpark drafter",
    "medusa_num_heads": "a Medusa head",
    "medusa_num_layers": "a Medusa head",
    "target_layer_ids": "a DFlash drafter",
}

_SPECULATORS = {
    "eagle": "an EAGLE-1/2 drafter", "mtp": "a multi-token-prediction (MTP) head", "dflash": "a DFlash drafter",
    "dflash2": "a DFlash drafter", "dspark": "a DSpark drafter", "mlp": "an MLP speculator", "independent": "an independent draft model",
}  # fmt: skip


def refuse_other_families(label: str, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise Refused, naming what `label` is, unless it can be an EAGLE-3 drafter."""
    family = other_family(config, tensors)
    if family:
        raise Refused(f"{label} is {family}; eaglectl reads EAGLE-3 and EAGLE-3.1 drafters only", "not-a-drafter")


def other_family(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    """What the checkpoint is when it is not an EAGLE-3 drafter, else None (formats.md, 4.3)."""
    kind = config.get("speculators_model_type")
    if isinstance(kind, str) and kind not in ("eagle3", "peagle"):
        return _SPECULATORS.get(kind, f'a speculators "{kind}" model')
    for key, family in _BY_KEY.items():
        if config.get(key) is not None:
            return f"{family} (config.json has {key})"
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any("DSpark" in str(name) for name in architectures):
        return "a DSpark drafter"
    for pattern, family in _BY_TENSOR:
        found = next((name for name in tensors if re.fullmatch(pattern, name)), None)
        if found:
            return f"{family} (it has {found})"
    return _by_shape(config, tensors)


def _by_shape(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    names = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    has_hidden_norm = any("hidden_norm" in name.rsplit(".", 2) for name in names)
    fc = names.get("fc.weight")
    if fc and len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0] and not has_hidden_norm:
        return f"an EAGLE-1/2 drafter (fc.weight is {list(fc.shape)}, two inputs wide, and there is no hidden_norm)"
    if not fc and not has_hidden_norm and _nested(config).get("use_aux_hidden_state") is False:
        return (
            "a head on the target's last hidden state (use_aux_hidden_state: false, no fc, no hidden_norm), to be"
            " served as it is by TensorRT-LLM or SGLang"
        )
    query = next(
        (t for n, t in names.items() if re.fullmatch(r"layers\.0\.self_attn\.(q_proj|q_a_proj|qkv_proj)\.weight", n)),
        None,
    )
    width = config.get("hidden_size")
    if not fc and not has_hidden_norm and query and len(query.shape) == 2 and query.shape[1] == width:
        return "a full language model (its first layer takes one hidden state, and there is no fc)"
    if not fc and not has_hidden_norm and not query and not any("self_attn" in name for name in names):
        return "not a drafter that eaglectl knows (no attention layer under any known name)"
    return None


def _nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    value = config.get("eagle_config")
    return value if isinstance(value, Mapping) else {}
