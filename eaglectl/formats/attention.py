"""The heads of an attention layer, read off the shapes of its weights: GQA, MHA and MQA, or MLA's ranks."""

from eaglectl.drafter.drafter import Note
from eaglectl.errors import RefusedError
from eaglectl.formats.config_keys import Keys, Reading
from eaglectl.formats.measured import Shapes, agreed, whole

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
    notes = []
    if (dim_stated or hidden / heads) != head_dim:
        assumed = (
            f"config has no head_dim (engines take hidden_size/num_attention_heads = {hidden / heads:g})"
        )
        stated = f"config says head_dim: {dim_stated}" if dim_stated else assumed
        text = f"{stated}, and the tensors say {head_dim}; the tensors are believed"
        notes.append(Note("warning", "head_dim", text, "head-dim"))
    kv_heads = _kv_heads(shapes, heads, kv_stated, head_dim)
    if (kv_stated or heads) != kv_heads:
        text = (
            f"config says num_key_value_heads: {kv_stated}, and k_proj has rows for {kv_heads}; the tensors"
            " are believed"
        )
        notes.append(Note("warning", "num_key_value_heads", text, "config-dimensions"))
    return Reading({"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}, HEAD_KEYS, tuple(notes))


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
