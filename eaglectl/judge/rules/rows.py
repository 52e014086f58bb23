"""Rules on rows of the embedding and of lm_head, compared with each other and with the target's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from eaglectl.drafter.tensors import (
    EMBEDDINGS,
    HEADS,
    PLAIN,
    SAMPLED_ROWS,
    Tensor,
    embedding_digest,
    matrix,
    spread_over,
)
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.target_files import rotation_file, rotation_mark
from eaglectl.judge.rule import CannotLook, Match, rule
from eaglectl.judge.subject import NO_TARGET, Subject
from eaglectl.shell import quote

if TYPE_CHECKING:
    from eaglectl.drafter.vocabulary import Ids

# with fewer rows there is no evidence of where a head was pruned from
LEAST_ROWS = 8
# rows initialised with the target's stay more similar than SIMILAR; rows of other tokens are below DIFFERENT
SIMILAR, DIFFERENT = 0.5, 0.2
# relative rounding steps of dtypes
STEPS: Mapping[str, float] = {"BF16": 2.0**-8, "F16": 2.0**-10, "F32": 2.0**-23}


@rule("EGL208", "repeated-rows", "error")
def repeated_rows(subject: Subject) -> Iterator[Match]:
    """lm_head does not repeat its row wherever d2t repeats its offset.

    It does where the head was pruned to the draft vocabulary by the offsets themselves instead of i +
    d2t[i], as by TorchSpec's --prune-vocab. Its rows then belong to other tokens, and almost no draft is
    accepted.

    Fix: export again from the checkpoint that was not pruned, with a corrected tool.
    """
    if (head := _head(subject)) and (count := _repeated(subject, head)):
        text = f"{head} repeats its row at all of {count} places looked at where d2t repeats its offset"
        yield Match(f"{text}: it was cut by rows of d2t, not of i + d2t[i]", f"tensor:{head}")


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
    weights, theirs = subject.weights, subject.target.checkpoint
    other = _named(theirs, EMBEDDINGS)
    rows = spread_over(min(weights.tensors[name].shape[0], theirs.tensors[other].shape[0]))
    different = _different(weights, name, theirs, other, rows)
    if different and not _is_rotated(weights, name, theirs, other):
        if subject.drafter.rotation is not None:
            raise CannotLook(
                f"eaglectl.json states that the target is rotated, and {name} has rows of neither the"
                " target's values nor their lengths and angles"
            )
        count = f"{len(different)} of {len(rows)} rows looked at differ from the target's {other}"
        yield Match(f"{name}: {count}, row {different[0]} among them", f"tensor:{name}")


@rule("EGL710", "rotated-target", "error")
def rotated_target(subject: Subject) -> Iterator[Match]:
    """fc takes the target's states as they are, rotated or not.

    QuaRot and SpinQuant rotate a target's residual stream before they quantise it. The target computes the
    same, and a drafter that was trained on the unrotated states accepts next to nothing: 1.07 tokens a round,
    and 3.09 once fc is rotated too (vllm-ascend 7038). It shows where the drafter has the embedding of its
    training: the target's rows have the same lengths and angles, and other values.

    Fix: run `eaglectl convert SOURCE --target-rotation measure --target TARGET`, with --for sglang where
    SGLang serves it.
    """
    own, rotation = _own_embedding(subject), subject.drafter.rotation
    if subject.target.source is None:
        raise CannotLook(NO_TARGET)
    if rotation is not None:
        yield from _unfit_rotation(subject, rotation)
        return
    if own is None:
        raise CannotLook("the drafter has no embedding of its training to compare with the target's")
    theirs = subject.target.checkpoint
    other = _named(theirs, EMBEDDINGS)
    if _is_rotated(subject.weights, own, theirs, other):
        yield Match(
            (
                f"the target's {other} has rows of the same lengths and angles as {own}, and other ones: its"
                " residual stream is rotated (QuaRot, SpinQuant), and fc was trained on the unrotated one"
            ),
            f"tensor:{own}",
            _repair(subject, "measure"),
        )


@rule("EGL711", "marked-rotation", "warning")
def marked_rotation(subject: Subject) -> Iterator[Match]:
    """A drafter without an embedding of its own has a target that is not marked as rotated.

    ModelSlim (quant_model_description.json) and llm-compressor (transform_config) state that they rotated
    the residual stream. Whether the drafter was trained on the rotated states its files do not show.

    Fix: nothing, where it was trained on this target; else run `eaglectl convert SOURCE` with
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
        text = f"{mark}; a drafter that was trained on the unrotated target accepts next to nothing with it"
        unneeded = "nothing, where it was trained on this target or vllm-ascend, which rotates it, serves it"
        yield Match(text, "", f"{unneeded}; else {fix}")


def _unfit_rotation(subject: Subject, rotation: Mapping[str, object]) -> Iterator[Match]:
    """What is wrong with a drafter that eaglectl rotated: another target, or no embedding."""
    has_embedding = "embed_tokens.weight" in subject.drafter.tensors
    stated = rotation.get("embedding")
    if has_embedding != (stated == "own"):
        text = f"eaglectl.json states {stated!r} for the embedding of a rotated drafter"
        number = "one" if has_embedding else "none"
        yield Match(f"{text}, and the file has {number}", "tensor:embed_tokens.weight")
    digest = embedding_digest(subject.target.checkpoint)
    if digest is None:
        raise CannotLook("the target has no embedding of plain numbers to compare with that in eaglectl.json")
    if digest != rotation.get("target_embedding"):
        text = "fc is rotated for a target with another embedding than this one has (eaglectl.json)"
        fix = "convert the drafter that it was made of anew, for this target."
        yield Match(text, "tensor:fc.weight", fix)


def _repair(subject: Subject, how: str) -> str:
    """What to do about a rotated target; a command only where it needs nothing that the user alone has."""
    trained = "--trained-target with the folder of the target that it was trained on"
    if "lm_head.weight" not in subject.drafter.tensors or how == "FILE":
        return f"convert it with --target-rotation {quote(how)} (or measure), and {trained}."
    return f"run `eaglectl convert SOURCE --target-rotation {quote(how)} --target TARGET`."


@rule("EGL705", "head-rows", "error")
def head_rows(subject: Subject) -> Iterator[Match]:
    """Rows of lm_head belong to the tokens that d2t gives them.

    Where lm_head was initialised with the target's rows, they are still similar. If row i is similar to the
    target's row of another token than i + d2t[i], the head was pruned by another list, or d2t was made
    anew, and drafts mean other tokens than they state.

    Fix: restore lm_head and d2t of one training run.
    """
    name, dims = _head(subject), subject.drafter.dims
    if name is None or dims.hidden != dims.target_hidden:
        return
    weights, theirs = subject.weights, subject.target.checkpoint
    other = _named(theirs, (*HEADS, *EMBEDDINGS))
    if theirs.tensors[other].shape[1] != dims.hidden:
        return  # EGL701 reports it
    head, faults = subject.scan[name], subject.vocabulary_faults
    is_broken = head.bad > 0 or head.constant is not None or any(each.topic != "d2t-order" for each in faults)
    if is_broken or _repeated(subject, name):
        return  # other rules report it
    for source, places in _other_rows(_offsets(subject), theirs.tensors[other].shape[0]).items():
        here, there = _similarities(weights, name, theirs, other, places)
        if there > SIMILAR and here < DIFFERENT:
            yield Match(
                (
                    f"rows of {name} are like the target's rows {source} (by {there:.2f}),"
                    f" not i + d2t[i] (by {here:.2f})"
                ),
                f"tensor:{name}",
            )
            return


def _own_embedding(subject: Subject) -> str | None:
    """The stored name of an own embedding of plain numbers that is as wide as the target's states."""
    dims, own = subject.drafter.dims, subject.drafter.tensors.get("embed_tokens.weight")
    if own is None or dims.hidden != dims.target_hidden or not _is_plain(subject, own):
        return None
    return own.stored[0]


def _is_rotated(ours: Checkpoint, name: str, theirs: Checkpoint, other: str) -> bool:
    """Whether sampled rows of the target's embedding are those of the drafter's, rotated."""
    if ours.tensors[name].shape[1] != theirs.tensors[other].shape[1]:
        return False
    from eaglectl.judge.scanning import is_rotated, read_rows

    rows = spread_over(min(ours.tensors[name].shape[0], theirs.tensors[other].shape[0]))
    return is_rotated(read_rows(ours, name, rows), read_rows(theirs, other, rows))


def _head(subject: Subject) -> str | None:
    """The stored name of an lm_head that is not quantised, of a reduced vocabulary with an integer d2t."""
    drafter = subject.drafter
    head, d2t = drafter.tensors.get("lm_head.weight"), drafter.tensors.get("d2t")
    if head is None or d2t is None or not drafter.has_reduced_vocabulary or d2t.dtype not in ("I64", "I32"):
        return None
    return head.stored[0] if _is_plain(subject, head) else None


def _is_plain(subject: Subject, tensor: Tensor) -> bool:
    """Whether a matrix is one stored tensor that is not quantised."""
    stored = subject.checkpoint.tensors[tensor.stored[0]]
    is_matrix = stored.shape == tensor.shape and len(stored.shape) == 2
    return is_matrix and len(tensor.stored) == 1 and stored.dtype in PLAIN


def _offsets(subject: Subject) -> "Ids":
    d2t, _ = subject.vocabulary_tables
    assert d2t is not None
    return d2t


def _repeated(subject: Subject, head: str) -> int:
    """The number of sampled places where d2t repeats its offset, if lm_head repeats its row at all of
    them; else 0.
    """
    offsets, weights = _offsets(subject), subject.weights
    from eaglectl.drafter.vocabulary import repeated_offsets, row_copies

    summary, size = subject.scan[head], weights.tensors[head].row_bytes
    places = [i for i in repeated_offsets(offsets, SAMPLED_ROWS) if i + 1 < weights.tensors[head].shape[0]]
    if summary.bad or summary.constant is not None:
        return 0  # another rule reports it
    pairs = [
        (weights.read(head, i * size, (i + 1) * size), weights.read(head, (i + 1) * size, (i + 2) * size))
        for i in places
    ]
    return len(pairs) if row_copies(pairs) else 0


def _named(target: Checkpoint, endings: Sequence[str]) -> str:
    if (name := matrix(target.tensors, endings)) is None:
        raise CannotLook(f"the target has no {' or '.join(endings[:2])} of plain numbers")
    return name


def _different(ours: Checkpoint, name: str, theirs: Checkpoint, other: str, rows: Sequence[int]) -> list[int]:
    """The rows that differ in two matrices by more than the rounding of the coarser dtype."""
    if ours.tensors[name].shape[1] != theirs.tensors[other].shape[1]:
        raise CannotLook(f"{name} and the target's {other} are not of one width")
    from eaglectl.judge.scanning import read_rows, same_rows

    dtypes = {ours.tensors[name].dtype, theirs.tensors[other].dtype}
    step = max(STEPS.get(dtype, 0.0) for dtype in dtypes) if len(dtypes) > 1 else 0.0
    same = same_rows(read_rows(ours, name, rows), read_rows(theirs, other, rows), step)
    return [row for row, is_same in zip(rows, same, strict=True) if not is_same]


def _other_rows(offsets: "Ids", vocab: int) -> Mapping[str, list[tuple[int, int, int]]]:
    """Rows that a head may have been pruned to by mistake: (draft row, row by d2t, other row), by the
    other's formula.
    """
    samples: dict[str, list[tuple[int, int, int]]] = {}
    for formula, others in (("i", range(len(offsets))), ("d2t[i]", offsets)):
        places = [
            (i, i + offset, other) for i, (offset, other) in enumerate(zip(offsets, others, strict=True))
        ]
        valid = [
            place
            for place in places
            if place[1] != place[2] and min(place[1:]) >= 0 and max(place[1:]) < vocab
        ]
        rows = [valid[i] for i in spread_over(len(valid))]
        # small offsets give one row repeated, which is no evidence
        if len({other for _, _, other in rows}) >= LEAST_ROWS:
            samples[formula] = rows
    return samples


def _similarities(
    ours: Checkpoint, name: str, theirs: Checkpoint, other: str, places: Sequence[tuple[int, int, int]]
) -> tuple[float, float]:
    """The similarity of rows of the head to the target's rows by d2t, and to its rows at the other places."""
    from eaglectl.judge.scanning import read_rows, similarity

    drafts, meant, elsewhere = zip(*places, strict=True)
    rows = read_rows(ours, name, drafts)
    by_d2t, by_other = read_rows(theirs, other, meant), read_rows(theirs, other, elsewhere)
    return similarity(rows, by_d2t), similarity(rows, by_other)
