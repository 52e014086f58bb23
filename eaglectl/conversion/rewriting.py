"""A drafter's tensors rewritten as the same function: attention, its norms, blocks of fc, the target's head.

vLLM's and SGLang's runtime names (fused_qkv_a_proj, w_kc, w_vc) are read by formats/ and never written: both
engines fuse and absorb while loading, and neither finds these names in a file. Nor are latent norms folded
into the projections behind them: every MLA class has these norms, so a file without them would gain nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import BLOCK, Array, decode, encode, evaluate
from eaglectl.conversion.plan import FLOATS, ITEM_SIZE, TransformedDrafter
from eaglectl.conversion.readings import (
    HALVES,
    query_weights,
    rotary_moves,
    unquantised_weight,
    with_moves,
)
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, JOINED_NORMS, Drafter, Note
from eaglectl.drafter.matrices import EMBEDDINGS, HEADS, matrix
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.drafter.vocabulary import DraftVocabulary, identity
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.target_files import text_part
from eaglectl.formats.format import Layout

ROPE_STYLES = ("neox", "interleaved")
# how much larger than the embedding's half the state's half is made: the norm of both hardly depends on the
# embedding then
STATE_SHARE = 32.0
INNER, OUTER = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
ROUNDING = 2.0**-8  # of bfloat16: a factor nearer to one is none
FC, HEAD, MATERIALIZE = "fc.weight", "lm_head.weight", "--materialize-lm-head"


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
    dims, option = drafter.dims, "--rope-style" if rope_style else "--mla-query-lora"
    is_mla = dims.attention == "MLA"
    check(
        (
            not is_mla and (rope_style or has_query_lora),
            f"{option} is for MLA drafters, and this one is {dims.attention}",
        ),
        (
            rope_style not in (None, *ROPE_STYLES),
            f"--rope-style {rope_style}: {' or '.join(ROPE_STYLES)} was expected",
        ),
        (
            has_query_lora and dims.q_lora_rank,
            "--mla-query-lora: this drafter has q_a_proj and q_b_proj already; leave it out",
        ),
    )
    if rope_style == "neox":
        raise RefusedError(
            "--rope-style neox would be rotated wrongly: no engine and no layout reads rope_interleave,"
            " all rotate MLA drafters interleaved; leave it out"
        )
    if not is_mla:
        return TransformedDrafter(drafter)
    notes: tuple[Note, ...] = ()
    if rope_style and not drafter.rope.is_interleaved:
        paired = with_moves(drafter, rotary_moves(drafter, HALVES))
        drafter = replace(paired, rope=replace(drafter.rope, is_interleaved=True))
        text = "the rotary rows of the queries and of the shared key are interleaved: the same function"
        notes = (Note("note", "rope_interleave", text),)
    result = TransformedDrafter(drafter, notes).then(with_mla_factors(drafter))
    return result.then(with_query_lora(checkpoint, result.drafter, dtype)) if has_query_lora else result


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
    queries = [unquantised_weight(drafter, module) for module in query_weights(drafter)]
    for query in queries:
        tensors[query.name] = replace(query, origin=Computed(how, (query,), lambda values: values / divisor))
    module = queries[-1].name.split(".")[-2]
    note = Note("note", module, f"{module} is {how}: the trainer had left it out, and engines multiply by it")
    return TransformedDrafter(replace(drafter, tensors=tensors, rope=rope), (note,))


def with_query_lora(checkpoint: Checkpoint, drafter: Drafter, dtype: str | None = None) -> TransformedDrafter:
    """The drafter with its q_proj as q_a_proj, a norm and q_b_proj; nearly exact.

    `dtype` is the one that is written.

    A layer's input is normed and then weighted; q_a_proj undoes the weights, so that the norm between the two
    always divides by the same size, but for eps. The state's half is made STATE_SHARE larger: an embedding,
    which may be small enough for eps to matter, then hardly counts.
    """
    dims = drafter.dims
    rank, eps, tensors = 2 * dims.hidden, float(drafter.settings["rms_norm_eps"]), dict(drafter.tensors)
    for layer, module in enumerate(query_weights(drafter)):
        query = unquantised_weight(drafter, module)
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
    # of a query whose embedding is zeros: by what its half counts in the norm
    error = (1 + 1 / (STATE_SHARE**2 + 2 * eps)) ** 0.5 - 1
    size = dims.layers * rank * (rank + dims.heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim))
    text = (
        f"q_proj is written as q_a_proj and q_b_proj of rank {rank} ({size:,} numbers): queries are off by at"
        f" most {error:.1e} for any embedding, by {eps:g}/2r^2 for a fed-back state of RMS r, and by rounding"
    )
    return TransformedDrafter(result, (Note("note", "q_a_proj", text),))


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


def in_ascending_order(drafter: Drafter) -> TransformedDrafter:
    """The drafter with its blocks by ascending boundary: engines sort ids and drop repeated ones (C35).

    Bytes move where every layer is named once. Where one is named twice its blocks are added, which is exact:
    both take the same state. Raises RefusedError where they cannot be added.
    """
    groups = drafter.aux.order
    if groups is None:
        return TransformedDrafter(drafter)
    tensors, order, count = dict(drafter.tensors), [group[0] for group in groups], drafter.dims.aux
    if tensors[FC].dtype not in ITEM_SIZE:
        raise RefusedError(
            f"fc.weight is {tensors[FC].dtype}; the blocks of a quantised fc cannot be moved or added: write"
            " the ids in ascending order when training"
        )
    names = [f"fc_norm.{block}.weight" for block in range(count if drafter.norms.fc_norm else 0)]
    norms = [tensors.pop(name) for name in names]
    tensors |= {name: replace(norms[old], name=name) for name, old in zip(names, order, strict=False)}
    notes: tuple[Note, ...] = ()
    if len(groups) == count:
        for name in (FC, "input_norm.weight", "mask_hidden"):
            if (tensor := tensors.get(name)) and name == FC:
                tensors[name] = tensor.with_blocks(order)
            elif tensor:
                flat = replace(tensor, shape=(prod(tensor.shape),))
                tensors[name] = replace(flat.with_blocks(order), shape=tensor.shape)
    else:
        tensors |= _added(drafter, groups, norms)
        boundaries = zip(drafter.aux.boundaries or (), groups, strict=True)
        repeated = [boundary for boundary, group in boundaries if len(group) > 1]
        text = f"boundaries {repeated} were named more than once; their blocks of fc are added into one"
        notes = (Note("note", FC, text),)
    aux = replace(drafter.aux, count=len(groups), order=None)
    dims = replace(drafter.dims, aux=len(groups))
    return TransformedDrafter(replace(drafter, tensors=tensors, aux=aux, dims=dims), notes)


def _added(
    drafter: Drafter, groups: Sequence[Sequence[int]], norms: Sequence[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """fc with the blocks of each group added, weighted by a repeated layer's norms, which become ones."""
    # what takes the two states of a repeated layer apart before fc
    obstacles = {
        "input_norm.weight": "input_norm norms over both of them",
        "mask_hidden": "mask_hidden has a state for each",
    }
    for name, why in obstacles.items():
        if name in drafter.tensors:
            raise RefusedError(
                f"aux layer ids {list(drafter.aux.ids or ())} name a layer twice, and {why}; its two blocks"
                " of fc cannot be added: train with distinct layers"
            )

    def make(fc: Array, *weights: Array) -> Array:
        blocks = np.split(fc, drafter.dims.aux, axis=1)
        sums = []
        for group in groups:
            is_weighted = weights and len(group) > 1
            sums.append(
                sum(blocks[block] * weights[block] if is_weighted else blocks[block] for block in group)
            )
        return np.concatenate(sums, axis=1)

    fc = drafter.tensors[FC]
    shape = (fc.shape[0], len(groups) * drafter.dims.target_hidden)
    added = Computed("blocks of one aux layer added", (fc, *norms), make)
    yield FC, replace(fc, shape=shape, origin=added)
    for new, group in enumerate(groups):
        if norms and len(group) > 1:
            name = f"fc_norm.{new}.weight"
            ones = Computed("ones: its weights are in fc", (norms[group[0]],), np.ones_like)
            yield name, replace(norms[group[0]], name=name, origin=ones)


class TargetMatrix(Struct, frozen=True):
    """A matrix of a target, [vocab, hidden]; `read` returns rows [start, stop) as float64."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]


def stored_matrix(checkpoint: Checkpoint, name: str) -> TargetMatrix:
    """A stored matrix of plain numbers."""
    stored = checkpoint.tensors[name]

    def read(start: int, stop: int) -> Array:
        raw = checkpoint.read(name, start * stored.row_bytes, stop * stored.row_bytes)
        return decode(raw, stored.dtype, name).reshape(stop - start, *stored.shape[1:])

    return TargetMatrix(name, stored.dtype, stored.shape, read)


def find_target_matrix(target: Checkpoint, option: str, *, is_head: bool = False) -> TargetMatrix:
    """The target's embedding, or its lm_head, which is the embedding where the two are tied.

    Raises RefusedError where it is not stored unquantised.
    """
    places = (target.config, text_part(target.config))
    is_tied = any(place.get("tie_word_embeddings") is True for place in places)
    name = matrix(target.tensors, HEADS) if is_head else None
    if name is None and (is_tied or not is_head):
        name = matrix(target.tensors, EMBEDDINGS)
    if name is None:
        raise RefusedError(
            f"{option}: {target.source.place} has no {'lm_head' if is_head else 'embedding'} of plain"
            " numbers; give the target's unquantised weights"
        )
    return stored_matrix(target, name)


def with_head(drafter: Drafter, head: TargetMatrix, option: str = MATERIALIZE) -> Drafter:
    """The drafter with the target's head as its own: the same function.

    Raises UsageError where it has one, RefusedError where the shapes do not match.
    """
    if HEAD in drafter.tensors:
        raise UsageError(f"{option}: this drafter has an lm_head of its own; leave the option out")
    _check_shape(head, (drafter.dims.draft_vocab, drafter.dims.hidden), option)
    notes = tuple(note for note in drafter.notes if note.about != "lm_head")  # that it has none
    return replace(drafter, tensors={**drafter.tensors, HEAD: own_tensor(HEAD, head)}, notes=notes)


def _check_shape(head: TargetMatrix, shape: tuple[int, int], option: str) -> None:
    if head.shape != shape:
        raise RefusedError(
            f"{option}: the target's {head.name} is {list(head.shape)}; this drafter needs {list(shape)}"
        )


def with_whole_head(
    checkpoint: Checkpoint, drafter: Drafter, vocabulary: DraftVocabulary, head: TargetMatrix
) -> tuple[Drafter, DraftVocabulary]:
    """The drafter with all rows of the target's head, of which it has some: the same function of these.

    Such a head is one that was not trained (speculators 0.9.0 by default). Raises UsageError for another,
    RefusedError where the shapes do not match.
    """
    own, dims = drafter.tensors[HEAD], drafter.dims
    _check_shape(head, (dims.vocab, dims.hidden), MATERIALIZE)
    rows = {target: row for row, target in enumerate(vocabulary.targets)}
    step = max(1, BLOCK // dims.hidden)
    for start in range(0, dims.vocab, step):
        stop = min(start + step, dims.vocab)
        tokens = [token for token in range(start, stop) if token in rows]
        theirs = head.read(start, stop)[[token - start for token in tokens]]
        ours = evaluate(own.with_rows([rows[token] for token in tokens]), checkpoint)
        if encode(theirs, own.dtype, HEAD) != encode(ours, own.dtype, HEAD):
            raise UsageError(
                f"{MATERIALIZE}: this drafter has an lm_head of its own, which is not of rows of the target's"
                f" {head.name}; leave the option out"
            )
    made = replace(own_tensor(HEAD, head), dtype=own.dtype)
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in ("d2t", "t2d")}
    whole = replace(drafter, tensors={**tensors, HEAD: made}, dims=replace(dims, draft_vocab=dims.vocab))
    return whole, identity(dims.vocab)


def own_tensor(name: str, source: TargetMatrix, how: str = "the target's {name}") -> Tensor:
    """A target's matrix as the drafter's own tensor."""
    made = Computed(how.format(name=source.name), (), source.read, by_rows=True)
    return Tensor(name, source.dtype, source.shape, made)
