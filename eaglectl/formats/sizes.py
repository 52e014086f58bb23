"""Dimensions by tensor shapes, compared with the config; the shapes win, and a difference is noted.

The heads of an attention layer are read off its weights: those of GQA, MHA and MQA, or MLA's ranks.
"""

from collections.abc import Mapping

from eaglectl.drafter.drafter import Choice, Target, question
from eaglectl.drafter.tensors import NORM, Dimensions, is_quantised_part
from eaglectl.errors import OptionNeededError, RefusedError
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.names import Names

Shapes = Mapping[str, tuple[int, ...]]

LARGEST_VOCABULARY = 10_000_000
# config keys that dimensions are read from, of every drafter and of MLA ones
SIZE_KEYS = (
    *("hidden_size", "num_hidden_layers", "target_hidden_size", "use_aux_hidden_state", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_aux_hidden_states", "draft_vocab_size", "intermediate_size", "intermediate_size_mlp"),
)
MLA_SIZE_KEYS = (
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "qk_head_dim"),
)
# a tensor, and its axis
HIDDEN_PLACES = (
    ("norm.weight", 0),
    ("layers.0.input_layernorm.weight", 0),
    ("layers.0.post_attention_layernorm.weight", 0),
    ("fc.weight", 0),
)
ATTENTION = "layers.0.self_attn."


def read_dimensions(keys: Keys, names: Names, target: Target) -> Dimensions:
    """All dimensions of a drafter.

    Raises RefusedError where neither shapes nor config give one, or where they contradict each other.
    """
    shapes = _plain_shapes(names)
    if empty := next((name for name, shape in shapes.items() if 0 in shape), None):
        raise RefusedError(
            f"{empty} is {list(shapes[empty])}; a tensor of a drafter is never empty: restore it from the"
            " trainer",
            "tensor-shape",
            f"tensor:{empty}",
        )
    # the most common size; a tensor that differs is then the one reported
    sizes = [size for place in HIDDEN_PLACES if (size := _size(shapes, place)) is not None]
    hidden = _agreed(keys, "hidden_size", max(sizes, key=sizes.count, default=None))
    layers = _agreed(keys, "num_hidden_layers", len(names.layers), always=True)
    aux, width = _read_aux(keys, shapes, hidden, target)
    vocab = _agreed(keys, "vocab_size", _size(shapes, ("t2d", 0), ("embed_tokens.weight", 0)))
    if vocab > LARGEST_VOCABULARY:
        raise RefusedError(
            f"config.json: vocab_size is {vocab}; no vocabulary is that large",
            "config-dimensions",
            "config.json:vocab_size",
        )
    is_mla = any("kv_a_" in name or "w_kc" in name or "fused_qkv_a" in name for name in shapes)
    has_latent = is_mla or keys.config.get("kv_lora_rank") is not None
    attention = _read_mla(keys, shapes) if has_latent else _read_heads(keys, shapes, hidden)
    return Dimensions(
        hidden=hidden,
        target_hidden=width,
        aux=aux,
        vocab=vocab,
        draft_vocab=_read_draft_vocab(keys, shapes, vocab),
        intermediate=_read_intermediate(keys, shapes),
        layers=layers,
        **attention,
    )


def _plain_shapes(names: Names) -> Shapes:
    """Shapes by canonical name of all tensors whose stored shape is their real one."""
    tables = names.tensors
    packed = {name.rpartition(".")[0] for name in tables if name.endswith((".weight_packed", ".qweight"))}
    four_bit = {
        name
        for name, tensor in tables.items()
        if tensor.dtype in ("U8", "F4") and f"{name}_scale" in tables and name.endswith(".weight")
    }
    return {
        name: tensor.shape
        for name, tensor in tables.items()
        if not is_quantised_part(name) and name.rpartition(".")[0] not in packed and name not in four_bit
    }


def _size(shapes: Shapes, *places: tuple[str, int]) -> int | None:
    for name, axis in places:
        if (shape := shapes.get(name)) is not None:
            if axis < len(shape):
                return shape[axis]
            raise RefusedError(
                f"{name} is {list(shape)}; {axis + 1} axes or more were expected",
                "tensor-shape",
                f"tensor:{name}",
            )
    return None


def _agreed(keys: Keys, key: str, measured: int | None, *, always: bool = False) -> int:
    stated = keys.get(key, int)
    value = stated if measured is None else measured
    if value is None:
        raise RefusedError(
            f"config.json has no {key}, and no tensor gives it; add it to config.json",
            "null-fields" if key in keys.config else "config-dimensions",
            "config.json",
        )
    topic = "layer-count" if key == "num_hidden_layers" else "config-dimensions"
    keys.note(
        stated not in (None, value),
        "warning",
        key,
        f"config says {key}: {stated}, and the tensors say {value}; the tensors are believed",
        topic,
    )
    keys.note(stated is None and always, "note", key, f"config has no {key}; the tensors say {value}")
    return value


def _whole(name: str, rows: int, by: int, what: str) -> int:
    if rows % by:
        raise RefusedError(
            f"{name} has {rows} rows, which {what} = {by} does not divide; correct config.json",
            "config-dimensions",
            "config.json",
        )
    return rows // by


def _read_draft_vocab(keys: Keys, shapes: Shapes, vocab: int) -> int:
    key, rows = "draft_vocab_size", _size(shapes, ("lm_head.weight", 0), ("d2t", 0))
    evidence = f"lm_head and d2t have {rows} rows"
    if rows is None or not keys.disbelieved(key, evidence):
        stated = keys.get(key, int)
        rows = rows or stated or vocab
        keys.note(
            stated not in (None, rows),
            "warning",
            key,
            f"config says {key}: {stated}, and {evidence}; the tensors are believed",
            "config-dimensions",
        )
    return rows


def _read_intermediate(keys: Keys, shapes: Shapes) -> int:
    """The width of the MLP; Llama 4's text model states that of its dense layers under a key of its own."""
    mlp = "layers.0.mlp."
    width = _size(
        shapes, (f"{mlp}gate_proj.weight", 0), (f"{mlp}up_proj.weight", 0), (f"{mlp}down_proj.weight", 1)
    )
    if width is None and (fused := _size(shapes, (f"{mlp}gate_up_proj.weight", 0))):
        width = fused // 2
    own_key = "intermediate_size_mlp"
    is_llama4 = keys.config.get(own_key) is not None and keys.config.get("model_type") == "llama4_text"
    return _agreed(keys, own_key if is_llama4 else "intermediate_size", width)


def _read_aux(keys: Keys, shapes: Shapes, hidden: int, target: Target) -> tuple[int, int]:
    """The number of aux layers and their width.

    Shapes: fc [hidden, aux*width], fc_norm.i [width], input_norm [aux*width].
    """
    own = _size(shapes, ("fc_norm.0.weight", 0))
    stated = _read_width(keys, own, target)
    switch = "use_aux_hidden_state"
    if "fc.weight" not in shapes or not keys.disbelieved(switch, "the file has fc.weight"):
        keys.note(
            keys.get(switch, bool) is False,
            "problem",
            switch,
            f"config says eagle_config.{switch}: false, and the file has fc.weight; engines would skip it:"
            " remove one of them",
            "use-aux-hidden-state",
        )
    norms = len(list(filter(NORM.fullmatch, shapes)))
    total = _size(shapes, ("fc.weight", 1), ("input_norm.weight", 0))
    if total is None:
        raise RefusedError(
            "fc.weight is missing; an EAGLE-3 drafter mixes its aux states with it",
            "missing-tensor",
            "tensor:fc.weight",
        )
    # a given target of another width is another target, not another width of the states
    fits = target.hidden is not None and (total % target.hidden == 0 or total % hidden != 0)
    width = own or stated or (target.hidden if fits else None) or hidden
    _check_width(hidden, total, width, norms)
    _compare_count(keys, (hidden, total), width, is_width_known=bool(norms or stated or target.hidden))
    return total // width, width


def _check_width(hidden: int, total: int, width: int, norms: int) -> None:
    """Raise RefusedError unless fc takes whole states of this width, and one for each fc_norm."""
    if total % width or total < norms * width:
        needed = f"its second axis must be a multiple of the target's width {width}"
        if norms:
            needed = f"{norms} aux layers of width {width} (by fc_norm) need [{hidden}, {norms * width}]"
        raise OptionNeededError(
            f"fc.weight is [{hidden}, {total}]; {needed}; state target_hidden_size, or pass --target",
            "tensor-shape",
            "tensor:fc.weight",
        )


def _read_width(keys: Keys, own: int | None, target: Target) -> int | None:
    """The target's width as the config states it; where two places state others, that of fc_norm or --target.

    `own` is that of fc_norm. Raises RefusedError where there is neither.
    """
    key, believed = "target_hidden_size", own or target.hidden
    evidence = f"fc_norm.0 is {own} wide" if own else f"the target is {believed} wide"
    contradiction, _ = keys.contradiction(key)
    if contradiction and not believed:
        raise OptionNeededError(
            f"{contradiction}; pass --target, whose width is believed",
            "spellings-agree",
            f"config.json:{key}",
        )
    if believed and keys.disbelieved(key, evidence):
        return believed
    stated = keys.get(key, int)
    keys.note(
        own and stated not in (None, own),
        "warning",
        key,
        f"config says {key}: {stated}, and {evidence}; the tensor is believed",
        "config-dimensions",
    )
    return stated


def _compare_count(keys: Keys, fc: tuple[int, int], width: int, *, is_width_known: bool) -> None:
    key, (hidden, total) = "num_aux_hidden_states", fc
    evidence = f"fc.weight [{hidden}, {total}] takes {total // width} of width {width}"
    if is_width_known and keys.disbelieved(key, evidence):
        return
    stated = keys.get(key, int)
    text = f"config says {key}: {stated}, and {evidence}"
    if stated in (None, total // width):
        return
    if is_width_known or total % stated:
        keys.note(True, "warning", key, f"{text}; the tensor is believed", "aux-count")
    else:
        keys.notes.append(
            question(
                key,
                f"{text}, or {stated} of {total // stated}, as the target's width is not stated",
                "aux-count",
                [Choice("--target", is_free=True)],
            )
        )


def _read_heads(keys: Keys, shapes: Shapes, hidden: int) -> dict[str, int]:
    """The heads of GQA, MHA or MQA.

    Shapes: q_proj [heads*head_dim, input], k_proj [kv_heads*head_dim, input], q_norm [head_dim].
    """
    heads = _agreed(keys, "num_attention_heads", None)
    kv_stated, dim_stated = keys.get("num_key_value_heads", int), keys.get("head_dim", int)
    head_dim = _head_dim(shapes, heads, kv_stated or heads, dim_stated)
    rows = _size(shapes, (f"{ATTENTION}k_proj.weight", 0), (f"{ATTENTION}v_proj.weight", 0))
    kv_heads = _whole("k_proj", rows, head_dim, "head_dim") if rows else kv_stated or heads
    if kv_heads > heads or heads % kv_heads:
        raise RefusedError(
            f"{heads} query heads cannot share {kv_heads} key heads evenly; correct num_attention_heads",
            "config-dimensions",
            "config.json:num_attention_heads",
        )
    stated = f"config says head_dim: {dim_stated}"
    if not dim_stated:
        stated = f"config has no head_dim (engines take hidden_size/num_attention_heads = {hidden / heads:g})"
    keys.note(
        (dim_stated or hidden / heads) != head_dim,
        "warning",
        "head_dim",
        f"{stated}, and the tensors say {head_dim}; the tensors are believed",
        "head-dim",
    )
    text = (
        f"config says num_key_value_heads: {kv_stated}, and k_proj has rows for {kv_heads}; the tensors are"
        " believed"
    )
    keys.note((kv_stated or heads) != kv_heads, "warning", "num_key_value_heads", text, "config-dimensions")
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _head_dim(shapes: Shapes, heads: int, kv_heads: int, stated: int | None) -> int:
    query = _size(shapes, (f"{ATTENTION}q_proj.weight", 0), (f"{ATTENTION}o_proj.weight", 1))
    fused = _size(shapes, (f"{ATTENTION}qkv_proj.weight", 0))
    head_dim = _size(shapes, (f"{ATTENTION}q_norm.weight", 0))
    if head_dim is None and query:
        head_dim = _whole("q_proj", query, heads, "num_attention_heads")
    if stated and query and query != heads * stated and head_dim != stated:
        raise RefusedError(
            f"config says {heads} heads of head_dim {stated} = {heads * stated}, and q_proj has {query} rows"
            f"{_fitting(shapes, query, heads, stated)}; correct num_attention_heads or head_dim",
            "head-dim",
            "config.json:head_dim",
        )
    if head_dim is None and fused:
        what = "num_attention_heads + 2 num_key_value_heads"
        head_dim = _whole("qkv_proj", fused, heads + 2 * kv_heads, what)
    head_dim = head_dim or stated
    if head_dim is None:
        raise RefusedError(
            "config.json has no head_dim, and no attention weight gives it; add it to config.json",
            "head-dim",
            "config.json",
        )
    if query and query != heads * head_dim:
        raise RefusedError(
            f"layers.0.self_attn.q_proj has {query} rows; {heads} heads of {head_dim} need"
            f" {heads * head_dim}; correct num_attention_heads",
            "head-dim",
            "config.json:num_attention_heads",
        )
    return head_dim


def _fitting(shapes: Shapes, query: int, heads: int, stated: int) -> str:
    """Which pairs of heads and head_dim q_proj and k_proj fit, of those that keep one of the two numbers."""
    key = _size(shapes, (f"{ATTENTION}k_proj.weight", 0)) or query
    pairs = [(query // stated, stated), (heads, query // heads)]
    fitting = [
        f"{number} heads of {width}" for number, width in pairs if number * width == query and not key % width
    ]
    return f", as of {' or '.join(fitting)}" if fitting else ""


def _read_mla(keys: Keys, shapes: Shapes) -> dict[str, int]:
    def size(*places: tuple[str, int]) -> int | None:
        return _size(shapes, *((f"{ATTENTION}{name}", axis) for name, axis in places))

    def per_head(name: str, less: int) -> int | None:
        rows = size((name, 0))
        return rows and _whole(f"{ATTENTION}{name}", rows, heads, "num_attention_heads") - less

    heads = _agreed(keys, "num_attention_heads", size(("w_kc", 0)))
    kv_rank = _agreed(keys, "kv_lora_rank", size(("kv_a_layernorm.weight", 0), ("kv_b_proj.weight", 1)))
    rank = size(("q_a_layernorm.weight", 0), ("q_a_proj.weight", 0), ("q_b_proj.weight", 1))
    if rank is None and size(("q_proj.weight", 0)):
        rank = 0
        stated = keys.get("q_lora_rank", int)
        said = "q_lora_rank: null" if stated is None else f"config says q_lora_rank: {stated}"
        keys.note(
            True,
            "problem",
            f"{ATTENTION}q_a_proj.weight",
            f"an MLA drafter with q_proj and no q_a_proj and q_b_proj ({said}), which neither vLLM nor SGLang"
            " can load; pass --mla-query-lora to write q_proj as the two",
            "missing-tensor",
            names_option=True,
        )
    else:
        rank = _agreed(keys, "q_lora_rank", rank)
    latent = size(("kv_a_proj_with_mqa.weight", 0))
    fused = size(("fused_qkv_a_proj.weight", 0), ("fused_qkv_a_proj_with_mqa.weight", 0))
    if latent is None and fused is not None:
        latent = fused - rank
    rope = _agreed(keys, "qk_rope_head_dim", None if latent is None else latent - kv_rank)
    query = "q_b_proj.weight" if rank else "q_proj.weight"
    nope = _agreed(keys, "qk_nope_head_dim", size(("w_kc", 1)) or per_head(query, rope))
    return {
        "heads": heads,
        "kv_heads": heads,
        "q_lora_rank": rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": _agreed(keys, "v_head_dim", size(("w_vc", 2)) or per_head("kv_b_proj.weight", nope)),
    }
