"""Attention rewritten as the same function: rotary pairing, YaRN's factors, GQA as MHA.

vLLM's and SGLang's runtime names (fused_qkv_a_proj, w_kc, w_vc) are read by formats/ and never written: both
engines fuse and absorb while loading, and neither finds these names in a file. Nor are latent norms folded
into the projections behind them: every MLA class has these norms, so a file without them would gain nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.conversion.arithmetic import Array
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.query_lora import query_projections, unquantised_weight, with_query_lora
from eaglectl.conversion.request import ConversionRequest
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Computed
from eaglectl.errors import RefusedError, UsageError

ATTENTION = ("mha", "gqa", "mqa", "mla")
ROPE_STYLES = ("neox", "interleaved")
TO_MLA = (
    "{have} cannot be rewritten as MLA: MLA has one rotated key for all heads and leaves the rest of each key"
    " unrotated, while {have} rotates every head's own; no rank is large enough for that. Train an MLA head"
    " on the same target; only its attention starts anew: fc, embedding, norms, MLP and lm_head can be taken"
    " over, and TransMLA (arXiv 2502.07864) gives a start for the rest"
)
FROM_MLA = (
    "MLA cannot be rewritten as {want}: its queries, keys and values pass norms on a latent, and its heads"
    " share one rotated key beside unrotated ones, which {want} classes have no place for. Train a {want}"
    " head on the same target; fc, embedding, norms, MLP and lm_head can be taken over"
)
TO_FEWER_HEADS = (
    "{have} cannot be rewritten as {want}: heads that were trained apart would share keys and values, which"
    " is another function; only {have} to MHA is exact. Train a {want} head on the same target"
)


def without_solved_problems(drafter: Drafter, request: ConversionRequest) -> Drafter:
    """The drafter without the notes on problems that `rewritten_attention` or --fix-reading solves."""

    def is_solved(note: Note) -> bool:
        if note.topic == "training-unservable":
            return not drafter.rope.has_mla_factors
        if note.topic == "rope-pairing":
            return request.rope_style == "interleaved"
        if note.topic == "tensor-shape":
            return note.about == "d2t" and ("d2t", "from-t2d") in request.fixes
        is_of_query = note.about.endswith(".q_a_proj.weight")
        return is_of_query and request.has_query_lora and not drafter.dims.q_lora_rank

    return replace(drafter, notes=tuple(note for note in drafter.notes if not is_solved(note)))


def rewritten_attention(
    checkpoint: Checkpoint, drafter: Drafter, request: ConversionRequest
) -> TransformedDrafter:
    """The attention that engines run and `request` names.

    Raises RefusedError where that is another function, UsageError for an option that does not apply.
    """
    is_mla = drafter.dims.attention == "MLA"
    if (request.rope_style or request.has_query_lora) and not is_mla:
        option = "--rope-style" if request.rope_style else "--mla-query-lora"
        raise UsageError(f"{option} is for MLA drafters, and this one is {drafter.dims.attention}")
    result = with_attention(drafter, request.attention)
    if not is_mla:
        return result
    notes = list(result.notes)
    for transform in (_rope_styled(request.rope_style), with_mla_factors, _query_lora(checkpoint, request)):
        result = transform(result.drafter)
        notes.extend(result.notes)
    return TransformedDrafter(result.drafter, tuple(notes))


def with_attention(drafter: Drafter, requested: str | None) -> TransformedDrafter:
    """GQA as MHA: each key and value head repeated for every query head that shares it.

    Raises RefusedError for other changes.
    """
    have, dims = drafter.dims.attention, drafter.dims
    if requested is not None and requested not in ATTENTION:
        raise UsageError(f"--attention {requested}: {', '.join(ATTENTION)} was expected")
    if requested is None or requested.upper() == have:
        return TransformedDrafter(drafter)
    _check_exact(have, requested.upper())
    shared = dims.heads // dims.kv_heads
    rows = [
        head // shared * dims.head_dim + row for head in range(dims.heads) for row in range(dims.head_dim)
    ]
    tensors = dict(drafter.tensors)
    for layer in range(dims.layers):
        for part in ("k_proj", "v_proj"):
            module = f"layers.{layer}.self_attn.{part}"
            tensors[f"{module}.weight"] = unquantised_weight(drafter, module).with_rows(rows)
            if bias := drafter.tensors.get(f"{module}.bias"):
                tensors[bias.name] = bias.with_rows(rows)
    note = Note(
        "note",
        "attention",
        f"each of {dims.kv_heads} key and value heads is written {shared} times: the same function, with"
        f" {shared} times the cache",
    )
    repeated = replace(drafter, tensors=tensors, dims=replace(dims, kv_heads=dims.heads))
    return TransformedDrafter(repeated, (note,))


def _check_exact(have: str, want: str) -> None:
    """Raise RefusedError unless GQA or MQA is to become MHA."""
    if want == "MLA":
        raise RefusedError(TO_MLA.format(have=have))
    if have == "MLA":
        raise RefusedError(FROM_MLA.format(want=want))
    if want != "MHA":
        raise RefusedError(TO_FEWER_HEADS.format(have=have, want=want))


def with_mla_factors(drafter: Drafter) -> TransformedDrafter:
    """Queries divided by the factors that engines multiply by and the trainer did not.

    It is exact: q_b_proj comes after its norm.
    """
    rope = replace(drafter.rope, has_mla_factors=True)
    on_pairs, on_softmax = rope.mla_factors
    if drafter.rope.has_mla_factors or (on_pairs, on_softmax) == (1.0, 1.0):
        return TransformedDrafter(replace(drafter, rope=rope))
    dims = drafter.dims
    # the rotated part of a score has the factor on cos and sin twice: in the query and in the key
    head = [on_softmax] * dims.qk_nope_head_dim + [on_softmax * on_pairs**2] * dims.qk_rope_head_dim
    divisor = np.tile(head, dims.heads)[:, None]
    how = f"divided by {on_softmax:.6g}, YaRN's mscale squared"
    tensors = dict(drafter.tensors)
    queries = query_projections(drafter)
    for query in queries:
        tensors[query.name] = replace(query, origin=Computed(how, (query,), _divided_by(divisor)))
    module = queries[-1].name.split(".")[-2]
    note = Note("note", module, f"{module} is {how}: the trainer had left it out, and engines multiply by it")
    return TransformedDrafter(replace(drafter, tensors=tensors, rope=rope), (note,))


def with_pairing(drafter: Drafter, *, is_interleaved: bool) -> Drafter:
    """The drafter with its rotary dimensions paired the other way.

    Bytes move; nothing is computed.
    """
    if drafter.rope.is_interleaved == is_interleaved:
        return drafter
    dims, half = drafter.dims, drafter.dims.qk_rope_head_dim // 2
    pairs = [*range(0, 2 * half, 2), *range(1, 2 * half, 2)]
    if is_interleaved:
        pairs = [place for low in range(half) for place in (low, low + half)]
    size = dims.qk_nope_head_dim + dims.qk_rope_head_dim
    in_head = _moved_after(dims.qk_nope_head_dim, pairs)
    rows = [head * size + row for head in range(dims.heads) for row in in_head]
    tensors = dict(drafter.tensors)
    for query in query_projections(drafter):
        tensors[query.name] = query.with_rows(rows)
    for layer in range(dims.layers):
        key = unquantised_weight(drafter, f"layers.{layer}.self_attn.kv_a_proj_with_mqa")
        tensors[key.name] = key.with_rows(_moved_after(dims.kv_lora_rank, pairs))
    return replace(drafter, tensors=tensors, rope=replace(drafter.rope, is_interleaved=is_interleaved))


def _rope_styled(style: str | None) -> Callable[[Drafter], TransformedDrafter]:
    def transform(drafter: Drafter) -> TransformedDrafter:
        if style not in (None, *ROPE_STYLES):
            raise UsageError(f"--rope-style {style}: {' or '.join(ROPE_STYLES)} was expected")
        if style == "neox":
            raise RefusedError(
                "--rope-style neox would be rotated wrongly: no engine and no layout reads rope_interleave,"
                " all rotate MLA drafters interleaved; leave it out"
            )
        if style is None or drafter.rope.is_interleaved:
            return TransformedDrafter(drafter)
        note = Note(
            "note",
            "rope_interleave",
            "the rotary rows of the queries and of the shared key are interleaved: the same function",
        )
        return TransformedDrafter(with_pairing(drafter, is_interleaved=True), (note,))

    return transform


def _query_lora(
    checkpoint: Checkpoint, request: ConversionRequest
) -> Callable[[Drafter], TransformedDrafter]:
    def transform(drafter: Drafter) -> TransformedDrafter:
        if not request.has_query_lora:
            return TransformedDrafter(drafter)
        if drafter.dims.q_lora_rank:
            raise UsageError("--mla-query-lora: this drafter has q_a_proj and q_b_proj already; leave it out")
        return with_query_lora(checkpoint, drafter, request.dtype)

    return transform


def _moved_after(first: int, places: Sequence[int]) -> list[int]:
    """Indices with the first ones unchanged and those after them in the order of `places`."""
    return [*range(first), *(first + place for place in places)]


def _divided_by(divisor: Array) -> Callable[[Array], Array]:
    return lambda values: values / divisor
