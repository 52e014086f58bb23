"""d2t and t2d as a checkpoint stores them, and the readings that repair them."""

from collections.abc import Mapping
from contextlib import suppress

from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import FROM_T2D, Ids, Tensor, is_rolled, numbers, table_repairs
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.catalogue import by_name

# rows by which d2t may stand late; its numbers as stored, or the token ids that they give
MOST_ROWS, TABLE_ROWS, TABLE_TOKENS = 8, "d2t-rows", "d2t-tokens"
LATE: Mapping[str, int] = {
    f"{count}-{side}": count * sign
    for count in range(1, MOST_ROWS + 1)
    for side, sign in (("late", 1), ("early", -1))
}


def table_readings(checkpoint: Checkpoint, drafter: Drafter) -> tuple[str, ...]:
    """Return the readings of --fix-reading that repair d2t or t2d; both if either may be right.

    Readings by t2d are left out if lm_head's rows are not in its order.
    """
    d2t, t2d = drafter.tensors.get("d2t"), drafter.tensors.get("t2d")
    if d2t is None or not drafter.has_reduced_vocabulary:
        return ()
    offsets, size, vocab = None, drafter.dims.draft_vocab, drafter.dims.vocab
    try:
        mask = None if t2d is None else stored_numbers(checkpoint, t2d)
    except RefusedError:
        return ()
    with suppress(RefusedError):  # rounded
        offsets = stored_numbers(checkpoint, d2t)
    readings = () if mask is None else table_repairs(offsets, mask, size, vocab)
    if FROM_T2D in readings and by_name(drafter.producer).has_unordered_rows:
        readings = ()
    if readings or offsets is None or len(offsets) != size:
        return readings
    rolled = [
        f"{TABLE_ROWS}={value}"
        for value, late in LATE.items()
        if is_rolled(offsets, late, vocabulary_marks(checkpoint, drafter), vocab)
    ]
    return tuple(rolled) if len(rolled) == 1 else ()


def marked_tokens(checkpoint: Checkpoint, drafter: Drafter) -> tuple[int, ...]:
    """Return the tokens that t2d marks, if d2t is intact too and names others; else none."""
    if len(table_readings(checkpoint, drafter)) < 2:
        return ()
    return vocabulary_marks(checkpoint, drafter) or ()


def stored_numbers(checkpoint: Checkpoint, tensor: Tensor) -> Ids:
    """Return the whole numbers of a table. Raises RefusedError where they are none."""
    return numbers(tensor.name, tensor.dtype, checkpoint.read(tensor.stored[0]))


def vocabulary_marks(checkpoint: Checkpoint, drafter: Drafter) -> Ids | None:
    """Return the tokens that t2d marks; None without it."""
    if (t2d := drafter.tensors.get("t2d")) is None:
        return None
    return tuple(token for token, mark in enumerate(stored_numbers(checkpoint, t2d)) if mark)
