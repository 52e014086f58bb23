"""Dimensions read off tensor shapes and compared with the config; the shapes win, and every disagreement is said."""

from collections import Counter

from eaglectl.drafter.drafter import Target
from eaglectl.drafter.tensors import LAYER, NORM, Dimensions
from eaglectl.errors import Refused
from eaglectl.formats.attention import read_heads, read_mla
from eaglectl.formats.keys import MISSING, Keys
from eaglectl.formats.measured import Shapes, agree, plain_shapes
from eaglectl.formats.spelling import Names

LARGEST_VOCABULARY = 10_000_000


def read_dimensions(names: Names, keys: Keys, target: Target) -> Dimensions:
    """All dimensions of a drafter. Raises Refused for what neither shapes nor config tell, or where they cannot be reconciled."""
    shapes = plain_shapes(names)
    _refuse_empty(shapes)
    hidden = agree(keys, "hidden_size", _hidden(shapes))
    layers = len({int(m[1]) for name in (*names.plain, *names.fused, *names.absorbed) if (m := LAYER.fullmatch(name))})
    agree(keys, "num_hidden_layers", layers, always=True)
    aux, target_hidden = _aux(shapes, keys, hidden, target)
    draft_rows = shapes.first(("lm_head.weight", 0), ("d2t", 0))
    vocab = agree(keys, "vocab_size", shapes.first(("t2d", 0), ("embed_tokens.weight", 0)))
    if vocab > LARGEST_VOCABULARY:
        raise Refused(
            f"config.json: vocab_size is {vocab}; no vocabulary is that large",
            "config-dimensions",
            "config.json:vocab_size",
        )
    stated = keys.take_int("draft_vocab_size")
    if draft_rows is None:
        draft_rows = stated or vocab
    elif stated is not None and stated != draft_rows:
        keys.say(
            "warning",
            "draft_vocab_size",
            f"config says draft_vocab_size: {stated}, and lm_head and d2t have {draft_rows} rows; the tensors are"
            " believed",
            "config-dimensions",
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
    intermediate = agree(keys, wide, mlp or (fused_mlp // 2 if fused_mlp else None))
    keys.taken.add("intermediate_size")
    keys.taken.add("intermediate_size_mlp")
    is_mla = (
        any("kv_a_" in name or "w_kc" in name or "fused_qkv_a" in name for name in shapes.of)
        or keys.config.get("kv_lora_rank") is not None
    )
    attention = read_mla(shapes, keys) if is_mla else read_heads(shapes, keys, hidden)
    return Dimensions(
        hidden=hidden, target_hidden=target_hidden, aux=aux, vocab=vocab, draft_vocab=draft_rows, intermediate=intermediate,
        layers=layers, **attention,
    )  # fmt: skip


def _refuse_empty(shapes: Shapes) -> None:
    for name, shape in shapes.of.items():
        if 0 in shape:
            raise Refused(
                f"{name} is {list(shape)}; a tensor of a drafter is never empty: restore it from the trainer",
                "tensor-shape",
                f"tensor:{name}",
            )


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
            "config-dimensions",
        )
    if total is None:
        raise Refused(
            "fc.weight is missing; an EAGLE-3 drafter mixes its aux states with it",
            "missing-tensor",
            "tensor:fc.weight",
        )
    if uses is False:
        keys.say(
            "problem",
            "use_aux_hidden_state",
            "config says eagle_config.use_aux_hidden_state: false, and the file has fc.weight; engines would skip it:"
            " remove one of them",
            "use-aux-hidden-state",
        )
    if total % width or total < count * width:  # too few fc_norm are told with the switch
        wanted = (
            f"{count} aux layers of width {width} (by fc_norm) need [{hidden}, {count * width}]"
            if count
            else f"its second axis must be a multiple of the target's width {width}"
        )
        raise Refused(
            f"fc.weight is [{hidden}, {total}]; {wanted}; state target_hidden_size, or pass --target",
            "tensor-shape",
            "tensor:fc.weight",
        )
    number = total // width
    named = keys.take_int("num_aux_hidden_states")
    if named is not None and named != number:
        keys.say(
            "warning",
            "num_aux_hidden_states",
            f"config says num_aux_hidden_states: {named}, and fc.weight [{hidden}, {total}] takes {number} of width"
            f" {width}; the tensor is believed",
            "aux-count",
        )
    return number, width
