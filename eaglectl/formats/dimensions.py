"""Reading the dimensions of a drafter, from its tensors' shapes and its config.

Where they differ, the shapes win, and the difference is noted. The heads of an attention layer are those of
GQA, MHA and MQA, or MLA's ranks.
"""

from eaglectl.drafter.drafter import Choice, Target, question
from eaglectl.drafter.tensors import (
    NORM,
    PACKED,
    Dimensions,
    is_quantised_part,
    packed_bits,
    packed_names,
    unpacked_shape,
)
from eaglectl.errors import OptionNeededError, RefusedError, check
from eaglectl.formats.config_keys import Keys, at
from eaglectl.formats.format import NESTED_IDS, TOP_IDS
from eaglectl.formats.names import PACKERS, Names, Shapes

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


def _check_module(names: Names) -> None:
    inside = next((name for name in names.unknown if name.endswith(".fc.weight")), "")
    check(
        (
            bool(inside) and "fc.weight" not in names.tensors,
            f"the file has {inside} beside the tensors of another module; save the drafter's module alone",
            "missing-tensor",
            f"tensor:{inside}",
        ),
        error=RefusedError,
    )


def read_dimensions(keys: Keys, names: Names, target: Target) -> Dimensions:
    """Read all dimensions of a drafter.

    Raises RefusedError if neither shapes nor config give one, or if they contradict each other.
    """
    shapes = _logical_shapes(keys, names)
    _check_packing(keys, names, shapes)
    _check_module(names)
    if empty := next((name for name, shape in shapes.items() if 0 in shape), None):
        raise RefusedError(
            f"{empty} is {list(shapes[empty])}; a tensor of a drafter is never empty: restore it from the"
            " trainer",
            "tensor-shape",
            f"tensor:{empty}",
        )
    # the most common size; a tensor that differs is then the one reported
    sizes = [size for place in HIDDEN_PLACES if (size := _first_size(shapes, place)) is not None]
    hidden = _stated_or_measured(keys, "hidden_size", max(sizes, key=sizes.count, default=None))
    layers = _stated_or_measured(keys, "num_hidden_layers", len(names.layers), always=True)
    aux, width = _read_aux(keys, shapes, hidden, target)
    vocab = _stated_or_measured(
        keys, "vocab_size", _first_size(shapes, ("t2d", 0), ("embed_tokens.weight", 0))
    )
    check(
        (
            vocab > LARGEST_VOCABULARY,
            f"config.json: vocab_size is {vocab}; no vocabulary is that large",
            "config-dimensions",
            "config.json:vocab_size",
        ),
        error=RefusedError,
    )
    has_latent = (
        any("kv_a_" in name or "w_kc" in name or "fused_qkv_a" in name for name in shapes)
        or keys.config.get("kv_lora_rank") is not None
    )
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


def _check_packing(keys: Keys, names: Names, shapes: Shapes) -> None:
    ends = (PACKERS.get(name.rpartition(".")[2]) for name in names.unknown)
    quantiser = next(filter(None, ends), "")
    dtypes = {tensor.dtype for name, tensor in names.tensors.items() if name.endswith(".weight")}
    check(
        (
            "U32" in dtypes,
            "the weights are packed by MLX, and have other shapes: convert the unquantised drafter",
        ),
        (
            quantiser,
            f"the weights are packed by {quantiser}, and have other names: convert the unquantised drafter",
        ),
        (
            packed_bits(keys.config)[0] == "bitsandbytes" and {"U8", "I8"} & dtypes,
            "the weights are packed by bitsandbytes, and have other shapes: convert the unquantised drafter",
        ),
        (
            "fc.weight" not in shapes and bool(packed_names("fc") & names.tensors.keys()),
            "fc is packed, and config.json does not state that its numbers have 2, 4 or 8 bits: convert the"
            " unquantised drafter",
        ),
        error=RefusedError,
    )


def _logical_shapes(keys: Keys, names: Names) -> Shapes:
    # the shapes that dimensions can be read from: of packed weights those of the matrix; without them where
    # the config does not tell how many numbers an item holds
    tables, (method, bits) = names.tensors, packed_bits(keys.config)
    shapes = {}
    for name, tensor in tables.items():
        module, _, part = name.rpartition(".")
        is_packed = part in PACKED or (f"{name}_scale" in tables and tensor.dtype in ("U8", "F4"))
        if not is_packed and not is_quantised_part(name) and not packed_names(module) & tables.keys():
            shapes[name] = tensor.shape
        elif is_packed and (shape := unpacked_shape(tensor, part, method, bits)) is not None:
            shapes[f"{module}.weight"] = shape
    return shapes


def _first_size(shapes: Shapes, *places: tuple[str, int]) -> int | None:
    # the size of the first place that the file has
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


def _stated_or_measured(keys: Keys, key: str, from_tensors: int | None, *, always: bool = False) -> int:
    # a dimension: the tensors decide if one shows it, with a note if config.json differs; else config.json
    from_config = keys.get(key, int)
    value = from_config if from_tensors is None else from_tensors
    if value is None:
        raise RefusedError(
            f"config.json has no {key}, and no tensor gives it; add it to config.json",
            "null-fields" if key in keys.config else "config-dimensions",
            "config.json",
        )
    keys.note(
        from_config not in (None, value),
        "warning",
        key,
        f"config says {key}: {from_config}, and the tensors say {value}; the tensors are used",
        ("layer-count" if key == "num_hidden_layers" else "config-dimensions"),
    )
    keys.note(from_config is None and always, "note", key, f"config has no {key}; the tensors say {value}")
    return value


def _divided(name: str, rows: int, divisor: int, divisor_name: str) -> int:
    check(
        (
            rows % divisor,
            f"{name} has {rows} rows, not a multiple of {divisor_name} = {divisor}; correct config.json",
            "config-dimensions",
            "config.json",
        ),
        error=RefusedError,
    )
    return rows // divisor


def _read_draft_vocab(keys: Keys, shapes: Shapes, vocab: int) -> int:
    # rows of lm_head and d2t, else the config's number, else the whole vocabulary
    key, rows = "draft_vocab_size", _first_size(shapes, ("lm_head.weight", 0), ("d2t", 0))
    config_size = keys.config.get(key)
    if type(config_size) is int and shapes.get("d2t") == (config_size,):
        rows = config_size  # lm_head alone does not fit; it may be padded
    evidence = f"lm_head and d2t have {rows} rows"
    if rows is None or not keys.disbelieved(key, evidence):
        from_config = keys.get(key, int)
        rows = rows or from_config or vocab
        keys.note(
            from_config not in (None, rows),
            "warning",
            key,
            f"config says {key}: {from_config}, and {evidence}; the tensors are used",
            "config-dimensions",
        )
    return rows


def _read_intermediate(keys: Keys, shapes: Shapes) -> int:
    """Return the width of the MLP; Llama 4's text model has another key for its dense layers."""
    mlp, own_key = "layers.0.mlp.", "intermediate_size_mlp"
    width = _first_size(
        shapes, (f"{mlp}gate_proj.weight", 0), (f"{mlp}up_proj.weight", 0), (f"{mlp}down_proj.weight", 1)
    )
    if width is None and (fused := _first_size(shapes, (f"{mlp}gate_up_proj.weight", 0))):
        width = fused // 2
    is_llama4 = keys.config.get(own_key) is not None and keys.config.get("model_type") == "llama4_text"
    return _stated_or_measured(keys, own_key if is_llama4 else "intermediate_size", width)


def _read_aux(keys: Keys, shapes: Shapes, hidden: int, target: Target) -> tuple[int, int]:
    """Return the number of aux layers and their width.

    Shapes: fc [hidden, aux*width], fc_norm.i [width], input_norm [aux*width].
    """
    norm_width = _first_size(shapes, ("fc_norm.0.weight", 0))
    config_width = _read_width(keys, norm_width, target)
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
    total = _first_size(shapes, ("fc.weight", 1), ("input_norm.weight", 0))
    if total is None:
        raise RefusedError(
            "fc.weight is missing; an EAGLE-3 drafter mixes its aux states with it",
            "missing-tensor",
            "tensor:fc.weight",
        )
    width = (
        norm_width
        or config_width
        or (None if _is_own_width(keys, total, hidden, target) else target.hidden)
        or hidden
    )
    needed = f"its second axis must be a multiple of the target's width {width}"
    if norms:
        needed = f"{norms} aux layers of width {width} (by fc_norm) need [{hidden}, {norms * width}]"
    check(
        (
            total % width or total < norms * width,
            f"fc.weight is [{hidden}, {total}]; {needed}; state target_hidden_size, or pass --target",
            "tensor-shape",
            "tensor:fc.weight",
            ("--target",),
        ),
        error=OptionNeededError,
    )
    _compare_count(keys, (hidden, total), width, is_width_known=bool(norms or config_width or target.hidden))
    return total // width, width


def _is_own_width(keys: Keys, total: int, hidden: int, target: Target) -> bool:
    """Whether the states are as wide as the drafter: a given target of another width is another target.

    Three of that width are what trainers take where the config has no other number.
    """
    lists = [ids for place in (TOP_IDS, NESTED_IDS) if isinstance(ids := at(keys.config, place), list)]
    counts = {keys.get("num_aux_hidden_states", int) or 3, *map(len, lists)}
    is_other = target.hidden is not None and total % target.hidden != 0
    return total % hidden == 0 and (is_other or (total == 3 * hidden and counts == {3}))


def _read_width(keys: Keys, norm_width: int | None, target: Target) -> int | None:
    """Return the target's width by the config; if two places contradict each other, by fc_norm or --target.

    `norm_width` is that of fc_norm. Raises RefusedError if neither is known.
    """
    key, believed = "target_hidden_size", norm_width or target.hidden
    evidence = f"fc_norm.0 has width {norm_width}" if norm_width else f"the target has width {believed}"
    contradiction, _ = keys.contradiction(key)
    check(
        (
            contradiction and not believed,
            f"{contradiction}; pass --target to use its width",
            "spellings-agree",
            f"config.json:{key}",
            ("--target",),
        ),
        error=OptionNeededError,
    )
    if believed and keys.disbelieved(key, evidence):
        return believed
    from_config = keys.get(key, int)
    keys.note(
        norm_width and from_config not in (None, norm_width),
        "warning",
        key,
        f"config says {key}: {from_config}, and {evidence}; the tensor is used",
        "config-dimensions",
    )
    return from_config


def _compare_count(keys: Keys, fc: tuple[int, int], width: int, *, is_width_known: bool) -> None:
    # note or ask about a count of aux states that differs from fc's; fc's width alone leaves it open if the
    # target's width is not known
    key, (hidden, total) = "num_aux_hidden_states", fc
    evidence = f"fc.weight [{hidden}, {total}] takes {total // width} of width {width}"
    if is_width_known and keys.disbelieved(key, evidence):
        return
    if (from_config := keys.get(key, int)) in (None, total // width):
        return
    text = f"config says {key}: {from_config}, and {evidence}"
    if is_width_known or not from_config or total % from_config:
        return keys.note(True, "warning", key, f"{text}; the tensor is used", "aux-count")
    keys.notes.append(
        question(
            key,
            f"{text}, or {from_config} of {total // from_config}; the target's width is not stated",
            "aux-count",
            [Choice("--target", is_free=True)],
        )
    )


def _read_heads(keys: Keys, shapes: Shapes, hidden: int) -> dict[str, int]:
    """The heads of GQA, MHA or MQA.

    Shapes: q_proj [heads*head_dim, input], k_proj [kv_heads*head_dim, input], q_norm [head_dim].
    """
    heads = _stated_or_measured(keys, "num_attention_heads", None)
    kv_stated, dim_stated = keys.get("num_key_value_heads", int), keys.get("head_dim", int)
    head_dim = _head_dim(shapes, heads, kv_stated or heads, dim_stated)
    rows = _first_size(shapes, (f"{ATTENTION}k_proj.weight", 0), (f"{ATTENTION}v_proj.weight", 0))
    kv_heads = _divided("k_proj", rows, head_dim, "head_dim") if rows else kv_stated or heads
    check(
        (
            kv_heads > heads or heads % kv_heads,
            f"{heads} query heads cannot share {kv_heads} key heads evenly; correct num_attention_heads",
            "config-dimensions",
            "config.json:num_attention_heads",
        ),
        error=RefusedError,
    )
    about = f"config says head_dim: {dim_stated}"
    if not dim_stated:
        about = f"config has no head_dim (engines take hidden_size/num_attention_heads = {hidden / heads:g})"
    keys.note(
        (dim_stated or hidden / heads) != head_dim,
        "warning",
        "head_dim",
        f"{about}, and the tensors say {head_dim}; the tensors are used",
        "head-dim",
    )
    keys.note(
        (kv_stated or heads) != kv_heads,
        "warning",
        "num_key_value_heads",
        f"config says num_key_value_heads: {kv_stated}, and k_proj has rows for {kv_heads}; the tensors are"
        " used",
        "config-dimensions",
    )
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _head_dim(shapes: Shapes, heads: int, kv_heads: int, config_dim: int | None) -> int:
    # by q_norm, then q_proj, then a fused qkv_proj, then the config; RefusedError if they contradict each
    # other
    query = _first_size(shapes, (f"{ATTENTION}q_proj.weight", 0), (f"{ATTENTION}o_proj.weight", 1))
    fused = _first_size(shapes, (f"{ATTENTION}qkv_proj.weight", 0))
    head_dim = _first_size(shapes, (f"{ATTENTION}q_norm.weight", 0))
    if head_dim is None and query:
        head_dim = _divided("q_proj", query, heads, "num_attention_heads")
    if config_dim and query and query != heads * config_dim and head_dim != config_dim:
        raise RefusedError(
            f"config says {heads} heads of head_dim {config_dim} = {heads * config_dim}, and q_proj has"
            f" {query} rows; correct num_attention_heads or head_dim",
            "head-dim",
            "config.json:head_dim",
        )
    if head_dim is None and fused:
        head_dim = _divided(
            "qkv_proj", fused, heads + 2 * kv_heads, "num_attention_heads + 2 num_key_value_heads"
        )
    head_dim = head_dim or config_dim or 0
    check(
        (
            not head_dim,
            "config.json has no head_dim, and no attention weight gives it; add it to config.json",
            "head-dim",
            "config.json",
        ),
        (
            query and query != heads * head_dim,
            f"layers.0.self_attn.q_proj has {query} rows; {heads} heads of {head_dim} need"
            f" {heads * head_dim}; correct num_attention_heads",
            "head-dim",
            "config.json:num_attention_heads",
        ),
        error=RefusedError,
    )
    return head_dim


def _read_mla(keys: Keys, shapes: Shapes) -> dict[str, int]:
    # the dimensions of multi-head latent attention: tensors decide, and the config where none shows a size
    def size(*places: tuple[str, int]) -> int | None:
        return _first_size(shapes, *((f"{ATTENTION}{name}", axis) for name, axis in places))

    def per_head(name: str, less: int) -> int | None:
        rows = size((name, 0))
        return rows and _divided(f"{ATTENTION}{name}", rows, heads, "num_attention_heads") - less

    heads = _stated_or_measured(keys, "num_attention_heads", size(("w_kc", 0)))
    kv_rank = _stated_or_measured(
        keys, "kv_lora_rank", size(("kv_a_layernorm.weight", 0), ("kv_b_proj.weight", 1))
    )
    rank = size(("q_a_layernorm.weight", 0), ("q_a_proj.weight", 0), ("q_b_proj.weight", 1))
    if rank is None and size(("q_proj.weight", 0)):
        rank, from_config = 0, keys.get("q_lora_rank", int)
        about = "q_lora_rank: null" if from_config is None else f"config says q_lora_rank: {from_config}"
        keys.note(
            True,
            "problem",
            f"{ATTENTION}q_a_proj.weight",
            f"an MLA drafter with q_proj and no q_a_proj and q_b_proj ({about}): neither vLLM nor SGLang can"
            " load it",
            "missing-tensor",
            "; pass --mla-query-lora to write q_proj as q_a_proj and q_b_proj",
            ("--mla-query-lora",),
        )
    else:
        rank = _stated_or_measured(keys, "q_lora_rank", rank)
    latent = size(("kv_a_proj_with_mqa.weight", 0))
    fused = size(("fused_qkv_a_proj.weight", 0), ("fused_qkv_a_proj_with_mqa.weight", 0))
    if latent is None and fused is not None:
        latent = fused - rank
    rope = _stated_or_measured(keys, "qk_rope_head_dim", None if latent is None else latent - kv_rank)
    nope = _stated_or_measured(
        keys,
        "qk_nope_head_dim",
        size(("w_kc", 1)) or per_head(("q_b_proj.weight" if rank else "q_proj.weight"), rope),
    )
    return {
        "heads": heads,
        "kv_heads": heads,
        "q_lora_rank": rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": _stated_or_measured(
            keys, "v_head_dim", size(("w_vc", 2)) or per_head("kv_b_proj.weight", nope)
        ),
    }
