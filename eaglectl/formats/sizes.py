"""Dimensions by tensor shapes, compared with the config; the shapes win, and a difference is noted.

The heads of an attention layer are read off its weights: those of GQA, MHA and MQA, or MLA's ranks.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.drafter.drafter import Choice, Note, Target, question
from eaglectl.drafter.tensors import NORM, Dimensions, is_quantised_part
from eaglectl.errors import OptionNeededError, RefusedError
from eaglectl.formats.config_keys import MISSING, Keys, Reading
from eaglectl.formats.names import Names


class Shapes(Struct, frozen=True):
    """Shapes by canonical name, without packed (quantised) weights."""

    of: Mapping[str, tuple[int, ...]]

    def axis(self, name: str, axis: int) -> int | None:
        """The size of one axis, None where the tensor is absent; a tensor of too few axes is refused."""
        shape = self.of.get(name)
        if shape is None:
            return None
        if axis >= len(shape):
            raise RefusedError(
                f"{name} is {list(shape)}; {axis + 1} axes or more were expected",
                "tensor-shape",
                f"tensor:{name}",
            )
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
        if t.dtype in ("U8", "F4") and f"{name}_scale" in tables and name.endswith(".weight")
    }
    kept = {
        n: t.shape
        for n, t in tables.items()
        if not is_quantised_part(n) and n.rpartition(".")[0] not in packed and n not in four_bit
    }
    return Shapes(kept)


def agreed(keys: Keys, key: str, measured: int | None, *, always: bool = False) -> Reading[int]:
    """A dimension: `measured` on the tensors, or else as the config states it.

    Raises RefusedError where neither gives it.
    """
    stated = keys.count(key)
    value = stated if measured is None else measured
    if value is None:
        raise RefusedError(
            f"config.json has no {key}, and no tensor gives it; add it to config.json",
            keys.absence(key),
            "config.json",
        )
    topic = "layer-count" if key == "num_hidden_layers" else "config-dimensions"
    text = f"config says {key}: {stated}, and the tensors say {value}; the tensors are believed"
    return Reading(value, (key,)).with_notes(
        (stated not in (None, value), Note("warning", key, text, topic)),
        (stated is None and always, Note("note", key, f"config has no {key}; the tensors say {value}")),
    )


def whole(name: str, rows: int, by: int, what: str) -> int:
    """The quotient of rows that must divide evenly; `what` names the divisor. Raises RefusedError."""
    if rows % by:
        raise RefusedError(
            f"{name} has {rows} rows, which {what} = {by} does not divide; correct config.json",
            "config-dimensions",
            "config.json",
        )
    return rows // by


LARGEST_VOCABULARY = 10_000_000
# a tensor, and its axis
HIDDEN_PLACES = (
    ("norm.weight", 0),
    ("layers.0.input_layernorm.weight", 0),
    ("layers.0.post_attention_layernorm.weight", 0),
    ("fc.weight", 0),
)


def read_dimensions(keys: Keys, names: Names, target: Target) -> Reading[Dimensions]:
    """All dimensions of a drafter.

    Raises RefusedError where neither shapes nor config give one, or where they contradict each other.
    """
    shapes = plain_shapes(names)
    if empty := next((name for name, shape in shapes.of.items() if 0 in shape), None):
        raise RefusedError(
            f"{empty} is {list(shapes.of[empty])}; a tensor of a drafter is never empty: restore it from the"
            " trainer",
            "tensor-shape",
            f"tensor:{empty}",
        )
    # the most common size; a tensor that differs is then the one reported
    sizes = Counter(size for place in HIDDEN_PLACES if (size := shapes.axis(*place)) is not None)
    hidden = agreed(keys, "hidden_size", sizes.most_common(1)[0][0] if sizes else None)
    layers = agreed(keys, "num_hidden_layers", len(names.layers), always=True)
    aux = _read_aux(keys, shapes, hidden.value, target)
    vocab = agreed(keys, "vocab_size", shapes.first(("t2d", 0), ("embed_tokens.weight", 0)))
    if vocab.value > LARGEST_VOCABULARY:
        raise RefusedError(
            f"config.json: vocab_size is {vocab.value}; no vocabulary is that large",
            "config-dimensions",
            "config.json:vocab_size",
        )
    is_mla = (
        any("kv_a_" in name or "w_kc" in name or "fused_qkv_a" in name for name in shapes.of)
        or keys.config.get("kv_lora_rank") is not None
    )
    attention = read_mla(keys, shapes) if is_mla else read_heads(keys, shapes, hidden.value)
    draft_vocab = _read_draft_vocab(keys, shapes, vocab.value)
    intermediate = _read_intermediate(keys, shapes)
    number, width = aux.value
    dims = Dimensions(
        hidden=hidden.value,
        target_hidden=width,
        aux=number,
        vocab=vocab.value,
        draft_vocab=draft_vocab.value,
        intermediate=intermediate.value,
        layers=layers.value,
        **attention.value,
    )
    return Reading.of(dims, hidden, layers, aux, vocab, attention, draft_vocab, intermediate)


def _read_draft_vocab(keys: Keys, shapes: Shapes, vocab: int) -> Reading[int]:
    key = "draft_vocab_size"
    rows = shapes.first(("lm_head.weight", 0), ("d2t", 0))
    notes = () if rows is None else keys.disbelieved(key, f"lm_head and d2t have {rows} rows")
    stated = None if notes else keys.count(key)
    if rows is None:
        return Reading(stated or vocab, (key,))
    text = f"config says {key}: {stated}, and lm_head and d2t have {rows} rows; the tensors are believed"
    warning = Note("warning", key, text, "config-dimensions")
    return Reading(rows, (key,), notes).with_notes((stated not in (None, rows), warning))


def _read_intermediate(keys: Keys, shapes: Shapes) -> Reading[int]:
    """The width of the MLP; Llama 4's text model states that of its dense layers under a key of its own."""
    mlp = shapes.first(
        ("layers.0.mlp.gate_proj.weight", 0),
        ("layers.0.mlp.up_proj.weight", 0),
        ("layers.0.mlp.down_proj.weight", 1),
    )
    fused = shapes.axis("layers.0.mlp.gate_up_proj.weight", 0)
    has_own_key = keys.at("intermediate_size_mlp") is not MISSING
    is_llama4 = has_own_key and keys.config.get("model_type") == "llama4_text"
    key = "intermediate_size_mlp" if is_llama4 else "intermediate_size"
    width = agreed(keys, key, mlp or (fused // 2 if fused else None))
    return replace(width, taken=("intermediate_size", "intermediate_size_mlp"))


def _check_width(hidden: int, total: int, width: int, norms: int) -> None:
    """Raise RefusedError unless fc takes whole states of this width, and one for each fc_norm."""
    if total % width == 0 and total >= norms * width:
        return
    needed = f"its second axis must be a multiple of the target's width {width}"
    if norms:
        needed = f"{norms} aux layers of width {width} (by fc_norm) need [{hidden}, {norms * width}]"
    raise OptionNeededError(
        f"fc.weight is [{hidden}, {total}]; {needed}; state target_hidden_size, or pass --target",
        "tensor-shape",
        "tensor:fc.weight",
    )


def _read_width(keys: Keys, own: int | None, target: Target) -> Reading[int | None]:
    """The target's width as the config states it; where two places state others, that of fc_norm or --target.

    `own` is that of fc_norm. Raises RefusedError where there is neither.
    """
    key = "target_hidden_size"
    if contradiction := keys.contradiction(key):
        if not (width := own or target.hidden):
            text = f"{contradiction}; pass --target, whose width is believed"
            raise OptionNeededError(text, "spellings-agree", f"config.json:{key}")
        evidence = f"fc_norm.0 is {own} wide" if own else f"the target is {target.hidden} wide"
        return Reading(width, (key,), keys.disbelieved(key, evidence))
    stated = keys.count(key)
    text = f"config says {key}: {stated}, and fc_norm.0 is {own} wide; the tensor is believed"
    is_other = stated is not None and own and stated != own
    return Reading(stated, (key,)).with_notes((is_other, Note("warning", key, text, "config-dimensions")))


def _read_aux_switch(keys: Keys, *, has_fc: bool) -> Reading[None]:
    """Nothing but the notes on the switch of the aux states, which fc takes."""
    key = "use_aux_hidden_state"
    notes = keys.disbelieved(key, "the file has fc.weight") if has_fc else ()
    is_off = not notes and keys.flag(key) is False
    text = (
        f"config says eagle_config.{key}: false, and the file has fc.weight; engines would skip it: remove"
        " one of them"
    )
    return Reading(None, (key,), notes).with_notes(
        (is_off, Note("problem", key, text, "use-aux-hidden-state"))
    )


def _read_aux(keys: Keys, shapes: Shapes, hidden: int, target: Target) -> Reading[tuple[int, int]]:
    """The number of aux layers and their width.

    Shapes: fc [hidden, aux*width], fc_norm.i [width], input_norm [aux*width].
    """
    own = shapes.axis("fc_norm.0.weight", 0)
    stated = _read_width(keys, own, target)
    switch = _read_aux_switch(keys, has_fc="fc.weight" in shapes.of)
    norms = sum(1 for name in shapes.of if NORM.fullmatch(name))
    total = shapes.first(("fc.weight", 1), ("input_norm.weight", 0))
    if total is None:
        raise RefusedError(
            "fc.weight is missing; an EAGLE-3 drafter mixes its aux states with it",
            "missing-tensor",
            "tensor:fc.weight",
        )
    # a given target of another width is another target, not another width of the states
    fits = target.hidden is not None and (total % target.hidden == 0 or total % hidden != 0)
    width = own or stated.value or (target.hidden if fits else None) or hidden
    _check_width(hidden, total, width, norms)
    is_width_known = bool(norms or stated.value or target.hidden)
    count = _read_count(keys, (hidden, total), width, is_width_known=is_width_known)
    return Reading.of((count.value, width), stated, switch, count)


def _read_count(keys: Keys, fc: tuple[int, int], width: int, *, is_width_known: bool) -> Reading[int]:
    """The number of states that fc takes; a note or a question where num_aux_hidden_states is another."""
    key = "num_aux_hidden_states"
    hidden, total = fc
    number = total // width
    evidence = f"fc.weight [{hidden}, {total}] takes {number} of width {width}"
    if is_width_known and (notes := keys.disbelieved(key, evidence)):
        return Reading(number, (key,), notes)
    named = keys.count(key)
    if named is None or named == number:
        return Reading(number, (key,))
    text = f"config says {key}: {named}, and {evidence}"
    if is_width_known or total % named:
        note = Note("warning", key, f"{text}; the tensor is believed", "aux-count")
    else:
        why = f"{text}, or {named} of {total // named}, as the target's width is not stated"
        note = question(key, why, "aux-count", [Choice("--target", is_free=True)])
    return Reading(number, (key,), (note,))


HEAD_KEYS = ("num_attention_heads", "num_key_value_heads", "head_dim")


def read_heads(keys: Keys, shapes: Shapes, hidden: int) -> Reading[dict[str, int]]:
    """The heads of GQA, MHA or MQA.

    Shapes: q_proj [heads*head_dim, input], k_proj [kv_heads*head_dim, input], q_norm [head_dim].
    """
    heads, kv_stated, dim_stated = map(keys.count, HEAD_KEYS)
    if heads is None:
        raise RefusedError(
            "config.json has no num_attention_heads, and shapes give only heads x head_dim; add it to"
            " config.json",
            keys.absence("num_attention_heads"),
            "config.json",
        )
    head_dim = _head_dim(shapes, heads, kv_stated or heads, dim_stated)
    kv_heads = _kv_heads(shapes, heads, kv_stated, head_dim)
    assumed = f"config has no head_dim (engines take hidden_size/num_attention_heads = {hidden / heads:g})"
    stated = f"config says head_dim: {dim_stated}" if dim_stated else assumed
    width_text = f"{stated}, and the tensors say {head_dim}; the tensors are believed"
    heads_text = (
        f"config says num_key_value_heads: {kv_stated}, and k_proj has rows for {kv_heads}; the tensors are"
        " believed"
    )
    is_other_width = (dim_stated or hidden / heads) != head_dim
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return Reading(sizes, HEAD_KEYS).with_notes(
        (is_other_width, Note("warning", "head_dim", width_text, "head-dim")),
        (
            (kv_stated or heads) != kv_heads,
            Note("warning", "num_key_value_heads", heads_text, "config-dimensions"),
        ),
    )


def _head_dim(shapes: Shapes, heads: int, kv_heads: int, stated: int | None) -> int:
    query = shapes.first(("layers.0.self_attn.q_proj.weight", 0), ("layers.0.self_attn.o_proj.weight", 1))
    fused = shapes.axis("layers.0.self_attn.qkv_proj.weight", 0)
    head_dim = shapes.axis("layers.0.self_attn.q_norm.weight", 0)
    if head_dim is None and query:
        head_dim = whole("q_proj", query, heads, "num_attention_heads")
    if stated and query and query != heads * stated and head_dim != stated:
        raise RefusedError(
            f"config says {heads} heads of head_dim {stated} = {heads * stated}, and q_proj has {query} rows"
            f"{_fitting(shapes, query, heads, stated)}; correct num_attention_heads or head_dim",
            "head-dim",
            "config.json:head_dim",
        )
    if head_dim is None and fused:
        head_dim = whole(
            "qkv_proj", fused, heads + 2 * kv_heads, "num_attention_heads + 2 num_key_value_heads"
        )
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
    key = shapes.axis("layers.0.self_attn.k_proj.weight", 0) or query
    pairs = [(query // stated, stated), (heads, query // heads)]
    fitting = [
        f"{number} heads of {width}" for number, width in pairs if number * width == query and not key % width
    ]
    return f", as of {' or '.join(fitting)}" if fitting else ""


def _kv_heads(shapes: Shapes, heads: int, stated: int | None, head_dim: int) -> int:
    key = shapes.first(("layers.0.self_attn.k_proj.weight", 0), ("layers.0.self_attn.v_proj.weight", 0))
    kv_heads = whole("k_proj", key, head_dim, "head_dim") if key else stated or heads
    if kv_heads > heads or heads % kv_heads:
        raise RefusedError(
            f"{heads} query heads cannot share {kv_heads} key heads evenly; correct num_attention_heads",
            "config-dimensions",
            "config.json:num_attention_heads",
        )
    return kv_heads


def read_mla(keys: Keys, shapes: Shapes) -> Reading[dict[str, int]]:
    """MLA ranks and head sizes, each from the tensor that fixes it."""
    layer = "layers.0.self_attn."

    def minus(total: int | None, part: int) -> int | None:
        return None if total is None else total - part

    heads = agreed(keys, "num_attention_heads", shapes.axis(layer + "w_kc", 0))
    latent_places = ((layer + "kv_a_layernorm.weight", 0), (layer + "kv_b_proj.weight", 1))
    kv_rank = agreed(keys, "kv_lora_rank", shapes.first(*latent_places))
    measured = shapes.first(
        (layer + "q_a_layernorm.weight", 0),
        (layer + "q_a_proj.weight", 0),
        (layer + "q_b_proj.weight", 1),
    )
    if measured is None and shapes.axis(layer + "q_proj.weight", 0):
        q_rank = _without_query_lora(keys)
    else:
        q_rank = agreed(keys, "q_lora_rank", measured)
    fused = shapes.first(
        (layer + "fused_qkv_a_proj.weight", 0), (layer + "fused_qkv_a_proj_with_mqa.weight", 0)
    )
    latent = shapes.axis(layer + "kv_a_proj_with_mqa.weight", 0) or minus(fused, q_rank.value)
    rope = agreed(keys, "qk_rope_head_dim", minus(latent, kv_rank.value))
    query = layer + ("q_b_proj.weight" if q_rank.value else "q_proj.weight")
    nope = agreed(
        keys,
        "qk_nope_head_dim",
        shapes.axis(layer + "w_kc", 1) or _per_head(shapes, query, heads.value, rope.value),
    )
    value = agreed(
        keys,
        "v_head_dim",
        shapes.axis(layer + "w_vc", 2)
        or _per_head(shapes, layer + "kv_b_proj.weight", heads.value, nope.value),
    )
    sizes = {
        "heads": heads.value,
        "kv_heads": heads.value,
        "q_lora_rank": q_rank.value,
        "kv_lora_rank": kv_rank.value,
        "qk_nope_head_dim": nope.value,
        "qk_rope_head_dim": rope.value,
        "v_head_dim": value.value,
    }
    unused = Reading(None, ("num_key_value_heads", "head_dim", "qk_head_dim"))
    return Reading.of(sizes, heads, unused, kv_rank, q_rank, rope, nope, value)


def _without_query_lora(keys: Keys) -> Reading[int]:
    """The rank 0, with the problem that vLLM's and SGLang's classes always merge q_a_proj."""
    stated = keys.count("q_lora_rank")
    said = "q_lora_rank: null" if stated is None else f"config says q_lora_rank: {stated}"
    problem = Note(
        "problem",
        "layers.0.self_attn.q_a_proj.weight",
        f"an MLA drafter with q_proj and no q_a_proj and q_b_proj ({said}), which neither vLLM nor SGLang"
        " can load; pass --mla-query-lora to write q_proj as the two",
        "missing-tensor",
        names_option=True,
    )
    return Reading(0, ("q_lora_rank",), (problem,))


def _per_head(shapes: Shapes, name: str, heads: int, less: int) -> int | None:
    rows = shapes.axis(name, 0)
    return None if rows is None else whole(name, rows, heads, "num_attention_heads") - less
