"""Rules on rows of the embedding and of lm_head, compared with each other and with the target's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.matrices import EMBEDDINGS, HEADS, PLAIN, matrix
from eaglectl.drafter.tensors import Tensor
from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook, Match, rule
from eaglectl.validation.subject import Subject

if TYPE_CHECKING:
    from eaglectl.drafter.vocabulary import Ids
    from eaglectl.validation.scanning import Floats

SAMPLED_ROWS = 64
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
    dims, own = subject.drafter.dims, subject.drafter.tensors.get("embed_tokens.weight")
    if own is None or dims.hidden != dims.target_hidden or not _is_plain(subject, own):
        return
    weights, theirs = subject.weights, subject.target.checkpoint
    name, other = own.stored[0], _named(theirs, EMBEDDINGS)
    rows = _spread_over(min(weights.tensors[name].shape[0], theirs.tensors[other].shape[0]))
    different = _different(weights, name, theirs, other, rows)
    if different:
        count = f"{len(different)} of {len(rows)} rows looked at differ from the target's {other}"
        yield Match(f"{name}: {count}, row {different[0]} among them", f"tensor:{name}")


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
    if _is_broken(subject) or _repeated(subject, name):
        return  # other rules report it
    for source, places in _other_rows(_offsets(subject), theirs.tensors[other].shape[0]).items():
        here, there = _similarities(weights, name, theirs, other, places)
        if there > SIMILAR and here < DIFFERENT:
            text = (
                f"rows of {name} are like the target's rows {source} (by {there:.2f}),"
                f" not i + d2t[i] (by {here:.2f})"
            )
            yield Match(text, f"tensor:{name}")
            return


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
    d2t, weights = subject.drafter.tensors["d2t"], subject.weights  # before numpy is loaded
    from eaglectl.drafter.vocabulary import as_engines_read

    return as_engines_read("d2t", d2t.dtype, _read(weights, d2t.stored[0]))


def _is_broken(subject: Subject) -> bool:
    """Whether d2t has faults, or lm_head holds no weights, so that its rows have no meaning."""
    dims, head = subject.drafter.dims, subject.scan[str(_head(subject))]
    from eaglectl.drafter.vocabulary import faults

    topics = {fault.topic for fault in faults(_offsets(subject), None, dims.draft_vocab, dims.vocab)}
    return head.bad > 0 or head.constant is not None or bool(topics - {"d2t-order"})


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
        (_read(weights, head, i * size, (i + 1) * size), _read(weights, head, (i + 1) * size, (i + 2) * size))
        for i in places
    ]
    return len(pairs) if row_copies(pairs) else 0


def _named(target: Checkpoint, endings: Sequence[str]) -> str:
    if (name := matrix(target.tensors, endings)) is None:
        raise CannotLook(f"the target has no {' or '.join(endings[:2])} of plain numbers")
    return name


def _spread_over(count: int) -> list[int]:
    """Up to SAMPLED_ROWS row numbers, evenly from the first to the last."""
    most = min(count, SAMPLED_ROWS)
    return sorted({(count - 1) * i // max(most - 1, 1) for i in range(most)})


def _different(ours: Checkpoint, name: str, theirs: Checkpoint, other: str, rows: Sequence[int]) -> list[int]:
    """The rows that differ in two matrices by more than the rounding of the coarser dtype."""
    if ours.tensors[name].shape[1] != theirs.tensors[other].shape[1]:
        raise CannotLook(f"{name} and the target's {other} are not of one width")
    from eaglectl.validation.scanning import same_rows

    dtypes = {ours.tensors[name].dtype, theirs.tensors[other].dtype}
    step = max(STEPS.get(dtype, 0.0) for dtype in dtypes) if len(dtypes) > 1 else 0.0
    same = same_rows(_rows(ours, name, rows), _rows(theirs, other, rows), step)
    return [row for row, is_same in zip(rows, same, strict=True) if not is_same]


def _other_rows(offsets: "Ids", vocab: int) -> Mapping[str, list[tuple[int, int, int]]]:
    """Rows that a head may have been pruned to by mistake: (draft row, row by d2t, other row), by the
    other's formula.
    """
    table = offsets.tolist()
    samples: dict[str, list[tuple[int, int, int]]] = {}
    for formula, others in (("i", range(len(table))), ("d2t[i]", table)):
        places = [(i, i + offset, other) for i, (offset, other) in enumerate(zip(table, others, strict=True))]
        valid = [
            place
            for place in places
            if place[1] != place[2] and min(place[1:]) >= 0 and max(place[1:]) < vocab
        ]
        rows = [valid[i] for i in _spread_over(len(valid))]
        # small offsets give one row repeated, which is no evidence
        if len({other for _, _, other in rows}) >= LEAST_ROWS:
            samples[formula] = rows
    return samples


def _similarities(
    ours: Checkpoint, name: str, theirs: Checkpoint, other: str, places: Sequence[tuple[int, int, int]]
) -> tuple[float, float]:
    """The similarity of rows of the head to the target's rows by d2t, and to its rows at the other places."""
    from eaglectl.validation.scanning import similarity

    drafts, meant, elsewhere = zip(*places, strict=True)
    rows = _rows(ours, name, drafts)
    return similarity(rows, _rows(theirs, other, meant)), similarity(rows, _rows(theirs, other, elsewhere))


def _rows(checkpoint: Checkpoint, name: str, rows: Sequence[int]) -> "Floats":
    from eaglectl.validation.scanning import read_rows

    try:
        return read_rows(checkpoint, name, rows)
    except EaglectlError as error:
        raise CannotLook(str(error)) from None


def _read(checkpoint: Checkpoint, name: str, start: int = 0, stop: int | None = None) -> bytes:
    try:
        return checkpoint.read(name, start, stop)
    except EaglectlError as error:
        raise CannotLook(str(error)) from None
