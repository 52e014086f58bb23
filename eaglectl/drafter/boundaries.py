"""Aux layers as boundaries of the target, and the conventions in which files and engines write them as ids.

Boundary b is the residual stream entering target layer b: 0 is the embedding output, n (the target's depth)
the state after the last layer, before the final norm. Inside eaglectl there are boundaries only; ids exist
at the edges.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Convention = Literal["boundary", "output"]


class AuxLayers(Struct, frozen=True):
    """What is known of a drafter's aux layers.

    `boundaries` is None where it cannot be known without the target's depth (`is_default`) or without
    asking the user. `how` says in words what the knowledge rests on. `order` is set where the file lists
    its ids unsorted or repeated: it maps each sorted, distinct boundary to the places it had in the file,
    which is how `fc` is laid out.
    """

    count: int
    boundaries: tuple[int, ...] | None
    is_default: bool
    how: str
    ids: tuple[int, ...] | None = None
    convention: Convention | None = None
    order: tuple[tuple[int, ...], ...] | None = None

    @property
    def listed(self) -> tuple[int, ...] | None:
        """The boundaries as the file lists them, in the order of fc's blocks."""
        if self.boundaries is None or self.order is None:
            return self.boundaries
        by_place = {
            place: boundary
            for boundary, places in zip(self.boundaries, self.order, strict=True)
            for place in places
        }
        return tuple(by_place[place] for place in sorted(by_place))


def default_boundaries(depth: int) -> tuple[int, int, int]:
    """(2, n//2, n-3): the layers that trainers take where a recipe names none.

    Source: SafeAILab modeling_llama_kv.py:1138.
    """
    return (2, depth // 2, depth - 3)


def may_be_default(boundaries: Sequence[int]) -> bool:
    """Whether these are the default boundaries of a target of some depth."""
    return len(boundaries) == 3 and tuple(boundaries) == default_boundaries(boundaries[2] + 3)


def to_boundaries(ids: Sequence[int], convention: Convention) -> tuple[int, ...]:
    """Ids of "the output of layer j" are boundaries j+1; ids of boundaries are themselves."""
    return tuple(ids) if convention == "boundary" else tuple(j + 1 for j in ids)


def convention_by_pattern(ids: Sequence[int], depth: int | None) -> Convention | None:
    """The convention that fits the numbers alone, for a target of `depth` layers; None where both may.

    n itself cannot be an output id; each producer's default set is known in both spellings, and one recipe
    beside it (thoughtworks') as outputs, [2, n//2-1, n-4].
    """
    if depth is None:
        return None
    low, middle, high = default_boundaries(depth)
    if max(ids) == depth or tuple(ids) == (low, middle, high):
        return "boundary"
    if tuple(ids) in ((low - 1, middle - 1, high - 1), (low, middle - 1, high - 1)):
        return "output"
    return None


def sorted_order(boundaries: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...] | None]:
    """Sorted distinct boundaries, and for each the places it had; None for the places when nothing moves."""
    distinct = tuple(sorted(set(boundaries)))
    if distinct == tuple(boundaries):
        return distinct, None
    return distinct, tuple(tuple(i for i, b in enumerate(boundaries) if b == want) for want in distinct)
