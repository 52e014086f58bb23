"""A drafter's tensors rewritten as the same function: attention, its norms, blocks of fc, the target's head.

vLLM's and SGLang's runtime names (fused_qkv_a_proj, w_kc, w_vc) are read by formats/ and never written: both
engines fuse and absorb while loading, and neither finds these names in a file. Nor are latent norms folded
into the projections behind them: every MLA class has these norms, so a file without them would gain nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isclose, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import FLOATS, ITEM_SIZE, ConversionRequest, TransformedDrafter
from eaglectl.conversion.readings import (
    HALVES,
    TABLES,
    query_weights,
    rotary_moves,
    unquantised_weight,
    with_moves,
)
from eaglectl.drafter.drafter import (
    DOUBLE_NORM,
    ENGINE_FACTORS,
    HIDDEN_NORM,
    JOINED,
    JOINED_NORMS,
    TRANSFORMERS_FACTORS,
    Drafter,
    Note,
    yarn_factor,
)
from eaglectl.drafter.floats import Array, decode, encode, rounded
from eaglectl.drafter.tensors import (
    EMBEDDINGS,
    HEADS,
    PLAIN,
    Absorbed,
    Computed,
    DraftVocabulary,
    Tensor,
    cut,
    embedding_digest,
    evenly_spaced,
    identity,
    matrix,
    shape_expression,
)
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, read_weight_file
from eaglectl.files.files import is_folder, sha256
from eaglectl.files.source import FolderSource
from eaglectl.files.text_part import text_part
from eaglectl.formats.format import ALL_FACTORS, Layout
from eaglectl.target.files import rotation_file

_WIDTHS = {8: "<u1", 16: "<u2", 32: "<u4", 64: "<u8"}
BLOCK = 1 << 24  # numbers in memory as float64 at once (128 MiB), if rows are computed one by one


def evaluate(tensor: Tensor, checkpoint: Checkpoint, rows: tuple[int, int] | None = None) -> Array:
    """Compute a tensor's numbers as float64, from any origin, without rounding; all, or rows [start, stop).

    Raises RefusedError for dtypes that are not floats.
    """
    start, stop = rows or (0, tensor.shape[0])
    match tensor.origin:
        case Computed(sources=sources, make=make, by_rows=by_rows):
            values = [evaluate(source, checkpoint, rows if by_rows else None) for source in sources]
            computed: Array = make(start, stop) if by_rows and not sources else make(*values)
            return computed
        case Absorbed(w_kc, w_vc):
            raw = b"".join(join_absorbed(checkpoint, w_kc, w_vc))
        case segments:
            size = sum(segment.stop - segment.start for segment in segments) // tensor.shape[0]
            parts = cut(segments, start * size, stop * size)
            raw = b"".join(checkpoint.read(part.stored, part.start, part.stop) for part in parts)
    return decode(raw, tensor.dtype, tensor.name).reshape(stop - start, *tensor.shape[1:])


def encoded(tensor: Tensor, checkpoint: Checkpoint) -> Iterator[bytes]:
    """Yield a computed tensor's bytes, in blocks of rows if its arithmetic goes by rows."""
    count = step = tensor.shape[0]
    if _goes_by_rows(tensor):
        step = max(1, BLOCK // prod(tensor.shape[1:]))
    for start in range(0, count, step):
        yield encode(
            evaluate(tensor, checkpoint, (start, min(start + step, count))), tensor.dtype, tensor.name
        )


def _goes_by_rows(tensor: Tensor) -> bool:
    match tensor.origin:
        case Computed(sources=sources, by_rows=by_rows):
            return by_rows and all(map(_goes_by_rows, sources))
    return not isinstance(tensor.origin, Absorbed)


def join_absorbed(checkpoint: Checkpoint, w_kc: str, w_vc: str) -> Iterator[bytes]:
    """Yield kv_b_proj [heads*(nope+value), rank] from w_kc [heads, nope, rank] and w_vc [heads, rank, value].

    Per head: the key rows as they are, then the value columns turned into rows.
    """
    keys, values = checkpoint.tensors[w_kc], checkpoint.tensors[w_vc]
    if keys.dtype != values.dtype:
        raise RefusedError(f"{w_kc} is {keys.dtype} and {w_vc} is {values.dtype}; kv_b_proj needs one dtype")
    heads, rank, size = values.shape
    width = values.nbytes * 8 // (heads * rank * size)
    for head in range(heads):
        yield checkpoint.read(w_kc, head * keys.row_bytes, (head + 1) * keys.row_bytes)
        raw = checkpoint.read(w_vc, head * values.row_bytes, (head + 1) * values.row_bytes)
        yield np.frombuffer(raw, _WIDTHS[width]).reshape(rank, size).T.tobytes()


ROPE_STYLES = ("neox", "interleaved")
# the factor between the state's half and the embedding's half: the norm of both then hardly depends on the
# embedding
STATE_SHARE = 32.0
INNER, OUTER = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
ROUNDING = 2.0**-8  # of bfloat16: a factor nearer to one is none
FC, HEAD, MATERIALIZE = "fc.weight", "lm_head.weight", "--materialize-lm-head"
INPUT_NORM = "input_norm.weight"


def _ones(tensor: Tensor, name: str, why: str = "its weights are in fc") -> Tensor:
    return replace(tensor, name=name, origin=Computed(f"ones: {why}", (tensor,), np.ones_like))


def with_one_norm(checkpoint: Checkpoint, drafter: Drafter, layout: Layout) -> TransformedDrafter:
    """Return the drafter with both norms' product as hidden_norm, unless the layout's trainer norms twice.

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
        raise RefusedError(
            f"the RMS of {INNER} is zero or not finite; it cannot be combined with hidden_norm"
        )
    computed = Computed(
        "input_layernorm and hidden_norm as one",
        (outer, inner),
        lambda second, first: second * first / scale,
    )
    low, high = float(sizes.min()) / scale - 1, float(sizes.max()) / scale - 1
    text = f"{JOINED}, the size can differ by {low:+.0%} to {high:+.0%}"
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
    checkpoint: Checkpoint, drafter: Drafter, request: ConversionRequest
) -> TransformedDrafter:
    """Return the drafter with its attention rewritten by --rope-style and --mla-query-lora.

    Raises RefusedError if the function would change, UsageError for an option that does not apply.
    """
    style, has_query_lora = request.rope_style, request.has_query_lora
    is_mla, option = drafter.dims.attention == "MLA", "--rope-style" if style else "--mla-query-lora"
    check(
        (
            not is_mla and (style or has_query_lora),
            f"{option} is for MLA drafters, and this drafter has {drafter.dims.attention}",
            (option,),
        ),
        (
            style not in (None, *ROPE_STYLES),
            f"--rope-style {style}: {' or '.join(ROPE_STYLES)} was expected",
            ("--rope-style",),
        ),
        (
            has_query_lora and drafter.dims.q_lora_rank,
            "--mla-query-lora: this drafter has q_a_proj and q_b_proj already; leave it out",
            ("--mla-query-lora",),
        ),
    )
    if style == "neox":
        raise RefusedError(
            "--rope-style neox would be wrong: all engines and layouts rotate MLA drafters interleaved,"
            " and none reads rope_interleave; leave it out",
            options=("--rope-style",),
        )
    result = TransformedDrafter(drafter)
    if style and is_mla and not drafter.rope.is_interleaved:
        text = "the rotary rows of the queries and the shared key are interleaved; the function is unchanged"
        paired = with_moves(drafter, rotary_moves(drafter, HALVES))
        paired = replace(paired, rope=replace(drafter.rope, is_interleaved=True))
        result = TransformedDrafter(paired, (Note("note", "rope_interleave", text),))
    if is_mla:
        result = result.then(with_mla_factors(result.drafter))
    return (
        result.then(with_query_lora(checkpoint, result.drafter, request.dtype)) if has_query_lora else result
    )


def with_mla_factors(drafter: Drafter) -> TransformedDrafter:
    """Return the drafter with queries divided by the factors that only engines multiply by.

    It is exact: q_b_proj comes after its norm.
    """
    rope, dims = replace(drafter.rope, has_mla_factors=True), drafter.dims
    on_pairs, on_softmax = rope.mla_factors
    if drafter.rope.has_mla_factors or (on_pairs, on_softmax) == (1.0, 1.0):
        return TransformedDrafter(replace(drafter, rope=rope))
    # the rotated part of a score has the factor on cos and sin twice: in the query and in the key
    divisor = np.tile(
        [on_softmax] * dims.qk_nope_head_dim + [on_softmax * on_pairs**2] * dims.qk_rope_head_dim, dims.heads
    )[:, None]
    how = f"divided by {on_softmax:.6g}, YaRN's mscale squared"
    tensors, module = dict(drafter.tensors), ""
    for name in query_weights(drafter):
        query, module = unquantised_weight(drafter, name), name.rpartition(".")[2]
        tensors[query.name] = replace(query, origin=Computed(how, (query,), lambda values: values / divisor))
    note = Note("note", module, f"{module} is {how}: the trainer left it out, and engines multiply by it")
    return TransformedDrafter(replace(drafter, tensors=tensors, rope=rope), (note,))


# the keys that releases read: vLLM before 0.30.0 and SGLang before 0.5.16; SGLang since
_RELEASES_READ = (ENGINE_FACTORS, ("attn_factor", "mscale", "mscale_all_dim"))


def with_factor(drafter: Drafter, layout: Layout) -> TransformedDrafter:
    """Return the drafter with yarn's factor on cos and sin where the layout's readers look for it.

    Engines multiply attn_factor by the usual factor, 0.1 ln(factor) + 1. A factor that every reader computes
    from the stored keys stays as it is, and MLA drafters have others (`Rope.mla_factors`).
    """
    rope, scaling = drafter.rope, drafter.rope.scaling or {}
    factor, usual = rope.attention_factor, yarn_factor(scaling, ())
    if drafter.dims.attention == "MLA" or usual == 1 or _is_read(scaling, factor, layout):
        return TransformedDrafter(drafter)
    written = _factor_settings(factor, usual, layout)
    replaced = TRANSFORMERS_FACTORS + ENGINE_FACTORS
    rest = {key: value for key, value in scaling.items() if key not in replaced} | written
    if rest == scaling or any(value <= 0 for value in written.values()):
        return TransformedDrafter(drafter)
    settings = " and ".join(f"{key} {value:.6g}" for key, value in written.items())
    note = Note(
        "note",
        "rope_scaling",
        f"yarn's factor on cos and sin, {factor:.6g}, is written as"
        f" {settings or 'the usual one, without keys'}; this layout's readers take it there",
    )
    return TransformedDrafter(replace(drafter, rope=replace(rope, scaling=rest)), (note,))


def _is_read(scaling: Mapping[str, Any], factor: float, layout: Layout) -> bool:
    """Whether all readers of the layout compute the trained factor from these keys, or it keeps none."""
    if layout.factor_keys != ALL_FACTORS:
        return not layout.factor_keys or not scaling.keys() & set(ENGINE_FACTORS)
    readings = (yarn_factor(scaling, keys, takes_zeros=True) for keys in _RELEASES_READ)
    return all(isclose(reading, factor) for reading in readings)


def _factor_settings(factor: float, usual: float, layout: Layout) -> dict[str, float]:
    """Return the keys of the layout that state a factor; none if trainers compute it without keys."""
    values = {
        "attention_factor": factor,
        "attn_factor": factor / usual,
        "mscale": (factor * usual - 1) / (usual - 1),  # beside mscale_all_dim 1
        "mscale_all_dim": 1.0,
    }
    is_implied = isclose(factor, usual) and layout.factor_keys != ALL_FACTORS
    return {} if is_implied else {key: values[key] for key in layout.factor_keys}


def with_query_lora(checkpoint: Checkpoint, drafter: Drafter, dtype: str | None = None) -> TransformedDrafter:
    """Return the drafter with its q_proj as q_a_proj, a norm and q_b_proj; nearly exact.

    `dtype` is the output's. A layer's input is normed and then weighted; q_a_proj undoes the weights, so that
    the norm between the two always divides by the same size, except for eps. The state's half is scaled by
    STATE_SHARE: an embedding that is small enough for eps to matter then hardly counts.
    """
    dims = drafter.dims
    rank, eps, tensors = 2 * dims.hidden, float(drafter.settings["rms_norm_eps"]), dict(drafter.tensors)
    for layer, module in enumerate(query_weights(drafter)):
        query = unquantised_weight(drafter, module)
        del tensors[query.name]
        if query.dtype not in FLOATS:
            raise RefusedError(
                f"{query.name} is {query.dtype}; --mla-query-lora needs unquantised values: convert the"
                " unquantised drafter",
                options=("--mla-query-lora",),
            )
        names = ("input_layernorm", "hidden_norm") if layer == 0 else ("input_layernorm",)
        norms = tuple(drafter.tensors[f"layers.{layer}.{name}.weight"] for name in names)
        weights = [evaluate(norm, checkpoint) for norm in norms]
        for norm, weight in zip(norms, weights, strict=True):
            if not bool(np.isfinite(weight).all()) or not bool(weight.all()):
                raise RefusedError(
                    f"{norm.name} has zeros or values that are not finite, which q_a_proj cannot undo;"
                    " --mla-query-lora does not work for this drafter",
                    options=("--mla-query-lora",),
                )
        tensors |= _query_factors(query, norms, weights, dtype or query.dtype, eps)
    # the error of a query whose embedding is zeros: the share of that half in the norm
    error = (1 + 1 / (STATE_SHARE**2 + 2 * eps)) ** 0.5 - 1
    size = dims.layers * rank * (rank + dims.heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim))
    text = (
        f"q_proj is written as q_a_proj and q_b_proj of rank {rank} ({size:,} numbers): the relative error"
        f" of queries is at most {error:.1e} for any embedding, {eps:g}/2r^2 for a fed-back state of RMS"
        " r, and rounding"
    )
    return TransformedDrafter(
        replace(drafter, tensors=tensors, dims=replace(dims, q_lora_rank=rank)),
        (Note("note", "q_a_proj", text),),
    )


def _query_factors(
    query: Tensor, norms: tuple[Tensor, ...], weights: Sequence[Array], dtype: str, eps: float
) -> dict[str, Tensor]:
    # q_proj as q_b_proj, q_a_layernorm and q_a_proj: q_a_proj undoes the weights of the norms before it, so
    # that its output has nearly the same RMS for every input, and q_b_proj undoes that RMS
    width, rank = query.shape[1], 2 * norms[0].shape[0]
    # the inverse of the norms' weights; the last are the state's
    undone = rounded(
        np.concatenate([*(1.0 / weight for weight in weights[:-1]), STATE_SHARE / weights[-1]]), dtype
    )
    size = np.sqrt(((np.concatenate(weights) * undone) ** 2).sum() / rank + eps)
    rows, columns = np.zeros((rank - width, width)), np.zeros((query.shape[0], rank - width))
    first = Computed(
        "the norms before it undone, on the diagonal",
        norms,
        lambda *_: np.concatenate((np.diag(undone), rows)),
    )
    second = Computed(
        "q_proj over the diagonal of q_a_proj",
        (query, *norms),
        lambda values, *_: np.concatenate((values / undone * size, columns), axis=1),
    )
    norm, module = Computed("ones", (), partial(np.ones, rank)), query.name.removesuffix("q_proj.weight")
    factors = (
        Tensor(f"{module}q_a_proj.weight", query.dtype, (rank, width), first),
        Tensor(f"{module}q_a_layernorm.weight", norms[0].dtype, (rank,), norm),
        Tensor(f"{module}q_b_proj.weight", query.dtype, (query.shape[0], rank), second),
    )
    return {factor.name: factor for factor in factors}


def in_ascending_order(drafter: Drafter) -> TransformedDrafter:
    """Return the drafter with fc's blocks by ascending boundary: engines sort ids and drop repeats (C35).

    Bytes move if every layer is named once. The blocks of a repeated layer are added, which is exact: both
    take the same state. Raises RefusedError if they cannot be added.
    """
    groups, tensors, count = drafter.aux.order, dict(drafter.tensors), drafter.dims.aux
    if groups is None:
        return TransformedDrafter(drafter)
    order, notes = [group[0] for group in groups], list[Note]()
    if tensors[FC].dtype not in ITEM_SIZE:
        raise RefusedError(
            f"fc.weight is {tensors[FC].dtype}; the blocks of a quantised fc cannot be moved or added: train"
            " with ids in ascending order"
        )
    names = [f"fc_norm.{block}.weight" for block in range(count if drafter.norms.fc_norm else 0)]
    norms = [tensors.pop(name) for name in names]
    tensors |= {name: replace(norms[old], name=name) for name, old in zip(names, order, strict=False)}
    if len(groups) == count:
        tensors[FC] = tensors[FC].with_blocks(order)
        for name in {INPUT_NORM, "mask_hidden"} & tensors.keys():
            flat = replace(tensors[name], shape=(prod(tensors[name].shape),))
            tensors[name] = replace(flat.with_blocks(order), shape=tensors[name].shape)
    else:
        tensors |= _blocks_added(drafter, groups, norms)
        boundaries = zip(drafter.aux.boundaries or (), groups, strict=True)
        repeated = [boundary for boundary, group in boundaries if len(group) > 1]
        notes = [
            Note(
                "note",
                FC,
                f"boundaries {repeated} are repeated; their blocks of fc are added into one",
            )
        ]
    return TransformedDrafter(
        replace(
            drafter,
            tensors=tensors,
            aux=replace(drafter.aux, count=len(groups), order=None),
            dims=replace(drafter.dims, aux=len(groups)),
        ),
        tuple(notes),
    )


def _blocks_added(
    drafter: Drafter, groups: Sequence[Sequence[int]], norms: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return fc with each group's blocks added, weighted by a repeated layer's norms, which become ones."""
    # tensors that treat the two states of a repeated layer differently before fc
    obstacles = {
        INPUT_NORM: "input_norm covers both",
        "mask_hidden": "mask_hidden has a state for each",
    }
    for name, why in obstacles.items():
        if name in drafter.tensors:
            raise RefusedError(
                f"aux layer ids {list(drafter.aux.ids or ())} repeat a layer, and {why}; its two blocks of fc"
                " cannot be added: train with distinct layers"
            )

    def make(fc: Array, *weights: Array) -> Array:
        blocks, sums = np.split(fc, drafter.dims.aux, axis=1), []
        for group in groups:
            is_weighted = weights and len(group) > 1
            sums.append(
                sum([blocks[block] * weights[block] if is_weighted else blocks[block] for block in group])
            )
        return np.concatenate(sums, axis=1)

    fc = drafter.tensors[FC]
    added = replace(
        fc,
        shape=(fc.shape[0], len(groups) * drafter.dims.target_hidden),
        origin=Computed("blocks of one aux layer added", (fc, *norms), make),
    )
    names = ((f"fc_norm.{new}.weight", group) for new, group in enumerate(groups) if norms and len(group) > 1)
    return {FC: added, **{name: _ones(norms[group[0]], name) for name, group in names}}


class TargetMatrix(Struct, frozen=True):
    """A matrix of a target, [vocab, hidden]; `read` returns rows [start, stop) as float64."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]

    def as_tensor(self, name: str, how: str) -> Tensor:
        """Return the matrix as the drafter's own tensor."""
        return Tensor(name, self.dtype, self.shape, Computed(how, (), self.read, by_rows=True))

    def as_head(self, shape: tuple[int, int], option: str) -> Tensor:
        """Return the matrix as the drafter's own head. Raises RefusedError if the shapes do not match."""
        if self.shape != shape:
            raise RefusedError(
                f"{option}: the target's {self.name} is {list(self.shape)}; this drafter needs {list(shape)}",
                options=(option,),
            )
        return self.as_tensor(HEAD, f"the target's {self.name}")


def _stored_matrix(checkpoint: Checkpoint, name: str) -> TargetMatrix:
    stored = checkpoint.tensors[name]

    def read(start: int, stop: int) -> Array:
        raw = checkpoint.read(name, start * stored.row_bytes, stop * stored.row_bytes)
        return decode(raw, stored.dtype, name).reshape(stop - start, *stored.shape[1:])

    return TargetMatrix(name, stored.dtype, stored.shape, read)


def find_target_matrix(target: Checkpoint, option: str, *, is_head: bool = False) -> TargetMatrix:
    """Return the target's embedding or lm_head; a tied lm_head is the embedding.

    Raises RefusedError if it is not stored unquantised.
    """
    places = (target.config, text_part(target.config))
    is_tied = any(place.get("tie_word_embeddings") is True for place in places)
    name = matrix(target.tensors, HEADS) if is_head else None
    if name is None and (is_tied or not is_head):
        name = matrix(target.tensors, EMBEDDINGS)
    if name is None:
        raise RefusedError(
            f"{option}: {target.source.place} has no unquantised {'lm_head' if is_head else 'embedding'};"
            " pass the target's unquantised weights",
            options=(option,),
        )
    return _stored_matrix(target, name)


def with_head(drafter: Drafter, head: TargetMatrix, option: str = MATERIALIZE) -> Drafter:
    """Return the drafter with the target's head as its own: the same function.

    Raises UsageError if it has one, RefusedError if the shapes do not match.
    """
    if HEAD in drafter.tensors:
        raise UsageError(
            f"{option}: this drafter has an lm_head of its own; leave the option out", options=(option,)
        )
    tensor = head.as_head((drafter.dims.draft_vocab, drafter.dims.hidden), option)
    notes = tuple(note for note in drafter.notes if note.about != "lm_head")  # "it has no lm_head"
    return replace(drafter, tensors={**drafter.tensors, HEAD: tensor}, notes=notes)


def with_whole_head(
    checkpoint: Checkpoint, drafter: Drafter, vocabulary: DraftVocabulary, head: TargetMatrix
) -> tuple[Drafter, DraftVocabulary]:
    """Return the drafter with all rows of the target's head instead of a part.

    Such a head was not trained (speculators 0.9.0 by default). Raises UsageError for a trained one,
    RefusedError if the shapes do not match.
    """
    stored, dims = drafter.tensors[HEAD], drafter.dims
    whole_head = replace(head.as_head((dims.vocab, dims.hidden), MATERIALIZE), dtype=stored.dtype)
    rows = {target: row for row, target in enumerate(vocabulary.targets)}
    step = max(1, BLOCK // dims.hidden)
    for start in range(0, dims.vocab, step):
        stop = min(start + step, dims.vocab)
        tokens = [token for token in range(start, stop) if token in rows]
        theirs = head.read(start, stop)[[token - start for token in tokens]]
        ours = evaluate(stored.with_rows([rows[token] for token in tokens]), checkpoint)
        if encode(theirs, stored.dtype, HEAD) != encode(ours, stored.dtype, HEAD):
            raise UsageError(
                f"{MATERIALIZE}: this drafter has an lm_head of its own, with other rows than the target's"
                f" {head.name}; leave the option out",
                options=(MATERIALIZE,),
            )
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in TABLES}
    whole = replace(
        drafter, tensors={**tensors, HEAD: whole_head}, dims=replace(dims, draft_vocab=dims.vocab)
    )
    return whole, identity(dims.vocab)


# A drafter for a target whose residual stream is rotated (QuaRot, arXiv 2404.00456; SpinQuant, 2405.16406).
# Such a target has h' = h Q for h, with an orthogonal Q, an embedding E' = E Q, and norms without weights,
# which are folded into the linear layers behind them: it computes the same. A drafter trained on h takes h'
# with W Q for each block W of fc, as W Q (h Q)^T = W h^T. fc_norm and input_norm divide by a size that Q
# keeps; their weights g do not commute with Q and go into fc too: W diag(g) Q. Its embedding and its head
# stay. For an engine that takes the target's embedding E' in any case, the first layer's projections of the
# embedding take Q in the same way, behind input_layernorm, and the drafter has no embedding.

ROTATE, MEASURE, TRAINED = "--target-rotation", "measure", "--trained-target"
MATRIX = "global_rotation"  # ModelSlim's name
# the largest element of Q^T Q - 1 for a matrix stored in bfloat16
ORTHOGONAL = 0.01
# the largest share of the target's embedding that a rotation may leave unexplained: bfloat16 leaves 0.002,
# and SpinQuant, which subtracts the mean of each row before it rotates, about 1/sqrt(hidden)
LEAST_EXPLAINED = 0.05
EMBEDDING = "embed_tokens.weight"


class TargetRotation(Struct, frozen=True, eq=False):
    """The rotation Q [hidden, hidden] in float64, and matrices of the training's target.

    `record` goes into eaglectl.json. `embedding` and `head` are None if the drafter has its own. `is_shared`:
    the drafter uses the rotated target's embedding.
    """

    matrix: Array
    record: Mapping[str, Any]
    embedding: TargetMatrix | None = None
    head: TargetMatrix | None = None
    is_shared: bool = False
    notes: tuple[Note, ...] = ()


def find_rotation(
    text: str,
    checkpoint: Checkpoint,
    drafter: Drafter,
    rotated: Checkpoint,
    trained: Checkpoint | None,
    *,
    is_shared: bool,
) -> TargetRotation:
    """Return the rotation that `text` names: a file, the folder of a ModelSlim target, or "measure".

    `trained` is the target of the training, if given. `is_shared`: the engine takes the rotated target's
    embedding in any case. Raises UsageError for a missing option, RefusedError if a matrix is no rotation or
    not this one.
    """
    _check_rotatable(drafter, is_shared=is_shared)
    width, own_tensor = drafter.dims.target_hidden, drafter.tensors.get(EMBEDDING)
    # where the embedding is to be shared, the drafter's own has to be the one from before the rotation
    if trained is not None and not (own_tensor and is_shared):
        before: TargetMatrix | None = find_target_matrix(trained, TRAINED)
    else:
        before = _own_embedding(checkpoint, own_tensor, width)
    after = find_target_matrix(rotated, ROTATE)
    for option, embedding in ((TRAINED, before), ("--target", after)):
        if embedding is not None and embedding.shape[1] != width:
            raise RefusedError(
                f"{ROTATE}: {embedding.name} of {option} has width {embedding.shape[1]}, and the drafter"
                f" takes hidden states of width {width}",
                options=(ROTATE,),
            )
    if text == MEASURE:
        rotation = _measured_rotation(before, after)
    else:
        rotation = _read_rotation(Path(text), before, after)
    digests = {"embedding": "shared" if is_shared else "own", "target_embedding": embedding_digest(rotated)}
    rotation = replace(rotation, record={**rotation.record, **digests}, is_shared=is_shared)
    if own_tensor is None and not is_shared:
        name, matrix = f"{after.name}, rotated back", rotation.matrix
        back = replace(after, name=name, read=lambda *rows: after.read(*rows) @ matrix.T)
        # without the rows that a target pads it with
        rotation = replace(rotation, embedding=replace(before or back, shape=(drafter.dims.vocab, width)))
    if HEAD in drafter.tensors:
        return rotation
    if trained is None:
        raise UsageError(
            f"{ROTATE}: this drafter uses the target's lm_head, and the rotated target's includes the final"
            f" norm; pass {TRAINED} with the folder of the target that it was trained on",
            options=(ROTATE,),
        )
    return replace(rotation, head=find_target_matrix(trained, TRAINED, is_head=True))


def _own_embedding(checkpoint: Checkpoint, tensor: Tensor | None, width: int) -> TargetMatrix | None:
    if tensor is None or tensor.shape[1:] != (width,) or tensor.dtype not in PLAIN:
        return None
    return _stored_matrix(checkpoint, tensor.stored[0]) if tensor.stored[0] in checkpoint.tensors else None


def _check_rotatable(drafter: Drafter, *, is_shared: bool) -> None:
    # raise RefusedError if fc cannot take the target's rotation
    fc = drafter.tensors.get(FC)
    dtype = fc.dtype if fc else ""
    check(
        (fc is None, f"{ROTATE}: this drafter has no fc to rotate", (ROTATE,)),
        (
            dtype not in ITEM_SIZE,
            f"{ROTATE}: fc.weight is {dtype}; rotate the unquantised drafter",
            (ROTATE,),
        ),
        (
            INPUT_NORM in drafter.tensors and any(name.startswith("fc_norm.") for name in drafter.tensors),
            f"{ROTATE}: this drafter has input_norm (norm_before_fc) and fc_norm; the weights of input_norm"
            " do not commute with the rotation, and fc_norm is between them and fc",
            (ROTATE,),
        ),
        (
            drafter.rotation is not None,
            f"{ROTATE}: fc is rotated already (eaglectl.json); convert the original drafter",
            (ROTATE,),
        ),
        (
            is_shared and drafter.dims.hidden != drafter.dims.target_hidden,
            f"{ROTATE}: a drafter cannot share the embedding of a wider target",
            (ROTATE,),
        ),
        error=RefusedError,
    )


def _read_rotation(path: Path, before: TargetMatrix | None, after: TargetMatrix) -> TargetRotation:
    # the orthogonal matrix in a file or a quantiser's folder, made exactly orthogonal
    size = after.shape[1]
    if is_folder(path):
        source = FolderSource(path)
        if (rotation := rotation_file(source)) is None:
            raise UsageError(
                f"{ROTATE} {path}: its quant_model_description.json names no rotation; pass the matrix as a"
                f" safetensors file, or {MEASURE}",
                options=(ROTATE,),
            )
        path = source.path(rotation)
    file = read_weight_file(path)
    squares = [name for name, stored in file.tensors.items() if stored.shape == (size, size)]
    if MATRIX not in squares and len(squares) != 1:
        listing = ", ".join(f"{name} {list(stored.shape)}" for name, stored in list(file.tensors.items())[:4])
        raise RefusedError(
            f"{ROTATE}: {path} must have one matrix [{size}, {size}], the width of the aux states; it has"
            f" {listing}",
            options=(ROTATE,),
        )
    name = MATRIX if MATRIX in squares else squares[0]
    raw = file.read(name)
    matrix = decode(raw, file.tensors[name].dtype, name).reshape(size, size)
    error = float(np.abs(matrix.T @ matrix - np.eye(size)).max())
    if not error <= ORTHOGONAL:
        raise RefusedError(
            f"{ROTATE}: {name} in {path} is no rotation: Q^T Q differs from the identity by up to"
            f" {error:.2g}",
            options=(ROTATE,),
        )
    for _ in range(3):  # Newton's iteration to the nearest orthogonal matrix
        matrix = matrix @ (1.5 * np.eye(size) - 0.5 * matrix.T @ matrix)
    record = {"file": path.name, "tensor": name, "sha256": sha256(raw).hexdigest()}
    if before is None:
        text = (
            "the matrix was not compared with this target, since no embedding from before the rotation is"
            f" here; pass {TRAINED} to compare it"
        )
        return TargetRotation(matrix, record, notes=(Note("warning", FC, text),))
    return TargetRotation(matrix, {**record, "residual": _residual(matrix, before, after)})


def _residual(matrix: Array, before: TargetMatrix, after: TargetMatrix) -> float:
    """Return the share of the target's embedding that Q does not explain, on sampled rows."""
    rows = evenly_spaced(min(before.shape[0], after.shape[0]))
    theirs = np.concatenate([after.read(row, row + 1) for row in rows])
    left = theirs - np.concatenate([before.read(row, row + 1) for row in rows]) @ matrix
    residual = float(np.linalg.norm(left) / (np.linalg.norm(theirs) or 1.0))
    if not residual <= LEAST_EXPLAINED:
        raise RefusedError(
            f"{ROTATE}: the matrix does not rotate the drafter's embedding to the target's: {residual:.0%} is"
            f" unexplained ({LEAST_EXPLAINED:.0%} is allowed); check that the matrix is this target's and not"
            " transposed",
            options=(ROTATE,),
        )
    return residual


def _measured_rotation(before: TargetMatrix | None, after: TargetMatrix) -> TargetRotation:
    """Return Q by orthogonal Procrustes: the rotation that brings E nearest to E'."""
    if before is None:
        raise UsageError(
            f"{ROTATE} {MEASURE} compares embeddings, and this drafter has no own embedding of the target's"
            f" width; pass {TRAINED} with the folder of the target that it was trained on",
            options=(ROTATE,),
        )
    size, rows = before.shape[1], min(before.shape[0], after.shape[0])
    cross, squares, step = np.zeros((size, size)), np.zeros(3), max(1, BLOCK // size)
    for start in range(0, rows, step):
        ours, theirs = (part.read(start, min(start + step, rows)) for part in (before, after))
        cross += ours.T @ theirs
        squares += (np.square(ours).sum(), np.square(theirs).sum(), np.square(theirs - ours).sum())
    if not np.isfinite(cross).all():
        raise RefusedError(
            f"{ROTATE}: {before.name} or {after.name} has values that are not finite", options=(ROTATE,)
        )
    left, values, right = np.linalg.svd(cross)
    residual = sqrt(max(squares[0] + squares[1] - 2 * values.sum(), 0.0) / (squares[1] or 1.0))
    if squares[2] <= LEAST_EXPLAINED**2 * squares[1]:
        raise RefusedError(
            f"{ROTATE}: the target is not rotated: its embedding equals that of the training",
            options=(ROTATE,),
        )
    # the share of each direction that is unknown, where the residual is spread over all of them
    error = residual * sqrt(float((squares[1] / size / np.maximum(values, 1e-300)).mean()))
    if rows < size or not max(residual, error) <= LEAST_EXPLAINED:
        raise RefusedError(
            f"{ROTATE}: no rotation maps the embedding of the training to the target's: {residual:.0%} is"
            f" unexplained ({LEAST_EXPLAINED:.0%} is allowed), and {rows} rows leave {min(error, 1.0):.0%} of"
            f" the rotation of {size} dimensions open; check that this is the target, and that the drafter's"
            " embedding was its copy",
            options=(ROTATE,),
        )
    return TargetRotation(left @ right, {"measured": {"residual": residual, "error": error, "rows": rows}})


def with_rotation(checkpoint: Checkpoint, drafter: Drafter, rotation: TargetRotation) -> TransformedDrafter:
    """Return the drafter for the rotated target: the same function of its states."""
    tensors, aux = dict(drafter.tensors), drafter.dims.aux
    names = (INPUT_NORM, *(f"fc_norm.{block}.weight" for block in range(aux)))
    norms = {name: tensors[name] for name in names if name in tensors}
    columns = np.ones(aux * drafter.dims.target_hidden)
    if norms:
        columns = np.concatenate([evaluate(norm, checkpoint) for norm in norms.values()])

    def turned(values: Array) -> Array:
        return (values.reshape(-1, len(rotation.matrix)) @ rotation.matrix).reshape(values.shape)

    fc, how = tensors[FC], "each block times the target's rotation"
    by_norms = f"{how}, after the norms' weights" if norms else how
    tensors[FC] = replace(
        fc, origin=Computed(by_norms, (fc,), lambda values: turned(values * columns), by_rows=True)
    )
    tensors |= {name: _ones(norm, name) for name, norm in norms.items()}
    if mask := tensors.get("mask_hidden"):
        tensors["mask_hidden"] = replace(mask, origin=Computed(how, (mask,), turned))
    if rotation.is_shared:
        tensors = _with_shared_embedding(checkpoint, drafter, tensors, turned)
    elif rotation.embedding is not None:
        tensors[EMBEDDING] = rotation.embedding.as_tensor(EMBEDDING, f"{rotation.embedding.name}, as trained")
    elif EMBEDDING not in tensors:
        raise UsageError(
            f"{ROTATE} keeps the trained embedding; leave --drop {EMBEDDING} out",
            options=("--drop",),
        )
    strays = {
        **drafter.strays,
        **dict.fromkeys(
            [tensor.stored[0] for name, tensor in drafter.tensors.items() if name not in tensors],
            "replaced by the target's rotated embedding",
        ),
    }
    result = replace(drafter, tensors=tensors, rotation=rotation.record, strays=strays)
    if rotation.head is not None:
        result = with_head(result, rotation.head, TRAINED)
    alone = (
        "rotated for this target only; vllm-ascend itself rotates drafters of ModelSlim targets, and needs"
        " the unrotated one"
    )
    return TransformedDrafter(
        result, (*rotation.notes, Note("note", FC, alone)), {"target_rotation": dict(rotation.record)}
    )


def _with_shared_embedding(
    checkpoint: Checkpoint, drafter: Drafter, tensors: Mapping[str, Tensor], turned: Callable[[Array], Array]
) -> dict[str, Tensor]:
    # move the weights of the embedding's norm and the rotation into the projections, so that the target's own
    # rotated embedding can be shared
    size, weight = drafter.dims.hidden, evaluate(tensors[INNER], checkpoint)

    def make(values: Array) -> Array:
        return np.concatenate((turned(values[:, :size] * weight), values[:, size:]), axis=1)

    how = f"the embedding's columns times {INNER} and the target's rotation"
    projections = {
        name: replace(tensor, origin=Computed(how, (tensor,), make, by_rows=True))
        for name, tensor in tensors.items()
        if name.startswith("layers.0.") and (shape_expression(name) or "").endswith(" input")
    }
    others = {name: tensor for name, tensor in tensors.items() if name != EMBEDDING}
    return {**others, **projections, INNER: _ones(tensors[INNER], INNER, "its weights are behind it")}
