"""Dimensions by tensor shapes, compared with the config; the shapes win, and a difference is noted."""

from collections import Counter

from eaglectl.drafter.drafter import Choice, Target
from eaglectl.drafter.tensors import LAYER, NORM, Dimensions
from eaglectl.errors import OptionNeededError, RefusedError
from eaglectl.formats.attention import read_heads, read_mla
from eaglectl.formats.config_keys import MISSING, Keys
from eaglectl.formats.measured import Shapes, agree, plain_shapes
from eaglectl.formats.names import Names

LARGEST_VOCABULARY = 10_000_000


def read_dimensions(names: Names, keys: Keys, target: Target) -> Dimensions:
    """All dimensions of a drafter.

    Raises RefusedError where neither shapes nor config give one, or where they contradict each other.
    """
    shapes = plain_shapes(names)
    _refuse_empty(shapes)
    hidden = agree(keys, "hidden_size", _hidden(shapes))
    layers = len(
        {int(m[1]) for name in (*names.plain, *names.fused, *names.absorbed) if (m := LAYER.fullmatch(name))}
    )
    agree(keys, "num_hidden_layers", layers, always=True)
    aux, target_hidden = _aux(shapes, keys, hidden, target)
    vocab = agree(keys, "vocab_size", shapes.first(("t2d", 0), ("embed_tokens.weight", 0)))
    if vocab > LARGEST_VOCABULARY:
        raise RefusedError(
            f"config.json: vocab_size is {vocab}; no vocabulary is that large",
            "config-dimensions",
            "config.json:vocab_size",
        )
    is_mla = (
        any("kv_a_" in name or "w_kc" in name or "fused_qkv_a" in name for name in shapes.of)
        or keys.config.get("kv_lora_rank") is not None
    )
    attention = read_mla(shapes, keys) if is_mla else read_heads(shapes, keys, hidden)
    return Dimensions(
        hidden=hidden,
        target_hidden=target_hidden,
        aux=aux,
        vocab=vocab,
        draft_vocab=_draft_vocab(shapes, keys, vocab),
        intermediate=_intermediate(shapes, keys),
        layers=layers,
        **attention,
    )


def _draft_vocab(shapes: Shapes, keys: Keys, vocab: int) -> int:
    rows = shapes.first(("lm_head.weight", 0), ("d2t", 0))
    believed = keys.believe("draft_vocab_size", rows, f"lm_head and d2t have {rows} rows")
    stated = believed or keys.take_int("draft_vocab_size")
    if rows is None:
        return stated or vocab
    if stated is not None and stated != rows:
        keys.add_note(
            "warning",
            "draft_vocab_size",
            f"config says draft_vocab_size: {stated}, and lm_head and d2t have {rows} rows; the tensors are"
            " believed",
            "config-dimensions",
        )
    return rows


def _intermediate(shapes: Shapes, keys: Keys) -> int:
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
    width = agree(keys, key, mlp or (fused // 2 if fused else None))
    keys.taken.update(("intermediate_size", "intermediate_size_mlp"))
    return width


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


def _stated_width(keys: Keys, own: int | None, target: Target) -> int | None:
    """The target's width as the config states it; where two places state others, that of fc_norm or --target.

    Raises RefusedError where there is neither.
    """
    key = "target_hidden_size"
    evidence = f"fc_norm.0 is {own} wide" if own else f"the target is {target.hidden} wide"
    if believed := keys.believe(key, own or target.hidden, evidence):
        return int(believed)
    if contradiction := keys.contradiction(key):
        text = f"{contradiction}; pass --target, whose width is believed"
        raise OptionNeededError(text, "spellings-agree", f"config.json:{key}")
    return keys.take_int(key)


def _aux(shapes: Shapes, keys: Keys, hidden: int, target: Target) -> tuple[int, int]:
    """The number of aux layers and their width.

    Shapes: fc [hidden, aux*width], fc_norm.i [width], input_norm [aux*width].
    """
    own = shapes.axis("fc_norm.0.weight", 0)
    stated = _stated_width(keys, own, target)
    has_fc = True if "fc.weight" in shapes.of else None
    uses = keys.believe("use_aux_hidden_state", has_fc, "the file has fc.weight") or keys.take_bool(
        "use_aux_hidden_state"
    )
    count = sum(1 for name in shapes.of if NORM.fullmatch(name))
    width = own or stated or target.hidden or hidden
    total = shapes.first(("fc.weight", 1), ("input_norm.weight", 0))
    if stated is not None and count and stated != width:
        keys.add_note(
            "warning",
            "target_hidden_size",
            f"config says target_hidden_size: {stated}, and fc_norm.0 is {width} wide; the tensor is"
            " believed",
            "config-dimensions",
        )
    if total is None:
        raise RefusedError(
            "fc.weight is missing; an EAGLE-3 drafter mixes its aux states with it",
            "missing-tensor",
            "tensor:fc.weight",
        )
    if uses is False:
        keys.add_note(
            "problem",
            "use_aux_hidden_state",
            "config says eagle_config.use_aux_hidden_state: false, and the file has fc.weight; engines would"
            " skip it: remove one of them",
            "use-aux-hidden-state",
        )
    _check_width(hidden, total, width, count)
    number = total // width
    _compare_count(
        keys, (hidden, total), (number, width), is_width_known=bool(count or stated or target.hidden)
    )
    return number, width


def _compare_count(keys: Keys, fc: tuple[int, int], read: tuple[int, int], *, is_width_known: bool) -> None:
    """Note or ask where num_aux_hidden_states is not the number of states that fc takes.

    `fc` is its shape, `read` the number and the width that it was read with.
    """
    (hidden, total), (number, width) = fc, read
    evidence = f"fc.weight [{hidden}, {total}] takes {number} of width {width}"
    measured = number if is_width_known else None
    named = keys.believe("num_aux_hidden_states", measured, evidence) or keys.take_int(
        "num_aux_hidden_states"
    )
    if named is None or named == number:
        return
    text = f"config says num_aux_hidden_states: {named}, and {evidence}"
    if is_width_known or total % named:
        keys.add_note("warning", "num_aux_hidden_states", f"{text}; the tensor is believed", "aux-count")
        return
    why = f"{text}, or {named} of {total // named}, as the target's width is not stated"
    keys.ask("num_aux_hidden_states", why, "aux-count", Choice("--target", is_free=True))
