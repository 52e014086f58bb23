"""The draft vocabularies of two drafters as target tokens, from offsets or absolute ids, in any order."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from eaglectl.comparison.comparison import Fact, Remark, Side
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import Tensor
from eaglectl.drafter.vocabulary import as_int64, numbers, read_vocabulary
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.layout import VOCABULARY_PICKLES
from eaglectl.formats.catalogue import by_name
from eaglectl.verdicts import FactState

NAME = "draft_tokens"
# rows of lm_head in A and in B that are of one token
SharedRows = Sequence[tuple[int, int]]


class VocabularyReading(Struct, frozen=True):
    """What d2t and t2d of one side may mean, as lists of target tokens.

    There is one list where the meaning is known, and none where the maps are broken. `how` explains that.
    `is_absent`: the files hold no map. `raw` are the stored integers as bytes.
    """

    lists: tuple[tuple[int, ...], ...]
    how: str
    raw: tuple[bytes | None, ...]
    is_absent: bool = False

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The target token of each draft token, where it is known."""
        return self.lists[0] if len(self.lists) == 1 else None


def read(side: Side, answer: str | None) -> VocabularyReading:
    """Read one side; `answer` ("offset", "absolute") decides a d2t that fits as both.

    Raises UnreadableError.
    """
    drafter, source = side.drafter, side.checkpoint.source
    maps = [drafter.tensors.get(name) for name in ("d2t", "t2d")]
    if not any(maps) and not drafter.has_reduced_vocabulary:
        every = tuple(range(drafter.dims.vocab))
        return VocabularyReading((every,), "no map: all tokens, in their order", (None, None))
    raw = tuple(None if tensor is None else side.checkpoint.read(tensor.stored[0]) for tensor in maps)
    if maps[0] is None and (maps[1] is None or by_name(drafter.producer).has_unordered_rows):
        # pickles beside the weights are compared as bytes
        beside = [name for name in VOCABULARY_PICKLES if name in source.names()]
        where = f"; {beside[0]} holds it, a pickle, which `convert` alone opens" if beside else ""
        pickles = map(source.read, beside)
        return VocabularyReading((), f"d2t is missing{where}", (*raw, *pickles), is_absent=True)
    try:
        return _from_maps(drafter, maps, raw, answer)
    except RefusedError as error:
        return VocabularyReading((), str(error), raw)


def _from_maps(
    drafter: Drafter, maps: Sequence[Tensor | None], raw: Sequence[bytes | None], answer: str | None
) -> VocabularyReading:
    """What d2t and t2d mean; two lists where d2t fits as both, and nobody answers. Raises RefusedError."""
    d2t, t2d = (
        None if tensor is None else numbers(tensor.name, tensor.dtype, data or b"")
        for tensor, data in zip(maps, raw, strict=True)
    )
    stored = tuple(None if value is None else as_int64(value) for value in (d2t, t2d))
    read_as = partial(read_vocabulary, d2t, t2d, drafter.dims.draft_vocab, drafter.dims.vocab)
    try:
        only = read_as(None)
    except UsageError as error:  # d2t fits as both
        if answer is None:
            both = tuple(read_as(meaning).targets for meaning in ("offset", "absolute"))
            return VocabularyReading(both, str(error), stored)
        only = read_as(answer)
    return VocabularyReading((only.targets,), only.how, stored)


def compare(a: Side, b: Side, reading_a: VocabularyReading, reading_b: VocabularyReading) -> Fact:
    """Whether both propose the same tokens."""
    tokens_a, tokens_b = reading_a.tokens, reading_b.tokens
    if tokens_a is None or tokens_b is None:
        sides = (("A", a, reading_a), ("B", b, reading_b))
        why = "; ".join(f"{name}: {reading.how}" for name, _, reading in sides if reading.tokens is None)
        shown_a, shown_b = (
            f"{side.drafter.dims.draft_vocab} tokens{', not known which' * (reading.tokens is None)}"
            for _, side, reading in sides
        )
        return Fact(NAME, shown_a, shown_b, _state(reading_a, reading_b), why)
    size_a, size_b = f"{len(tokens_a)} tokens", f"{len(tokens_b)} tokens"
    only_a, only_b = set(tokens_a) - set(tokens_b), set(tokens_b) - set(tokens_a)
    if not only_a and not only_b:
        return Fact(NAME, size_a, size_b, FactState.EQUAL)
    size_a, size_b = f"{size_a}, {len(only_a)} only here", f"{size_b}, {len(only_b)} only here"
    return Fact(NAME, size_a, size_b, FactState.DIFFERS)


def _state(a: VocabularyReading, b: VocabularyReading) -> FactState:
    """The state of two readings of which one at least is not known."""
    if a.is_absent == b.is_absent and a.raw == b.raw:
        return FactState.EQUAL
    if a.is_absent or b.is_absent:
        t2d = a.raw[1], b.raw[1]
        return FactState.DIFFERS if None not in t2d and t2d[0] != t2d[1] else FactState.UNKNOWN
    return FactState.UNKNOWN if set(a.lists) & set(b.lists) else FactState.DIFFERS


def head_rows(a: VocabularyReading, b: VocabularyReading) -> SharedRows | None:
    """The rows of lm_head of shared tokens; None where the tokens are equal in their order, or not known."""
    if a.tokens is None or b.tokens is None or a.tokens == b.tokens:
        return None
    rows_b = {token: row for row, token in enumerate(b.tokens)}
    return [(row, rows_b[token]) for row, token in enumerate(a.tokens) if token in rows_b]


def remarks(a: VocabularyReading, b: VocabularyReading) -> tuple[Remark, ...]:
    """How the same tokens are written differently."""
    if a.tokens is None or b.tokens is None or set(a.tokens) != set(b.tokens):
        return ()
    remarks = []
    words = [reading.how.removesuffix(", as t2d confirms") for reading in (a, b)]
    if words[0] != words[1]:
        remarks.append(Remark("d2t", *words))
    if a.tokens != b.tokens:
        order = Remark(
            "token order",
            "lm_head's rows are in this one's order",
            "in another one; they are compared token by token",
        )
        remarks.append(order)
    return tuple(remarks)
