"""Rules on the draft vocabulary: the numbers and sizes of d2t and t2d, and the special tokens."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from eaglectl.files.header import parse_json
from eaglectl.files.source import Source
from eaglectl.files.target_files import text_part
from eaglectl.formats.catalogue import by_name
from eaglectl.judge.rule import CannotLook, Match, Rule, Severity, make_rule, rule
from eaglectl.judge.subject import EXACT, Subject

RESTORE = "restore d2t from the trainer's checkpoint."
# tokens of a chat template that start or end thoughts and tool calls
TURN_TOKENS = re.compile(r"</?\|?(think|tool_calls?|tool_response)\|?>")


def _faults(subject: Subject, topic: str) -> Iterator[Match]:
    for fault in subject.vocabulary_faults:
        if fault.topic == topic:
            yield Match(fault.text, f"tensor:{fault.tensor}", subject.vocabulary_repair)


def table_rule(id: str, name: str, severity: Severity, documentation: str) -> Rule:
    """Make a rule of the faults of the tables on the topic of its name."""
    return make_rule(id, name, severity, lambda subject: _faults(subject, name), documentation)


@rule("EGL301", "draft-vocabulary-size", "error")
def draft_vocabulary_size(subject: Subject) -> Iterator[Match]:
    """lm_head, d2t and t2d have one size of draft vocabulary, at most the target's.

    Trainers count the tokens in their data; where there are fewer than requested, they save tables of two
    sizes, and the rows of lm_head belong to other tokens than d2t states.

    Fix: restore lm_head, d2t and t2d of one training run.
    """
    dims, vocab = subject.drafter.dims, subject.target_vocab
    if dims.draft_vocab > vocab:
        yield Match(
            f"the draft vocabulary has {dims.draft_vocab} tokens and the target's {vocab}",
            "config.json:vocab_size",
        )
        return
    yield from _faults(subject, "draft-vocabulary-size")


@rule("EGL302", "d2t-range", "error")
def d2t_range(subject: Subject) -> Iterator[Match]:
    """Every draft token maps to a token of the target's vocabulary.

    Engines compute i + d2t[i] for draft token i and index with it: a number beyond the vocabulary stops the
    engine at the first draft, a negative one silently counts from the end.

    Fix: restore d2t from the trainer; where only vocab_size is wrong (it must be the target's), correct it.
    """
    for match in _faults(subject, "d2t-range"):
        dims = subject.drafter.dims
        is_full = dims.vocab == dims.draft_vocab
        doubt = "; is vocab_size the draft vocabulary's? it must be the target's" if is_full else ""
        yield replace(match, message=match.message + doubt, fix="" if doubt else match.fix)


d2t_unique = table_rule(
    "EGL303",
    "d2t-unique",
    "error",
    """No two draft tokens map to one target token.

    A table with repeats was not made by counting tokens: rows of lm_head map to tokens that they were not
    trained for.

    Fix: restore d2t from the trainer.
    """,
)


@rule("EGL304", "d2t-order", "note")
def d2t_order(subject: Subject) -> Iterator[Match]:
    """The target tokens of d2t ascend.

    Engines need no order, but t2d stores none: a tool that rebuilds d2t from t2d, as many do, gets another
    map. NeMo Automodel orders its rows by frequency.

    Fix: nothing, if the trainer orders its rows so; else restore d2t from the trainer.
    """
    if not by_name(subject.drafter.producer).has_unordered_rows:
        yield from _faults(subject, "d2t-order")


d2t_t2d = table_rule(
    "EGL305",
    "d2t-t2d",
    "error",
    """d2t and t2d name the same tokens.

    They are made together. Where they differ, one of them is from another run, and the file does not show
    which; a map that was rebuilt for a fine-tuning pairs rows of lm_head with tokens that they were not
    trained for.

    Fix: restore both from the run that trained lm_head.
    """,
)


@rule("EGL306", "d2t-absolute", "error")
def d2t_absolute(subject: Subject) -> Iterator[Match]:
    """d2t holds offsets, not token ids.

    Engines add the draft token's own id to d2t. Ids in place of offsets give other tokens, and numbers
    beyond the vocabulary.

    Fix: run `eaglectl convert SOURCE`, which writes offsets.
    """
    yield from _faults(subject, "d2t-absolute")
    d2t, t2d = subject.vocabulary_tables
    if d2t is None:
        return
    from eaglectl.drafter.vocabulary import BOTH_FIT, is_of_two_meanings, recorded_meaning

    if not is_of_two_meanings(d2t, t2d, subject.drafter.dims.vocab):
        return
    recorded = recorded_meaning(subject.checkpoint.record, d2t)
    match subject.answers.semantics.get("d2t", recorded):
        case "absolute":
            yield Match(
                "d2t holds token ids, as --source-semantics d2t=absolute states; engines read offsets",
                "tensor:d2t",
            )
        case None:
            raise CannotLook(BOTH_FIT)


d2t_identity = table_rule(
    "EGL307",
    "d2t-identity",
    "error",
    """The d2t of a reduced vocabulary is not all zeros.

    Zeros map draft token i to target token i, so that the drafter proposes only the first tokens of the
    vocabulary. They are right only for a full vocabulary.

    Fix: restore d2t from the trainer.
    """,
)


@rule("EGL308", "d2t-dtype", "error")
def d2t_dtype(subject: Subject) -> Iterator[Match]:
    """The dtype of d2t can hold every token id of the vocabulary.

    Casting a whole checkpoint to bfloat16 rounds d2t too: integers above 256 change, and most drafts become
    other tokens.

    Fix: restore d2t from the trainer as int64; a rounded table cannot be repaired, but t2d may give it.
    """
    tensor, vocab = subject.drafter.tensors.get("d2t"), subject.drafter.dims.vocab
    if tensor and subject.is_d2t_rounded:
        held = EXACT.get(tensor.dtype)
        capacity = f"holds whole numbers to {held} exactly" if held else "is no type for whole numbers"
        yield Match(
            f"d2t is {tensor.dtype}, which {capacity}, and the vocabulary has {vocab} tokens",
            "tensor:d2t",
            subject.vocabulary_repair,
        )


@rule("EGL309", "special-tokens", "note")
def special_tokens(subject: Subject) -> Iterator[Match]:
    """The draft vocabulary has the tokens that end a turn, and those around thoughts and tool calls.

    A token outside the draft vocabulary is never proposed: each occurrence costs a draft.

    Fix: add the tokens to the list that the draft vocabulary is made from, and train again.
    """
    drafter = subject.drafter
    if not drafter.has_reduced_vocabulary or "d2t" not in drafter.tensors:
        return
    special = _special_tokens(subject)
    d2t = subject.vocabulary_tables[0]
    from eaglectl.drafter.vocabulary import offset_targets

    if d2t is None or any(fault.topic != "d2t-order" for fault in subject.vocabulary_faults):
        raise CannotLook("d2t gives no draft vocabulary to look in")
    known = set(offset_targets(d2t))
    missing = [f"{name} ({token})" for token, name in special.items() if token not in known]
    if missing:
        share = f"{drafter.dims.draft_vocab} of {drafter.dims.vocab} tokens"
        yield Match(f"the draft vocabulary ({share}) is without {', '.join(missing)}", "tensor:d2t")


@rule("EGL310", "d2t-missing", "error")
def d2t_missing(subject: Subject) -> Iterator[Match]:
    """A reduced vocabulary has d2t in its weights.

    Without it engines take draft token i for target token i. No engine reads t2d, or the .pt files in which
    some trainers keep the list.

    Fix: run `eaglectl convert SOURCE`, which makes d2t from t2d or from the trainer's list; else restore d2t
    from the trainer.
    """
    matches = tuple(subject.reported("d2t-missing"))
    yield from (replace(match, fix=RESTORE) for match in matches)
    if matches:
        return
    drafter = subject.drafter
    if drafter.has_reduced_vocabulary and "d2t" not in drafter.tensors:
        size, vocab = drafter.dims.draft_vocab, drafter.dims.vocab
        yield Match(
            f"the draft vocabulary has {size} of {vocab} tokens and the weights have no d2t"
            f"; engines would propose the first {size}"
        )


@rule("EGL311", "d2t-int64", "warning")
def d2t_int64(subject: Subject) -> Iterator[Match]:
    """d2t is int64.

    vLLM copies any number into its int64 table; SGLang keeps the dtype and indexes with it, which fails for
    floats.

    Fix: run `eaglectl convert SOURCE`, which writes int64.
    """
    tensor = subject.drafter.tensors.get("d2t")
    if tensor and tensor.dtype != "I64" and not subject.is_d2t_rounded:
        fix = "" if tensor.dtype[0] in "IU" else RESTORE
        yield Match(f"d2t is {tensor.dtype}; int64 is what engines hold it in", "tensor:d2t", fix)


def _special_tokens(subject: Subject) -> Mapping[int, str]:
    """Ids and names of the tokens that the draft vocabulary needs. Raises CannotLook where no config names
    one.
    """
    config, source = subject.target.config or {}, subject.target.source
    configs = [text_part(config), config]
    tokens: dict[int, str] = {}
    if source is not None:
        configs.append(_read_json(source, "generation_config.json"))
        # the added tokens of the target's tokenizer that start or end thoughts and tool calls
        added = _read_json(source, "tokenizer_config.json").get("added_tokens_decoder")
        for token, entry in added.items() if isinstance(added, dict) else ():
            text = entry.get("content") if isinstance(entry, dict) else None
            if token.isdecimal() and isinstance(text, str) and TURN_TOKENS.fullmatch(text):
                tokens[int(token)] = text
    ends = [token for config in configs for token in _end_tokens(config)]
    # trainers copy the target's into the drafter's config
    tokens |= dict.fromkeys(ends or _end_tokens(subject.flat), "eos")
    if not tokens:
        raise CannotLook("no config names the token that ends a turn; pass --target with the target's folder")
    return tokens


def _end_tokens(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    return [token for token in (value if isinstance(value, list) else [value]) if type(token) is int]


def _read_json(source: Source, name: str) -> Mapping[str, Any]:
    if name not in source.names():
        return {}
    value = parse_json(name, source.read(name))
    return value if isinstance(value, dict) else {}
