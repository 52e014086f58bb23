"""A drafter for a target whose residual stream is rotated (QuaRot, arXiv 2404.00456; SpinQuant, 2405.16406).

Such a target has h' = h Q for h, with an orthogonal Q, an embedding E' = E Q, and norms without weights,
which are folded into the linear layers behind them: it computes the same. A drafter trained on h takes h'
with W Q for each block W of fc, as W Q (h Q)^T = W h^T. fc_norm and input_norm divide by a size that Q keeps;
their weights g do not commute with Q and go into fc too: W diag(g) Q. Its embedding and its head stay. For an
engine that takes the target's embedding E' in any case, the first layer's projections of the embedding take Q
in the same way, behind input_layernorm, and the drafter has no embedding.
"""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import BLOCK, Array, decode, evaluate
from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.target_head import (
    TargetMatrix,
    find_target_embedding,
    find_target_head,
    own_tensor,
    stored_matrix,
    with_head,
)
from eaglectl.conversion.tensor_steps import ITEM_SIZE
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import PLAIN, Computed, Tensor, embedding_digest, shape_expression, spread_over
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
INPUT_NORM, FC_NORM = "input_norm.weight", "fc_norm."


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


class Targets(Struct, frozen=True):
    """The rotated target, and the one that the drafter was trained on, where that is given.

    `is_embedding_shared`: the engine takes the rotated target's embedding in any case.
    """

    rotated: Checkpoint
    trained: Checkpoint | None = None
    is_embedding_shared: bool = False


def find_rotation(text: str, checkpoint: Checkpoint, drafter: Drafter, targets: Targets) -> TargetRotation:
    """The rotation that `text` names: a file, the folder of a ModelSlim target, or "measure".

    Raises UsageError for what only the user has, RefusedError where a matrix is no rotation or not this one.
    """
    _check(drafter)
    before = _trained_embedding(checkpoint, drafter, targets)
    after = find_target_embedding(targets.rotated, OPTION)
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
            notes = (Note("warning", "fc.weight", UNCOMPARED),)
        else:
            record |= {"residual": _checked(matrix, before, after)}
    is_shared = targets.is_embedding_shared
    record |= {"embedding": "shared" if is_shared else "own"}
    return TargetRotation(
        matrix,
        {**record, "target_embedding": embedding_digest(targets.rotated)},
        None if is_shared else _own_embedding(drafter, matrix, targets, after),
        _own_head(drafter, targets),
        is_shared,
        notes,
    )


UNCOMPARED = (
    "the matrix was not compared with this target, as no embedding from before the rotation is here; pass"
    " --trained-target to have it compared"
)


def _check(drafter: Drafter) -> None:
    fc = drafter.tensors.get("fc.weight")
    if fc is None:
        raise RefusedError(f"{OPTION}: this drafter has no fc, so nothing of it can be rotated")
    has_fc_norm = any(name.startswith(FC_NORM) for name in drafter.tensors)
    check(
        (
            fc.dtype not in ITEM_SIZE,
            f"{OPTION}: fc.weight is {fc.dtype}; rotate the unquantised drafter",
        ),
        (
            INPUT_NORM in drafter.tensors and has_fc_norm,
            f"{OPTION}: this drafter has input_norm (norm_before_fc) and fc_norm; the weights of the first do"
            " not commute with the rotation, and the second stands between them and fc",
        ),
        (
            drafter.rotation is not None,
            f"{OPTION}: fc is rotated already (eaglectl.json); convert the drafter that it was made of",
        ),
        error=RefusedError,
    )


def _trained_embedding(checkpoint: Checkpoint, drafter: Drafter, targets: Targets) -> TargetMatrix | None:
    """The embedding from before the rotation: the trained target's, or the drafter's own copy of it.

    Where it is to be shared, the drafter's own has to be that copy.
    """
    own, is_shared = drafter.tensors.get(EMBEDDING), targets.is_embedding_shared
    if is_shared and drafter.dims.hidden != drafter.dims.target_hidden:
        raise RefusedError(f"{OPTION}: a target wider than the drafter has no embedding that they can share")
    if targets.trained is not None and not (own and is_shared):
        return find_target_embedding(targets.trained, TRAINED)
    is_wide = own is not None and own.shape[1:] == (drafter.dims.target_hidden,)
    if own is None or not is_wide or own.stored[0] not in checkpoint.tensors or own.dtype not in PLAIN:
        return None
    return stored_matrix(checkpoint, own.stored[0])


def _own_embedding(
    drafter: Drafter, matrix: Array, targets: Targets, after: TargetMatrix
) -> TargetMatrix | None:
    if EMBEDDING in drafter.tensors:
        return None
    if targets.trained is not None:
        return _cut(find_target_embedding(targets.trained, TRAINED), drafter.dims.vocab)
    back = replace(after, read=lambda start, stop: after.read(start, stop) @ matrix.T)
    return _cut(replace(back, name=f"{after.name}, rotated back"), drafter.dims.vocab)


def _cut(matrix: TargetMatrix, rows: int) -> TargetMatrix:
    """The matrix without the rows that a target pads it with."""
    return replace(matrix, shape=(rows, *matrix.shape[1:]))


def _own_head(drafter: Drafter, targets: Targets) -> TargetMatrix | None:
    if "lm_head.weight" in drafter.tensors:
        return None
    if targets.trained is None:
        raise UsageError(
            f"{OPTION}: this drafter drafts with its target's lm_head, and the rotated target's has the final"
            f" norm folded in; pass {TRAINED} with the folder of the target that it was trained on"
        )
    return find_target_head(targets.trained, TRAINED)


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


def _checked(matrix: Array, before: TargetMatrix, after: TargetMatrix) -> float:
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
    cross, squares = np.zeros((size, size)), np.zeros(3)
    for ours, theirs in _blocks(before, after, rows):
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


def _blocks(before: TargetMatrix, after: TargetMatrix, rows: int) -> Iterator[tuple[Array, Array]]:
    step = max(1, BLOCK // before.shape[1])
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield before.read(start, stop), after.read(start, stop)


def with_rotation(checkpoint: Checkpoint, drafter: Drafter, rotation: TargetRotation) -> TransformedDrafter:
    """The drafter for the rotated target: the same function of its states."""
    tensors = dict(drafter.tensors)
    norms = [name for name in tensors if name == INPUT_NORM or name.startswith(FC_NORM)]
    columns = np.ones(drafter.dims.aux * drafter.dims.target_hidden)
    if norms:
        columns = np.concatenate([evaluate(tensors[name], checkpoint) for name in sorted(norms, key=_block)])
    turned = _turned(rotation.matrix)
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
    gone = {drafter.tensors[name].stored[0]: REPLACED for name in drafter.tensors if name not in tensors}
    result = replace(drafter, tensors=tensors, rotation=rotation.record, strays={**drafter.strays, **gone})
    if rotation.head is not None:
        result = with_head(result, rotation.head, TRAINED)
    notes = (*rotation.notes, Note("note", "fc.weight", ALONE))
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


REPLACED = "the target's rotated embedding takes its place"
ALONE = (
    "rotated for this target alone; vllm-ascend rotates drafters of ModelSlim's targets itself, and takes the"
    " unrotated one"
)


def _block(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("fc_norm.") else 0


def _turned(matrix: Array) -> Callable[[Array], Array]:
    return lambda values: (values.reshape(-1, len(matrix)) @ matrix).reshape(values.shape)
