"""The draft vocabulary: d2t and t2d, read as numbers; the home of numpy for whole-number work.

d2t is kept as offsets: draft token i proposes target token i + d2t[i] (vLLM llama_eagle3.py:385, SGLang, SafeAILab).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eaglectl.errors import Refused, Usage

Ids = npt.NDArray[np.int64]
_INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "U8": "u1", "I8": "i1", "BOOL": "?"}


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Target token of each draft token, [draft_vocab] int64, and how that was found out."""

    targets: Ids
    how: str

    @property
    def offsets(self) -> Ids:
        """d2t as engines read it: targets - arange, int64."""
        return self.targets - np.arange(len(self.targets), dtype=np.int64)

    @property
    def is_identity(self) -> bool:
        """Whether draft token i is target token i for all i."""
        return bool((self.offsets == 0).all())

    def mask(self, vocab: int) -> npt.NDArray[np.bool_]:
        """t2d: [vocab] bool, true for target tokens that have a draft token."""
        mask = np.zeros(vocab, dtype=np.bool_)
        mask[self.targets] = True
        return mask


def numbers(name: str, dtype: str, raw: bytes) -> Ids:
    """Raw little-endian data of an integer or boolean tensor as int64."""
    if dtype not in _INTEGERS:
        raise Refused(f"{name} is {dtype}; whole numbers were expected (engines read int64)")
    return np.frombuffer(raw, dtype=_INTEGERS[dtype]).astype(np.int64)


def identity(size: int) -> DraftVocabulary:
    """The map of a full vocabulary."""
    return DraftVocabulary(np.arange(size, dtype=np.int64), "full vocabulary")


def from_tokens(tokens: Sequence[int], draft_vocab: int, vocab: int) -> DraftVocabulary:
    """The map of a trainer's list of target tokens, one for each lm_head row in order."""
    targets = np.array(tokens, dtype=np.int64)
    if len(targets) != draft_vocab or not _is_valid(targets, vocab):
        raise Refused(
            f"the trainer's token list has {len(targets)} entries; {draft_vocab} different tokens below {vocab} were"
            " needed"
        )
    return DraftVocabulary(targets, "from the trainer's token list")


def read_vocabulary(
    d2t: Ids | None, t2d: Ids | None, draft_vocab: int, vocab: int, answer: str | None = None
) -> DraftVocabulary:
    """The draft vocabulary from whichever of d2t [draft_vocab] and t2d [vocab] is there.

    Raises Refused where they are out of range, repeat a token or contradict each other; Usage where d2t may be offsets
    or absolute ids and `answer` ("offset", "absolute") does not say.
    """
    used = None if t2d is None else np.flatnonzero(t2d)
    if used is not None and len(used) != draft_vocab:
        raise Refused(
            f"t2d marks {len(used)} target tokens and the draft vocabulary has {draft_vocab}; restore both from the"
            " trainer"
        )
    if d2t is None:
        if used is None:
            raise Refused(
                f"d2t is missing and the draft vocabulary has {draft_vocab} of {vocab} tokens; engines would propose"
                f" the first {draft_vocab}: restore it from the trainer"
            )
        return DraftVocabulary(used.astype(np.int64), "from t2d")
    as_offset = d2t + np.arange(len(d2t), dtype=np.int64)
    fits = [
        (kind, targets)
        for kind, targets in (("offset", as_offset), ("absolute", d2t))
        if _is_valid(targets, vocab)
        and (used is None or np.array_equal(np.sort(targets), used))
        and (used is not None or kind == "offset" or bool((np.diff(targets) > 0).all()))
    ]
    if answer is not None:
        fits = [(kind, targets) for kind, targets in fits if kind == answer]
    match fits:
        case [(kind, targets)]:
            return DraftVocabulary(
                targets,
                f"d2t holds {'offsets' if kind == 'offset' else 'absolute ids'}"
                + (", as t2d confirms" if used is not None else ""),
            )
        case []:
            raise Refused(_why_not(d2t, as_offset, used, vocab))
    if np.array_equal(as_offset, d2t):
        return DraftVocabulary(as_offset, "d2t holds offsets")
    raise Usage(
        "d2t may hold offsets or absolute ids, both fit and there is no t2d; pass --source-semantics d2t=offset or"
        " d2t=absolute"
    )


def row_copies(rows: list[tuple[bytes, bytes]]) -> bool:
    """Whether every pair of lm_head rows is one row twice, and no pair is zeros: TorchSpec's pruning fault (formats.md, 5.3)."""
    return bool(rows) and all(one == other and any(one) for one, other in rows)


def repeated_offsets(offsets: Ids, most: int) -> list[int]:
    """Up to `most` places i, spread over the table, where d2t[i] == d2t[i+1]."""
    places = np.flatnonzero(np.diff(offsets) == 0)
    step = max(1, len(places) // most)
    return [int(i) for i in places[::step][:most]]


def _is_valid(targets: Ids, vocab: int) -> bool:
    return bool(
        len(targets) and targets.min() >= 0 and targets.max() < vocab and len(np.unique(targets)) == len(targets)
    )


def _why_not(d2t: Ids, as_offset: Ids, used: Ids | None, vocab: int) -> str:
    state = (
        "repeats a target token"
        if as_offset.min() >= 0 and as_offset.max() < vocab
        else f"reaches from {as_offset.min()} to {as_offset.max()} in a vocabulary of {vocab}"
    )
    if used is not None and _is_valid(as_offset, vocab):
        state = "does not give the tokens that t2d marks"
    return f"d2t, read as offsets, {state}, and does not fit as absolute ids either; restore it from the trainer"
