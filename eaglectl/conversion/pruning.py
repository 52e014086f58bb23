"""A smaller draft vocabulary: which tokens stay, by how often they were counted; the rows of lm_head move, nothing is computed."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglectl.conversion.plan import Pruning
from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.vocabulary import DraftVocabulary
from eaglectl.errors import Refused, Unreadable, Usage

SMALL_SHARE = 0.9  # of the tokens counted; a drafter stops at every token that it has no row for
FORMS = 'a JSON object {"id": count}, a JSON array with a count for every id, or a line "id count" for each'


@dataclass(frozen=True, slots=True)
class Counts:
    """How often each token was counted, all of them together, and the file's digest."""

    of: Mapping[int, int]
    total: int
    name: str
    digest: str

    def share(self, tokens: Iterable[int]) -> float:
        """What share of the tokens counted are among these."""
        return sum(self.of.get(token, 0) for token in tokens) / self.total


@dataclass(frozen=True, slots=True)
class Pruned:
    """The drafter with fewer rows, their tokens, what to tell, and what eaglectl.json keeps."""

    drafter: Drafter
    vocabulary: DraftVocabulary
    notes: tuple[Note, ...]
    record: Mapping[str, Any]


def pruned(drafter: Drafter, vocabulary: DraftVocabulary, asked: Pruning) -> Pruned:
    """The drafter with its most counted tokens, sorted by target id. Raises Usage for what makes no sense, Refused for what cannot be."""
    have, head = drafter.dims.draft_vocab, drafter.tensors.get("lm_head.weight")
    if not 0 < asked.size < have:
        raise Usage(
            f"--draft-vocab {asked.size}: this drafter has {have} tokens, and there are no rows to add; give a number below {have}"
        )
    if head is None:
        raise Refused(
            "this drafter has no lm_head of its own and drafts with the target's, so it has no rows to leave out; pass"
            " --materialize-lm-head with --target"
        )
    counts = read_counts(asked.counts, drafter.dims.vocab)
    rows = {target: row for row, target in enumerate(vocabulary.targets.tolist())}
    kept = [token for token in asked.kept or () if token in rows]
    if len(kept) > asked.size:
        raise Usage(
            f"--draft-vocab {asked.size}: {len(kept)} special tokens stay whatever was counted; give at least {len(kept)}"
        )
    tokens = chosen(counts.of, rows, asked.size, kept)
    found = vocabulary.selected(
        [rows[token] for token in tokens], f"the {asked.size} most counted tokens of {counts.name}"
    )
    tensors = {**drafter.tensors, head.name: head.with_rows([rows[token] for token in tokens])}
    before, after = counts.share(rows), counts.share(tokens)
    record = {
        "draft_vocab": asked.size, "of": have, "share": after, "share_before": before, "counts": counts.name, "sha256": counts.digest,
        "tokens_counted": counts.total, "always_kept": kept,
    }  # fmt: skip
    return Pruned(
        replace(drafter, tensors=tensors, dims=replace(drafter.dims, draft_vocab=asked.size)),
        found,
        tuple(_told(asked, counts, rows, tokens, record)),
        {"pruning": record},
    )


def chosen(counts: Mapping[int, int], candidates: Iterable[int], size: int, kept: Sequence[int] = ()) -> list[int]:
    """The `size` candidates with the highest counts, those to be kept among them, in ascending order; of equals the lower id."""
    others = sorted(set(candidates) - set(kept), key=lambda token: (-counts.get(token, 0), token))
    return sorted([*kept, *others[: size - len(kept)]])


def _told(
    asked: Pruning, counts: Counts, rows: Mapping[int, int], tokens: Sequence[int], record: Mapping[str, Any]
) -> Iterator[Note]:  # fmt: skip
    have, before, after = record["of"], record["share_before"], record["share"]
    was = "" if before == 1.0 else f", {before:.2%} before"
    yield Note(
        "note" if after >= SMALL_SHARE else "warning",
        "draft_vocab_size",
        f"{asked.size} of {have} tokens stay; they are {after:.2%} of the {counts.total:,} counted in {counts.name}{was}"
        + ("" if after >= SMALL_SHARE else ": every other token ends a draft; give a larger --draft-vocab"),
    )
    if unseen := sum(not counts.of.get(token) for token in set(tokens) - set(asked.kept or ())):
        yield Note("warning", "draft_vocab_size", f"{unseen} of the {asked.size} were never counted and fill it up, the lowest ids first; count more text, or give a smaller --draft-vocab")  # fmt: skip
    if asked.kept is None:
        yield Note("warning", "draft_vocab_size", "which tokens end an answer is not known, and they may be gone; pass --target, whose configs name them")  # fmt: skip
    elif not asked.kept:
        yield Note("warning", "draft_vocab_size", "the target's config.json and generation_config.json name no bos_token_id and no eos_token_id; they may be gone")  # fmt: skip
    elif missing := [token for token in asked.kept if token not in rows]:
        yield Note("warning", "draft_vocab_size", f"the target's special tokens {missing} have no row in this drafter; it never drafts them")  # fmt: skip


def read_counts(path: Path, vocab: int) -> Counts:
    """Counts by token id: a JSON object, a JSON array, or lines "id count". Raises Unreadable, or Usage with what is wrong where."""
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"--token-counts {path}: {error}") from None
    where = f"--token-counts {path}"
    found: dict[int, int] = {}
    for place, token, count in _pairs(text, where):
        if token >= vocab:
            raise Usage(
                f"{where}{place}: token {token} is outside of this drafter's vocabulary of {vocab}; these are counts of another one"
            )
        if token in found:
            raise Usage(f"{where}{place}: token {token} is counted twice; give each token once")
        found[token] = count
    if not any(found.values()):
        raise Usage(f"{where} counts nothing; {FORMS} was expected")
    return Counts(found, sum(found.values()), path.name, hashlib.sha256(raw).hexdigest())


def _pairs(text: str, where: str) -> Iterator[tuple[str, int, int]]:
    """Where it stands, a token and its count, as the file lists them."""
    if text.lstrip()[:1] not in ("{", "["):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield _of_line(line, where, f", line {number}")
        return
    try:
        value = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise Usage(f"{where} is not JSON: {error}") from None
    if text.lstrip()[0] == "[":
        yield from (
            (f", entry {token}", token, _count(count, where, f", entry {token}")) for token, count in enumerate(value)
        )
        return
    for key, count in value:
        yield f", key {key[:50]!r}", _token(key, where, ""), _count(count, where, f", key {key[:50]!r}")


def _of_line(line: str, where: str, place: str) -> tuple[str, int, int]:
    fields = re.split(r"[\s,;]+", line.strip())
    if len(fields) != 2:
        raise Usage(f'{where}{place} is {line.strip()[:50]!r}; "id count" was expected')
    if not re.fullmatch(r"-?[0-9]{1,18}", fields[1]):
        raise Usage(f"{where}{place}: {fields[1][:50]!r} is no count; a whole number was expected")
    return place, _token(fields[0], where, place), _count(int(fields[1]), where, place)


def _token(text: str, where: str, place: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Usage(f"{where}{place}: {text[:50]!r} is no token id; counts go by id, not by text")
    return int(text)


def _count(value: object, where: str, place: str) -> int:
    if type(value) is not int:
        raise Usage(f"{where}{place}: {str(value)[:50]!r} is no count; a whole number was expected")
    if value < 0:
        raise Usage(f"{where}{place}: a count of {value}; counts begin at 0")
    return value
