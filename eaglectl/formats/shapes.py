"""Dimensions read off tensor shapes and compared with the config; the shapes win, and every disagreement is said."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from eaglectl.drafter.drafter import Target
from eaglectl.drafter.tensors import LAYER, NORM, Dimensions, is_quantised_part
from eaglectl.errors import Refused
from eaglectl.formats.keys import MISSING, Keys
from eaglectl.formats.spelling import Names

LARGEST_VOCABULARY = 10_000_000


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes by canonical name; packed (quantised) weights are left out, since their shape is the packing's."""

    of: Mapping[str, tuple[int, ...]]

    def axis(self, name: str, axis: int) -> int | None:
        """The size of one axis, None where the tensor is absent; a tensor of too few axes is refused."""
        shape = self.of.get(name)
        if shape is None:
            return None
        if axis >= len(shape):
            raise Refused(f"{name} is {list(shape)}; {axis + 1} axes or more were expected")
        return shape[axis]

    def first(self, *places: tuple[str, int]) -> int | None:
        """The first of several (name, axis) that is there."""
        return next((size for name, axis in places if (size := self.axis(name, axis)) is not None), None)


def plain_shapes(names: Names) -> Shapes:
    """Shapes of all tensors whose stored shape is their real one."""
    tables = {**names.plain, **names.fused, **names.absorbed}
    packed = {name.rpartition(".")[0] for name in tables if name.endswith((".weight_packed", ".qweight"))}
    four_bit = {
        name
        for name, t in tables.items()
        if t.dtype in ("U8", "I8", "F4") and f"{name}_scale" in tables and name.endswith(".weight") and t.dtype != "I8"
    }
    kept = {
        n: t.shape
        for n, t in tables.items()
        if not is_quantised_part(n) and n.rpartition(".")[0] not in packed and n not in four_bit
    }
    return Shapes(kept)


def read_dimensions(names: Names, keys: Keys, target: Target) -> Dimensions:
    """All dimensions of a drafter. Raises Refused for what neither shapes nor config tell, or where they cannot be reconciled."""
    shapes = plain_shapes(names)
    _refuse_empty(shapes)
    hidden = _agree(keys, "hidden_size", _hidden(shapes))
    layers = len({int(m[1]) for name in (*names.plain, *names.fused, *names.absorbed) if (m := LAYER.fullmatch(name))})
    _agree(keys, "num_hidden_layers", layers, always=True)
    aux, target_hidden = _aux(shapes, keys, hidden, target)
    draft_rows = shapes.first(("lm_head.weight", 0), ("d2t", 0))
    vocab = _agree(keys, "vocab_size", shapes.first(("t2d", 0), ("embed_tokens.weight", 0)))
    if vocab > LARGEST_VOCABULARY:
        raise Refused(f"config.json: vocab_size is {vocab}; no vocabulary is that large")
    stated = keys.take_int("draft_vocab_size")
    if draft_rows is None:
        draft_rows = stated or vocab
    elif stated is not None and stated != draft_rows:
        keys.say(
            "warning",
            "draft_vocab_size",
            f"config says draft_vocab_size: {stated}, and lm_head and d2t have {draft_rows} rows; the tensors are"
            " believed",
        )
    mlp = shapes.first(
        ("layers.0.mlp.gate_proj.weight", 0), ("layers.0.mlp.up_proj.weight", 0), ("layers.0.mlp.down_proj.weight", 1)
    )
    fused_mlp = shapes.axis("layers.0.mlp.gate_up_proj.weight", 0)
    wide = (
        "intermediate_size_mlp"
        if keys.at("intermediate_size_mlp") is not MISSING and keys.config.get("model_type") == "llama4_text"
        else "intermediate_size"
    )
    intermediate = _agree(keys, wide, mlp or (fused_mlp // 2 if fused_mlp else None))
    keys.taken.add("intermediate_size")
    keys.taken.add("intermediate_size_mlp")
    is_mla = (
        any("kv_a_" in name or "w_kc" in name or "fused_qkv_a" in name for name in shapes.of)
        or keys.config.get("kv_lora_rank") is not None
    )
    attention = _mla(shapes, keys) if is_mla else _heads(shapes, keys, hidden)
    return Dimensions(
        hidden=hidden, target_hidden=target_hidden, aux=aux, vocab=vocab, draft_vocab=draft_rows, intermediate=intermediate,
        layers=layers, **attention,
    )  # fmt: skip


def _refuse_empty(shapes: Shapes) -> None:
    for name, shape in shapes.of.items():
        if 0 in shape:
            raise Refused(f"{name} is {list(shape)}; a tensor of a drafter is never empty: restore it from the trainer")


def _hidden(shapes: Shapes) -> int | None:
    """The size that most of the tensors that carry it have, so that the odd one is the one that is named."""
    places = [
        ("norm.weight", 0),
        ("layers.0.input_layernorm.weight", 0),
        ("layers.0.post_attention_layernorm.weight", 0),
        ("fc.weight", 0),
    ]
    sizes = [size for name, axis in places if (size := shapes.axis(name, axis)) is not None]
    return Counter(sizes).most_common(1)[0][0] if sizes else None


def _agree(keys: Keys, key: str, measured: int | None, *, always: bool = False) -> int:
    stated = keys.take_int(key)
    if measured is None:
        if stated is None:
            raise Refused(f"config.json has no {key}, and no tensor gives it; add it to config.json")
        return stated
    if stated is not None and stated != measured:
        keys.say(
            "warning", key, f"config says {key}: {stated}, and the tensors say {measured}; the tensors are believed"
        )
    elif stated is None and always:
        keys.say("note", key, f"config has no {key}; the tensors say {measured}")
    return measured


def _aux(shapes: Shapes, keys: Keys, hidden: int, target: Target) -> tuple[int, int]:
    """Number of aux layers and their width, from fc [hidden, aux*width], fc_norm.i [width], input_norm [aux*width]."""
    stated = keys.take_int("target_hidden_size")
    uses = keys.take_bool("use_aux_hidden_state")
    count = sum(1 for name in shapes.of if NORM.fullmatch(name))
    width = shapes.axis("fc_norm.0.weight", 0) or stated or target.hidden or hidden
    total = shapes.first(("fc.weight", 1), ("input_norm.weight", 0))
    if stated is not None and count and stated != width:
        keys.say(
            "warning",
            "target_hidden_size",
            f"config says target_hidden_size: {stated}, and fc_norm.0 is {width} wide; the tensor is believed",
        )
    if total is None:
        raise Refused("fc.weight is missing; an EAGLE-3 drafter mixes its aux states with it")
    if uses is False:
        keys.say(
            "problem",
            "use_aux_hidden_state",
            "config says eagle_config.use_aux_hidden_state: false, and the file has fc.weight; engines would skip it:"
            " remove one of them",
        )
    if total % width or (count and total != count * width):
        wanted = (
            f"{count} aux layers of width {width} (by fc_norm) need [{hidden}, {count * width}]"
            if count
            else f"its second axis must be a multiple of the target's width {width}"
        )
        raise Refused(f"fc.weight is [{hidden}, {total}]; {wanted}; state target_hidden_size, or pass --target")
    number = total // width
    named = keys.take_int("num_aux_hidden_states")
    if named is not None and named != number:
        keys.say(
            "warning",
            "num_aux_hidden_states",
            f"config says num_aux_hidden_states: {named}, and fc.weight [{hidden}, {total}] takes {number} of width"
            f" {width}; the tensor is believed",
        )
    return number, width


def _heads(shapes: Shapes, keys: Keys, hidden: int) -> dict[str, int]:
    """Heads of GQA, MHA or MQA: q_proj [heads*head_dim, input], k_proj [kv_heads*head_dim, input], q_norm [head_dim]."""
    heads, kv_stated, dim_stated = (
        keys.take_int(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if heads is None:
        raise Refused(
            "config.json has no num_attention_heads, and shapes give only heads x head_dim; add it to config.json"
        )
    query = shapes.first(("layers.0.self_attn.q_proj.weight", 0), ("layers.0.self_attn.o_proj.weight", 1))
    key = shapes.first(("layers.0.self_attn.k_proj.weight", 0), ("layers.0.self_attn.v_proj.weight", 0))
    fused = shapes.axis("layers.0.self_attn.qkv_proj.weight", 0)
    head_dim = shapes.axis("layers.0.self_attn.q_norm.weight", 0) or (
        _whole("q_proj", query, heads, "num_attention_heads") if query else None
    )
    if dim_stated and query and query != heads * dim_stated and head_dim != dim_stated:
        raise Refused(
            f"config says {heads} heads of head_dim {dim_stated} = {heads * dim_stated}, and q_proj has {query} rows;"
            " correct num_attention_heads or head_dim"
        )
    if head_dim is None:
        kv = kv_stated or heads
        head_dim = (
            _whole("qkv_proj", fused, heads + 2 * kv, "num_attention_heads + 2 num_key_value_heads")
            if fused
            else dim_stated
        )
    if head_dim is None:
        raise Refused("config.json has no head_dim, and no attention weight gives it; add it to config.json")
    if query and query != heads * head_dim:
        raise Refused(
            f"layers.0.self_attn.q_proj has {query} rows; {heads} heads of {head_dim} need {heads * head_dim}; correct"
            " num_attention_heads"
        )
    if (dim_stated or hidden / heads) != head_dim:
        found = (
            f"config says head_dim: {dim_stated}"
            if dim_stated
            else f"config has no head_dim (engines take hidden_size/num_attention_heads = {hidden / heads:g})"
        )
        keys.say("warning", "head_dim", f"{found}, and the tensors say {head_dim}; the tensors are believed")
    kv_heads = _whole("k_proj", key, head_dim, "head_dim") if key else (kv_stated or heads)
    if (kv_stated or heads) != kv_heads:
        keys.say(
            "warning",
            "num_key_value_heads",
            f"config says num_key_value_heads: {kv_stated}, and k_proj has rows for {kv_heads}; the tensors are"
            " believed",
        )
    if kv_heads > heads or heads % kv_heads:
        raise Refused(f"{heads} query heads cannot share {kv_heads} key heads evenly; correct num_attention_heads")
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _mla(shapes: Shapes, keys: Keys) -> dict[str, int]:
    """MLA ranks and head sizes (formats.md, 4.2), each from the tensor that fixes it."""
    layer = "layers.0.self_attn."

    def size(key: str, measured: int | None) -> int:
        return _agree(keys, key, measured)

    def minus(total: int | None, part: int) -> int | None:
        return None if total is None else total - part

    absorbed_heads = shapes.axis(layer + "w_kc", 0)
    heads = size("num_attention_heads", absorbed_heads)
    keys.taken.update(("num_key_value_heads", "head_dim", "qk_head_dim"))
    kv_rank = size("kv_lora_rank", shapes.first((layer + "kv_a_layernorm.weight", 0), (layer + "kv_b_proj.weight", 1)))
    if not shapes.first((layer + "q_a_layernorm.weight", 0), (layer + "q_a_proj.weight", 0)) and shapes.axis(
        layer + "q_proj.weight", 0
    ):
        raise Refused(
            "an MLA drafter with q_proj and no q_a_proj/q_b_proj (q_lora_rank: null): neither vLLM nor SGLang can"
            " load one"
        )
    q_rank = size(
        "q_lora_rank",
        shapes.first(
            (layer + "q_a_layernorm.weight", 0), (layer + "q_a_proj.weight", 0), (layer + "q_b_proj.weight", 1)
        ),
    )
    fused = shapes.first((layer + "fused_qkv_a_proj.weight", 0), (layer + "fused_qkv_a_proj_with_mqa.weight", 0))
    latent = shapes.axis(layer + "kv_a_proj_with_mqa.weight", 0) or minus(fused, q_rank)
    rope = size("qk_rope_head_dim", minus(latent, kv_rank))
    nope = size(
        "qk_nope_head_dim", shapes.axis(layer + "w_kc", 1) or _per_head(shapes, layer + "q_b_proj.weight", heads, rope)
    )
    value = size(
        "v_head_dim", shapes.axis(layer + "w_vc", 2) or _per_head(shapes, layer + "kv_b_proj.weight", heads, nope)
    )
    return {
        "heads": heads, "kv_heads": heads, "q_lora_rank": q_rank, "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value,
    }  # fmt: skip


def _per_head(shapes: Shapes, name: str, heads: int, less: int) -> int | None:
    rows = shapes.axis(name, 0)
    return None if rows is None else _whole(name, rows, heads, "num_attention_heads") - less


def _whole(name: str, rows: int, by: int, what: str) -> int:
    if rows % by:
        raise Refused(f"{name} has {rows} rows, which {what} = {by} does not divide; correct config.json")
    return rows // by
