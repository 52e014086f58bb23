"""The draft vocabularies of two drafters as target tokens, from offsets or absolute ids, in any order."""

from collections.abc import Sequence

from msgspec import Struct

from eaglectl.checkpoint.layout import VOCABULARY_PICKLES
from eaglectl.comparison.comparison import Fact, Remark, Side
from eaglectl.drafter.tensors import Tensor
from eaglectl.drafter.vocabulary import DraftVocabulary, Ids, from_tokens, numbers, read_vocabulary
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.catalogue import by_name
from eaglectl.verdicts import FactState

NAME = "draft_tokens"
NO_MAPS = (None, None)
NO_TOKENS = (
    "d2t leads out of the target's tokens, to one twice, or does not ascend; llama.cpp reads token ids"
)


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


class SharedRows(Struct, frozen=True):
    """Rows of lm_head in A and in B that are of the same tokens, in one order."""

    a: Sequence[int]
    b: Sequence[int]


def read(side: Side, answer: str | None) -> VocabularyReading:
    """Read one side; `answer` ("offset", "absolute") decides a d2t that fits as both.

    Raises UnreadableError.
    """
    drafter, dims = side.drafter, side.drafter.dims
    d2t, t2d = drafter.tensors.get("d2t"), drafter.tensors.get("t2d")
    if d2t is None and t2d is None and not drafter.has_reduced_vocabulary:
        return VocabularyReading((tuple(range(dims.vocab)),), "no map: all tokens, in their order", NO_MAPS)
    data = tuple(_data(side, tensor) for tensor in (d2t, t2d))
    if d2t is None and (t2d is None or by_name(drafter.producer).has_unordered_rows):
        return _absent(side, data)
    try:
        values = tuple(_integers(tensor, raw) for tensor, raw in zip((d2t, t2d), data, strict=True))
    except RefusedError as error:
        return VocabularyReading((), str(error), data)
    return _interpret(side, values, answer)


def _data(side: Side, tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else side.checkpoint.read(tensor.stored[0])


def _integers(tensor: Tensor | None, raw: bytes | None) -> Ids | None:
    return numbers(tensor.name, tensor.dtype, raw) if tensor and raw is not None else None


def _interpret(side: Side, values: tuple[Ids | None, ...], answer: str | None) -> VocabularyReading:
    """The meaning of d2t and t2d; two meanings where d2t fits as both and no answer is given."""
    dims = side.drafter.dims
    raw = tuple(None if value is None else value.tobytes() for value in values)

    if side.is_gguf and values[0] is not None:
        return _of_token_ids(side, values[0], raw)

    def read_as(reading: str | None) -> DraftVocabulary:
        return read_vocabulary(values[0], values[1], dims.draft_vocab, dims.vocab, reading)

    try:
        only = read_as(None)
    except RefusedError as error:
        return VocabularyReading((), str(error), raw)
    except UsageError as error:  # d2t fits as both
        if answer:
            chosen = read_as(answer)
            return VocabularyReading((_tokens(chosen),), chosen.how, raw)
        both = tuple(_tokens(read_as(reading)) for reading in ("offset", "absolute"))
        return VocabularyReading(both, str(error), raw)
    return VocabularyReading((_tokens(only),), only.how, raw)


def _of_token_ids(side: Side, d2t: Ids, raw: tuple[bytes | None, ...]) -> VocabularyReading:
    """The meaning of a GGUF file's d2t, whose tokens may stand in any order."""
    try:
        tokens = from_tokens(d2t.tolist(), side.drafter.dims.draft_vocab, side.drafter.dims.vocab)
    except RefusedError:
        return VocabularyReading((), NO_TOKENS, raw)
    return VocabularyReading((_tokens(tokens),), "d2t holds absolute ids", raw)


def _absent(side: Side, data: tuple[bytes | None, ...]) -> VocabularyReading:
    """The reading without a d2t; pickles beside the weights are compared as bytes."""
    source = side.checkpoint.source
    beside = [name for name in VOCABULARY_PICKLES if name in source.names()]
    where = f"; {beside[0]} holds it, a pickle, which `convert` alone opens" if beside else ""
    return VocabularyReading((), f"d2t is missing{where}", (*data, *map(source.read, beside)), is_absent=True)


def _tokens(vocabulary: DraftVocabulary) -> tuple[int, ...]:
    return tuple(vocabulary.targets.tolist())


def compare(a: Side, b: Side, reading_a: VocabularyReading, reading_b: VocabularyReading) -> Fact:
    """Whether both propose the same tokens."""
    if reading_a.tokens is not None and reading_b.tokens is not None:
        return _known(reading_a.tokens, reading_b.tokens)
    unknown = [(name, side) for name, side in (("A", reading_a), ("B", reading_b)) if side.tokens is None]
    why = "; ".join(f"{name}: {side.how}" for name, side in unknown)
    return Fact(NAME, _shown(a, reading_a), _shown(b, reading_b), _state(reading_a, reading_b), why)


def _state(a: VocabularyReading, b: VocabularyReading) -> FactState:
    """The state of two readings of which one at least is not known."""
    if a.is_absent == b.is_absent and a.raw == b.raw:
        return FactState.EQUAL
    if a.is_absent or b.is_absent:
        t2d = a.raw[1], b.raw[1]
        return FactState.DIFFERS if None not in t2d and t2d[0] != t2d[1] else FactState.UNKNOWN
    return FactState.UNKNOWN if set(a.lists) & set(b.lists) else FactState.DIFFERS


def _known(tokens_a: tuple[int, ...], tokens_b: tuple[int, ...]) -> Fact:
    shown_a, shown_b = f"{len(tokens_a)} tokens", f"{len(tokens_b)} tokens"
    only_a, only_b = set(tokens_a) - set(tokens_b), set(tokens_b) - set(tokens_a)
    if not only_a and not only_b:
        return Fact(NAME, shown_a, shown_b, FactState.EQUAL)
    shown_a, shown_b = f"{shown_a}, {len(only_a)} only here", f"{shown_b}, {len(only_b)} only here"
    return Fact(NAME, shown_a, shown_b, FactState.DIFFERS)


def _shown(side: Side, reading: VocabularyReading) -> str:
    size = f"{side.drafter.dims.draft_vocab} tokens"
    return size if reading.tokens is not None else f"{size}, not known which"


def head_rows(a: VocabularyReading, b: VocabularyReading) -> SharedRows | None:
    """The rows of lm_head of shared tokens; None where the tokens are equal in their order, or not known."""
    if a.tokens is None or b.tokens is None or a.tokens == b.tokens:
        return None
    rows_b = {token: row for row, token in enumerate(b.tokens)}
    shared = [(row, rows_b[token]) for row, token in enumerate(a.tokens) if token in rows_b]
    return SharedRows([row for row, _ in shared], [row for _, row in shared])


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
