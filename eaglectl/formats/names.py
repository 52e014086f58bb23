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
from eaglectl.errors import RefusedError
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


# of kv_b_proj, as SGLang and TensorRT-LLM keep it in memory
HALF = re.compile(r"layers\.\d+\.self_attn\.w_[kv]c")


class Names(Struct, frozen=True):
    """Stored tensors by canonical name, or by that of a fused one or of a half of kv_b_proj; and the others.

    `strays` are left behind, each with the reason.
    """

    tensors: Mapping[str, StoredTensor]
    strays: Mapping[str, str]
    unknown: tuple[str, ...]

    @property
    def layers(self) -> set[int]:
        """The numbers of the layers that tensors are of."""
        return {int(layer[1]) for name in self.tensors if (layer := LAYER.fullmatch(name))}


def read_names(
    stored: Mapping[str, StoredTensor], aliases: Mapping[str, str] | None = None, prefix: str = ""
) -> Names:
    """Sort stored tensors by canonical name. Raises RefusedError for two stored names of one tensor.

    `aliases` are trainers' own module names, `prefix` is the producer's own.
    """
    canonical_names = {name: canonical_name(name, aliases, prefix) for name in stored}
    present = set(canonical_names.values())
    tensors: dict[str, StoredTensor] = {}
    strays: dict[str, str] = {}
    unknown: list[str] = []
    for name, canonical in canonical_names.items():
        layer = LAYER.fullmatch(canonical)
        norm = f"layers.{layer[1]}.input_layernorm.weight" if layer else ""
        if layer and layer[1] != "0" and layer[2] == "hidden_norm.weight" and norm not in present:
            canonical = norm  # its name in SGLang, TensorRT-LLM and ModelOpt's Deep heads
        if reason := next((reason for pattern, reason in STRAYS if pattern.fullmatch(name)), None):
            strays[name] = reason
        elif not (is_known(canonical) or split_fused(canonical) or HALF.fullmatch(canonical)):
            unknown.append(name)
        elif canonical in tensors:
            raise RefusedError(
                f"{tensors[canonical].name} and {name} are both {canonical}; keep one",
                "tensor-twice",
                f"tensor:{name}",
            )
        else:
            tensors[canonical] = stored[name]
    return Names(tensors, strays, tuple(unknown))


def stored_prefix(stored: str, own: Collection[str] = ()) -> str:
    """The prefixes of a stored name, which may be none: one of `own` (producers' own), then wrappers."""
    rest = stored.removeprefix(next((prefix for prefix in own if stored.startswith(prefix)), ""))
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


def read_tensors(keys: Keys, names: Names, dims: Dimensions, *, is_quantised: bool) -> Mapping[str, Tensor]:
    """Canonical tensors with their bytes' places; fused ones split by rows, halves of kv_b_proj paired.

    Raises RefusedError where one cannot be of this drafter.
    """
    tensors = {
        name: Tensor(name, stored.dtype, stored.shape, (Segment(stored.name, 0, stored.nbytes),))
        for name, stored in names.tensors.items()
        if is_known(name)
    }
    for name, stored in names.tensors.items():
        for part in _split(name, stored, dims):
            if part.name in tensors:
                raise RefusedError(
                    f"{stored.name} holds {part.name}, which the file also has on its own; keep one",
                    "tensor-twice",
                    f"tensor:{stored.name}",
                )
            tensors[part.name] = part
    for module in sorted({name.rpartition(".")[0] for name in names.tensors if HALF.fullmatch(name)}):
        joined = _join_halves(module, names, dims)
        tensors[joined.name] = joined
    norms = [int(norm[1]) for name in names.tensors if (norm := NORM.fullmatch(name))]
    for what, numbers, topic in (
        ("layers", names.layers, "missing-tensor"),
        ("fc_norm", norms, "norm-tensor-missing"),
    ):
        if sorted(numbers) != list(range(len(numbers))):
            raise RefusedError(
                f"the file has {what} {sorted(numbers)}; they must count from 0 without gaps", topic
            )
    _check_shapes(keys, tensors, dims, is_quantised=is_quantised)
    return tensors


def _join_halves(module: str, names: Names, dims: Dimensions) -> Tensor:
    keys, values = names.tensors.get(f"{module}.w_kc"), names.tensors.get(f"{module}.w_vc")
    if keys is None or values is None:
        raise RefusedError(
            f"{module} has one of w_kc and w_vc; kv_b_proj needs both",
            "missing-tensor",
            f"tensor:{module}.w_kc",
        )
    heads, rank = dims.heads, dims.kv_lora_rank
    halves = ((keys, (heads, dims.qk_nope_head_dim, rank)), (values, (heads, rank, dims.v_head_dim)))
    for half, needed in halves:
        if half.shape != needed:
            raise RefusedError(
                f"{half.name} is {list(half.shape)}; {heads} heads of this drafter need {list(needed)}",
                "tensor-shape",
                f"tensor:{half.name}",
            )
    shape = (heads * (dims.qk_nope_head_dim + dims.v_head_dim), rank)
    return Tensor(f"{module}.kv_b_proj.weight", keys.dtype, shape, Absorbed(keys.name, values.name))


def _split(name: str, stored: StoredTensor, dims: Dimensions) -> Iterator[Tensor]:
    parts = split_fused(name)
    if not parts:
        return
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
        keys.note(
            True,
            "problem",
            "d2t",
            f"{text}; or pass --fix-reading d2t=from-t2d",
            "tensor-shape",
            names_option=True,
        )


def read_head(
    keys: Keys, tensors: Mapping[str, Tensor], dims: Dimensions, unknown: Sequence[str]
) -> Mapping[str, Tensor]:
    """The tensors with a head, which is the embedding where the drafter ties them.

    Raises RefusedError where a reduced vocabulary has no head.
    """
    key = "tie_word_embeddings"
    is_tied = keys.get(key, bool)
    if "lm_head.weight" in tensors:
        keys.note(
            is_tied,
            "warning",
            key,
            "config says true and the file has its own lm_head; SGLang would use the embedding instead;"
            " convert writes false",
            "tied-head",
        )
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
    keys.note(
        True,
        "note",
        key,
        "the head is tied to the drafter's own embedding, which no engine does; lm_head is written as a copy"
        " of it",
    )
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
        keys.note(
            True,
            "problem",
            name,
            f"{name} has no place in an EAGLE-3 drafter; pass --drop {name} if it may be left behind",
            "unknown-tensor",
            names_option=True,
        )


LAYER_PARTS = (
    *("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "self_attn.o_proj",
)
MLA_PARTS = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
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
        query = ("q_a_proj", "q_a_layernorm", "q_b_proj") if dims.q_lora_rank else ("q_proj",)
        parts = (*query, *MLA_PARTS)
    layer = {f"{part}.weight" for part in (*LAYER_PARTS, *(f"self_attn.{part}" for part in parts))}
    for group in TOGETHER:
        if any(name.endswith(group) for name in present):
            layer.update(group)
    names = {f"layers.{index}.{part}" for index in range(dims.layers) for part in layer}
    return names | {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight"}
