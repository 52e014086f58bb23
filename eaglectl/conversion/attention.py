"""Attention and its norms rewritten as the same function: rotary pairing, YaRN's factors, MLA.

vLLM's and SGLang's runtime names (fused_qkv_a_proj, w_kc, w_vc) are read by formats/ and never written: both
engines fuse and absorb while loading, and neither finds these names in a file. Nor are latent norms folded
into the projections behind them: every MLA class has these norms, so a file without them would gain nothing.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import Array, decode, encode, evaluate
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.readings import HALVES, rotary_moves, unquantised_weight, with_moves
from eaglectl.conversion.tensor_steps import FLOATS
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, JOINED_NORMS, Drafter, Note
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.format import Layout

ROPE_STYLES = ("neox", "interleaved")
# how much larger than the embedding's half the state's half is made: the norm of both hardly depends on the
# embedding then
STATE_SHARE = 32.0
EMBEDDING_ROWS = 4096
INNER, OUTER = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
ROUNDING = 2.0**-8  # of bfloat16: a factor nearer to one is none


def without_solved_problems(
    drafter: Drafter,
    *,
    rope_style: str | None = None,
    has_query_lora: bool = False,
    fixes: Sequence[tuple[str, str]] = (),
) -> Drafter:
    """The drafter without the notes on problems that `rewritten_attention` or --fix-reading solves."""

    is_made_of_t2d = ("d2t", "from-t2d") in fixes
    is_query_split = has_query_lora and not drafter.dims.q_lora_rank

    def is_solved(note: Note) -> bool:
        solved = {
            "training-unservable": not drafter.rope.has_mla_factors,
            "rope-pairing": rope_style == "interleaved",
            "tensor-shape": note.about == "d2t" and is_made_of_t2d,
        }
        return solved.get(note.topic, note.about.endswith(".q_a_proj.weight") and is_query_split)

    return replace(drafter, notes=tuple(note for note in drafter.notes if not is_solved(note)))


def with_one_norm(checkpoint: Checkpoint, drafter: Drafter, layout: Layout) -> TransformedDrafter:
    """The drafter with the product of both norms as hidden_norm, unless the layout's trainer norms twice.

    RMSNorm by w, then by v, is v * w * h over the RMS of w * h. One norm by v * w / c gives the same
    direction, and the two differ by one factor for each state, RMS(w * h) / (c * RMS(h)), which lies between
    the smallest and the largest |w| over c. c is the RMS of w, which is right for a state of even channels.
    The doubt stays with the size that may differ, unless that is rounding. Raises RefusedError for an
    input_layernorm of no finite size.
    """
    if not drafter.norms.hidden_twice or layout.norms_twice:
        return TransformedDrafter(drafter)
    inner, outer = drafter.tensors[INNER], drafter.tensors[OUTER]
    sizes = np.abs(evaluate(inner, checkpoint))
    scale = float(np.sqrt((sizes**2).mean()))
    if not np.isfinite(scale) or scale == 0:
        raise RefusedError(f"{INNER} has no finite size; no norm replaces it and hidden_norm")

    def product(second: Array, first: Array) -> Array:
        return second * first / scale

    computed = Computed("input_layernorm and hidden_norm as one", (outer, inner), product)
    low, high = float(sizes.min()) / scale - 1, float(sizes.max()) / scale - 1
    text = (
        "trained with the hidden state normed twice; one norm was written for both: the direction is exact,"
        f" the size may differ by {low:+.0%} to {high:+.0%}"
    )
    doubt = Note("warning", HIDDEN_NORM, text, JOINED_NORMS, drafter.producer, is_open=True)
    if max(high, -low) < ROUNDING:
        doubt = Note("note", HIDDEN_NORM, text)
    return TransformedDrafter(
        replace(
            drafter,
            norms=replace(drafter.norms, hidden_twice=False),
            tensors={**drafter.tensors, OUTER: replace(outer, origin=computed)},
            notes=(*(note for note in drafter.notes if note.topic != DOUBLE_NORM), doubt),
        ),
        record={"norms_joined": {"scale": scale, "size_differs": [low, high]}},
    )


def rewritten_attention(
    checkpoint: Checkpoint,
    drafter: Drafter,
    *,
    rope_style: str | None,
    has_query_lora: bool,
    dtype: str | None,
) -> TransformedDrafter:
    """The attention that engines run, rewritten as the options of these names say.

    Raises RefusedError where that is another function, UsageError for an option that does not apply.
    """
    is_mla = drafter.dims.attention == "MLA"
    if (rope_style or has_query_lora) and not is_mla:
        option = "--rope-style" if rope_style else "--mla-query-lora"
        raise UsageError(f"{option} is for MLA drafters, and this one is {drafter.dims.attention}")
    if not is_mla:
        return TransformedDrafter(drafter)
    result = _rope_styled(drafter, rope_style)
    result = result.then(with_mla_factors(result.drafter))
    if not has_query_lora:
        return result
    if drafter.dims.q_lora_rank:
        raise UsageError("--mla-query-lora: this drafter has q_a_proj and q_b_proj already; leave it out")
    return result.then(with_query_lora(checkpoint, result.drafter, dtype))


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
        tensors[query.name] = replace(query, origin=Computed(how, (query,), lambda values: values / divisor))
    module = queries[-1].name.split(".")[-2]
    note = Note("note", module, f"{module} is {how}: the trainer had left it out, and engines multiply by it")
    return TransformedDrafter(replace(drafter, tensors=tensors, rope=rope), (note,))


def _rope_styled(drafter: Drafter, style: str | None) -> TransformedDrafter:
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
    paired = with_moves(drafter, rotary_moves(drafter, HALVES))
    return TransformedDrafter(replace(paired, rope=replace(drafter.rope, is_interleaved=True)), (note,))


def with_query_lora(checkpoint: Checkpoint, drafter: Drafter, dtype: str | None = None) -> TransformedDrafter:
    """The drafter with its q_proj as q_a_proj, a norm and q_b_proj; nearly exact.

    `dtype` is the one that is written.

    A layer's input is normed and then weighted; q_a_proj undoes the weights, so that the norm between the two
    always divides by the same size, but for eps. The state's half is made STATE_SHARE larger: an embedding,
    which may be small enough for eps to matter, then hardly counts.
    """
    dims = drafter.dims
    rank, eps, tensors = 2 * dims.hidden, float(drafter.settings["rms_norm_eps"]), dict(drafter.tensors)
    for layer, query in enumerate(query_projections(drafter)):
        tensors.pop(query.name)
        if query.dtype not in FLOATS:
            raise RefusedError(
                f"{query.name} is {query.dtype}; --mla-query-lora needs its numbers: convert the unquantised"
                " drafter"
            )
        names = ("input_layernorm", "hidden_norm") if layer == 0 else ("input_layernorm",)
        norms = tuple(drafter.tensors[f"layers.{layer}.{name}.weight"] for name in names)
        for norm in norms:
            weight = evaluate(norm, checkpoint)
            if not bool(np.isfinite(weight).all()) or not bool(weight.all()):
                raise RefusedError(
                    f"{norm.name} has channels of zero or of no finite size, which q_a_proj cannot undo;"
                    " --mla-query-lora does not work for this drafter"
                )
        factors = _factors(layer, query, norms, rank, dtype or query.dtype, eps)
        tensors |= {tensor.name: tensor for tensor in factors}
    result = replace(drafter, tensors=tensors, dims=replace(dims, q_lora_rank=rank))
    return TransformedDrafter(result, (_error_bound(checkpoint, drafter),))


def query_projections(drafter: Drafter) -> list[Tensor]:
    """Each layer's last projection of the query. Raises RefusedError where one is quantised."""
    name = "q_b_proj" if drafter.dims.q_lora_rank else "q_proj"
    return [
        unquantised_weight(drafter, f"layers.{layer}.self_attn.{name}")
        for layer in range(drafter.dims.layers)
    ]


def _factors(
    layer: int, query: Tensor, norms: tuple[Tensor, ...], rank: int, dtype: str, eps: float
) -> Iterator[Tensor]:
    """q_a_proj, its norm and q_b_proj of a layer, as they are written in `dtype`."""

    def diagonal(weights: Sequence[Array]) -> Array:
        """One over the norms' weights, rounded to the written dtype; the last are the state's."""
        inverses = [1.0 / weight for weight in weights[:-1]]
        values = np.concatenate([*inverses, STATE_SHARE / weights[-1]])
        return decode(encode(values, dtype, "q_a_proj.weight"), dtype, "q_a_proj.weight")

    def first(*weights: Array) -> Array:
        undone = diagonal(weights)
        return np.concatenate((np.diag(undone), np.zeros((rank - len(undone), len(undone)))))

    def second(query: Array, *weights: Array) -> Array:
        undone = diagonal(weights)
        size = np.sqrt(((np.concatenate(weights) * undone) ** 2).sum() / rank + eps)
        padding = np.zeros((len(query), rank - len(undone)))
        return np.concatenate((query / undone * size, padding), axis=1)

    module = f"layers.{layer}.self_attn."
    undone = Computed("the norms before it undone, on the diagonal", norms, first)
    yield Tensor(module + "q_a_proj.weight", query.dtype, (rank, query.shape[1]), undone)
    ones = Computed("ones", (), partial(np.ones, rank))
    yield Tensor(module + "q_a_layernorm.weight", norms[0].dtype, (rank,), ones)
    rest = Computed("q_proj over the diagonal of q_a_proj", (query, *norms), second)
    yield Tensor(module + "q_b_proj.weight", query.dtype, (query.shape[0], rank), rest)


def _error_bound(checkpoint: Checkpoint, drafter: Drafter) -> Note:
    """The largest relative error of a query, by the sizes of the embeddings and of the fed-back state."""
    dims, eps = drafter.dims, float(drafter.settings["rms_norm_eps"])
    smallest, where = 0.0, "for any embedding"
    table = drafter.tensors.get("embed_tokens.weight")
    if table and table.dtype in FLOATS:
        starts = range(0, table.shape[0], EMBEDDING_ROWS)
        blocks = (range(start, min(start + EMBEDDING_ROWS, table.shape[0])) for start in starts)
        sizes = (np.sqrt((evaluate(table.with_rows(rows), checkpoint) ** 2).mean(1)) for rows in blocks)
        smallest = min(float(block.min()) for block in sizes)
        where = f"for all its embeddings (the smallest has RMS {smallest:.3g})"
    share = smallest**2 / (smallest**2 + eps)
    whole = STATE_SHARE**2 + 1 + 2 * eps
    error = (whole / (whole - 1 + share)) ** 0.5 - 1
    query = dims.heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim)
    size = dims.layers * 2 * dims.hidden * (2 * dims.hidden + query)
    text = (
        f"q_proj is written as q_a_proj and q_b_proj of rank {2 * dims.hidden} ({size:,} numbers): queries"
        f" are off by at most {error:.1e} {where}, by {eps:g}/2r^2 for a fed-back state of RMS r, and by"
        " rounding"
    )
    return Note("note", "q_a_proj", text)
