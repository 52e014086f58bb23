"""A drafter for a target whose residual stream is rotated (QuaRot, arXiv 2404.00456; SpinQuant, 2405.16406).

Such a target has h' = h Q for h, with an orthogonal Q, an embedding E' = E Q, and norms without weights,
which are folded into the linear layers behind them: it computes the same. A drafter trained on h takes h'
with W Q for each block W of fc, as W Q (h Q)^T = W h^T. fc_norm and input_norm divide by a size that Q keeps;
their weights g do not commute with Q and go into fc too: W diag(g) Q. Its embedding and its head stay. For an
engine that takes the target's embedding E' in any case, the first layer's projections of the embedding take Q
in the same way, behind input_layernorm, and the drafter has no embedding.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import BLOCK, Array, decode, evaluate
from eaglectl.conversion.plan import ITEM_SIZE, TransformedDrafter
from eaglectl.conversion.rewriting import (
    HEAD,
    TargetMatrix,
    find_target_matrix,
    own_tensor,
    stored_matrix,
    with_head,
)
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.matrices import PLAIN, embedding_digest, spread_over
from eaglectl.drafter.tensors import Computed, Tensor, shape_expression
from eaglectl.errors import RefusedError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint, read_weight_file
from eaglectl.files.files import is_folder
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import rotation_file

OPTION, MEASURE, TRAINED = "--target-rotation", "measure", "--trained-target"
MATRIX = "global_rotation"  # ModelSlim's name
# the largest element of Q^T Q - 1 of a matrix that was stored in bfloat16
ORTHOGONAL = 0.01
# of what a rotation leaves of the target's embedding: bfloat16 leaves 0.002, and SpinQuant, which takes the
# mean from each row before it rotates, about 1/sqrt(hidden)
LEAST_EXPLAINED = 0.05
EMBEDDING, FIRST_NORM = "embed_tokens.weight", "layers.0.input_layernorm.weight"
INPUT_NORM = "input_norm.weight"


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
    _check(drafter, is_shared=is_shared)
    before = _trained_embedding(checkpoint, drafter, trained, is_shared=is_shared)
    after = find_target_matrix(rotated, OPTION)
    for option, embedding in ((TRAINED, before), ("--target", after)):
        if embedding is not None and embedding.shape[1] != drafter.dims.target_hidden:
            raise RefusedError(
                f"{OPTION}: {embedding.name} of {option} is {embedding.shape[1]} wide, and the drafter takes"
                f" states of {drafter.dims.target_hidden}"
            )
    notes: tuple[Note, ...] = ()
    if text == MEASURE:
        matrix, record = _measured(before, after)
    else:
        matrix, record = _read(Path(text), drafter.dims.target_hidden)
        if before is None:
            words = (
                "the matrix was not compared with this target, as no embedding from before the rotation is"
                " here; pass --trained-target to have it compared"
            )
            notes = (Note("warning", "fc.weight", words),)
        else:
            record |= {"residual": _residual(matrix, before, after)}
    record |= {"embedding": "shared" if is_shared else "own", "target_embedding": embedding_digest(rotated)}
    embedding, head = _own_matrices(drafter, matrix, trained, after)
    return TargetRotation(matrix, record, None if is_shared else embedding, head, is_shared, notes)


def _fc_norms(drafter: Drafter) -> list[str]:
    return [f"fc_norm.{block}.weight" for block in range(drafter.dims.aux)]


def _check(drafter: Drafter, *, is_shared: bool) -> None:
    """Raise RefusedError for a drafter that no rotation can be followed with."""
    fc, dims = drafter.tensors.get("fc.weight"), drafter.dims
    dtype = fc.dtype if fc else ""
    has_fc_norm = any(name in drafter.tensors for name in _fc_norms(drafter))
    check(
        (fc is None, f"{OPTION}: this drafter has no fc, so nothing of it can be rotated"),
        (dtype not in ITEM_SIZE, f"{OPTION}: fc.weight is {dtype}; rotate the unquantised drafter"),
        (
            INPUT_NORM in drafter.tensors and has_fc_norm,
            f"{OPTION}: this drafter has input_norm (norm_before_fc) and fc_norm; the weights of the first do"
            " not commute with the rotation, and the second stands between them and fc",
        ),
        (
            drafter.rotation is not None,
            f"{OPTION}: fc is rotated already (eaglectl.json); convert the drafter that it was made of",
        ),
        (
            is_shared and dims.hidden != dims.target_hidden,
            f"{OPTION}: a target wider than the drafter has no embedding that they can share",
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
                f"{OPTION}: this drafter drafts with its target's lm_head, and the rotated target's has the"
                f" final norm folded in; pass {TRAINED} with the folder of the target that it was trained on"
            )
        head = find_target_matrix(trained, TRAINED, is_head=True)
    return embedding, head


def _read(path: Path, size: int) -> tuple[Array, dict[str, Any]]:
    """The matrix of a file or a ModelSlim target's folder, made orthogonal beyond its dtype's rounding."""
    if is_folder(path):
        source = FolderSource(path)
        if (name := rotation_file(source)) is None:
            raise UsageError(
                f"{OPTION} {path}: its quant_model_description.json names no rotation; give the matrix as a"
                f" safetensors file, or {MEASURE}"
            )
        path = source.path(name)
    file = read_weight_file(path)
    squares = [name for name, stored in file.tensors.items() if stored.shape == (size, size)]
    name = MATRIX if MATRIX in squares else squares[0] if len(squares) == 1 else None
    if name is None:
        found = ", ".join(f"{name} {list(stored.shape)}" for name, stored in list(file.tensors.items())[:4])
        raise RefusedError(
            f"{OPTION}: {path} has no one matrix [{size}, {size}], the aux states' width; it has {found}"
        )
    raw = file.read(name)
    matrix = decode(raw, file.tensors[name].dtype, name).reshape(size, size)
    error = float(np.abs(matrix.T @ matrix - np.eye(size)).max())
    if not error <= ORTHOGONAL:
        raise RefusedError(
            f"{OPTION}: {name} in {path} is no rotation: Q^T Q differs from the identity by up to {error:.2g}"
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
            f"{OPTION}: the matrix does not make the target's embedding of the drafter's: {residual:.0%} of"
            f" it is left ({LEAST_EXPLAINED:.0%} at most may be); is it this target's, and not transposed?"
        )
    return residual


def _measured(before: TargetMatrix | None, after: TargetMatrix) -> tuple[Array, dict[str, Any]]:
    """Q by orthogonal Procrustes: the rotation that brings E nearest to E'."""
    if before is None:
        raise UsageError(
            f"{OPTION} {MEASURE} compares embeddings, and this drafter has none of the target's width of its"
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
        raise RefusedError(f"{OPTION}: {before.name} or {after.name} holds values that are not finite")
    left, values, right = np.linalg.svd(cross)
    residual = sqrt(max(squares[0] + squares[1] - 2 * values.sum(), 0.0) / (squares[1] or 1.0))
    if squares[2] <= LEAST_EXPLAINED**2 * squares[1]:
        raise RefusedError(
            f"{OPTION}: the target's embedding is the one that was trained on: it is not rotated"
        )
    # the share of each direction that is unknown, where the residual is spread over all of them
    error = residual * sqrt(float((squares[1] / size / np.maximum(values, 1e-300)).mean()))
    if rows < size or not max(residual, error) <= LEAST_EXPLAINED:
        raise RefusedError(
            f"{OPTION}: no rotation makes the target's embedding of the one that was trained on:"
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

    fc = tensors["fc.weight"]
    how = "each block times the target's rotation"
    with_norms = f"{how}, after the norms' weights" if norms else how
    tensors["fc.weight"] = replace(
        fc, origin=Computed(with_norms, (fc,), lambda values: turned(values * columns), by_rows=True)
    )
    for name in norms:
        ones = Computed("ones: its weights are in fc", (tensors[name],), np.ones_like)
        tensors[name] = replace(tensors[name], origin=ones)
    if mask := tensors.get("mask_hidden"):
        tensors["mask_hidden"] = replace(mask, origin=Computed(how, (mask,), turned))
    if rotation.is_shared:
        tensors = _with_shared_embedding(checkpoint, drafter, tensors, turned)
    elif rotation.embedding is not None:
        tensors[EMBEDDING] = own_tensor(EMBEDDING, rotation.embedding, "{name}, as trained")
    elif EMBEDDING not in tensors:
        raise UsageError(f"{OPTION} keeps the embedding that was trained; leave --drop {EMBEDDING} out")
    gone = [tensor.stored[0] for name, tensor in drafter.tensors.items() if name not in tensors]
    strays = {**drafter.strays, **dict.fromkeys(gone, "the target's rotated embedding takes its place")}
    result = replace(drafter, tensors=tensors, rotation=rotation.record, strays=strays)
    if rotation.head is not None:
        result = with_head(result, rotation.head, TRAINED)
    text = (
        "rotated for this target alone; vllm-ascend rotates drafters of ModelSlim's targets itself, and takes"
        " the unrotated one"
    )
    notes = (*rotation.notes, Note("note", "fc.weight", text))
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
    ones = replace(norm, origin=Computed("ones: its weights are behind it", (norm,), np.ones_like))
    kept = {name: tensor for name, tensor in tensors.items() if name != EMBEDDING}
    return {**kept, **projections, FIRST_NORM: ones}
