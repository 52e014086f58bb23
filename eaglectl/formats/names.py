"""Stored tensors as canonical ones, by their names: prefixes, trainers' own names, fused and absorbed ones.

Fused ones are split, absorbed halves paired, strays left behind, and what is missing is said.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.tensors import (
    FROM_T2D,
    LAYER,
    NORM,
    Absorbed,
    Dimensions,
    Segment,
    Tensor,
    expected_shape,
    is_known,
    packed_names,
)
from eaglectl.errors import RefusedError, check
from eaglectl.files.header import StoredTensor
from eaglectl.formats.config_keys import Keys
from eaglectl.shell import quote
from eaglectl.text import listed

# what follows the name of a module in --drop
ALL = ".*"
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
WRAPPED = rf"\A(?:{'|'.join(map(re.escape, WRAPPERS))})++"
# what quantisers put in the place of a weight that no EAGLE-3 class of an engine loads
PACKERS: Mapping[str, str] = {
    "W_q": "HQQ",
    "q_weight": "EXL2",
    "trellis": "EXL3",
    "codebooks": "AQLM",
    "_data": "quanto",
    "_weight_qdata": "torchao",
}
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
        """The numbers of the layers that have tensors."""
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
    strays, unknown = dict[str, str](), list[str]()
    for name, canonical in canonical_names.items():
        layer = LAYER.fullmatch(canonical)
        norm = f"layers.{layer[1]}.input_layernorm.weight" if layer else ""
        if layer and layer[1] != "0" and layer[2] == "hidden_norm.weight" and norm not in present:
            canonical = norm  # its name in SGLang, TensorRT-LLM and ModelOpt's Deep heads
        if reason := next((reason for pattern, reason in STRAYS if pattern.fullmatch(name)), None):
            strays[name] = reason
        elif not (is_known(canonical) or _split_fused(canonical) or HALF.fullmatch(canonical)):
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


def module_prefix(stored: Collection[str]) -> str:
    """Return what a module that holds the whole drafter puts before every stored name; "" without one."""
    end = "fc.weight"
    prefix = next((name.removesuffix(end) for name in stored if name.endswith(f".{end}")), "")
    return prefix if all(name.startswith(prefix) for name in stored) else ""


def stored_prefix(stored: str, own: Collection[str] = ()) -> str:
    """Return the prefixes of a stored name, "" if none: one of `own` (producers' own), then wrappers."""
    rest = stored.removeprefix(next((prefix for prefix in own if stored.startswith(prefix)), ""))
    return stored.removesuffix(re.sub(WRAPPED, "", rest, count=1))


def inner_wrapper(stored: str) -> str:
    """Return a wrapper in the middle of a stored name; "" if there is none."""
    return next((wrapper for wrapper in INNER_WRAPPERS if f".{wrapper}" in stored), "")


def canonical_name(stored: str, aliases: Mapping[str, str] | None = None, prefix: str = "") -> str:
    """Return the canonical spelling of a stored name; an unknown name is returned without its prefix."""
    name = stored.removeprefix(stored_prefix(stored, (prefix,)))
    for wrapper in INNER_WRAPPERS:
        name = name.replace(f".{wrapper}", ".")
    if name.startswith("midlayer."):
        rest = name.removeprefix("midlayer.")
        name = f"layers.{rest}" if LAYER.fullmatch(f"layers.{rest}") else f"layers.0.{rest}"
    for alias, canonical in (aliases or {}).items():
        if name.startswith(f"{alias}."):
            return canonical + name.removeprefix(alias)
    return name


def _split_fused(name: str) -> tuple[str, ...]:
    layer = LAYER.fullmatch(name)
    module, _, parameter = layer[2].rpartition(".") if layer else ("", "", "")
    if not layer or parameter not in ("weight", "bias"):
        return ()
    return tuple(f"layers.{layer[1]}.{part}.{parameter}" for part in FUSED.get(module, ()))


def read_tensors(keys: Keys, names: Names, dims: Dimensions, *, is_quantised: bool) -> Mapping[str, Tensor]:
    """Return the canonical tensors with their bytes' places; fused ones are split, kv_b_proj's halves joined.

    Raises RefusedError for a tensor that cannot belong to this drafter.
    """
    tensors = {
        name: Tensor(name, stored.dtype, stored.shape, (Segment(stored.name, 0, stored.nbytes),))
        for name, stored in names.tensors.items()
        if is_known(name)
    }
    for name, stored in names.tensors.items():
        for part in _split_rows(name, stored, dims):
            check(
                (
                    part.name in tensors,
                    f"{stored.name} holds {part.name}, which the file also has on its own; keep one",
                    "tensor-twice",
                    f"tensor:{stored.name}",
                ),
                error=RefusedError,
            )
            tensors[part.name] = part
    for module in sorted({name.rpartition(".")[0] for name in names.tensors if HALF.fullmatch(name)}):
        joined = _join_halves(module, names, dims)
        tensors[joined.name] = joined
    norms = [int(norm[1]) for name in names.tensors if (norm := NORM.fullmatch(name))]
    for what, numbers, topic in (
        ("layers", sorted(names.layers), "missing-tensor"),
        ("fc_norm", sorted(norms), "norm-tensor-missing"),
    ):
        check(
            (
                numbers != list(range(len(numbers))),
                f"the file has {what} {numbers}; they must count from 0 without gaps",
                topic,
            ),
            error=RefusedError,
        )
    _check_shapes(keys, tensors, dims, is_quantised=is_quantised)
    return tensors


def _join_halves(module: str, names: Names, dims: Dimensions) -> Tensor:
    # kv_b_proj from SGLang's two runtime halves of it
    keys, values = names.tensors.get(f"{module}.w_kc"), names.tensors.get(f"{module}.w_vc")
    if keys is None or values is None:
        raise RefusedError(
            f"{module} has one of w_kc and w_vc; kv_b_proj needs both",
            "missing-tensor",
            f"tensor:{module}.w_kc",
        )
    heads, rank = dims.heads, dims.kv_lora_rank
    for half, needed in (
        (keys, (heads, dims.qk_nope_head_dim, rank)),
        (values, (heads, rank, dims.v_head_dim)),
    ):
        check(
            (
                half.shape != needed,
                f"{half.name} is {list(half.shape)}; {heads} heads of this drafter need {list(needed)}",
                "tensor-shape",
                f"tensor:{half.name}",
            ),
            error=RefusedError,
        )
    return Tensor(
        f"{module}.kv_b_proj.weight",
        keys.dtype,
        (heads * (dims.qk_nope_head_dim + dims.v_head_dim), rank),
        Absorbed(keys.name, values.name),
    )


def _split_rows(name: str, stored: StoredTensor, dims: Dimensions) -> Iterator[Tensor]:
    # the tensors that a fused one stores as consecutive rows (qkv_proj, gate_up_proj)
    parts = _split_fused(name)
    if not parts:
        return
    listed_modules = " + ".join(part.split(".")[-2] for part in parts)
    check(
        (
            not stored.shape,
            f"{stored.name} is []; rows of {listed_modules} were expected",
            "tensor-shape",
            f"tensor:{stored.name}",
        ),
        error=RefusedError,
    )
    row = 0
    for part in parts:
        shape = expected_shape(part, dims)
        if shape is None:
            raise RefusedError(
                f"{stored.name} is {', '.join(name.split('.', 2)[-1] for name in parts)}, and the drafter has"
                f" no {part}; use the file as its trainer wrote it",
                "tensor-shape",
                f"tensor:{stored.name}",
            )
        end = row + shape[0]
        yield Tensor(
            part,
            stored.dtype,
            (shape[0], *stored.shape[1:]),
            (Segment(stored.name, row * stored.row_bytes, end * stored.row_bytes),),
        )
        row = end
    check(
        (
            stored.shape[0] != row,
            f"{stored.name} has {stored.shape[0]} rows; {listed_modules} of this drafter are {row}",
            "tensor-shape",
            f"tensor:{stored.name}",
        ),
        error=RefusedError,
    )


def _check_shapes(keys: Keys, tensors: Mapping[str, Tensor], dims: Dimensions, *, is_quantised: bool) -> None:
    """Raise RefusedError for a tensor whose shape is not the one that the dimensions give.

    A wrong d2t is only noted if there is a t2d to rebuild it from. Packed weights have shapes of their own.
    """
    for name, tensor in tensors.items():
        shape = expected_shape(name, dims)
        # of any number of axes of one (llama_eagle3.py 0.32.0:440)
        if name == "mask_hidden" and prod(tensor.shape) != dims.aux * dims.target_hidden:
            shape = 1, dims.aux * dims.target_hidden
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
            text,
            "tensor-shape",
            f"; if t2d marks {dims.draft_vocab} tokens, pass --fix-reading {FROM_T2D}",
            (f"--fix-reading {FROM_T2D}",),
        )


def read_head(
    keys: Keys, tensors: Mapping[str, Tensor], dims: Dimensions, unknown: Sequence[str]
) -> Mapping[str, Tensor]:
    """Return the tensors with an lm_head, which is a copy of the embedding if the drafter ties them.

    Raises RefusedError if a reduced vocabulary has no head.
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
    if packed_names("lm_head") & tensors.keys():
        return tensors
    if dims.draft_vocab != dims.vocab:
        hint = f" (is it {listed(unknown)}, misspelt?)" if unknown else ""
        raise RefusedError(
            f"lm_head.weight is missing{hint} and the draft vocabulary has {dims.draft_vocab} of"
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
        "lm_head is tied to the drafter's own embedding, and no engine supports that; lm_head is written as a"
        " copy of it",
    )
    return {**tensors, "lm_head.weight": replace(embedding, name="lm_head.weight")}


def note_names(
    keys: Keys, names: Names, tensors: Mapping[str, Tensor], dims: Dimensions, *, has_token_list: bool
) -> None:
    """Note the problems of missing tensors and of tensors without a place."""
    for name in sorted(_required_names(dims, tensors) - set(tensors)):
        keys.note(
            not packed_names(name.removesuffix(".weight")) & tensors.keys(),
            "problem",
            name,
            f"{name} is missing; engines fill it with ones or uninitialised memory in silence: restore it"
            " from the trainer",
            "missing-tensor",
        )
    name = "embed_tokens.weight"
    keys.note(
        dims.hidden != dims.target_hidden and name not in tensors,
        "problem",
        name,
        f"the target has width {dims.target_hidden} and the drafter {dims.hidden}, so the drafter needs its"
        " own embed_tokens; restore it from the trainer",
        "missing-tensor",
    )
    has_map = has_token_list or "d2t" in tensors or "t2d" in tensors
    keys.note(
        dims.draft_vocab != dims.vocab and not has_map,
        "problem",
        "d2t",
        f"d2t is missing and the draft vocabulary has {dims.draft_vocab} of {dims.vocab} tokens; engines"
        f" would propose the first {dims.draft_vocab}: restore it from the trainer",
        "d2t-missing",
    )
    for dropped, (name, *others) in droppable(names.unknown, tensors).items():
        keys.note(
            True,
            "problem",
            name,
            f"{name} and {len(others)} more of this module have no place in an EAGLE-3 drafter"
            if others
            else f"{name} has no place in an EAGLE-3 drafter",
            "unknown-tensor",
            f"; pass --drop {quote(dropped)} if they may be left behind"
            if others
            else f"; pass --drop {name} if it may be left behind",
            ("--drop",),
        )


def droppable(unknown: Sequence[str], tensors: Mapping[str, Tensor]) -> Mapping[str, Sequence[str]]:
    """Return what --drop takes for the tensors without a place, and the stored names that it stands for.

    Tensors of a module that has none of the drafter's own share one: the module's name and `.*`.
    """
    of_drafter = {stored.partition(".")[0] for tensor in tensors.values() for stored in tensor.stored}
    modules = Counter(name.partition(".")[0] for name in unknown)
    groups: dict[str, list[str]] = {}
    for name in unknown:
        module = name.partition(".")[0]
        is_foreign = modules[module] > 1 and module not in of_drafter
        groups.setdefault(f"{module}{ALL}" if is_foreign else name, []).append(name)
    return groups


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


def _required_names(dims: Dimensions, present: Mapping[str, Tensor]) -> set[str]:
    # the names that a drafter of these dimensions must have
    parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    if dims.attention == "MLA":
        parts = (
            *(("q_a_proj", "q_a_layernorm", "q_b_proj") if dims.q_lora_rank else ("q_proj",)),
            *MLA_PARTS,
        )
    layer = {f"{part}.weight" for part in (*LAYER_PARTS, *(f"self_attn.{part}" for part in parts))}
    for group in TOGETHER:
        if any(name.endswith(group) for name in present):
            layer.update(group)
    return {f"layers.{index}.{part}" for index in range(dims.layers) for part in layer} | {
        "layers.0.hidden_norm.weight",
        "fc.weight",
        "norm.weight",
    }


Shapes = Mapping[str, tuple[int, ...]]
