"""Dimensions by tensor shapes, compared with the config; the shapes win, and a difference is noted."""

from collections import Counter

from msgspec.structs import replace

from eaglectl.drafter.drafter import Choice, Note, Target, question
from eaglectl.drafter.tensors import NORM, Dimensions
from eaglectl.errors import OptionNeededError, RefusedError
from eaglectl.formats.attention import read_heads, read_mla
from eaglectl.formats.config_keys import MISSING, Keys, Reading
from eaglectl.formats.measured import Shapes, agreed, plain_shapes
from eaglectl.formats.names import Names

LARGEST_VOCABULARY = 10_000_000


def read_dimensions(keys: Keys, names: Names, target: Target) -> Reading[Dimensions]:
    """All dimensions of a drafter.

    Raises RefusedError where neither shapes nor config give one, or where they contradict each other.
    """
    shapes = plain_shapes(names)
    _refuse_empty(shapes)
    hidden = agreed(keys, "hidden_size", _hidden(shapes))
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
    if stated is not None and stated != rows:
        text = f"config says {key}: {stated}, and lm_head and d2t have {rows} rows; the tensors are believed"
        notes = (Note("warning", key, text, "config-dimensions"),)
    return Reading(rows, (key,), notes)


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


def _refuse_empty(shapes: Shapes) -> None:
    for name, shape in shapes.of.items():
        if 0 in shape:
            raise RefusedError(
                f"{name} is {list(shape)}; a tensor of a drafter is never empty: restore it from the trainer",
                "tensor-shape",
                f"tensor:{name}",
            )


def _hidden(shapes: Shapes) -> int | None:
    """The most common hidden size; a tensor that differs is then the one reported."""
    places = [
        ("norm.weight", 0),
        ("layers.0.input_layernorm.weight", 0),
        ("layers.0.post_attention_layernorm.weight", 0),
        ("fc.weight", 0),
    ]
    sizes = [size for name, axis in places if (size := shapes.axis(name, axis)) is not None]
    return Counter(sizes).most_common(1)[0][0] if sizes else None


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
    notes: tuple[Note, ...] = ()
    if stated is not None and own and stated != own:
        text = f"config says {key}: {stated}, and fc_norm.0 is {own} wide; the tensor is believed"
        notes = (Note("warning", key, text, "config-dimensions"),)
    return Reading(stated, (key,), notes)


def _read_aux_switch(keys: Keys, *, has_fc: bool) -> Reading[None]:
    """Nothing but the notes on the switch of the aux states, which fc takes."""
    key = "use_aux_hidden_state"
    notes = keys.disbelieved(key, "the file has fc.weight") if has_fc else ()
    if not notes and keys.flag(key) is False:
        text = (
            f"config says eagle_config.{key}: false, and the file has fc.weight; engines would skip it:"
            " remove one of them"
        )
        notes = (Note("problem", key, text, "use-aux-hidden-state"),)
    return Reading(None, (key,), notes)


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
