"""Rules on the draft vocabulary: d2t and t2d as numbers, their sizes, and the tokens that matter."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from eaglectl.checkpoint.header import parse_json
from eaglectl.checkpoint.source import Source
from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

if TYPE_CHECKING:
    from eaglectl.drafter.vocabulary import Fault, Ids

# the largest whole number below which a dtype holds every one
EXACT: Mapping[str, int] = {
    "I64": 2**63, "U64": 2**64, "I32": 2**31, "U32": 2**32, "I16": 2**15, "U16": 2**16, "I8": 2**7, "U8": 2**8, "BOOL": 2,
    "F64": 2**53, "F32": 2**24, "F16": 2**11, "BF16": 2**8,
}  # fmt: skip
# tokens of a chat template without which a drafter stops short at every turn of thought or call of a tool
TURNS = re.compile(r"</?\|?(think|tool_calls?|tool_response)\|?>")


@rule("EGL301", "draft-vocabulary-size", "error")
def draft_vocabulary_size(subject: Subject) -> Iterator[Hit]:
    """lm_head, d2t and t2d have one size of draft vocabulary, and it is not larger than the target's.

    Trainers count the tokens they saw; where these were fewer than asked, tables of two sizes are saved, and the rows of
    lm_head belong to other tokens than d2t says.

    Fix: restore lm_head, d2t and t2d of one training run.
    """
    dims, vocab = subject.drafter.dims, _target_tokens(subject)
    if dims.draft_vocab > vocab:
        text = f"the draft vocabulary has {dims.draft_vocab} tokens and the target's {vocab}"
        yield Hit(text, "config.json:vocab_size")
        return
    yield from _found(subject, "draft-vocabulary-size")


@rule("EGL302", "d2t-range", "error")
def d2t_range(subject: Subject) -> Iterator[Hit]:
    """Every draft token maps to a token of the target's vocabulary.

    Engines compute i + d2t[i] for draft token i and index with it: a number past the vocabulary stops the engine at the
    first draft, a negative one counts from the end in silence.

    Fix: restore d2t from the trainer; where only vocab_size is wrong (it must be the target's), correct it.
    """
    for hit in _found(subject, "d2t-range"):
        dims = subject.drafter.dims
        is_full = dims.vocab == dims.draft_vocab
        doubt = "; is vocab_size the draft vocabulary's? it must be the target's" if is_full else ""
        yield Hit(hit.message + doubt, hit.where)


@rule("EGL303", "d2t-unique", "error")
def d2t_unique(subject: Subject) -> Iterator[Hit]:
    """No two draft tokens map to one target token.

    A table with repeats was not made by counting tokens: rows of lm_head point at tokens that they were not trained for.

    Fix: restore d2t from the trainer.
    """
    yield from _found(subject, "d2t-unique")


@rule("EGL304", "d2t-order", "note")
def d2t_order(subject: Subject) -> Iterator[Hit]:
    """The target tokens of d2t ascend.

    Engines do not mind, but t2d says nothing of order: whoever rebuilds d2t from it, as many tools do, gets another map.
    NeMo Automodel orders its rows by frequency.

    Fix: nothing, if the trainer orders its rows so; else restore d2t from the trainer.
    """
    if subject.drafter.producer != "automodel":
        yield from _found(subject, "d2t-order")


@rule("EGL305", "d2t-t2d", "error")
def d2t_t2d(subject: Subject) -> Iterator[Hit]:
    """d2t and t2d name the same tokens.

    They are made together. Where they differ, one of them is of another run, and nothing in the file tells which; a mapping
    made anew in a fine-tuning leaves lm_head's rows with tokens that they were not trained for.

    Fix: restore both from the run that trained lm_head.
    """
    yield from _found(subject, "d2t-t2d")


@rule("EGL306", "d2t-absolute", "error")
def d2t_absolute(subject: Subject) -> Iterator[Hit]:
    """d2t holds offsets, not token ids.

    Engines add the draft token's own number to d2t. Ids in place of offsets give other tokens, and numbers past the
    vocabulary.

    Fix: run `eaglectl convert`, which writes offsets.
    """
    yield from _found(subject, "d2t-absolute")
    d2t, t2d = _tables(subject)
    if d2t is None:
        return
    from eaglectl.drafter.vocabulary import BOTH_FIT, is_of_two_meanings

    if not is_of_two_meanings(d2t, t2d, subject.drafter.dims.vocab):
        return
    match subject.answers.semantics.get("d2t"):
        case "absolute":
            yield Hit(
                "d2t holds token ids, as --source-semantics d2t=absolute says; engines read offsets", "tensor:d2t"
            )
        case None:
            raise CannotLook(BOTH_FIT)


@rule("EGL307", "d2t-identity", "error")
def d2t_identity(subject: Subject) -> Iterator[Hit]:
    """A reduced vocabulary's d2t is not all zeros.

    Zeros map draft token i to target token i: the drafter can only say the first tokens of the vocabulary. Zeros are right
    for a full vocabulary alone.

    Fix: restore d2t from the trainer.
    """
    yield from _found(subject, "d2t-identity")


@rule("EGL308", "d2t-dtype", "error")
def d2t_dtype(subject: Subject) -> Iterator[Hit]:
    """d2t's dtype can hold every token of the vocabulary.

    A cast of the whole checkpoint to bfloat16 rounds d2t too: whole numbers above 256 move to their neighbours, and most
    drafts become other tokens.

    Fix: restore d2t from the trainer as int64; a rounded table cannot be repaired.
    """
    tensor, vocab = subject.drafter.tensors.get("d2t"), subject.drafter.dims.vocab
    if tensor and _is_rounded(subject):
        held = EXACT.get(tensor.dtype)
        found = f"holds whole numbers to {held} exactly" if held else "is no type for whole numbers"
        yield Hit(f"d2t is {tensor.dtype}, which {found}, and the vocabulary has {vocab} tokens", "tensor:d2t")


@rule("EGL309", "special-tokens", "note")
def special_tokens(subject: Subject) -> Iterator[Hit]:
    """The draft vocabulary has the tokens that end a turn, and those around thoughts and tool calls.

    What is not in the draft vocabulary is never proposed: each such token costs a draft.

    Fix: add the tokens to the list that the draft vocabulary is made from, and train again.
    """
    drafter = subject.drafter
    if not drafter.has_reduced_vocabulary or "d2t" not in drafter.tensors:
        return
    special = _special(subject)
    d2t = _tables(subject)[0]
    from eaglectl.drafter.vocabulary import offset_targets

    if d2t is None or any(fault.topic != "d2t-order" for fault in _looked(subject)):
        raise CannotLook("d2t gives no draft vocabulary to look in")
    known = set(offset_targets(d2t).tolist())
    missing = [f"{name} ({token})" for token, name in special.items() if token not in known]
    if missing:
        share = f"{drafter.dims.draft_vocab} of {drafter.dims.vocab} tokens"
        yield Hit(f"the draft vocabulary ({share}) is without {', '.join(missing)}", "tensor:d2t")


@rule("EGL310", "d2t-missing", "error")
def d2t_missing(subject: Subject) -> Iterator[Hit]:
    """A reduced vocabulary comes with d2t, in the weights.

    Without it engines take draft token i for target token i. No engine reads t2d, or the .pt files in which some trainers
    keep the list.

    Fix: run `eaglectl convert`, which makes d2t from t2d or from the trainer's list; else restore d2t from the trainer.
    """
    told = tuple(subject.said("d2t-missing"))
    yield from told
    if told:
        return
    drafter = subject.drafter
    if drafter.has_reduced_vocabulary and "d2t" not in drafter.tensors:
        yield Hit(
            f"the draft vocabulary has {drafter.dims.draft_vocab} of {drafter.dims.vocab} tokens and the weights have no"
            f" d2t; engines would propose the first {drafter.dims.draft_vocab}"
        )


@rule("EGL311", "d2t-int64", "warning")
def d2t_int64(subject: Subject) -> Iterator[Hit]:
    """d2t is int64.

    vLLM copies any number into its int64 table; SGLang keeps the dtype and indexes with it, which floats cannot do.

    Fix: run `eaglectl convert`, which writes int64.
    """
    tensor = subject.drafter.tensors.get("d2t")
    if tensor and tensor.dtype != "I64" and not _is_rounded(subject):
        yield Hit(f"d2t is {tensor.dtype}; int64 is what engines hold it in", "tensor:d2t")


def _is_rounded(subject: Subject) -> bool:
    d2t = subject.drafter.tensors.get("d2t")
    return d2t is not None and EXACT.get(d2t.dtype, 0) < subject.drafter.dims.vocab


def _found(subject: Subject, topic: str) -> Iterator[Hit]:
    for fault in _looked(subject):
        if fault.topic == topic:
            yield Hit(fault.text, f"tensor:{fault.tensor}")


@lru_cache(maxsize=8)
def _looked(subject: Subject) -> tuple["Fault", ...]:
    dims, vocab = subject.drafter.dims, _target_tokens(subject)
    if not {"d2t", "t2d"} & set(subject.drafter.tensors) or dims.draft_vocab > vocab:
        return ()
    d2t, t2d = _tables(subject)
    from eaglectl.drafter.vocabulary import faults

    return faults(d2t, t2d, dims.draft_vocab, vocab)


def _target_tokens(subject: Subject) -> int:
    """The size to judge tables by. Where an embedding is shorter than vocab_size, that is another rule's finding already."""
    size, stated = subject.drafter.dims.vocab, subject.flat.get("vocab_size")
    return max(size, stated) if type(stated) is int and "t2d" not in subject.drafter.tensors else size


@lru_cache(maxsize=8)
def _tables(subject: Subject) -> tuple["Ids | None", "Ids | None"]:
    if not {"d2t", "t2d"} & set(subject.drafter.tensors):
        return None, None
    if _is_rounded(subject):
        raise CannotLook(f"d2t is {subject.drafter.tensors['d2t'].dtype}, which cannot hold the vocabulary's numbers")
    weights = subject.weights  # before numpy is loaded: with --headers-only there is nothing to read
    from eaglectl.drafter.vocabulary import as_engines_read

    def read(name: str) -> "Ids | None":
        tensor = subject.drafter.tensors.get(name)
        if tensor is None:
            return None
        raw = weights.read(tensor.stored[0])
        return as_engines_read(name, tensor.dtype, raw)

    try:
        return read("d2t"), read("t2d")
    except EaglectlError as error:
        raise CannotLook(str(error)) from None


def _special(subject: Subject) -> Mapping[int, str]:
    """Ids and names of the tokens that the draft vocabulary should have. Raises CannotLook where nothing names one."""
    found: dict[int, str] = {}
    config = subject.target.config or {}
    inner = config.get("text_config")
    places: list[Mapping[str, Any]] = [inner if isinstance(inner, dict) else {}, config]
    if subject.target.source is not None:
        places.append(_json(subject.target.source, "generation_config.json"))
        added = _json(subject.target.source, "tokenizer_config.json").get("added_tokens_decoder")
        for token, entry in added.items() if isinstance(added, dict) else ():
            text = entry.get("content") if isinstance(entry, dict) else None
            if token.isdecimal() and isinstance(text, str) and TURNS.fullmatch(text):
                found[int(token)] = text
    ends = {one: "eos" for place in places for one in _ends(place)}
    # trainers copy the target's into the drafter's config
    found |= ends or dict.fromkeys(_ends(subject.flat), "eos")
    if not found:
        raise CannotLook("no config names the token that ends a turn; pass --target with the target's folder")
    return found


def _ends(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    return [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]


def _json(source: Source, name: str) -> Mapping[str, Any]:
    if name not in source.names():
        return {}
    try:
        value = parse_json(name, source.read(name))
    except EaglectlError as error:
        raise CannotLook(str(error)) from None
    return value if isinstance(value, dict) else {}
