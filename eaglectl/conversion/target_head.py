"""The target's lm_head as a drafter's own, for a drafter that shares the target's."""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.target_files import text_part
from eaglectl.conversion.arithmetic import Array, decode
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.matrices import EMBEDDINGS, HEADS, matrix
from eaglectl.drafter.tensors import Computed, Tensor
from eaglectl.errors import RefusedError, UsageError

NAME = "lm_head.weight"


class TargetHead(Struct, frozen=True):
    """The target's output matrix [vocab, hidden]; `read` returns rows [start, stop) as float64."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]


def find_target_head(target: Checkpoint) -> TargetHead:
    """The target's lm_head, or its embedding where the two are tied.

    Raises RefusedError where neither is stored unquantised.
    """
    places = (target.config, text_part(target.config))
    is_tied = any(place.get("tie_word_embeddings") is True for place in places)
    name = matrix(target.tensors, HEADS) or (matrix(target.tensors, EMBEDDINGS) if is_tied else None)
    if name is None:
        raise RefusedError(
            f"--materialize-lm-head: {target.source.place} has no lm_head of plain numbers; give the target's"
            " unquantised weights"
        )
    stored = target.tensors[name]

    def read(start: int, stop: int) -> Array:
        raw = target.read(name, start * stored.row_bytes, stop * stored.row_bytes)
        return decode(raw, stored.dtype, name).reshape(stop - start, *stored.shape[1:])

    return TargetHead(name, stored.dtype, stored.shape, read)


def with_head(drafter: Drafter, head: TargetHead) -> Drafter:
    """The drafter with the target's head as its own: the same function.

    Raises UsageError where it has one, RefusedError where the shapes do not match.
    """
    dims = drafter.dims
    if NAME in drafter.tensors:
        raise UsageError(
            "--materialize-lm-head: this drafter has an lm_head of its own; leave the option out"
        )
    if head.shape != (dims.draft_vocab, dims.hidden):
        raise RefusedError(
            f"--materialize-lm-head: the target's {head.name} is {list(head.shape)}; this drafter needs"
            f" [{dims.draft_vocab}, {dims.hidden}]"
        )
    own = Tensor(
        NAME, head.dtype, head.shape, Computed(f"the target's {head.name}", (), head.read, by_rows=True)
    )
    notes = tuple(note for note in drafter.notes if note.about != "lm_head")  # that it has none
    return replace(drafter, tensors={**drafter.tensors, NAME: own}, notes=notes)
