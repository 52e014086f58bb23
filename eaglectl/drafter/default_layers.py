"""Default aux layers as an expression of the target's depth n, such as (2, n//2, n-3)."""

import ast
import operator
from collections.abc import Callable, Sequence
from functools import cache

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
        """The expression without spaces around operators: (2, n//2, n-3)."""
        return _spelled(self.text)

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
        return _agreement(self, other)


@cache
def _agreement(default: DefaultLayers, other: DefaultLayers) -> bool | None:
    agreeing = {default.at(depth) == other.at(depth) for depth in DEPTHS}
    return agreeing.pop() if len(agreeing) == 1 else None


@cache
def _boundaries(text: str, depth: int) -> tuple[int, ...]:
    return tuple(_term(node, depth) for node in _parsed(text).elts)


@cache
def _spelled(text: str) -> str:
    return ast.unparse(_parsed(text)).replace(" // ", "//").replace(" + ", "+").replace(" - ", "-")


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
