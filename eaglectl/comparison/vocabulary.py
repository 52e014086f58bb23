"""The draft vocabularies of two drafters as the tokens that they mean, offsets or absolute ids, in whatever order."""

from collections.abc import Sequence
from dataclasses import dataclass

from eaglectl.checkpoint.checkpoint import VOCABULARY_PICKLES
from eaglectl.comparison.comparison import Fact, Remark, Side
from eaglectl.drafter.vocabulary import DraftVocabulary, numbers, read_vocabulary
from eaglectl.errors import Refused, Usage

NAME = "draft_tokens"


@dataclass(frozen=True, slots=True)
class Reading:
    """What d2t and t2d of one side may mean: lists of target tokens, one where it is known, none where they are broken.

    `how` says what that rests on, or what is wrong; `is_absent`: the files hold no map at all. `raw` are the numbers as they lie, whatever integers hold them.
    """

    lists: tuple[tuple[int, ...], ...]
    how: str
    raw: tuple[bytes | None, ...]
    is_absent: bool = False

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The target token of each draft token, where it is known."""
        return self.lists[0] if len(self.lists) == 1 else None


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of lm_head of the tokens that both have, in one order; None where the heads lie row for row alike."""

    a: Sequence[int]
    b: Sequence[int]


def read(side: Side, answer: str | None) -> Reading:
    """The reading of one side; `answer` ("offset", "absolute") is for a d2t that fits as both. Raises Unreadable."""
    drafter, dims = side.drafter, side.drafter.dims
    tensors = [drafter.tensors.get(name) for name in ("d2t", "t2d")]
    if tensors == [None, None] and not drafter.has_reduced_vocabulary:
        return Reading((tuple(range(dims.vocab)),), "no map: all tokens, in their order", (None, None))
    data = tuple(None if one is None else side.checkpoint.read(one.stored[0]) for one in tensors)
    if tensors[0] is None and (tensors[1] is None or drafter.producer == "automodel"):
        return _absent(side, data)
    try:
        values = [
            numbers(one.name, one.dtype, raw) if one and raw is not None else None
            for one, raw in zip(tensors, data, strict=True)
        ]
    except Refused as error:
        return Reading((), str(error), data)
    raw = tuple(None if one is None else one.tobytes() for one in values)

    def as_said(reading: str | None) -> DraftVocabulary:
        return read_vocabulary(values[0], values[1], dims.draft_vocab, dims.vocab, reading)

    try:
        found = [as_said(None)]
    except Refused as error:
        return Reading((), str(error), raw)
    except Usage as error:  # both fit
        found = [as_said(answer)] if answer else [as_said("offset"), as_said("absolute")]
        how = found[0].how if answer else str(error)
        return Reading(tuple(map(_tokens, found)), how, raw)
    return Reading((_tokens(found[0]),), found[0].how, raw)


def _absent(side: Side, data: tuple[bytes | None, ...]) -> Reading:
    """No d2t, and no t2d whose order is the head's; what lies beside the weights is compared as bytes."""
    source = side.checkpoint.source
    beside = [name for name in VOCABULARY_PICKLES if name in source.names()]
    where = f"; {beside[0]} holds it, a pickle, which only `eaglectl convert` opens" if beside else ""
    return Reading((), f"d2t is missing{where}", (*data, *map(source.read, beside)), is_absent=True)


def _tokens(vocabulary: DraftVocabulary) -> tuple[int, ...]:
    return tuple(vocabulary.targets.tolist())


def compare(a: Side, b: Side, one: Reading, other: Reading) -> Fact:
    """Whether both propose the same tokens."""
    mine, theirs = one.tokens, other.tokens
    if mine is not None and theirs is not None:
        return _known(mine, theirs)
    values = _shown(a, one), _shown(b, other)
    why = "; ".join(f"{name}: {side.how}" for name, side in (("A", one), ("B", other)) if side.tokens is None)
    if one.is_absent == other.is_absent and one.raw == other.raw:
        state = "equal"
    elif one.is_absent or other.is_absent:
        marked = one.raw[1], other.raw[1]
        state = "differs" if None not in marked and marked[0] != marked[1] else "unknown"
    else:
        state = "unknown" if set(one.lists) & set(other.lists) else "differs"
    return Fact(NAME, *values, state, why)  # type: ignore[arg-type]


def _known(mine: tuple[int, ...], theirs: tuple[int, ...]) -> Fact:
    only_a, only_b = set(mine) - set(theirs), set(theirs) - set(mine)
    if not only_a and not only_b:
        return Fact(NAME, f"{len(mine)} tokens", f"{len(theirs)} tokens", "equal")
    values = f"{len(mine)} tokens, {len(only_a)} only here", f"{len(theirs)} tokens, {len(only_b)} only here"
    return Fact(NAME, *values, "differs")


def _shown(side: Side, reading: Reading) -> str:
    size = f"{side.drafter.dims.draft_vocab} tokens"
    return size if reading.tokens is not None else f"{size}, not known which"


def head_rows(one: Reading, other: Reading) -> Rows | None:
    """Which rows of the two heads are of the same tokens."""
    mine, theirs = one.tokens, other.tokens
    if mine is None or theirs is None or mine == theirs:
        return None
    places = {token: row for row, token in enumerate(theirs)}
    pairs = [(row, places[token]) for row, token in enumerate(mine) if token in places]
    return Rows([row for row, _ in pairs], [row for _, row in pairs])


def remarks(one: Reading, other: Reading) -> tuple[Remark, ...]:
    """How the same tokens are written differently."""
    mine, theirs = one.tokens, other.tokens
    if mine is None or theirs is None or set(mine) != set(theirs):
        return ()
    words = [reading.how.removesuffix(", as t2d confirms") for reading in (one, other)]
    found = [Remark("d2t", *words)] if words[0] != words[1] else []
    if mine != theirs:
        found.append(
            Remark(
                "token order",
                "lm_head's rows are in this one's order",
                "in another one; they are compared token by token",
            )
        )
    return tuple(found)
