"""Rules on the target, which verifies the drafts, and on the draft vocabulary, a part of the target's.

They check the target's width, vocabulary and tokenizer, compare rows of the embedding and of lm_head with
each other and with the target's, and check the numbers and sizes of d2t and t2d, and the special tokens.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from eaglectl.drafter.tensors import (
    BOTH_FIT,
    EMBEDDINGS,
    HEADS,
    PLAIN,
    SAMPLED_ROWS,
    Tensor,
    embedding_digest,
    evenly_spaced,
    is_of_two_meanings,
    matrix,
    offset_targets,
    recorded_meaning,
    repeated_offsets,
    row_copies,
)
from eaglectl.engines.targets import needs_own_code
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import parse_json
from eaglectl.files.source import Source
from eaglectl.files.text_part import text_part
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.commands import read_fix
from eaglectl.formats.other_drafters import drafter_mark
from eaglectl.formats.vocabulary import can_be_padding, token_ids
from eaglectl.judge.judgement import EXACT, Subject
from eaglectl.judge.rule import NO_TARGET, CannotLook, Match, make_rule, note_rule, rule
from eaglectl.shell import quote
from eaglectl.target.files import config_tokens, rotation_file, rotation_mark
from eaglectl.text import listed

if TYPE_CHECKING:
    from eaglectl.judge.scanning import Floats

# common tensor parallel sizes
TENSOR_PARALLEL_SIZES = (2, 4, 8, 16)


@rule("EGL703", "target-tokenizer", "warning")
def target_tokenizer(subject: Subject) -> Iterator[Match]:
    """A tokenizer next to the drafter gives every token the same id as the target's.

    Engines use only the target's tokenizer; a tokenizer that differs shows that the drafter was trained on
    other token ids.

    Fix: check which target the drafter was trained for; then publish the target's tokenizer, or none.
    """
    name = "tokenizer.json"
    if name not in subject.names:
        return
    source = subject.target.source
    if source is None or name not in source.names():
        raise CannotLook("no target's tokenizer.json was given; pass --target with the target's folder")
    ours, theirs = subject.source.read(name), source.read(name)
    if ours == theirs:
        return
    own_ids, target_ids = token_ids(name, ours), token_ids(name, theirs)
    different = [token for token in {**own_ids, **target_ids} if own_ids.get(token) != target_ids.get(token)]
    if different:
        first = min(different)
        yield Match(
            f"{len(different)} tokens have other ids than in the target's {name}: {first!r} is"
            f" {own_ids.get(first)} here and {target_ids.get(first)} there",
            name,
        )


@rule("EGL706", "target-is-drafter", "error")
def target_is_drafter(subject: Subject) -> Iterator[Match]:
    """The target is a whole language model.

    With a drafter as the target, comparing the two has no meaning.

    Fix: pass the model that verifies the drafts as --target.
    """
    if mark := drafter_mark(subject.target.given_config):
        yield Match(f"the given target is a drafter (its config has {mark})")


@rule("EGL707", "tensor-parallel", "note")
def tensor_parallel(subject: Subject) -> Iterator[Match]:
    """The drafter can be split over as many GPUs as the target.

    Engines split its heads and its MLP over the target's GPUs, and stop at the start where they do not
    divide (llama.py, vLLM 0.32.0:143-155, SGLang 0.5.23:183-192). draft_tensor_parallel_size changes nothing
    for EAGLE: vLLM reads it for draft_model and dspark alone (v1/spec_decode/draft_model.py 0.32.0:72-90,
    gpu/spec_decode/standalone_ar/speculator.py:118, dspark/utils.py:97).

    Fix: start the engine with a --tensor-parallel-size that the finding names.
    """
    if subject.target.known.tensor_parallel is None:
        yield from _split(subject)


@rule("EGL716", "tensor-parallel-size", "error")
def tensor_parallel_size(subject: Subject) -> Iterator[Match]:
    """The target and the drafter can be split over the GPUs of --tensor-parallel-size.

    Engines split the heads and the MLP of both over the same GPUs, and stop at the start where they do not
    divide (llama.py, vLLM 0.32.0:143-155, SGLang 0.5.23:183-192). Without --tensor-parallel-size nothing is
    checked here, and EGL707 names the sizes that cannot be.

    Fix: start the engine with a --tensor-parallel-size that the finding names.
    """
    if (size := subject.target.known.tensor_parallel) is not None:
        yield from _split(subject, size)


def _split(subject: Subject, size: int | None = None) -> Iterator[Match]:
    """Yield a match for the first size that the target or the drafter cannot be split over.

    Without `size`, sizes that the target can be split over are tried. Raises CannotLook without the target's
    heads.
    """
    parts = _parts(subject)
    counts = [count for count in TENSOR_PARALLEL_SIZES if not _undivided(*parts["target"], count)]
    unfit = [count for count in counts if _undivided(*parts["drafter"], count)]
    advice = (
        f"of sizes up to {TENSOR_PARALLEL_SIZES[-1]}, the two start with --tensor-parallel-size"
        f" {listed(map(str, sorted({1, *counts} - {*unfit})), ' or ')}"
    )
    if size is not None:
        left = {name: " and ".join(_undivided(*part, size)) for name, part in parts.items()}
        if text := " and ".join(f"the {name}'s {rest}" for name, rest in left.items() if rest):
            yield Match(f"{text} cannot be split over {size} GPUs: {advice}", stops_engine=True)
    elif unfit:
        rest = " and ".join(_undivided(*parts["drafter"], unfit[0]))
        yield Match(
            f"the target can be split over {unfit[0]} GPUs, but the drafter's {rest} cannot: {advice}"
        )


def _parts(subject: Subject) -> Mapping[str, tuple[int, int, int]]:
    """Return what GPUs share of the target and of the drafter: heads, key heads, width of the MLP.

    Raises CannotLook without the target's heads.
    """
    dims, sizes = subject.drafter.dims, text_part(subject.target.given_config)
    heads, kv_heads, width = (
        sizes.get(key) for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    )
    if type(heads) is not int:
        raise CannotLook("the target's config has no num_attention_heads")
    # a single key head is copied to every GPU: that of MLA, and of a config that states none
    shared = kv_heads if type(kv_heads) is int and kv_heads > 0 else 1
    return {
        "target": (heads, shared, width if type(width) is int else 0),
        "drafter": (dims.heads, 1 if dims.attention == "MLA" else dims.kv_heads, dims.intermediate),
    }


@rule("EGL717", "target-code", "note")
def target_code(subject: Subject) -> Iterator[Match]:
    """The engine reads the target without running the target's own Python files.

    Of a model type that transformers does not have, engines read the config with the class that auto_map
    names in the repository. They do so only with --trust-remote-code, which then runs any of its Python
    files; eaglectl itself never runs them.

    Fix: read these files, pin the target's revision, and start the engine with --trust-remote-code.
    """
    if needs_own_code(subject.target.known):
        yield Match("auto_map in the target's config: with --trust-remote-code, engines run its Python files")


def _undivided(heads: int, kv_heads: int, intermediate: int, count: int) -> list[str]:
    remainders = {
        f"{heads} heads": heads % count,
        f"{kv_heads} key heads": kv_heads % count and count % kv_heads,  # several on one GPU, or the reverse
        f"an MLP of {intermediate}": intermediate % count,
    }
    return [part for part, remainder in remainders.items() if remainder]


@rule("EGL712", "changed-target", "note", "measure")
def changed_target(subject: Subject) -> Iterator[Match]:
    """The target is the model that the drafter was trained on, neither quantised nor adapted.

    A drafter reads the target's hidden states and predicts its output. Quantisation and LoRA adapters change
    both: 8 bits cost almost nothing, 4 bits cost a seventh to a fifth of the accepted tokens
    (docs/evidence.md). The finding says what is known about this target.

    Fix: nothing, if `eaglectl smoke SOURCE --target TARGET` measures the acceptance that training reported.
    """
    if subject.target.given_config:
        yield from (Match(note.text) for note in subject.drafter.notes if note.topic == "changed-target")


# with fewer rows there is no evidence of where a head was pruned from
LEAST_ROWS = 8
# rows initialised with the target's stay more similar than SIMILAR; rows of other tokens are below DIFFERENT
SIMILAR, DIFFERENT = 0.5, 0.2
# relative rounding steps of dtypes
STEPS: Mapping[str, float] = {"BF16": 2.0**-8, "F16": 2.0**-10, "F32": 2.0**-23}


@rule("EGL208", "repeated-rows", "error")
def repeated_rows(subject: Subject) -> Iterator[Match]:
    """lm_head does not repeat a row wherever d2t repeats an offset.

    It does if the head was pruned to the draft vocabulary with the offsets instead of i + d2t[i], as
    TorchSpec's --prune-vocab does. Its rows then belong to other tokens, and almost no draft is accepted.

    Fix: export again from the checkpoint that was not pruned, with a corrected tool.
    """
    if (head := _head(subject)) and (count := _repeated(subject, head)):
        yield Match(
            f"{head} repeats its row at all {count} checked places where d2t repeats its offset"
            ": it was pruned to rows d2t[i], not i + d2t[i]",
            f"tensor:{head}",
        )


@rule("EGL704", "own-embedding", "warning")
def own_embedding(subject: Subject) -> Iterator[Match]:
    """The drafter's embedding is the target's.

    Trainers copy it and freeze it. vLLM keeps an embedding that differs, SGLang replaces it with the
    target's, so that they serve different drafters; a random one, exported by mistake, ruins the drafts in
    vLLM alone.

    Fix: remove embed_tokens.weight if it was not trained (engines share the target's); if it was, serve it
    with vLLM.
    """
    name = _own_embedding(subject)
    if name is None:
        return
    other, rows, ours, theirs = _embeddings(subject, name)
    from eaglectl.judge.scanning import is_rotated, same_rows

    # up to the rounding of the coarser dtype
    dtypes = {subject.checkpoint.tensors[name].dtype, subject.target.checkpoint.tensors[other].dtype}
    step = max(STEPS.get(dtype, 0.0) for dtype in dtypes) if len(dtypes) > 1 else 0.0
    same = same_rows(ours, theirs, step)
    different = [row for row, is_same in zip(rows, same, strict=True) if not is_same]
    if different and not is_rotated(ours, theirs):
        if subject.drafter.rotation is not None:
            raise CannotLook(
                f"eaglectl.json states that the target is rotated, but rows of {name} have neither the"
                " target's values nor their lengths and angles"
            )
        yield Match(
            f"{name}: {len(different)} of {len(rows)} checked rows differ from the target's {other}, such as"
            f" row {different[0]}",
            f"tensor:{name}",
        )


@rule("EGL710", "rotated-target", "error", "convert")
def rotated_target(subject: Subject) -> Iterator[Match]:
    """fc fits the target's states, rotated or not.

    QuaRot and SpinQuant rotate a target's residual stream before they quantise it. The target's output does
    not change, but a drafter that was trained on the unrotated states gets almost no draft token accepted:
    acceptance length 1.07, and 3.09 after fc is rotated too (vllm-ascend 7038). The rotation is visible if
    the drafter has the embedding it was trained with: the target's rows have the same lengths and angles, but
    other values.

    Fix: run `eaglectl convert SOURCE --target-rotation measure --target TARGET`, with --for sglang where
    SGLang serves it.
    """
    embedding, rotation = _own_embedding(subject), subject.drafter.rotation
    if subject.target.source is None:
        raise CannotLook(NO_TARGET)
    if rotation is not None:
        yield from _unfit_rotation(subject, rotation)
        return
    if embedding is None:
        raise CannotLook("the drafter has no embedding from its training to compare with the target's")
    other, _, ours, theirs = _embeddings(subject, embedding)
    from eaglectl.judge.scanning import is_rotated

    if is_rotated(ours, theirs):
        yield Match(
            f"rows of the target's {other} have the lengths and angles of {embedding}'s, but other values:"
            " the target's residual stream is rotated (QuaRot, SpinQuant), and fc was trained on an unrotated"
            " one",
            f"tensor:{embedding}",
            repair=read_fix(_repair(subject, "measure"), "convert"),
        )


@rule("EGL711", "marked-rotation", "warning", "convert")
def marked_rotation(subject: Subject) -> Iterator[Match]:
    """A drafter without an embedding of its own has a target that is not marked as rotated.

    ModelSlim (quant_model_description.json) and llm-compressor (transform_config) state that they rotated the
    residual stream. The drafter's files do not show whether it was trained on the rotated states.

    Fix: nothing, if it was trained on this target; otherwise run `eaglectl convert SOURCE` with
    --target-rotation, which docs/serve.md explains.
    """
    target = subject.target
    if target.source is None or target.config is None:
        raise CannotLook(NO_TARGET)
    if _own_embedding(subject) is not None or subject.drafter.rotation is not None:
        return  # EGL710 compares
    if mark := rotation_mark(target.source, target.config):
        file = rotation_file(target.source)
        fix = _repair(subject, "FILE" if file is None else f"{target.source.place}/{file}")
        yield Match(
            f"{mark}; a drafter trained on the unrotated target gets almost no draft token accepted with it",
            "",
            repair=read_fix(
                "nothing, if it was trained on this target, or if vllm-ascend serves it, which rotates fc;"
                f" else {fix}",
                "convert",
            ),
        )


def _unfit_rotation(subject: Subject, rotation: Mapping[str, object]) -> Iterator[Match]:
    has_embedding = "embed_tokens.weight" in subject.drafter.tensors
    embedding = rotation.get("embedding")
    if has_embedding != (embedding == "own"):
        yield Match(
            f"eaglectl.json states embedding {embedding!r} for a rotated drafter, but the file has"
            f" {'one' if has_embedding else 'none'}",
            "tensor:embed_tokens.weight",
        )
    digest = embedding_digest(subject.target.checkpoint)
    if digest is None:
        raise CannotLook("the target has no unquantised embedding to compare with that in eaglectl.json")
    if digest != rotation.get("target_embedding"):
        yield Match(
            "fc is rotated for a target with another embedding (eaglectl.json)",
            "tensor:fc.weight",
            "convert the original drafter again, for this target.",
        )


def _repair(subject: Subject, how: str) -> str:
    # a command only if it needs nothing that only the user has
    if "lm_head.weight" not in subject.drafter.tensors or how == "FILE":
        return (
            f"convert it with --target-rotation {quote(how)} (or measure) and --trained-target, the folder of"
            " the target that it was trained on."
        )
    return f"run `eaglectl convert SOURCE --target-rotation {quote(how)} --target TARGET`."


@rule("EGL705", "head-rows", "error")
def head_rows(subject: Subject) -> Iterator[Match]:
    """Rows of lm_head belong to the tokens that d2t gives them.

    If lm_head was initialised with the target's rows, its rows are still similar to them. If row i is similar
    to the target's row of a token other than i + d2t[i], the head was pruned with another list or d2t was
    rebuilt, and draft tokens map to the wrong target tokens.

    Fix: restore lm_head and d2t from one training run.
    """
    name, dims = _head(subject), subject.drafter.dims
    if name is None or dims.hidden != dims.target_hidden:
        return
    weights, theirs = subject.weights, subject.target.checkpoint
    other = _named(theirs, (*HEADS, *EMBEDDINGS))
    if theirs.tensors[other].shape[1] != dims.hidden:
        return  # EGL701 reports it
    head, faults = subject.scan[name], {fault.topic for fault in subject.vocabulary_faults}
    is_broken = head.bad > 0 or head.constant is not None or bool(faults - {"d2t-order"})
    if is_broken or _repeated(subject, name):
        return  # other rules report it
    for formula, by_d2t, by_formula in _similarities(subject, weights, name, other):
        if by_formula > SIMILAR and by_d2t < DIFFERENT:
            yield Match(
                f"rows of {name} are like the target's rows {formula} (by {by_formula:.2f}),"
                f" not i + d2t[i] (by {by_d2t:.2f})",
                f"tensor:{name}",
            )
            return


def _similarities(
    subject: Subject, weights: Checkpoint, name: str, other: str
) -> Iterator[tuple[str, float, float]]:
    # for each wrong formula by which the head may have been pruned: the similarity of its rows to the
    # target's rows by d2t, and by the formula
    (offsets, _), theirs = subject.vocabulary_tables, subject.target.checkpoint
    from eaglectl.judge.scanning import read_rows, similarity

    assert offsets is not None
    vocab = theirs.tensors[other].shape[0]
    for formula, others in (("i", range(len(offsets))), ("d2t[i]", offsets)):
        places = [(i, i + offset, row) for i, (offset, row) in enumerate(zip(offsets, others, strict=True))]
        valid = [place for place in places if place[1] != place[2] and 0 <= min(place) <= max(place) < vocab]
        chosen = [valid[i] for i in evenly_spaced(len(valid))]
        # small offsets give one row repeated, which is no evidence
        if len({row for _, _, row in chosen}) >= LEAST_ROWS:
            drafts, meant, elsewhere = zip(*chosen, strict=True)
            rows = read_rows(weights, name, drafts)
            by_d2t = similarity(rows, read_rows(theirs, other, meant))
            yield formula, by_d2t, similarity(rows, read_rows(theirs, other, elsewhere))


def _own_embedding(subject: Subject) -> str | None:
    dims, embedding = subject.drafter.dims, subject.drafter.tensors.get("embed_tokens.weight")
    if embedding is None or dims.hidden != dims.target_hidden or not _is_plain(subject, embedding):
        return None
    return embedding.stored[0]


def _embeddings(subject: Subject, name: str) -> tuple[str, Sequence[int], "Floats", "Floats"]:
    ours, theirs = subject.weights, subject.target.checkpoint  # before numpy is loaded
    other = _named(theirs, EMBEDDINGS)
    sizes = ours.tensors[name].shape, theirs.tensors[other].shape
    if sizes[0][1] != sizes[1][1]:
        raise CannotLook(f"{name} and the target's {other} differ in width")
    from eaglectl.judge.scanning import read_rows

    rows = evenly_spaced(min(sizes[0][0], sizes[1][0]))
    return other, rows, read_rows(ours, name, rows), read_rows(theirs, other, rows)


def _head(subject: Subject) -> str | None:
    # the stored name of an unquantised lm_head, of a reduced vocabulary with an integer d2t
    drafter = subject.drafter
    head, d2t = drafter.tensors.get("lm_head.weight"), drafter.tensors.get("d2t")
    if head is None or d2t is None or not drafter.has_reduced_vocabulary or d2t.dtype not in ("I64", "I32"):
        return None
    return head.stored[0] if _is_plain(subject, head) else None


def _is_plain(subject: Subject, tensor: Tensor) -> bool:
    stored = subject.checkpoint.tensors[tensor.stored[0]]
    is_matrix = stored.shape == tensor.shape and len(stored.shape) == 2
    return is_matrix and len(tensor.stored) == 1 and stored.dtype in PLAIN


def _repeated(subject: Subject, head: str) -> int:
    # the number of sampled places where d2t repeats its offset, if lm_head repeats its row at all of them
    (offsets, _), weights = subject.vocabulary_tables, subject.weights
    summary, size = subject.scan[head], weights.tensors[head].row_bytes
    if offsets is None or summary.bad or summary.constant is not None:
        return 0  # another rule reports it
    places = [i for i in repeated_offsets(offsets, SAMPLED_ROWS) if i + 1 < weights.tensors[head].shape[0]]
    two_rows = [weights.read(head, i * size, (i + 2) * size) for i in places]
    return len(places) if row_copies([(pair[:size], pair[size:]) for pair in two_rows]) else 0


def _named(target: Checkpoint, endings: Sequence[str]) -> str:
    if (name := matrix(target.tensors, endings)) is None:
        raise CannotLook(f"the target has no unquantised {' or '.join(endings[:2])}")
    return name


RESTORE = "restore d2t from the trainer's checkpoint."
# tokens of a chat template that start or end thoughts and tool calls
TURN_TOKENS = r"</?\|?(think|tool_calls?|tool_response)\|?>"


def _faults(subject: Subject, topic: str) -> Iterator[Match]:
    for fault in subject.vocabulary_faults:
        if fault.topic == topic:
            yield Match(fault.text, f"tensor:{fault.tensor}", repair=subject.vocabulary_repair)


@rule("EGL301", "draft-vocabulary-size", "error")
def draft_vocabulary_size(subject: Subject) -> Iterator[Match]:
    """lm_head, d2t and t2d have the same draft vocabulary size, at most the target's.

    Trainers count the tokens in their data; where there are fewer than requested, they save tables of two
    sizes, and the rows of lm_head belong to other tokens than d2t states.

    Fix: restore lm_head, d2t and t2d from one training run.
    """
    dims, vocab = subject.drafter.dims, subject.target_vocab
    if dims.draft_vocab > vocab:
        yield Match(
            f"the draft vocabulary has {dims.draft_vocab} tokens, the target's only {vocab}",
            "config.json:vocab_size",
        )
    else:
        yield from _faults(subject, "draft-vocabulary-size")


@rule("EGL302", "d2t-range", "error")
def d2t_range(subject: Subject) -> Iterator[Match]:
    """Every draft token maps to a token of the target's vocabulary.

    Engines compute i + d2t[i] for draft token i and index with it: a number beyond the vocabulary stops the
    engine at the first draft, a negative one silently counts from the end.

    Fix: restore d2t from the trainer; where only vocab_size is wrong (it must be the target's), correct it.
    """
    for match in _faults(subject, "d2t-range"):
        if subject.drafter.dims.vocab == subject.drafter.dims.draft_vocab:
            doubt = "; vocab_size may be the draft vocabulary's, and must be the target's"
            match = replace(match, message=match.message + doubt, fix="")
        yield match


@rule("EGL304", "d2t-order", "note")
def d2t_order(subject: Subject) -> Iterator[Match]:
    """The target tokens of d2t ascend.

    Engines need no order, but t2d stores none: a tool that rebuilds d2t from t2d, as many do, gets another
    map. NeMo Automodel orders its rows by frequency.

    Fix: nothing, if the trainer orders its rows this way; otherwise restore d2t from the trainer.
    """
    if not by_name(subject.drafter.producer).has_unordered_rows:
        yield from _faults(subject, "d2t-order")


@rule("EGL306", "d2t-absolute", "error", "convert")
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

    if not is_of_two_meanings(d2t, t2d, subject.drafter.dims.vocab):
        return
    match subject.answers.semantics.get("d2t", recorded_meaning(subject.checkpoint.record, d2t)):
        case "absolute":
            yield Match(
                "d2t holds token ids, as --source-semantics d2t=absolute states; engines read offsets",
                "tensor:d2t",
            )
        case None:
            raise CannotLook(BOTH_FIT)


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
        capacity = f"holds whole numbers up to {held}" if held else "cannot hold whole numbers exactly"
        yield Match(
            f"d2t is {tensor.dtype}, which {capacity}; the vocabulary has {vocab} tokens",
            "tensor:d2t",
            repair=subject.vocabulary_repair,
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

    if d2t is None or any(fault.topic != "d2t-order" for fault in subject.vocabulary_faults):
        raise CannotLook("d2t does not define the draft vocabulary")
    draft_tokens, dims = set(offset_targets(d2t)), drafter.dims
    if missing := [f"{name} ({token})" for token, name in special.items() if token not in draft_tokens]:
        yield Match(
            f"the draft vocabulary ({dims.draft_vocab} of {dims.vocab} tokens) lacks {', '.join(missing)}",
            "tensor:d2t",
        )


@rule("EGL310", "d2t-missing", "error", "convert")
def d2t_missing(subject: Subject) -> Iterator[Match]:
    """A reduced vocabulary has d2t in its weights.

    Without it engines take draft token i for target token i. No engine reads t2d, or the .pt files in which
    some trainers keep the list.

    Fix: run `eaglectl convert SOURCE`, which makes d2t from t2d or from the trainer's list; else restore d2t
    from the trainer.
    """
    matches = tuple(subject.reported("d2t-missing"))
    yield from (replace(match, fix=RESTORE) for match in matches)
    drafter = subject.drafter
    if not matches and drafter.has_reduced_vocabulary and "d2t" not in drafter.tensors:
        size = drafter.dims.draft_vocab
        yield Match(
            f"the draft vocabulary has {size} of {drafter.dims.vocab} tokens, but the weights have no d2t"
            f"; engines propose the first {size}"
        )


@rule("EGL311", "d2t-int64", "warning", "convert")
def d2t_int64(subject: Subject) -> Iterator[Match]:
    """d2t is int64.

    vLLM copies any number into its int64 table; SGLang keeps the dtype, and looks up tokens with it (run with
    float32: vLLM 0.32.0, SGLang 0.5.23).

    Fix: run `eaglectl convert SOURCE`, which writes int64.
    """
    tensor = subject.drafter.tensors.get("d2t")
    if tensor and tensor.dtype != "I64" and not subject.is_d2t_rounded:
        yield Match(
            f"d2t is {tensor.dtype}; engines store it as int64",
            "tensor:d2t",
            RESTORE if tensor.dtype in ("F16", "BF16") else "",
        )


@rule("EGL312", "first-tokens", "warning")
def first_tokens(subject: Subject) -> Iterator[Match]:
    """A reduced vocabulary is chosen, and is not the first tokens of the target's.

    Before a map is loaded, trainers have a d2t of zeros and mark the first tokens in t2d (verl-SpeCo 66).
    Training and serving then agree, and no other token is ever proposed. Padding at the end may be left out.

    Fix: nothing, if these tokens were chosen; otherwise train with the tokens that its data has most often.
    """
    (d2t, _), size, vocab = subject.vocabulary_tables, subject.drafter.dims.draft_vocab, subject.target_vocab
    if d2t is None or any(d2t) or subject.vocabulary_faults or can_be_padding(vocab - size, size):
        return
    yield Match(
        f"the draft vocabulary is the first {size} of {vocab} tokens, in d2t and in t2d: it is what trainers"
        " begin with, and no other token can be proposed",
        "tensor:d2t",
    )


def _special_tokens(subject: Subject) -> Mapping[int, str]:
    # the special tokens that the draft vocabulary needs, by id
    config, source = subject.target.config or {}, subject.target.source
    configs = [text_part(config), config]
    tokens: dict[int, str] = {}
    if source is not None:
        configs.append(_read_json(source, "generation_config.json"))
        # the added tokens of the target's tokenizer that start or end thoughts and tool calls
        added = _read_json(source, "tokenizer_config.json").get("added_tokens_decoder")
        for token, entry in added.items() if isinstance(added, dict) else ():
            text = entry.get("content") if isinstance(entry, dict) else None
            if token.isdecimal() and isinstance(text, str) and re.fullmatch(TURN_TOKENS, text):
                tokens[int(token)] = text
    ends = [token for config in configs for token in config_tokens(config.get("eos_token_id"))]
    # trainers copy the target's into the drafter's config
    tokens |= dict.fromkeys(ends or config_tokens(subject.flat.get("eos_token_id")), "eos")
    if not tokens:
        raise CannotLook("no config names the token that ends a turn; pass --target with the target's folder")
    return tokens


def _read_json(source: Source, name: str) -> Mapping[str, Any]:
    if name not in source.names():
        return {}
    value = parse_json(name, source.read(name))
    return value if isinstance(value, dict) else {}


# what reading reports on the topic of a rule's name, and rules of one call
RULES = (
    make_rule(
        "EGL303",
        "d2t-unique",
        "error",
        lambda subject: _faults(subject, "d2t-unique"),
        """No two draft tokens map to one target token.

    A table with repeats was not made by counting tokens: rows of lm_head map to tokens that they were not
    trained for.

    Fix: restore d2t from the trainer.
    """,
    ),
    make_rule(
        "EGL305",
        "d2t-t2d",
        "error",
        lambda subject: _faults(subject, "d2t-t2d"),
        """d2t and t2d name the same tokens.

    They are made together. Where they differ, one of them is from another run, and the file does not show
    which; a map that was rebuilt for fine-tuning pairs rows of lm_head with tokens that they were not trained
    for.

    Fix: restore both from the run that trained lm_head.
    """,
    ),
    make_rule(
        "EGL307",
        "d2t-identity",
        "error",
        lambda subject: _faults(subject, "d2t-identity"),
        """The d2t of a reduced vocabulary is not all zeros.

    Zeros map draft token i to target token i, so that the drafter proposes only the first tokens of the
    vocabulary. They are right only for a full vocabulary.

    Fix: restore d2t from the trainer.
    """,
    ),
    note_rule(
        "EGL701",
        "target-mismatch",
        "error",
        """The drafter's aux states are as wide as the target's hidden states.

    fc takes the target's hidden states; states of another width do not fit, and the drafter belongs to
    another target.

    Fix: give the target that the drafter was trained for.
    """,
        needs="hidden",
    ),
    note_rule(
        "EGL702",
        "target-vocabulary",
        "error",
        """The drafter proposes only tokens that the target has.

    The highest proposed token is the largest i + d2t[i], or the last of a full vocabulary. Engines look it up
    in the target's embedding, to verify it, without comparing it with the rows: vLLM compares the sizes only
    for method draft_model (config/speculative.py 0.32.0:1870), SGLang adds d2t to the token's number
    (llama_eagle3.py 0.5.23:352). A token beyond the rows is an illegal memory access; on CPUs vLLM 0.32.0
    ends in "index out of range" (run).

    Fix: give the target that the drafter was trained for.
    """,
        needs="vocab",
    ),
    note_rule(
        "EGL708",
        "target-vocabulary-size",
        "warning",
        """The drafter was made for a vocabulary of the target's size.

    Sizes differ where one of the two is padded, which is harmless and not reported, or where the drafter
    belongs to another model. The highest id of the target's tokenizer decides which; a drafter without an
    embedding of its own may also lack up to 2048 rows before a multiple of 64.

    Fix: check that the drafter belongs to this target; vocab_size must be the target's, not the draft
    vocabulary's.
    """,
        needs="vocab",
    ),
    note_rule(
        "EGL709",
        "target-depth",
        "warning",
        """The target has as many layers as the drafter's config says.

    Layer ids are read by the target's depth, which trainers write under names of their own
    (target_layer_count, num_target_layers and others). A target of another depth is another model, or the
    key was copied.

    Fix: give the target that the drafter was trained for, or correct the key.
    """,
        needs="depth",
    ),
)
