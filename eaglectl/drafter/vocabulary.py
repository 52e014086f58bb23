"""The draft vocabulary: d2t and t2d, read as numbers, without numpy, which takes longer to load than to save.

d2t is kept as offsets: draft token i proposes target token i + d2t[i] (vLLM llama_eagle3.py:385, SGLang,
SafeAILab).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import calcsize, pack, unpack
from typing import Any

from msgspec import Struct

from eaglectl.errors import OpenFactError, RefusedError

Ids = tuple[int, ...]
# codes of struct
_INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "U8": "B", "I8": "b", "BOOL": "?"}
_OTHERS = {"U64": "Q", "U32": "I", "U16": "H", "F64": "d", "F32": "f", "F16": "e"}
# what is no number, or too large for int64, is far outside of every vocabulary
_LIMIT = 2**62
# readings that make one table of the other (--fix-reading)
FROM_T2D, FROM_D2T = "d2t=from-t2d", "t2d=from-d2t"
BOTH_WHOLE = (
    "d2t and t2d are both whole and name other tokens, and lm_head was trained with one of them; pass"
    f" --fix-reading {FROM_T2D} or --fix-reading {FROM_D2T}; diagnose measures which of them"
)
ABSOLUTE = "d2t holds absolute ids"
BOTH_FIT = (
    "d2t may hold offsets or absolute ids, both fit and there is no t2d; pass --source-semantics d2t=offset"
    " or d2t=absolute"
)


class DraftVocabulary(Struct, frozen=True):
    """Target token of each draft token, [draft_vocab], and how that was found out."""

    targets: Ids
    how: str

    @property
    def offsets(self) -> Ids:
        """d2t as engines read it: the target less the draft token's own number."""
        return tuple(target - index for index, target in enumerate(self.targets))

    @property
    def is_identity(self) -> bool:
        """Whether draft token i is target token i for all i."""
        return self.targets == tuple(range(len(self.targets)))

    def selected(self, rows: Sequence[int], how: str) -> "DraftVocabulary":
        """The map of these draft tokens alone, in this order."""
        return DraftVocabulary(tuple(self.targets[row] for row in rows), how)

    def mask(self, vocab: int) -> bytes:
        """t2d: [vocab] bool, true for target tokens that have a draft token."""
        used = set(self.targets)
        return bytes(token in used for token in range(vocab))


def as_int64(numbers: Ids) -> bytes:
    """Whole numbers as engines and safetensors hold d2t: little-endian, 8 bytes each."""
    return pack(f"<{len(numbers)}q", *numbers)


def offsets_record(offsets: Ids) -> dict[str, str]:
    """What eaglectl.json states of a d2t that eaglectl wrote, and by which it is read again."""
    from hashlib import sha256  # late: it loads OpenSSL

    return {"meaning": "offset", "sha256": sha256(as_int64(offsets)).hexdigest()}


def recorded_meaning(record: Mapping[str, Any], d2t: Ids | None) -> str | None:
    """What d2t holds as eaglectl.json states it; None where it speaks of no d2t, or of another."""
    if d2t is None or "d2t" not in record or record["d2t"] != offsets_record(d2t):
        return None
    return "offset"


class Fault(Struct, frozen=True):
    """A fault of d2t or t2d: the name of the rule that reports it, and a message."""

    topic: str
    text: str
    tensor: str = "d2t"


def numbers(name: str, dtype: str, raw: bytes) -> Ids:
    """Raw little-endian data of an integer or boolean tensor; of t2d as floats too, where all are 0 or 1.

    Raises RefusedError for others, whose numbers a cast may have rounded.
    """
    if name == "t2d" and dtype in (*_OTHERS, "BF16") and set(marks := _floats(dtype, raw)) <= {0.0, 1.0}:
        return tuple(map(int, marks))
    if dtype not in _INTEGERS:
        raise RefusedError(
            f"{name} is {dtype}; whole numbers were expected (engines read int64)",
            "d2t-dtype",
            f"tensor:{name}",
        )
    return tuple(map(int, _unpacked(_INTEGERS[dtype], raw)))


def as_engines_read(name: str, dtype: str, raw: bytes) -> Ids:
    """Little-endian data as engines copy it into their int64 parameter: fractions are cut off.

    Raises RefusedError.
    """
    if dtype in (*_OTHERS, "BF16"):
        return tuple(map(_whole, _floats(dtype, raw)))
    return numbers(name, dtype, raw)


def _floats(dtype: str, raw: bytes) -> tuple[float, ...]:
    if dtype != "BF16":
        return _unpacked(_OTHERS[dtype], raw)
    words = _unpacked("H", raw)
    return _unpacked("f", pack(f"<{len(words)}I", *(word << 16 for word in words)))


def _unpacked(code: str, raw: bytes) -> tuple[Any, ...]:
    return unpack(f"<{len(raw) // calcsize(f'<{code}')}{code}", raw)


def _whole(value: float) -> int:
    if value != value:
        return -_LIMIT
    return int(min(max(value, -_LIMIT), _LIMIT))


def _marked(t2d: Ids | None) -> Ids | None:
    return None if t2d is None else tuple(token for token, mark in enumerate(t2d) if mark)


def identity(size: int) -> DraftVocabulary:
    """The map of a full vocabulary."""
    return DraftVocabulary(tuple(range(size)), "full vocabulary")


def from_tokens(tokens: Sequence[int], draft_vocab: int, vocab: int) -> DraftVocabulary:
    """The map of a trainer's list of target tokens, one for each lm_head row in order."""
    targets = tuple(tokens)
    if len(targets) != draft_vocab or not _is_valid(targets, vocab):
        raise RefusedError(
            f"the trainer's token list has {len(targets)} entries; {draft_vocab} different tokens below"
            f" {vocab} were needed"
        )
    return DraftVocabulary(targets, "from the trainer's token list")


def read_vocabulary(
    d2t: Ids | None, t2d: Ids | None, draft_vocab: int, vocab: int, answer: str | None = None
) -> DraftVocabulary:
    """The draft vocabulary from whichever of d2t [draft_vocab] and t2d [vocab] is there.

    Raises RefusedError where they are out of range, repeat a token or contradict each other; OpenFactError
    where d2t may be offsets or absolute ids and `answer` ("offset", "absolute") does not say.
    """
    used = _marked(t2d)
    if used is not None and len(used) != draft_vocab:
        raise RefusedError(_miscounted(len(used), draft_vocab), "draft-vocabulary-size", "tensor:t2d")
    if d2t is None:
        if used is None:
            raise RefusedError(
                f"d2t is missing and the draft vocabulary has {draft_vocab} of {vocab} tokens; engines would"
                f" propose the first {draft_vocab}: restore it from the trainer",
                "d2t-missing",
            )
        return DraftVocabulary(used, "from t2d")
    readings = _readings(d2t, used, vocab)
    fits = {kind: targets for kind, targets in readings.items() if answer in (None, kind)}
    if not fits:
        text = f"d2t does not fit as --source-semantics d2t={answer} says; leave it out"
        if not readings:
            states = " and ".join(fault.text for fault in _misfits(offset_targets(d2t), used, vocab))
            text = (
                f"d2t, read as offsets, {states}, and does not fit as absolute ids either; restore it from"
                " the trainer"
            )
        raise RefusedError(text, "d2t-range", "tensor:d2t")
    if len(fits) > 1 and any(d2t):
        raise OpenFactError(BOTH_FIT)
    kind, targets = next(iter(fits.items()))
    words = "d2t holds offsets" if kind == "offset" else ABSOLUTE
    return DraftVocabulary(targets, words + (", as t2d confirms" if used is not None else ""))


def offset_targets(d2t: Ids) -> Ids:
    """The target token of each draft token as engines take it from d2t: i + d2t[i]."""
    return tuple(index + offset for index, offset in enumerate(d2t))


def faults(d2t: Ids | None, t2d: Ids | None, draft_vocab: int, vocab: int) -> tuple[Fault, ...]:
    """The faults of d2t [draft_vocab], read as offsets as engines do, and of t2d [vocab]."""
    used = _marked(t2d)
    found: list[Fault] = []
    if used is not None and len(used) != draft_vocab:
        found.append(Fault("draft-vocabulary-size", _miscounted(len(used), draft_vocab), "t2d"))
        used = None
    return (*found, *([] if d2t is None else _faults_of_d2t(d2t, used, draft_vocab, vocab)))


def _faults_of_d2t(d2t: Ids, used: Ids | None, draft_vocab: int, vocab: int) -> list[Fault]:
    targets = offset_targets(d2t)
    readings = _readings(d2t, used, vocab)
    if draft_vocab < vocab and not any(d2t) and ("offset" not in readings or used is None):
        text = f"d2t is zeros: only the first {draft_vocab} of {vocab} tokens can be proposed"
        return [Fault("d2t-identity", text + ("" if used is None else ", and t2d marks others"))]
    if "offset" in readings:
        falls = [i for i, (first, second) in enumerate(pairwise(targets)) if second < first][:1]
        words = "d2t's targets do not ascend: draft token {} is {}, the next is {}"
        return [Fault("d2t-order", words.format(i, targets[i], targets[i + 1])) for i in falls]
    if "absolute" in readings:
        text = (
            f"d2t holds token ids ({d2t[0]} to {d2t[-1]}); engines add the draft token's own number to each,"
            f" and reach {max(targets)}"
        )
        return [Fault("d2t-absolute", text)]
    return [
        Fault(fault.topic, f"d2t, read as offsets, {fault.text}; it does not fit as token ids either")
        for fault in _misfits(targets, used, vocab)
    ]


def table_repairs(d2t: Ids | None, t2d: Ids, draft_vocab: int, vocab: int) -> tuple[str, ...]:
    """The readings that repair tables which do not fit each other: what is whole gives the other.

    Both readings where both tables are whole, so that nothing in the file shows which is right. `d2t` is None
    where its numbers are lost.
    """
    used = _marked(t2d)
    is_marked = used is not None and len(t2d) == vocab and len(used) == draft_vocab
    if d2t is None or len(d2t) != draft_vocab:
        return (FROM_T2D,) if is_marked else ()
    if is_marked and _readings(d2t, used, vocab):
        return ()
    # zeros are no map of a reduced vocabulary unless t2d marks the first tokens
    is_mapped = any(d2t) and _is_valid(offset_targets(d2t), vocab)
    return ((FROM_T2D,) if is_marked else ()) + ((FROM_D2T,) if is_mapped else ())


def is_of_two_meanings(d2t: Ids, t2d: Ids | None, vocab: int) -> bool:
    """Whether d2t fits as offsets and as absolute ids, with no t2d to tell."""
    return t2d is None and any(d2t) and len(_readings(d2t, None, vocab)) > 1


def _readings(d2t: Ids, used: Ids | None, vocab: int) -> dict[str, Ids]:
    return {
        kind: targets
        for kind, targets in (("offset", offset_targets(d2t)), ("absolute", d2t))
        if _is_valid(targets, vocab)
        and (used is None or tuple(sorted(targets)) == used)
        and (
            used is not None or kind == "offset" or all(first < second for first, second in pairwise(targets))
        )
    }


def _miscounted(marked: int, draft_vocab: int) -> str:
    return (
        f"t2d marks {marked} target tokens and the draft vocabulary has {draft_vocab}; restore both from the"
        " trainer"
    )


def _misfits(targets: Ids, used: Ids | None, vocab: int) -> list[Fault]:
    """Why `targets` are no draft vocabulary, each text to follow "d2t, read as offsets,"."""
    inside = [target for target in targets if 0 <= target < vocab]
    found = []
    if outside := len(targets) - len(inside):
        span = f"reaches from {min(targets)} to {max(targets)} in a vocabulary of {vocab}"
        found.append(Fault("d2t-range", f"{span} ({outside} tokens are outside)"))
    if repeated := _repeats(inside):
        found.append(
            Fault("d2t-unique", f"repeats a target token ({repeated} of {len(targets)} are another's too)")
        )
    if not found and used is not None and (others := len(set(targets).difference(used))):
        found.append(Fault("d2t-t2d", f"does not give the tokens that t2d marks ({others} are others)"))
    return found


def row_copies(rows: list[tuple[bytes, bytes]]) -> bool:
    """Whether every pair of lm_head rows is one row twice, and no pair is zeros.

    This is the fault of TorchSpec's pruning (tools/convert_to_hf.py).
    """
    return bool(rows) and all(one == other and any(one) for one, other in rows)


def repeated_offsets(offsets: Ids, most: int) -> list[int]:
    """Up to `most` places i, spread over the table, where d2t[i] == d2t[i+1]."""
    places = [i for i, (first, second) in enumerate(pairwise(offsets)) if first == second]
    return places[:: max(1, len(places) // most)][:most]


def _repeats(ids: Sequence[int]) -> int:
    return len(ids) - len(set(ids))


def _is_valid(targets: Ids, vocab: int) -> bool:
    return bool(targets) and min(targets) >= 0 and max(targets) < vocab and not _repeats(targets)
