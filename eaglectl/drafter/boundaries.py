"""Aux layers as boundaries of the target, and the conventions in which files and engines write them as ids.

Boundary b is the residual stream entering target layer b: 0 is the embedding output, n (the target's depth)
the state after the last layer, before the final norm. Inside eaglectl there are boundaries only; ids exist
at the edges. Default layers are an expression of n, such as (2, n//2, n-3).
"""

import ast
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

from msgspec import Struct

OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}
DEPTHS = range(7, 257)  # depths of targets, to compare expressions over
DEEPEST = 4096  # no target has more layers; ids in a config may be of any size


class DefaultLayers(Struct, frozen=True):
    """Boundaries of a target of any depth; `text` is a tuple of terms in n of whole numbers, +, - and //.

    Raises ValueError where the text is nothing of that kind.
    """

    text: str

    def __post_init__(self) -> None:
        self.at(DEPTHS[0])

    def __str__(self) -> str:
        return ast.unparse(_parsed(self.text)).replace(" // ", "//").replace(" + ", "+").replace(" - ", "-")

    @property
    def terms(self) -> str:
        """The terms alone, as tables list them: 2, n//2, n-3."""
        return str(self).strip("()")

    @property
    def words(self) -> str:
        """The default as messages name it."""
        return f"the default {self}"

    def at(self, depth: int) -> tuple[int, ...]:
        """The boundaries for a target of `depth` layers."""
        return _boundaries(self.text, depth)

    def may_be(self, boundaries: Sequence[int]) -> bool:
        """Whether these are the default boundaries of a target of some depth."""
        depths = range(min(2 * max(boundaries, default=0) + DEPTHS[-1], DEEPEST))
        return any(self.at(depth) == tuple(boundaries) for depth in depths)

    def same_as(self, other: "DefaultLayers") -> bool | None:
        """Whether two defaults are the same boundaries; None where the target's depth decides."""
        agreeing = {self.at(depth) == other.at(depth) for depth in DEPTHS}
        return agreeing.pop() if len(agreeing) == 1 else None


@cache
def _boundaries(text: str, depth: int) -> tuple[int, ...]:
    return tuple(_term(node, depth) for node in _parsed(text).elts)


@cache
def _parsed(text: str) -> ast.Tuple:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r}: not an expression of default layers, like (2, n//2, n-3)") from None
    if not isinstance(body, ast.Tuple) or not body.elts:
        raise ValueError(f"{text!r}: default layers are a tuple of terms in n, like (2, n//2, n-3)")
    return body


def _term(node: ast.expr, depth: int) -> int:
    match node:
        case ast.Name(id="n"):
            return depth
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](_term(left, depth), _term(right, depth))
    raise ValueError(f"{ast.unparse(node)}: a default layer is made of n, whole numbers, +, - and //")


# what every known trainer takes where its recipe names no layers (SafeAILab modeling_llama_kv.py:1138)
TRAINING_DEFAULT = DefaultLayers("(2, n//2, n-3)")


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
        pairs = zip(self.boundaries, self.order, strict=True)
        placed = sorted((place, boundary) for boundary, places in pairs for place in places)
        return tuple(boundary for _, boundary in placed)


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
    low, middle, high = TRAINING_DEFAULT.at(depth)
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
