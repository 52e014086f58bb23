"""The target's lm_head or embedding as a drafter's own, for a drafter that shares the target's."""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.arithmetic import BLOCK, Array, decode, encode, evaluate
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import EMBEDDINGS, HEADS, Computed, Tensor, matrix
from eaglectl.drafter.vocabulary import DraftVocabulary, identity
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.target_files import text_part

NAME, OPTION = "lm_head.weight", "--materialize-lm-head"


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


def find_target_embedding(target: Checkpoint, option: str) -> TargetMatrix:
    """The target's embedding. Raises RefusedError where it is not stored unquantised."""
    return _found(target, matrix(target.tensors, EMBEDDINGS), "embedding", option)


def find_target_head(target: Checkpoint, option: str = OPTION) -> TargetMatrix:
    """The target's lm_head, or its embedding where the two are tied.

    Raises RefusedError where neither is stored unquantised.
    """
    places = (target.config, text_part(target.config))
    is_tied = any(place.get("tie_word_embeddings") is True for place in places)
    name = matrix(target.tensors, HEADS) or (matrix(target.tensors, EMBEDDINGS) if is_tied else None)
    return _found(target, name, "lm_head", option)


def _found(target: Checkpoint, name: str | None, what: str, option: str) -> TargetMatrix:
    if name is None:
        raise RefusedError(
            f"{option}: {target.source.place} has no {what} of plain numbers; give the target's"
            " unquantised weights"
        )
    return stored_matrix(target, name)


def with_head(drafter: Drafter, head: TargetMatrix, option: str = OPTION) -> Drafter:
    """The drafter with the target's head as its own: the same function.

    Raises UsageError where it has one, RefusedError where the shapes do not match.
    """
    if NAME in drafter.tensors:
        raise UsageError(f"{option}: this drafter has an lm_head of its own; leave the option out")
    _check_shape(head, (drafter.dims.draft_vocab, drafter.dims.hidden), option)
    notes = tuple(note for note in drafter.notes if note.about != "lm_head")  # that it has none
    return replace(drafter, tensors={**drafter.tensors, NAME: own_tensor(NAME, head)}, notes=notes)


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
    own, dims = drafter.tensors[NAME], drafter.dims
    _check_shape(head, (dims.vocab, dims.hidden), OPTION)
    rows = {target: row for row, target in enumerate(vocabulary.targets)}
    step = max(1, BLOCK // dims.hidden)
    for start in range(0, dims.vocab, step):
        stop = min(start + step, dims.vocab)
        tokens = [token for token in range(start, stop) if token in rows]
        theirs = head.read(start, stop)[[token - start for token in tokens]]
        ours = evaluate(own.with_rows([rows[token] for token in tokens]), checkpoint)
        if encode(theirs, own.dtype, NAME) != encode(ours, own.dtype, NAME):
            raise UsageError(
                f"{OPTION}: this drafter has an lm_head of its own, which is not of rows of the target's"
                f" {head.name}; leave the option out"
            )
    made = replace(own_tensor(NAME, head), dtype=own.dtype)
    tensors = {name: tensor for name, tensor in drafter.tensors.items() if name not in ("d2t", "t2d")}
    whole = replace(drafter, tensors={**tensors, NAME: made}, dims=replace(dims, draft_vocab=dims.vocab))
    return whole, identity(dims.vocab)


def own_tensor(name: str, source: TargetMatrix, how: str = "the target's {name}") -> Tensor:
    """A target's matrix as the drafter's own tensor."""
    made = Computed(how.format(name=source.name), (), source.read, by_rows=True)
    return Tensor(name, source.dtype, source.shape, made)
