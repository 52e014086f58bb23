"""Stored tensors as canonical ones, by their names: prefixes, trainers' own names, fused and absorbed ones.

Fused ones are split, absorbed halves paired, strays left behind, and what is missing is said.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.tensors import (
    LAYER,
    NORM,
    Absorbed,
    Dimensions,
    Segment,
    Tensor,
    expected_shape,
    is_known,
)
from eaglectl.errors import RefusedError, check
from eaglectl.files.header import StoredTensor
from eaglectl.formats.config_keys import Keys
from eaglectl.text import listed

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

    @property
    def layers(self) -> set[int]:
        """The numbers of the layers that tensors are of."""
        names = (*self.plain, *self.fused, *self.absorbed)
        return {int(layer[1]) for name in names if (layer := LAYER.fullmatch(name))}


def read_names(
    stored: Mapping[str, StoredTensor], aliases: Mapping[str, str] | None = None, prefix: str = ""
) -> Names:
    """Sort stored tensors by canonical name. Raises RefusedError for two stored names of one tensor.

    `aliases` are trainers' own module names, `prefix` is the producer's own.
    """
    canonical_names = {name: canonical_name(name, aliases, prefix) for name in stored}
    tables: dict[str, dict[str, StoredTensor]] = {"plain": {}, "fused": {}, "absorbed": {}}
    strays: dict[str, str] = {}
    unknown: list[str] = []
    own_norm = {
        int(m[1])
        for name in canonical_names.values()
        if (m := LAYER.fullmatch(name)) and m[2] == "input_layernorm.weight"
    }
    for name, tensor in stored.items():
        if reason := next((reason for pattern, reason in STRAYS if pattern.fullmatch(name)), None):
            strays[name] = reason
            continue
        canonical = canonical_names[name]
        layer = LAYER.fullmatch(canonical)
        if layer and int(layer[1]) > 0 and layer[2] == "hidden_norm.weight" and int(layer[1]) not in own_norm:
            # the norm's name in SGLang, TensorRT-LLM and ModelOpt's Deep heads
            canonical = f"layers.{layer[1]}.input_layernorm.weight"
        kind = _kind(canonical)
        if kind is None:
            unknown.append(name)
        elif canonical in tables[kind]:
            text = f"{tables[kind][canonical].name} and {name} are both {canonical}; keep one"
            raise RefusedError(text, "tensor-twice", f"tensor:{name}")
        else:
            tables[kind][canonical] = tensor
    return Names(**tables, strays=strays, unknown=tuple(unknown))


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


def split_fused(name: str) -> tuple[str, ...]:
    """The canonical names stacked in a fused tensor; none where it is not fused."""
    layer = LAYER.fullmatch(name)
    module, _, parameter = layer[2].rpartition(".") if layer else ("", "", "")
    if not layer or parameter not in ("weight", "bias"):
        return ()
    return tuple(f"layers.{layer[1]}.{part}.{parameter}" for part in FUSED.get(module, ()))


def _kind(name: str) -> str | None:
    """The field of Names that a canonical name belongs to; None for an unknown one."""
    layer = LAYER.fullmatch(name)
    if split_fused(name):
        return "fused"
    if layer and layer[2] in ("self_attn.w_kc", "self_attn.w_vc"):
        return "absorbed"  # halves of kv_b_proj as SGLang and TensorRT-LLM keep it in memory
    return "plain" if is_known(name) else None


def read_tensors(keys: Keys, names: Names, dims: Dimensions, *, is_quantised: bool) -> Mapping[str, Tensor]:
    """Canonical tensors with their bytes' places. Raises RefusedError where one cannot be of this drafter."""
    tensors = _assemble(names, dims)
    _check_layers(names)
    _check_shapes(keys, tensors, dims, is_quantised=is_quantised)
    return tensors


def _assemble(names: Names, dims: Dimensions) -> dict[str, Tensor]:
    """Canonical tensors with their bytes' places; fused ones split by rows, absorbed halves paired."""
    found = {
        name: Tensor(name, t.dtype, t.shape, (Segment(t.name, 0, t.nbytes),))
        for name, t in names.plain.items()
    }
    for name, stored in names.fused.items():
        for part in _split(name, stored, dims):
            if part.name in found:
                raise RefusedError(
                    f"{stored.name} holds {part.name}, which the file also has on its own; keep one",
                    "tensor-twice",
                    f"tensor:{stored.name}",
                )
            found[part.name] = part
    layers = {name.rpartition(".")[0] for name in names.absorbed}
    for prefix in sorted(layers):
        pair = names.absorbed.get(f"{prefix}.w_kc"), names.absorbed.get(f"{prefix}.w_vc")
        if pair[0] is None or pair[1] is None:
            raise RefusedError(
                f"{prefix} has one of w_kc and w_vc; kv_b_proj needs both",
                "missing-tensor",
                f"tensor:{prefix}.w_kc",
            )
        name = f"{prefix}.kv_b_proj.weight"
        heads, rank = dims.heads, dims.kv_lora_rank
        for half, needed in (
            (pair[0], (heads, dims.qk_nope_head_dim, rank)),
            (pair[1], (heads, rank, dims.v_head_dim)),
        ):
            if half.shape != needed:
                raise RefusedError(
                    f"{half.name} is {list(half.shape)}; {heads} heads of this drafter need {list(needed)}",
                    "tensor-shape",
                    f"tensor:{half.name}",
                )
        shape = expected_shape(name, dims)
        assert shape is not None
        found[name] = Tensor(name, pair[0].dtype, shape, Absorbed(pair[0].name, pair[1].name))
    return found


def _split(name: str, stored: StoredTensor, dims: Dimensions) -> Iterator[Tensor]:
    parts = split_fused(name)
    listed_modules = " + ".join(part.split(".")[-2] for part in parts)
    if not stored.shape:
        raise RefusedError(
            f"{stored.name} is []; rows of {listed_modules} were expected",
            "tensor-shape",
            f"tensor:{stored.name}",
        )
    row = 0
    for part in parts:
        shape = expected_shape(part, dims)
        if shape is None:
            raise RefusedError(
                f"{stored.name} is {', '.join(name.split('.', 2)[-1] for name in parts)}, and the drafter has"
                f" no {part}; take the file as its trainer wrote it",
                "tensor-shape",
                f"tensor:{stored.name}",
            )
        end = row + shape[0]
        segment = Segment(stored.name, row * stored.row_bytes, end * stored.row_bytes)
        yield Tensor(part, stored.dtype, (shape[0], *stored.shape[1:]), (segment,))
        row = end
    if stored.shape[0] != row:
        raise RefusedError(
            f"{stored.name} has {stored.shape[0]} rows; {listed_modules} of this drafter are {row}",
            "tensor-shape",
            f"tensor:{stored.name}",
        )


def _check_layers(names: Names) -> None:
    """Raise RefusedError unless layers and fc_norm count from 0 without gaps."""
    indices = sorted(names.layers)
    norms = sorted(int(m[1]) for name in names.plain if (m := NORM.fullmatch(name)))
    check(
        (
            indices != list(range(len(indices))),
            f"the file has layers {indices}; they must count from 0 without gaps",
            "missing-tensor",
        ),
        (
            norms != list(range(len(norms))),
            f"the file has fc_norm {norms}; they must count from 0 without gaps",
            "norm-tensor-missing",
        ),
        error=RefusedError,
    )


def _check_shapes(keys: Keys, tensors: Mapping[str, Tensor], dims: Dimensions, *, is_quantised: bool) -> None:
    """Raise RefusedError for a tensor that is not the product of dimensions that it should be.

    A d2t beside t2d is a problem, as t2d may give d2t.
    """
    for name, tensor in tensors.items():
        shape = expected_shape(name, dims)
        is_packed = is_quantised and tensor.dtype in ("U8", "I8", "I32", "F4") and name.endswith(".weight")
        if shape is None or shape == tensor.shape or is_packed:
            continue
        text = (
            f"{tensor.stored[0]} is {list(tensor.shape)}; this drafter's other shapes and config.json need"
            f" {list(shape)}; one of them is wrong"
        )
        if name != "d2t" or "t2d" not in tensors:
            raise RefusedError(text, "tensor-shape", f"tensor:{tensor.stored[0]}")
        text = f"{text}; or pass --fix-reading d2t=from-t2d"
        keys.note(True, "problem", "d2t", text, "tensor-shape", names_option=True)


def read_head(
    keys: Keys, tensors: Mapping[str, Tensor], dims: Dimensions, unknown: Sequence[str]
) -> Mapping[str, Tensor]:
    """The tensors with a head, which is the embedding where the drafter ties them.

    Raises RefusedError where a reduced vocabulary has no head.
    """
    key = "tie_word_embeddings"
    is_tied = keys.get(key, bool)
    if "lm_head.weight" in tensors:
        text = (
            "config says true and the file has its own lm_head; SGLang would use the embedding instead;"
            " convert writes false"
        )
        keys.note(is_tied, "warning", key, text, "tied-head")
        return tensors
    if dims.draft_vocab != dims.vocab:
        found = f" (is it {listed(unknown)}, misspelt?)" if unknown else ""
        raise RefusedError(
            f"lm_head.weight is missing{found} and the draft vocabulary has {dims.draft_vocab} of"
            f" {dims.vocab} tokens; engines would truncate the target's head: restore it from the trainer",
            "missing-tensor",
            "tensor:lm_head.weight",
        )
    embedding = tensors.get("embed_tokens.weight")
    if not is_tied or not embedding:
        keys.note(True, "note", "lm_head", "no lm_head: engines use the target's")
        return tensors
    text = (
        "the head is tied to the drafter's own embedding, which no engine does; lm_head is written as a copy"
        " of it"
    )
    keys.note(True, "note", key, text)
    return {**tensors, "lm_head.weight": replace(embedding, name="lm_head.weight")}


def note_names(
    keys: Keys, names: Names, tensors: Mapping[str, Tensor], dims: Dimensions, *, has_token_list: bool
) -> None:
    """Leave the problems of what is missing and of what has no place."""
    for name in sorted(_required(dims, tensors) - set(tensors)):
        packed = {name.removesuffix("weight") + "weight_packed", name.removesuffix("weight") + "qweight"}
        text = (
            f"{name} is missing; engines fill it with ones or uninitialised memory in silence: restore it"
            " from the trainer"
        )
        keys.note(not packed & set(tensors), "problem", name, text, "missing-tensor")
    name = "embed_tokens.weight"
    text = (
        f"the target is {dims.target_hidden} wide and the drafter {dims.hidden}, so it must bring its own"
        " embed_tokens; restore it from the trainer"
    )
    is_missing = dims.hidden != dims.target_hidden and name not in tensors
    keys.note(is_missing, "problem", name, text, "missing-tensor")
    text = (
        f"d2t is missing and the draft vocabulary has {dims.draft_vocab} of {dims.vocab} tokens; engines"
        f" would propose the first {dims.draft_vocab}: restore it from the trainer"
    )
    has_map = has_token_list or "d2t" in tensors or "t2d" in tensors
    keys.note(dims.draft_vocab != dims.vocab and not has_map, "problem", "d2t", text, "d2t-missing")
    for name in names.unknown:
        text = f"{name} has no place in an EAGLE-3 drafter; pass --drop {name} if it may be left behind"
        keys.note(True, "problem", name, text, "unknown-tensor", names_option=True)


LAYER_PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "self_attn.o_proj",
)
MLA_PARTS = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
QUERY_PARTS = ("q_a_proj", "q_a_layernorm", "q_b_proj")
# what is there in all layers once it is there in one; o_proj.bias may be absent beside the others (Qwen2's
# attention)
TOGETHER = (
    ("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    ("mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"),
)


def _required(dims: Dimensions, present: Mapping[str, Tensor]) -> set[str]:
    parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    if dims.attention == "MLA":
        parts = (*(QUERY_PARTS if dims.q_lora_rank else ("q_proj",)), *MLA_PARTS)
    layer = {f"{part}.weight" for part in (*LAYER_PARTS, *(f"self_attn.{part}" for part in parts))}
    for group in TOGETHER:
        if any(name.endswith(group) for name in present):
            layer.update(group)
    names = {f"layers.{index}.{part}" for index in range(dims.layers) for part in layer}
    return names | {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight"}
