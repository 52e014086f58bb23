"""A smaller draft vocabulary: the tokens with the highest counts stay; rows of lm_head move."""

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
from eaglectl.drafter.vocabulary import DraftVocabulary
from eaglectl.errors import OptionNeededError, UnreadableError, UsageError, check
from eaglectl.files.files import MIB, read_small_file

MAX_COUNTS = 256 * MIB
SMALL_SHARE = 0.9  # of the counts; a drafter stops at every token that it has no row for
FORMS = 'a JSON object {"id": count}, a JSON array with a count for every id, or a line "id count" for each'


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
    uncounted = sum(not counts.by_token.get(token) for token in set(tokens) - set(request.kept or ()))
    missing = [token for token in request.kept or () if token not in rows]
    notes = _notes(counts, record, uncounted, request.kept, missing)
    fewer = vocabulary.selected(kept_rows, f"the {size} most counted tokens of {counts.name}")
    return TransformedDrafter(smaller, tuple(notes), {"pruning": record}), fewer


def most_counted(
    counts: Mapping[int, int], candidates: Iterable[int], size: int, kept: Sequence[int] = ()
) -> list[int]:
    """`kept` and the candidates with the highest counts, `size` in all; of equal counts the lower id."""
    others = sorted(set(candidates) - set(kept), key=lambda token: (-counts.get(token, 0), token))
    return sorted([*kept, *others[: size - len(kept)]])


def _notes(
    counts: Counts,
    record: Mapping[str, Any],
    uncounted: int,
    kept: Sequence[int] | None,
    missing: Sequence[int],
) -> Iterator[Note]:
    """`kept`: the target's special tokens (None: not known); `missing`: those without a row here."""
    about, before, after = "draft_vocab_size", record["share_before"], record["share"]
    text = (
        f"{record['draft_vocab']} of {record['of']} tokens stay; they are {after:.2%} of the {counts.total:,}"
        f" counted in {counts.name}{f', {before:.2%} before' if before != 1.0 else ''}"
    )
    if after >= SMALL_SHARE:
        yield Note("note", about, text)
    else:
        more = ": every other token ends a draft; give a larger --draft-vocab"
        yield Note("warning", about, text + more)
    warnings = (
        (
            uncounted,
            f"{uncounted} of the {record['draft_vocab']} were never counted and fill it up, the lowest ids"
            " first; count more text, or give a smaller --draft-vocab",
        ),
        (
            kept is None,
            "which tokens end an answer is not known, and they may be gone; pass --target, whose configs name"
            " them",
        ),
        (
            kept is not None and not kept,
            "the target's config.json and generation_config.json name no bos_token_id and no eos_token_id;"
            " they may be gone",
        ),
        (
            missing,
            f"the target's special tokens {list(missing)} have no row in this drafter; it never drafts them",
        ),
    )
    yield from (Note("warning", about, text) for is_there, text in warnings if is_there)


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
    for place, token, count in _entries(text, where):
        place, number = f"{where}{place}", int(token) if re.fullmatch(r"[0-9]{1,18}", token) else -1
        check(
            (number < 0, f"{place}: no token id; counts go by id, not by text"),
            (
                number >= vocab,
                f"{place}: token {number} is outside of this drafter's vocabulary of {vocab}; these are"
                " counts of another one",
            ),
            (number in counts, f"{place}: token {number} is counted twice; give each token once"),
        )
        if type(count) is not int:
            raise UsageError(f"{place}: no count; a whole number was expected")
        if count < 0:
            raise UsageError(f"{place}: a count of {count}; counts begin at 0")
        counts[number] = count
    if not any(counts.values()):
        raise UsageError(f"{where} counts nothing; {FORMS} was expected")
    return Counts(counts, sum(counts.values()), path.name, hashlib.sha256(raw).hexdigest())


# no message has what the file says: it may be any file, of secrets too
def _entries(text: str, where: str) -> Iterator[tuple[str, str, object]]:
    """The place of each entry in the file, its token and its count, which may be none."""
    first = text.lstrip()[:1]
    if first not in ("{", "["):
        for number, line in enumerate(text.splitlines(), 1):
            fields = re.split(r"[\s,;]+", line.strip())
            if fields == [""]:
                continue
            if len(fields) != 2:
                raise UsageError(f'{where}, line {number}: {len(fields)} words; "id count" was expected')
            is_number = re.fullmatch(r"-?[0-9]{1,18}", fields[1])
            yield f", line {number}", fields[0], int(fields[1]) if is_number else fields[1]
        return
    try:
        value = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if first == "[":
        yield from ((f", entry {token}", str(token), count) for token, count in enumerate(value))
    else:
        yield from ((f", key {number}", key, count) for number, (key, count) in enumerate(value, 1))
