"""The tokens that a drafter proposes and looks up, compared with those of the target."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec.structs import replace

from eaglectl.drafter.drafter import Note, Target
from eaglectl.drafter.tensors import Dimensions, Tensor, offset_targets
from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files.budgets import TOKENIZER_ENTRIES
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import parse_json
from eaglectl.files.source import Source
from eaglectl.formats.tables import stored_numbers

BELONGS = "check that it belongs to this target"
EMBEDDING = "embed_tokens.weight"
# frameworks pad an embedding to a multiple of this (vLLM's DEFAULT_VOCAB_PADDING_SIZE; Megatron's is 128)
PADDING = 64
# rows that no tokenizer gives: 1069 of gpt-oss, 465 of DeepSeek-V3, 267 of Qwen3
MOST_PADDING = 2048


def token_ids(name: str, raw: bytes) -> Mapping[str, int]:
    """Return the id of each token of a tokenizer.json. Raises UnreadableError if it has no vocabulary."""
    tokenizer = parse_json(name, raw, most=TOKENIZER_ENTRIES)
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # of a Unigram model
        vocab = {str(entry[0]): i for i, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    if not isinstance(vocab, dict):
        raise UnreadableError(f"{name} has no vocabulary to compare", "target-tokenizer")
    added = tokenizer.get("added_tokens")
    return vocab | {
        entry["content"]: entry["id"]
        for entry in (added if isinstance(added, list) else ())
        if isinstance(entry, dict) and type(entry.get("id")) is int and isinstance(entry.get("content"), str)
    }


def token_count(files: Source, rows: int) -> int | None:
    """Return one more than the largest id that a tokenizer gives.

    Without a tokenizer.json only its added tokens are known: None if these are all below `rows`.
    """
    count, is_whole = 0, False
    with suppress(EaglectlError):
        if (name := "tokenizer.json") in files.names():
            count, is_whole = _past(token_ids(name, files.read(name)).values()), True
    for name, key in (("tokenizer_config.json", "added_tokens_decoder"), ("added_tokens.json", "")):
        with suppress(EaglectlError):
            value = parse_json(name, files.read(name)) if name in files.names() else {}
            added = value.get(key) if key and isinstance(value, dict) else value
            if isinstance(added, dict):
                ids = [int(token) for token in added if token.isdecimal()] if key else added.values()
                count = max(count, _past(ids))
    return count if is_whole or count > rows else None


def _past(ids: Iterable[object]) -> int:
    return max((token + 1 for token in ids if type(token) is int), default=0)


def _proposed(checkpoint: Checkpoint, dims: Dimensions, tensors: Mapping[str, Tensor]) -> int | None:
    # one more than the largest token that it proposes; None if no table can be read
    if dims.draft_vocab >= dims.vocab:
        return dims.draft_vocab
    with suppress(EaglectlError):
        if d2t := tensors.get("d2t"):
            offsets = stored_numbers(checkpoint, d2t)
            count = _past(offset_targets(offsets))
            return count if count <= dims.vocab else _past(offsets)  # ids in the place of offsets
        if t2d := tensors.get("t2d"):
            marks = stored_numbers(checkpoint, t2d)
            return _past(token for token, mark in enumerate(marks) if mark)
    return None


def with_tokens(target: Target, dims: Dimensions) -> Target:
    """Return the target without its files, and with its tokenizer's count if it has more rows than `dims`."""
    if target.files is None:
        return target
    is_larger = (target.vocab or 0) > dims.vocab
    return replace(target, tokens=token_count(target.files, dims.vocab) if is_larger else None, files=None)


def can_be_padding(more: int, tokens: int) -> bool:
    """Whether `more` rows beside a vocabulary of `tokens` are few enough to be padding."""
    return more <= min(MOST_PADDING, tokens // 2)


def vocabulary_notes(
    checkpoint: Checkpoint, dims: Dimensions, tensors: Mapping[str, Tensor], target: Target
) -> Iterator[Note]:
    """Yield how a drafter's vocabulary does not fit the target's; nothing if only padding differs."""
    rows, tokens = target.vocab, target.tokens
    if rows is None or rows == dims.vocab:
        return
    sizes = f"the target has {rows} tokens and this drafter was made for {dims.vocab}"
    if rows < dims.vocab:
        proposed = _proposed(checkpoint, dims, tensors)
        if proposed is None:
            yield Note("warning", "target", f"{sizes}; {BELONGS}", "target-vocabulary-size")
        elif proposed > rows:
            sizes += f", and proposes tokens up to {proposed - 1}"
            looked_up = "engines look them up in the target's embedding"
            yield Note("problem", "target", f"{sizes}: {looked_up}; {BELONGS}", "target-vocabulary")
        return
    if tokens is None:
        is_padding = (
            can_be_padding(rows - dims.vocab, dims.vocab) and rows % PADDING == 0 and EMBEDDING not in tensors
        )
        unknown = "; its tokenizer, which decides whether this is padding, is not known"
    else:
        is_padding, unknown = tokens <= dims.vocab, f", and its tokenizer gives ids up to {tokens - 1}"
    if not is_padding:
        yield Note("warning", "target", f"{sizes}{unknown}; {BELONGS}", "target-vocabulary-size")
