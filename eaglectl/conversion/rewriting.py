"""A drafter's tensors rewritten as the same function: attention, its norms, blocks of fc, the target's head.

vLLM's and SGLang's runtime names (fused_qkv_a_proj, w_kc, w_vc) are read by formats/ and never written: both
engines fuse and absorb while loading, and neither finds these names in a file. Nor are latent norms folded
into the projections behind them: every MLA class has these norms, so a file without them would gain nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import BLOCK, Array, decode, encode, evaluate, rounded
from eaglectl.conversion.plan import FLOATS, ITEM_SIZE, TransformedDrafter
from eaglectl.conversion.readings import (
    HALVES,
    query_weights,
    rotary_moves,
    unquantised_weight,
    with_moves,
)
from eaglectl.drafter.drafter import DOUBLE_NORM, HIDDEN_NORM, JOINED_NORMS, Drafter, Note
from eaglectl.drafter.tensors import (
    EMBEDDINGS,
    HEADS,
    PLAIN,
    Computed,
    Tensor,
    embedding_digest,
    matrix,
    shape_expression,
    spread_over,
)
from eaglectl.drafter.vocabulary import DraftVocabulary, identity
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, read_weight_file
from eaglectl.files.files import is_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import rotation_file, text_part
from eaglectl.formats.format import Layout

ROPE_STYLES = ("neox", "interleaved")
# how much larger than the embedding's half the state's half is made: the norm of both hardly depends on the
# embedding then
STATE_SHARE = 32.0
INNER, OUTER = "layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"
ROUNDING = 2.0**-8  # of bfloat16: a factor nearer to one is none
FC, HEAD, MATERIALIZE = "fc.weight", "lm_head.weight", "--materialize-lm-head"


def ones(tensor: Tensor, why: str = "its weights are in fc") -> Tensor:
    """The norm with weights of ones."""
    return replace(tensor, origin=Computed(f"ones: {why}", (tensor,), np.ones_like))


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
    check(
        (
            dims.attention != "MLA" and (rope_style or has_query_lora),
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
    if dims.attention != "MLA":
        return TransformedDrafter(drafter)
    notes: tuple[Note, ...] = ()
    if rope_style and not drafter.rope.is_interleaved:
        paired = with_moves(drafter, rotary_moves(drafter, HALVES))
        drafter = replace(paired, rope=replace(drafter.rope, is_interleaved=True))
        notes = (
            Note(
                "note",
                "rope_interleave",
                "the rotary rows of the queries and of the shared key are interleaved: the same function",
            ),
        )
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
        weights = [evaluate(norm, checkpoint) for norm in norms]
        for norm, weight in zip(norms, weights, strict=True):
            if not bool(np.isfinite(weight).all()) or not bool(weight.all()):
                raise RefusedError(
                    f"{norm.name} has channels of zero or of no finite size, which q_a_proj cannot undo;"
                    " --mla-query-lora does not work for this drafter"
                )
        factors = _factors(query, norms, weights, dtype or query.dtype, eps)
        tensors |= {tensor.name: tensor for tensor in factors}
    result = replace(drafter, tensors=tensors, dims=replace(dims, q_lora_rank=rank))
    # of a query whose embedding is zeros: by what its half counts in the norm
    error = (1 + 1 / (STATE_SHARE**2 + 2 * eps)) ** 0.5 - 1
    size = dims.layers * rank * (rank + dims.heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim))
    return TransformedDrafter(
        result,
        (
            Note(
                "note",
                "q_a_proj",
                f"q_proj is written as q_a_proj and q_b_proj of rank {rank} ({size:,} numbers): queries are"
                f" off by at most {error:.1e} for any embedding, by {eps:g}/2r^2 for a fed-back state of RMS"
                " r, and by rounding",
            ),
        ),
    )


def _factors(
    query: Tensor, norms: tuple[Tensor, ...], weights: Sequence[Array], dtype: str, eps: float
) -> Iterator[Tensor]:
    """q_a_proj, its norm and q_b_proj of a layer, as they are written in `dtype`."""
    width, rank = query.shape[1], 2 * norms[0].shape[0]
    # one over the norms' weights; the last are the state's
    inverse = np.concatenate([*(1.0 / weight for weight in weights[:-1]), STATE_SHARE / weights[-1]])
    undone = rounded(inverse, dtype)
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
    module = query.name.removesuffix("q_proj.weight")
    yield Tensor(f"{module}q_a_proj.weight", query.dtype, (rank, width), first)
    yield Tensor(
        f"{module}q_a_layernorm.weight",
        norms[0].dtype,
        (rank,),
        Computed("ones", (), partial(np.ones, rank)),
    )
    yield Tensor(f"{module}q_b_proj.weight", query.dtype, (query.shape[0], rank), second)


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
        tensors[FC] = tensors[FC].with_blocks(order)
        for name in {"input_norm.weight", "mask_hidden"} & tensors.keys():
            flat = replace(tensors[name], shape=(prod(tensors[name].shape),))
            tensors[name] = replace(flat.with_blocks(order), shape=tensors[name].shape)
    else:
        tensors |= _added(drafter, groups, norms)
        boundaries = zip(drafter.aux.boundaries or (), groups, strict=True)
        repeated = [boundary for boundary, group in boundaries if len(group) > 1]
        notes = (
            Note(
                "note",
                FC,
                f"boundaries {repeated} were named more than once; their blocks of fc are added into one",
            ),
        )
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
    yield FC, replace(fc, shape=shape, origin=Computed("blocks of one aux layer added", (fc, *norms), make))
    for new, group in enumerate(groups):
        if norms and len(group) > 1:
            name = f"fc_norm.{new}.weight"
            yield name, replace(ones(norms[group[0]]), name=name)


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


# A drafter for a target whose residual stream is rotated (QuaRot, arXiv 2404.00456; SpinQuant, 2405.16406).
# Such a target has h' = h Q for h, with an orthogonal Q, an embedding E' = E Q, and norms without weights,
# which are folded into the linear layers behind them: it computes the same. A drafter trained on h takes h'
# with W Q for each block W of fc, as W Q (h Q)^T = W h^T. fc_norm and input_norm divide by a size that Q
# keeps; their weights g do not commute with Q and go into fc too: W diag(g) Q. Its embedding and its head
# stay. For an engine that takes the target's embedding E' in any case, the first layer's projections of the
# embedding take Q in the same way, behind input_layernorm, and the drafter has no embedding.

ROTATE, MEASURE, TRAINED = "--target-rotation", "measure", "--trained-target"
MATRIX = "global_rotation"  # ModelSlim's name
# the largest element of Q^T Q - 1 of a matrix that was stored in bfloat16
ORTHOGONAL = 0.01
# of what a rotation leaves of the target's embedding: bfloat16 leaves 0.002, and SpinQuant, which takes the
# mean from each row before it rotates, about 1/sqrt(hidden)
LEAST_EXPLAINED = 0.05
EMBEDDING, FIRST_NORM = "embed_tokens.weight", "layers.0.input_layernorm.weight"
INPUT_NORM = "input_norm.weight"


UNCOMPARED = (
    "the matrix was not compared with this target, as no embedding from before the rotation is here; pass"
    " --trained-target to have it compared"
)
ALONE = Note(
    "note",
    FC,
    "rotated for this target alone; vllm-ascend rotates drafters of ModelSlim's targets itself, and takes the"
    " unrotated one",
)


class TargetRotation(Struct, frozen=True, eq=False):
    """Q [hidden, hidden] in float64, and what a drafter shares with the target that it was trained on.

    `record` goes into eaglectl.json; `embedding` and `head` are None where the drafter has its own.
    `is_shared`: the drafter is to take the rotated target's embedding.
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
    """The rotation that `text` names: a file, the folder of a ModelSlim target, or "measure".

    `trained` is the target of the training, where that is given. `is_shared`: the engine takes the rotated
    target's embedding in any case. Raises UsageError for what only the user has, RefusedError where a matrix
    is no rotation or not this one.
    """
    _check_rotatable(drafter, is_shared=is_shared)
    before = _trained_embedding(checkpoint, drafter, trained, is_shared=is_shared)
    after = find_target_matrix(rotated, ROTATE)
    for option, embedding in ((TRAINED, before), ("--target", after)):
        if embedding is not None and embedding.shape[1] != drafter.dims.target_hidden:
            raise RefusedError(
                f"{ROTATE}: {embedding.name} of {option} is {embedding.shape[1]} wide, and the drafter takes"
                f" states of {drafter.dims.target_hidden}"
            )
    notes: tuple[Note, ...] = ()
    if text == MEASURE:
        matrix, record = _measured_rotation(before, after)
    else:
        matrix, record = _read_rotation(Path(text), drafter.dims.target_hidden)
        if before is None:
            notes = (Note("warning", FC, UNCOMPARED),)
        else:
            record |= {"residual": _residual(matrix, before, after)}
    record |= {"embedding": "shared" if is_shared else "own", "target_embedding": embedding_digest(rotated)}
    embedding, head = _own_matrices(drafter, matrix, trained, after)
    return TargetRotation(matrix, record, None if is_shared else embedding, head, is_shared, notes)


def _fc_norms(drafter: Drafter) -> list[str]:
    return [f"fc_norm.{block}.weight" for block in range(drafter.dims.aux)]


def _check_rotatable(drafter: Drafter, *, is_shared: bool) -> None:
    fc = drafter.tensors.get(FC)
    dtype = fc.dtype if fc else ""
    has_fc_norm = any(name in drafter.tensors for name in _fc_norms(drafter))
    check(
        (fc is None, f"{ROTATE}: this drafter has no fc, so nothing of it can be rotated"),
        (dtype not in ITEM_SIZE, f"{ROTATE}: fc.weight is {dtype}; rotate the unquantised drafter"),
        (
            INPUT_NORM in drafter.tensors and has_fc_norm,
            f"{ROTATE}: this drafter has input_norm (norm_before_fc) and fc_norm; the weights of the first do"
            " not commute with the rotation, and the second stands between them and fc",
        ),
        (
            drafter.rotation is not None,
            f"{ROTATE}: fc is rotated already (eaglectl.json); convert the drafter that it was made of",
        ),
        (
            is_shared and drafter.dims.hidden != drafter.dims.target_hidden,
            f"{ROTATE}: a target wider than the drafter has no embedding that they can share",
        ),
        error=RefusedError,
    )


def _trained_embedding(
    checkpoint: Checkpoint, drafter: Drafter, trained: Checkpoint | None, *, is_shared: bool
) -> TargetMatrix | None:
    """The embedding from before the rotation: the trained target's, or the drafter's own copy of it.

    Where it is to be shared, the drafter's own has to be that copy.
    """
    own = drafter.tensors.get(EMBEDDING)
    if trained is not None and not (own and is_shared):
        return find_target_matrix(trained, TRAINED)
    is_wide = own is not None and own.shape[1:] == (drafter.dims.target_hidden,)
    if own is None or not is_wide or own.stored[0] not in checkpoint.tensors or own.dtype not in PLAIN:
        return None
    return stored_matrix(checkpoint, own.stored[0])


def _own_matrices(
    drafter: Drafter, matrix: Array, trained: Checkpoint | None, after: TargetMatrix
) -> tuple[TargetMatrix | None, TargetMatrix | None]:
    """The embedding and the head that a drafter without its own was trained with."""
    embedding = head = None
    if EMBEDDING not in drafter.tensors:
        if trained is not None:
            embedding = find_target_matrix(trained, TRAINED)
        else:
            back = f"{after.name}, rotated back"
            embedding = replace(after, name=back, read=lambda *rows: after.read(*rows) @ matrix.T)
        # without the rows that a target pads it with
        embedding = replace(embedding, shape=(drafter.dims.vocab, *embedding.shape[1:]))
    if HEAD not in drafter.tensors:
        if trained is None:
            raise UsageError(
                f"{ROTATE}: this drafter drafts with its target's lm_head, and the rotated target's has the"
                f" final norm folded in; pass {TRAINED} with the folder of the target that it was trained on"
            )
        head = find_target_matrix(trained, TRAINED, is_head=True)
    return embedding, head


def _read_rotation(path: Path, size: int) -> tuple[Array, dict[str, Any]]:
    """The matrix of a file or a ModelSlim target's folder, made orthogonal beyond its dtype's rounding."""
    if is_folder(path):
        source = FolderSource(path)
        if (rotation := rotation_file(source)) is None:
            raise UsageError(
                f"{ROTATE} {path}: its quant_model_description.json names no rotation; give the matrix as a"
                f" safetensors file, or {MEASURE}"
            )
        path = source.path(rotation)
    file = read_weight_file(path)
    squares = [name for name, stored in file.tensors.items() if stored.shape == (size, size)]
    if MATRIX not in squares and len(squares) != 1:
        found = ", ".join(f"{name} {list(stored.shape)}" for name, stored in list(file.tensors.items())[:4])
        raise RefusedError(
            f"{ROTATE}: {path} has no one matrix [{size}, {size}], the aux states' width; it has {found}"
        )
    name = MATRIX if MATRIX in squares else squares[0]
    raw = file.read(name)
    matrix = decode(raw, file.tensors[name].dtype, name).reshape(size, size)
    error = float(np.abs(matrix.T @ matrix - np.eye(size)).max())
    if not error <= ORTHOGONAL:
        raise RefusedError(
            f"{ROTATE}: {name} in {path} is no rotation: Q^T Q differs from the identity by up to {error:.2g}"
        )
    for _ in range(3):  # Newton's iteration to the nearest orthogonal matrix
        matrix = matrix @ (1.5 * np.eye(size) - 0.5 * matrix.T @ matrix)
    return matrix, {"file": path.name, "tensor": name, "sha256": sha256(raw).hexdigest()}


def _residual(matrix: Array, before: TargetMatrix, after: TargetMatrix) -> float:
    """The share of the target's embedding that Q does not explain, on sampled rows."""
    rows = spread_over(min(before.shape[0], after.shape[0]))
    ours = np.concatenate([before.read(row, row + 1) for row in rows])
    theirs = np.concatenate([after.read(row, row + 1) for row in rows])
    residual = float(np.linalg.norm(theirs - ours @ matrix) / (np.linalg.norm(theirs) or 1.0))
    if not residual <= LEAST_EXPLAINED:
        raise RefusedError(
            f"{ROTATE}: the matrix does not make the target's embedding of the drafter's: {residual:.0%} of"
            f" it is left ({LEAST_EXPLAINED:.0%} at most may be); is it this target's, and not transposed?"
        )
    return residual


def _measured_rotation(before: TargetMatrix | None, after: TargetMatrix) -> tuple[Array, dict[str, Any]]:
    """Q by orthogonal Procrustes: the rotation that brings E nearest to E'."""
    if before is None:
        raise UsageError(
            f"{ROTATE} {MEASURE} compares embeddings, and this drafter has none of the target's width of its"
            f" own; pass {TRAINED} with the folder of the target that it was trained on"
        )
    size = before.shape[1]
    rows = min(before.shape[0], after.shape[0])
    cross, squares, step = np.zeros((size, size)), np.zeros(3), max(1, BLOCK // size)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        ours, theirs = before.read(start, stop), after.read(start, stop)
        cross += ours.T @ theirs
        squares += (np.square(ours).sum(), np.square(theirs).sum(), np.square(theirs - ours).sum())
    if not np.isfinite(cross).all():
        raise RefusedError(f"{ROTATE}: {before.name} or {after.name} holds values that are not finite")
    left, values, right = np.linalg.svd(cross)
    residual = sqrt(max(squares[0] + squares[1] - 2 * values.sum(), 0.0) / (squares[1] or 1.0))
    if squares[2] <= LEAST_EXPLAINED**2 * squares[1]:
        raise RefusedError(
            f"{ROTATE}: the target's embedding is the one that was trained on: it is not rotated"
        )
    # the share of each direction that is unknown, where the residual is spread over all of them
    error = residual * sqrt(float((squares[1] / size / np.maximum(values, 1e-300)).mean()))
    if rows < size or not max(residual, error) <= LEAST_EXPLAINED:
        raise RefusedError(
            f"{ROTATE}: no rotation makes the target's embedding of the one that was trained on:"
            f" {residual:.0%} of it is left ({LEAST_EXPLAINED:.0%} at most may be), and {rows} rows leave"
            f" {min(error, 1.0):.0%} of the rotation of {size} dimensions open; is this the target, and was"
            " the drafter's embedding its copy?"
        )
    return left @ right, {"measured": {"residual": residual, "error": error, "rows": rows}}


def with_rotation(checkpoint: Checkpoint, drafter: Drafter, rotation: TargetRotation) -> TransformedDrafter:
    """The drafter for the rotated target: the same function of its states."""
    tensors = dict(drafter.tensors)
    norms = [name for name in (INPUT_NORM, *_fc_norms(drafter)) if name in tensors]
    columns = np.ones(drafter.dims.aux * drafter.dims.target_hidden)
    if norms:
        columns = np.concatenate([evaluate(tensors[name], checkpoint) for name in norms])

    def turned(values: Array) -> Array:
        return (values.reshape(-1, len(rotation.matrix)) @ rotation.matrix).reshape(values.shape)

    fc = tensors[FC]
    how = "each block times the target's rotation"
    by_norms = f"{how}, after the norms' weights" if norms else how
    blocks = Computed(by_norms, (fc,), lambda values: turned(values * columns), by_rows=True)
    tensors[FC] = replace(fc, origin=blocks)
    tensors |= {name: ones(tensors[name]) for name in norms}
    if mask := tensors.get("mask_hidden"):
        tensors["mask_hidden"] = replace(mask, origin=Computed(how, (mask,), turned))
    if rotation.is_shared:
        tensors = _with_shared_embedding(checkpoint, drafter, tensors, turned)
    elif rotation.embedding is not None:
        tensors[EMBEDDING] = own_tensor(EMBEDDING, rotation.embedding, "{name}, as trained")
    elif EMBEDDING not in tensors:
        raise UsageError(f"{ROTATE} keeps the embedding that was trained; leave --drop {EMBEDDING} out")
    gone = [tensor.stored[0] for name, tensor in drafter.tensors.items() if name not in tensors]
    strays = {**drafter.strays, **dict.fromkeys(gone, "the target's rotated embedding takes its place")}
    result = replace(drafter, tensors=tensors, rotation=rotation.record, strays=strays)
    if rotation.head is not None:
        result = with_head(result, rotation.head, TRAINED)
    notes = (*rotation.notes, ALONE)
    return TransformedDrafter(result, notes, {"target_rotation": dict(rotation.record)})


def _with_shared_embedding(
    checkpoint: Checkpoint, drafter: Drafter, tensors: Mapping[str, Tensor], turned: Callable[[Array], Array]
) -> dict[str, Tensor]:
    """The tensors of a drafter that takes E' for E: the first layer's projections of it are rotated."""
    size, norm = drafter.dims.hidden, tensors[FIRST_NORM]
    weight = evaluate(norm, checkpoint)

    def make(values: Array) -> Array:
        return np.concatenate((turned(values[:, :size] * weight), values[:, size:]), axis=1)

    how = f"the embedding's columns times {FIRST_NORM} and the target's rotation"
    projections = {
        name: replace(tensor, origin=Computed(how, (tensor,), make, by_rows=True))
        for name, tensor in tensors.items()
        if name.startswith("layers.0.") and (shape_expression(name) or "").endswith(" input")
    }
    kept = {name: tensor for name, tensor in tensors.items() if name != EMBEDDING}
    return {**kept, **projections, FIRST_NORM: ones(norm, "its weights are behind it")}
