"""Stored names as canonical names: prefixes, trainers' own names, fused and absorbed tensors, strays."""

import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from eaglectl.checkpoint.header import StoredTensor
from eaglectl.drafter.tensors import LAYER, is_known, is_quantised_part

# what wrapping modules put before the names of a drafter's tensors (a causal LM, DDP, trainers,
# torch.compile, FSDP)
WRAPPERS = (
    "model.",
    "module.",
    "draft_model.",
    "_orig_mod.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
)
# those that wrap single modules too, so that they stand in the middle of names
INNER_WRAPPERS = WRAPPERS[3:]

# fused tensor -> the canonical tensors stacked in it along axis 0
FUSED: Mapping[str, tuple[str, ...]] = {
    "self_attn.qkv_proj":                  ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj":                    ("mlp.gate_proj", "mlp.up_proj"),
    "self_attn.fused_qkv_a_proj":          ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    "self_attn.fused_qkv_a_proj_with_mqa": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
}  # fmt: skip

# tensors that belong to no drafter, and why leaving them behind loses nothing
STRAYS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)"),
        "a rotary table that engines compute from the config",
    ),
    (
        re.compile(r"verifier_(norm|lm_head)\.weight"),
        "the target's own weight, kept by the trainer for its loss",
    ),
)


class Names(Struct, frozen=True):
    """Stored names by kind; `plain` and `fused` map canonical (or fused) names to stored tensors."""

    plain: Mapping[str, StoredTensor]
    fused: Mapping[str, StoredTensor]
    absorbed: Mapping[str, StoredTensor]
    strays: Mapping[str, str]
    unknown: tuple[str, ...]
    clashes: tuple[tuple[str, str, str], ...]

    @property
    def layers(self) -> set[int]:
        """The numbers of the layers that tensors are of."""
        names = (*self.plain, *self.fused, *self.absorbed)
        return {int(layer[1]) for name in names if (layer := LAYER.fullmatch(name))}


def read_names(
    stored: Mapping[str, StoredTensor], aliases: Mapping[str, str] | None = None, prefix: str = ""
) -> Names:
    """Sort stored tensors by canonical name; two stored names of one canonical tensor are a clash.

    `aliases` are trainers' own module names, `prefix` is the producer's own.
    """
    canonical_names = {name: canonical_name(name, aliases, prefix) for name in stored}
    plain: dict[str, StoredTensor] = {}
    fused: dict[str, StoredTensor] = {}
    absorbed: dict[str, StoredTensor] = {}
    strays: dict[str, str] = {}
    unknown: list[str] = []
    clashes: list[tuple[str, str, str]] = []
    own_norm = {
        int(m[1])
        for name in canonical_names.values()
        if (m := LAYER.fullmatch(name)) and m[2] == "input_layernorm.weight"
    }
    for name, tensor in stored.items():
        if reason := stray_reason(name):
            strays[name] = reason
            continue
        canonical = canonical_names[name]
        layer = LAYER.fullmatch(canonical)
        if layer and int(layer[1]) > 0 and layer[2] == "hidden_norm.weight" and int(layer[1]) not in own_norm:
            # the norm's name in SGLang, TensorRT-LLM and ModelOpt's Deep heads
            canonical = f"layers.{layer[1]}.input_layernorm.weight"
        table = _table(canonical, plain, fused, absorbed)
        if table is None:
            unknown.append(name)
        elif canonical in table:
            clashes.append((canonical, table[canonical].name, name))
        else:
            table[canonical] = tensor
    return Names(plain, fused, absorbed, strays, tuple(unknown), tuple(clashes))


def stored_prefix(stored: str, own: Collection[str] = ()) -> str:
    """The prefixes of a stored name, which may be none: one of `own` (producers' own), then wrappers."""
    first = next((prefix for prefix in own if stored.startswith(prefix)), "")
    rest = stored.removeprefix(first)
    while rest.startswith(WRAPPERS):
        rest = rest.removeprefix(next(wrapper for wrapper in WRAPPERS if rest.startswith(wrapper)))
    return stored.removesuffix(rest)


def inner_wrapper(stored: str) -> str:
    """A wrapper in the middle of a stored name, "" where there is none."""
    return next((wrapper for wrapper in INNER_WRAPPERS if f".{wrapper}" in stored), "")


def canonical_name(stored: str, aliases: Mapping[str, str] | None = None, prefix: str = "") -> str:
    """The canonical spelling of a stored name; an unknown name is returned without its prefix."""
    name = stored.removeprefix(stored_prefix(stored, (prefix,)))
    for wrapper in INNER_WRAPPERS:
        name = name.replace(f".{wrapper}", ".")
    if name.startswith("midlayer."):
        rest = name.removeprefix("midlayer.")
        name = f"layers.{rest}" if LAYER.fullmatch(f"layers.{rest}") else f"layers.0.{rest}"
    for own, canonical in (aliases or {}).items():
        if name.startswith(f"{own}."):
            return canonical + name.removeprefix(own)
    return name


def stray_reason(stored: str) -> str | None:
    """Why a tensor with this name may be left behind; None when it may not."""
    return next((reason for pattern, reason in STRAYS if pattern.fullmatch(stored)), None)


def split_fused(name: str) -> tuple[tuple[str, ...], str] | None:
    """The canonical names stacked in a fused tensor, and its parameter ("weight", "bias").

    None where it is not fused.
    """
    layer = LAYER.fullmatch(name)
    if not layer:
        return None
    module, _, parameter = layer[2].rpartition(".")
    if module not in FUSED or parameter not in ("weight", "bias"):
        return None
    return tuple(f"layers.{layer[1]}.{part}.{parameter}" for part in FUSED[module]), parameter


def is_absorbed(name: str) -> bool:
    """Whether a name is a half of kv_b_proj as SGLang and TensorRT-LLM keep it in memory."""
    layer = LAYER.fullmatch(name)
    return layer is not None and layer[2] in ("self_attn.w_kc", "self_attn.w_vc")


def _table(
    name: str,
    plain: dict[str, StoredTensor],
    fused: dict[str, StoredTensor],
    absorbed: dict[str, StoredTensor],
) -> dict[str, StoredTensor] | None:
    if split_fused(name):
        return fused
    if is_absorbed(name):
        return absorbed
    return plain if is_known(name) or is_quantised_part(name) else None
