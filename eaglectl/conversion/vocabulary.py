"""The draft vocabulary of a conversion: read from d2t and t2d, and made smaller by counts of tokens."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.conversion.plan import TransformedDrafter
from eaglectl.conversion.request import Pruning
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Tensor
from eaglectl.drafter.vocabulary import (
    BOTH_WHOLE,
    FROM_T2D,
    DraftVocabulary,
    Ids,
    from_tokens,
    identity,
    numbers,
    read_vocabulary,
    recorded_meaning,
    repeated_offsets,
    row_copies,
    table_repairs,
)
from eaglectl.errors import OpenFactError, OptionNeededError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import MIB, read_small_file
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers

SAMPLED_ROWS = 64
MAX_COUNTS = 256 * MIB
SMALL_SHARE = 0.9  # of the counts; a drafter stops at every token that it has no row for
FORMS = 'a JSON object {"id": count}, a JSON array with a count for every id, or a line "id count" for each'


def draft_vocabulary(
    checkpoint: Checkpoint, drafter: Drafter, answers: Answers, selected: Sequence[int] | None
) -> DraftVocabulary:
    """The draft vocabulary; `selected` are the token ids of a trainer's side file, for files without d2t.

    Raises RefusedError for tables that are broken or contradict each other, OpenFactError where that is a
    question: with the reading of --fix-reading that repairs them, if there is one.
    """
    dims = drafter.dims
    d2t, t2d = (_own_table(drafter, name) for name in ("d2t", "t2d"))
    producer = by_name(drafter.producer)
    if d2t is None and selected is None and t2d is not None and producer.has_unordered_rows:
        raise RefusedError(
            f"d2t is missing, and {producer.title}'s lm_head rows are not in the order of t2d;"
            " restore d2t, or put speculative_token_map.pt beside the weights"
        )
    if d2t is None and (t2d is None or selected is not None):
        if not drafter.has_reduced_vocabulary:
            return identity(dims.vocab)
        if selected is not None:
            return from_tokens(selected, dims.draft_vocab, dims.vocab)
    try:
        offsets, mask = _stored_numbers(checkpoint, d2t), _stored_numbers(checkpoint, t2d)
        answer = answers.semantics.get("d2t", recorded_meaning(checkpoint.record, offsets))
        vocabulary = read_vocabulary(offsets, mask, dims.draft_vocab, dims.vocab, answer)
    except RefusedError as refusal:
        readings, place = table_readings(checkpoint, drafter), (refusal.topic, refusal.where)
        if len(readings) > 1:
            raise OpenFactError(BOTH_WHOLE, *place) from None
        if readings:
            raise OptionNeededError(
                f"{refusal}; or pass --fix-reading {readings[0]}, as that table is whole", *place
            ) from None
        raise
    _refuse_copied_rows(checkpoint, drafter, vocabulary)
    return vocabulary


def _own_table(drafter: Drafter, name: str) -> Tensor | None:
    """d2t or t2d where it has numbers of its own: not made of the other (--fix-reading)."""
    tensor = drafter.tensors.get(name)
    return tensor if tensor and tensor.stored[0].endswith(name) else None


def _refuse_copied_rows(checkpoint: Checkpoint, drafter: Drafter, vocabulary: DraftVocabulary) -> None:
    head = checkpoint.tensors.get("lm_head.weight")
    if head is not None and drafter.has_reduced_vocabulary:
        repeated, size = repeated_offsets(vocabulary.offsets, SAMPLED_ROWS), head.row_bytes
        pairs = (checkpoint.read(head.name, row * size, (row + 2) * size) for row in repeated)
        if row_copies([(pair[:size], pair[size:]) for pair in pairs]):
            raise RefusedError(
                "lm_head.weight repeats its row wherever d2t repeats its offset: it was pruned by rows of"
                " d2t, not of i + d2t (TorchSpec's pruning fault); export again from the unpruned checkpoint"
            )


def table_readings(checkpoint: Checkpoint, drafter: Drafter) -> tuple[str, ...]:
    """The readings of --fix-reading that repair d2t or t2d; both where nothing shows which of them is right.

    None that t2d gives where lm_head's rows are not in its order.
    """
    d2t, t2d = drafter.tensors.get("d2t"), drafter.tensors.get("t2d")
    if d2t is None or t2d is None or not drafter.has_reduced_vocabulary:
        return ()
    try:
        mask = _stored_numbers(checkpoint, t2d)
    except RefusedError:
        return ()
    try:
        offsets = _stored_numbers(checkpoint, d2t)
    except RefusedError:  # rounded
        offsets = None
    assert mask is not None
    readings = table_repairs(offsets, mask, drafter.dims.draft_vocab, drafter.dims.vocab)
    return () if FROM_T2D in readings and by_name(drafter.producer).has_unordered_rows else readings


def marked_tokens(checkpoint: Checkpoint, drafter: Drafter) -> tuple[int, ...]:
    """The tokens that t2d marks, where d2t is whole too and names others; else none."""
    if len(table_readings(checkpoint, drafter)) < 2:
        return ()
    t2d = _stored_numbers(checkpoint, drafter.tensors["t2d"])
    assert t2d is not None
    return tuple(token for token, mark in enumerate(t2d) if mark)


def _stored_numbers(checkpoint: Checkpoint, tensor: Tensor | None) -> Ids | None:
    if tensor is None:
        return None
    return numbers(tensor.name, tensor.dtype, checkpoint.read(tensor.stored[0]))


class Counts(Struct, frozen=True):
    """How often each token was counted, the sum of all counts, and the file's name and digest."""

    by_token: Mapping[int, int]
    total: int
    name: str
    digest: str

    def share(self, tokens: Iterable[int]) -> float:
        """The share of the counts that these tokens have."""
        return sum(self.by_token.get(token, 0) for token in tokens) / self.total


def pruned(
    drafter: Drafter, vocabulary: DraftVocabulary, request: Pruning
) -> tuple[TransformedDrafter, DraftVocabulary]:
    """The drafter with its most counted tokens, sorted by target id, and their vocabulary.

    Raises UsageError for a size that does not fit, RefusedError for a drafter without an lm_head.
    """
    have, size = drafter.dims.draft_vocab, request.size
    head = drafter.tensors.get("lm_head.weight")
    if not 0 < size < have:
        raise UsageError(
            f"--draft-vocab {size}: this drafter has {have} tokens, and there are no rows to add; give a"
            f" number below {have}"
        )
    if head is None:
        raise OptionNeededError(
            "this drafter has no lm_head of its own and drafts with the target's, so it has no rows to leave"
            " out; pass --materialize-lm-head with --target"
        )
    counts = read_counts(request.counts, drafter.dims.vocab)
    rows = {target: row for row, target in enumerate(vocabulary.targets)}
    kept = [token for token in request.kept or () if token in rows]
    if len(kept) > size:
        raise UsageError(
            f"--draft-vocab {size}: {len(kept)} special tokens stay whatever was counted; give at least"
            f" {len(kept)}"
        )
    tokens = most_counted(counts.by_token, rows, size, kept)
    kept_rows = [rows[token] for token in tokens]
    record = {
        "draft_vocab": size,
        "of": have,
        "share": counts.share(tokens),
        "share_before": counts.share(rows),
        "counts": counts.name,
        "sha256": counts.digest,
        "tokens_counted": counts.total,
        "always_kept": kept,
    }
    smaller = replace(
        drafter,
        tensors={**drafter.tensors, head.name: head.with_rows(kept_rows)},
        dims=replace(drafter.dims, draft_vocab=size),
    )
    notes = tuple(_notes(counts, tokens, rows, request.kept))
    fewer = vocabulary.selected(kept_rows, f"the {size} most counted tokens of {counts.name}")
    return TransformedDrafter(smaller, notes, {"pruning": record}), fewer


def _notes(
    counts: Counts, tokens: Sequence[int], rows: Mapping[int, int], special: Sequence[int] | None
) -> Iterator[Note]:
    """What share stays, and what may be wrong with it; `special` are the target's (None: not known)."""
    about, before, after = "draft_vocab_size", counts.share(rows), counts.share(tokens)
    text = (
        f"{len(tokens)} of {len(rows)} tokens stay; they are {after:.2%} of the {counts.total:,} counted in"
        f" {counts.name}{f', {before:.2%} before' if before != 1.0 else ''}"
    )
    if after >= SMALL_SHARE:
        yield Note("note", about, text)
    else:
        more = ": every other token ends a draft; give a larger --draft-vocab"
        yield Note("warning", about, text + more)
    uncounted = sum(not counts.by_token.get(token) for token in set(tokens) - set(special or ()))
    missing = [token for token in special or () if token not in rows]
    warnings = (
        (
            uncounted,
            f"{uncounted} of the {len(tokens)} were never counted and fill it up, the lowest ids first; count"
            " more text, or give a smaller --draft-vocab",
        ),
        (
            special is None,
            "which tokens end an answer is not known, and they may be gone; pass --target, whose configs name"
            " them",
        ),
        (
            special is not None and not special,
            "the target's config.json and generation_config.json name no bos_token_id and no eos_token_id;"
            " they may be gone",
        ),
        (
            missing,
            f"the target's special tokens {missing} have no row in this drafter; it never drafts them",
        ),
    )
    yield from (Note("warning", about, text) for is_there, text in warnings if is_there)


def most_counted(
    counts: Mapping[int, int], candidates: Iterable[int], size: int, kept: Sequence[int] = ()
) -> list[int]:
    """`kept` and the candidates with the highest counts, `size` in all; of equal counts the lower id."""
    others = sorted(set(candidates) - set(kept), key=lambda token: (-counts.get(token, 0), token))
    return sorted([*kept, *others[: size - len(kept)]])


def read_counts(path: Path, vocab: int) -> Counts:
    """Counts by token id: a JSON object, a JSON array, or lines "id count".

    Raises UnreadableError for a file that cannot be read, UsageError with the place of what is wrong in it.
    """
    where = f"--token-counts {path}"
    raw = read_small_file(path, MAX_COUNTS, "--token-counts")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{where}: {error}") from None
    counts: dict[int, int] = {}
    for place, *fields in _entries(text, where):
        place, count = f"{where}, {place}", fields[-1]
        token = int(fields[0]) if re.fullmatch(r"[0-9]{1,18}", fields[0]) else -1
        is_count = type(count) is int
        check(
            (len(fields) != 2, f'{place}: {len(fields)} words; "id count" was expected'),
            (token < 0, f"{place}: no token id; counts go by id, not by text"),
            (
                token >= vocab,
                f"{place}: token {token} is outside of this drafter's vocabulary of {vocab}; these are"
                " counts of another one",
            ),
            (token in counts, f"{place}: token {token} is counted twice; give each token once"),
            (not is_count, f"{place}: no count; a whole number was expected"),
            (is_count and count < 0, f"{place}: a count of {count}; counts begin at 0"),
        )
        counts[token] = count
    if not any(counts.values()):
        raise UsageError(f"{where} counts nothing; {FORMS} was expected")
    return Counts(counts, sum(counts.values()), path.name, hashlib.sha256(raw).hexdigest())


# no message has what the file says: it may be any file, of secrets too
def _entries(text: str, where: str) -> Iterator[tuple[Any, ...]]:
    """The place of each entry in the file, its token and its count, which may be none."""
    first = text.lstrip()[:1]
    if first not in ("{", "["):
        for number, line in enumerate(text.splitlines(), 1):
            if words := re.sub("[,;]", " ", line).split():
                numbers = (int(word) if re.fullmatch("-?[0-9]{1,18}", word) else word for word in words[1:])
                yield f"line {number}", words[0], *numbers
        return
    try:
        value = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if first == "[":
        yield from ((f"entry {token}", str(token), count) for token, count in enumerate(value))
    else:
        yield from ((f"key {number}", key, count) for number, (key, count) in enumerate(value, 1))
