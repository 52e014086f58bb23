"""The heads of an attention layer, read off the shapes of its weights: GQA, MHA and MQA, or MLA's ranks."""

from eaglectl.errors import RefusedError
from eaglectl.formats.config_keys import Keys
from eaglectl.formats.measured import Shapes, agree, whole


def read_heads(shapes: Shapes, keys: Keys, hidden: int) -> dict[str, int]:
    """The heads of GQA, MHA or MQA.

    Shapes: q_proj [heads*head_dim, input], k_proj [kv_heads*head_dim, input], q_norm [head_dim].
    """
    heads, kv_stated, dim_stated = (
        keys.take_int(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if heads is None:
        raise RefusedError(
            "config.json has no num_attention_heads, and shapes give only heads x head_dim; add it to"
            " config.json",
            keys.absence("num_attention_heads"),
            "config.json",
        )
    head_dim = _head_dim(shapes, heads, kv_stated or heads, dim_stated)
    if (dim_stated or hidden / heads) != head_dim:
        assumed = (
            f"config has no head_dim (engines take hidden_size/num_attention_heads = {hidden / heads:g})"
        )
        stated = f"config says head_dim: {dim_stated}" if dim_stated else assumed
        keys.add_note(
            "warning",
            "head_dim",
            f"{stated}, and the tensors say {head_dim}; the tensors are believed",
            "head-dim",
        )
    kv_heads = _kv_heads(shapes, keys, heads, kv_stated, head_dim)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


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


def _kv_heads(shapes: Shapes, keys: Keys, heads: int, stated: int | None, head_dim: int) -> int:
    key = shapes.first(("layers.0.self_attn.k_proj.weight", 0), ("layers.0.self_attn.v_proj.weight", 0))
    kv_heads = whole("k_proj", key, head_dim, "head_dim") if key else stated or heads
    if (stated or heads) != kv_heads:
        keys.add_note(
            "warning",
            "num_key_value_heads",
            f"config says num_key_value_heads: {stated}, and k_proj has rows for {kv_heads}; the tensors are"
            " believed",
            "config-dimensions",
        )
    if kv_heads > heads or heads % kv_heads:
        raise RefusedError(
            f"{heads} query heads cannot share {kv_heads} key heads evenly; correct num_attention_heads",
            "config-dimensions",
            "config.json:num_attention_heads",
        )
    return kv_heads


def read_mla(shapes: Shapes, keys: Keys) -> dict[str, int]:
    """MLA ranks and head sizes, each from the tensor that fixes it."""
    layer = "layers.0.self_attn."

    def size(key: str, measured: int | None) -> int:
        return agree(keys, key, measured)

    def minus(total: int | None, part: int) -> int | None:
        return None if total is None else total - part

    absorbed_heads = shapes.axis(layer + "w_kc", 0)
    heads = size("num_attention_heads", absorbed_heads)
    keys.taken.update(("num_key_value_heads", "head_dim", "qk_head_dim"))
    kv_rank = size(
        "kv_lora_rank", shapes.first((layer + "kv_a_layernorm.weight", 0), (layer + "kv_b_proj.weight", 1))
    )
    ranked = (
        (layer + "q_a_layernorm.weight", 0),
        (layer + "q_a_proj.weight", 0),
        (layer + "q_b_proj.weight", 1),
    )
    if shapes.first(*ranked) is None and shapes.axis(layer + "q_proj.weight", 0):
        q_rank = _without_query_lora(keys)
    else:
        q_rank = size("q_lora_rank", shapes.first(*ranked))
    fused = shapes.first(
        (layer + "fused_qkv_a_proj.weight", 0), (layer + "fused_qkv_a_proj_with_mqa.weight", 0)
    )
    latent = shapes.axis(layer + "kv_a_proj_with_mqa.weight", 0) or minus(fused, q_rank)
    rope = size("qk_rope_head_dim", minus(latent, kv_rank))
    nope = size(
        "qk_nope_head_dim",
        shapes.axis(layer + "w_kc", 1)
        or _per_head(shapes, layer + ("q_b_proj.weight" if q_rank else "q_proj.weight"), heads, rope),
    )
    value = size(
        "v_head_dim",
        shapes.axis(layer + "w_vc", 2) or _per_head(shapes, layer + "kv_b_proj.weight", heads, nope),
    )
    return {
        "heads": heads,
        "kv_heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
    }


def _without_query_lora(keys: Keys) -> int:
    """The rank 0, with the problem that vLLM's and SGLang's classes always merge q_a_proj."""
    stated = keys.take_int("q_lora_rank")
    said = "q_lora_rank: null" if stated is None else f"config says q_lora_rank: {stated}"
    keys.add_note(
        "problem",
        "layers.0.self_attn.q_a_proj.weight",
        f"an MLA drafter with q_proj and no q_a_proj and q_b_proj ({said}), which neither vLLM nor SGLang"
        " can load; pass --mla-query-lora to write q_proj as the two",
        "missing-tensor",
        names_option=True,
    )
    return 0


def _per_head(shapes: Shapes, name: str, heads: int, less: int) -> int | None:
    rows = shapes.axis(name, 0)
    return None if rows is None else whole(name, rows, heads, "num_attention_heads") - less
