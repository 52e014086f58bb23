"""Attention rewritten as the same function: rotary pairing, a scale folded in, q_proj as two, GQA as MHA (formats.md, section 9).

vLLM's and SGLang's runtime names (fused_qkv_a_proj, w_kc, w_vc) are read by formats/ and never written: both engines fuse and
absorb while loading, and neither finds these names in a file. Nor are latent norms folded into the projections behind them: every
MLA class has these norms, so a file without them would gain nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.arithmetic import Array, decode, encode, evaluate
from eaglectl.conversion.plan import Wish
from eaglectl.conversion.tensor_steps import FLOATS
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed, Tensor, is_quantised_part
from eaglectl.errors import Refused, Usage

STATE_SHARE = (
    32.0  # how much larger than the embedding's half the state's half is made, which keeps the norm of both steady
)
EMBEDDING_ROWS = 4096
ATTENTION = ("mha", "gqa", "mqa", "mla")
TO_MLA = (
    "{have} cannot be rewritten as MLA: MLA has one rotated key for all heads and leaves the rest of each key unrotated,"
    " while {have} rotates every head's own; no rank is large enough for that. Train an MLA head on the same target; only"
    " its attention starts anew: fc, embedding, norms, MLP and lm_head can be taken over, and TransMLA (arXiv 2502.07864)"
    " gives a start for the rest"
)
FROM_MLA = (
    "MLA cannot be rewritten as {want}: its queries, keys and values pass norms on a latent, and its heads share one"
    " rotated key beside unrotated ones, which {want} classes have no place for. Train a {want} head on the same target;"
    " fc, embedding, norms, MLP and lm_head can be taken over"
)
FEWER = (
    "{have} cannot be rewritten as {want}: heads that were trained apart would share keys and values, which is another"
    " function; only {have} to MHA is exact. Train a {want} head on the same target"
)


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A drafter with its attention rewritten, and what to tell."""

    drafter: Drafter
    notes: tuple[Note, ...] = ()


def mended(drafter: Drafter, wish: Wish) -> Drafter:
    """The drafter without the problems that `reshaped` puts right."""

    def is_mended(note: Note) -> bool:
        return (
            (note.topic == "training-unservable" and not drafter.rope.has_mla_factors)
            or (note.topic == "rope-pairing" and wish.rope_style == "interleaved")
            or (note.about.endswith(".q_a_proj.weight") and wish.has_query_lora and not drafter.dims.q_lora_rank)
        )

    return replace(drafter, notes=tuple(note for note in drafter.notes if not is_mended(note)))


def reshaped(checkpoint: Checkpoint, drafter: Drafter, wish: Wish) -> Reshaped:
    """The attention that engines run and `wish` asks for. Raises Refused where that is another function, Usage where it says nothing."""
    is_mla = drafter.dims.attention == "MLA"
    if (wish.rope_style or wish.has_query_lora) and not is_mla:
        option = "--rope-style" if wish.rope_style else "--mla-query-lora"
        raise Usage(f"{option} is for MLA drafters, and this one is {drafter.dims.attention}")
    result = at_attention(drafter, wish.attention)
    if not is_mla:
        return result
    for change in (_in_style(wish.rope_style), with_mla_factors, _with_query_lora(checkpoint, wish)):
        made = change(result.drafter)
        result = Reshaped(made.drafter, (*result.notes, *made.notes))
    return result


def at_attention(drafter: Drafter, wanted: str | None) -> Reshaped:
    """GQA as MHA: each key and value head repeated for every query head that shares it. Raises Refused for other changes."""
    have, dims = drafter.dims.attention, drafter.dims
    want = have if wanted is None else wanted.upper()
    if wanted is not None and wanted not in ATTENTION:
        raise Usage(f"--attention {wanted}: {', '.join(ATTENTION)} was expected")
    if want == have:
        return Reshaped(drafter)
    if want != "MHA" or have == "MLA":
        raise Refused((TO_MLA if want == "MLA" else FROM_MLA if have == "MLA" else FEWER).format(have=have, want=want))
    shared = dims.heads // dims.kv_heads
    rows = [head // shared * dims.head_dim + row for head in range(dims.heads) for row in range(dims.head_dim)]
    tensors = dict(drafter.tensors)
    for layer in range(dims.layers):
        for part in ("k_proj", "v_proj"):
            at = f"layers.{layer}.self_attn.{part}"
            tensors[f"{at}.weight"] = _plain(drafter, at).with_rows(rows)
            if bias := drafter.tensors.get(f"{at}.bias"):
                tensors[bias.name] = bias.with_rows(rows)
    note = Note("note", "attention", f"each of {dims.kv_heads} key and value heads is written {shared} times: the same function, with {shared} times the cache")  # fmt: skip
    return Reshaped(replace(drafter, tensors=tensors, dims=replace(dims, kv_heads=dims.heads)), (note,))


def with_mla_factors(drafter: Drafter) -> Reshaped:
    """Queries divided by what engines multiply them by and the trainer did not (formats.md, C27): q_b_proj comes after its norm, so it is exact."""
    rope = replace(drafter.rope, has_mla_factors=True)
    on_pairs, on_softmax = rope.mla_factors
    if drafter.rope.has_mla_factors or (on_pairs, on_softmax) == (1.0, 1.0):
        return Reshaped(replace(drafter, rope=rope))
    dims = drafter.dims
    # the rotated part of a score has the factor on cos and sin twice: in the query and in the key
    head = [on_softmax] * dims.qk_nope_head_dim + [on_softmax * on_pairs**2] * dims.qk_rope_head_dim
    divisor = np.tile(head, dims.heads)[:, None]
    how = f"divided by {on_softmax:.6g}, YaRN's mscale squared"
    tensors = dict(drafter.tensors)
    for query in _queries(drafter):
        tensors[query.name] = replace(query, origin=Computed(how, (query,), _divided(divisor)))
    last = query.name.split(".")[-2]
    note = Note("note", last, f"{last} is {how}: the trainer had left it out, and engines multiply by it")
    return Reshaped(replace(drafter, tensors=tensors, rope=rope), (note,))


def paired(drafter: Drafter, *, is_interleaved: bool) -> Drafter:
    """The drafter with its rotary dimensions in the other order, in queries and in the shared key (formats.md, C29); bytes move."""
    if drafter.rope.is_interleaved == is_interleaved:
        return drafter
    dims, half = drafter.dims, drafter.dims.qk_rope_head_dim // 2
    if is_interleaved:
        pairs = [place for low in range(half) for place in (low, low + half)]
    else:
        pairs = [*range(0, 2 * half, 2), *range(1, 2 * half, 2)]
    size = dims.qk_nope_head_dim + dims.qk_rope_head_dim
    rows = [head * size + row for head in range(dims.heads) for row in _after(dims.qk_nope_head_dim, pairs)]
    tensors = dict(drafter.tensors)
    for query in _queries(drafter):
        tensors[query.name] = query.with_rows(rows)
    for layer in range(dims.layers):
        key = _plain(drafter, f"layers.{layer}.self_attn.kv_a_proj_with_mqa")
        tensors[key.name] = key.with_rows(_after(dims.kv_lora_rank, pairs))
    return replace(drafter, tensors=tensors, rope=replace(drafter.rope, is_interleaved=is_interleaved))


def _in_style(style: str | None) -> Callable[[Drafter], Reshaped]:
    def change(drafter: Drafter) -> Reshaped:
        if style not in (None, "neox", "interleaved"):
            raise Usage(f"--rope-style {style}: neox or interleaved was expected")
        if style == "neox":
            raise Refused(
                "--rope-style neox would be rotated wrongly: no engine and no layout reads rope_interleave, all rotate MLA"
                " drafters interleaved; leave it out"
            )
        if style is None or drafter.rope.is_interleaved:
            return Reshaped(drafter)
        note = Note("note", "rope_interleave", "the rotary rows of the queries and of the shared key are interleaved: the same function")  # fmt: skip
        return Reshaped(paired(drafter, is_interleaved=True), (note,))

    return change


def _with_query_lora(checkpoint: Checkpoint, wish: Wish) -> Callable[[Drafter], Reshaped]:
    def change(drafter: Drafter) -> Reshaped:
        if not wish.has_query_lora:
            return Reshaped(drafter)
        if drafter.dims.q_lora_rank:
            raise Usage("--mla-query-lora: this drafter has q_a_proj and q_b_proj already; leave it out")
        return with_query_lora(checkpoint, drafter, wish.dtype)

    return change


def with_query_lora(checkpoint: Checkpoint, drafter: Drafter, dtype: str | None = None) -> Reshaped:
    """q_proj as q_a_proj, a norm and q_b_proj, which engines can load (formats.md, section 9); nearly exact.

    A layer's input is normed and then weighted; q_a_proj undoes the weights, so that the norm between the two has always the
    same size to divide by, but for eps. The state's half is made STATE_SHARE larger: an embedding, which may be small enough for
    eps to show, then hardly counts. `dtype` is the one that is written.
    """
    dims, eps = drafter.dims, float(drafter.settings["rms_norm_eps"])
    rank, tensors = 2 * dims.hidden, dict(drafter.tensors)
    for layer, query in enumerate(_queries(drafter)):
        at = f"layers.{layer}.self_attn."
        tensors.pop(query.name)
        if query.dtype not in FLOATS:
            raise Refused(
                f"{query.name} is {query.dtype}; --mla-query-lora needs its numbers: convert the unquantised drafter"
            )
        held = dtype or query.dtype
        names = ("input_layernorm", "hidden_norm") if layer == 0 else ("input_layernorm",)
        norms = tuple(drafter.tensors[f"layers.{layer}.{name}.weight"] for name in names)
        _check_weights(checkpoint, norms)
        tensors |= {
            tensor.name: tensor for tensor in (
                Tensor(at + "q_a_proj.weight", query.dtype, (rank, query.shape[1]), Computed("the norms before it undone, on the diagonal", norms, _undone(held, rank))),
                Tensor(at + "q_a_layernorm.weight", norms[0].dtype, (rank,), Computed("ones", (), _ones(rank))),
                Tensor(at + "q_b_proj.weight", query.dtype, (query.shape[0], rank), Computed("q_proj over the diagonal of q_a_proj", (query, *norms), _rest(held, rank, eps))),
            )
        }  # fmt: skip
    made = replace(drafter, tensors=tensors, dims=replace(dims, q_lora_rank=rank))
    return Reshaped(made, (_bound(checkpoint, drafter, eps),))


def _check_weights(checkpoint: Checkpoint, norms: Sequence[Tensor]) -> None:
    for norm in norms:
        weight = evaluate(norm, checkpoint)
        if not bool(np.isfinite(weight).all()) or not bool(weight.all()):
            raise Refused(
                f"{norm.name} has channels of zero or of no finite size, which q_a_proj cannot undo; --mla-query-lora does not"
                " work for this drafter"
            )


def _diagonal(norms: Sequence[Array], dtype: str) -> Array:
    """What q_a_proj has on its diagonal: one over the weights, as `dtype` holds it; the last of `norms` is the state's."""
    undone = [(STATE_SHARE if norm is norms[-1] else 1.0) / norm for norm in norms]
    return decode(encode(np.concatenate(undone), dtype, "q_a_proj.weight"), dtype, "q_a_proj.weight")


def _undone(dtype: str, rank: int) -> Callable[..., Array]:
    def make(*norms: Array) -> Array:
        found = _diagonal(norms, dtype)
        return np.concatenate((np.diag(found), np.zeros((rank - len(found), len(found)))))

    return make


def _rest(dtype: str, rank: int, eps: float) -> Callable[..., Array]:
    def make(query: Array, *norms: Array) -> Array:
        diagonal = _diagonal(norms, dtype)
        sizes = np.concatenate(norms) * diagonal
        size = np.sqrt((sizes**2).sum() / rank + eps)
        return np.concatenate((query / diagonal * size, np.zeros((len(query), rank - len(diagonal)))), axis=1)

    return make


def _bound(checkpoint: Checkpoint, drafter: Drafter, eps: float) -> Note:
    """How far a query can be off, by the size of the embeddings where the drafter has them, and by that of the fed-back state."""
    dims = drafter.dims
    table = drafter.tensors.get("embed_tokens.weight")
    table = table if table and table.dtype in FLOATS else None
    smallest = 0.0 if table is None else min(_row_sizes(checkpoint, table))
    share = smallest**2 / (smallest**2 + eps)
    whole = STATE_SHARE**2 + 1 + 2 * eps
    error = (whole / (whole - 1 + share)) ** 0.5 - 1
    where = "for any embedding" if table is None else f"for all its embeddings (the smallest has RMS {smallest:.3g})"
    size = (
        dims.layers * 2 * dims.hidden * (2 * dims.hidden + dims.heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim))
    )
    text = (
        f"q_proj is written as q_a_proj and q_b_proj of rank {2 * dims.hidden} ({size:,} numbers): queries are off by at most"
        f" {error:.1e} {where}, by {eps:g}/2r^2 for a fed-back state of RMS r, and by rounding"
    )
    return Note("note", "q_a_proj", text)


def _row_sizes(checkpoint: Checkpoint, table: Tensor) -> Iterator[float]:
    """The RMS of every row, a block of rows at a time."""
    for start in range(0, table.shape[0], EMBEDDING_ROWS):
        rows = range(start, min(start + EMBEDDING_ROWS, table.shape[0]))
        yield from np.sqrt((evaluate(table.with_rows(rows), checkpoint) ** 2).mean(1)).tolist()


def _queries(drafter: Drafter) -> list[Tensor]:
    last = "q_b_proj" if drafter.dims.q_lora_rank else "q_proj"
    return [_plain(drafter, f"layers.{layer}.self_attn.{last}") for layer in range(drafter.dims.layers)]


def _plain(drafter: Drafter, module: str) -> Tensor:
    """The weight of a module. Raises Refused where a quantiser has put other tensors beside it or in its place."""
    if any(name.rpartition(".")[0] == module and is_quantised_part(name) for name in drafter.tensors):
        raise Refused(
            f"{module} is quantised, and its rows cannot be moved or computed with: convert the unquantised drafter, then"
            " quantise it"
        )
    return drafter.tensors[f"{module}.weight"]


def _after(first: int, places: Sequence[int]) -> list[int]:
    return [*range(first), *(first + place for place in places)]


def _divided(divisor: Array) -> Callable[[Array], Array]:
    return lambda values: values / divisor


def _ones(size: int) -> Callable[[], Any]:
    return lambda: np.ones(size)
