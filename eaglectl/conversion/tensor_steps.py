"""The tensors of a plan: where the bytes of each come from, under a layout's names."""

from collections.abc import Iterator, Sequence
from math import prod

from eaglectl.conversion.plan import DtypeCast, GeneratedBytes, Step, StepOrigin
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.drafter.vocabulary import (
    BOTH_WHOLE,
    FROM_T2D,
    DraftVocabulary,
    Ids,
    as_int64,
    from_tokens,
    identity,
    numbers,
    read_vocabulary,
    recorded_meaning,
    repeated_offsets,
    row_copies,
    table_repairs,
)
from eaglectl.errors import OpenFactError, OptionNeededError, RefusedError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import DTYPE_BITS
from eaglectl.formats.catalogue import by_name
from eaglectl.formats.format import Answers, Layout
from eaglectl.formats.writer import written_name

FLOATS = ("BF16", "F16", "F32")
ITEM_SIZE = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}  # bytes
SAMPLED_ROWS = 64


def draft_vocabulary(
    checkpoint: Checkpoint, drafter: Drafter, answers: Answers, selected: Sequence[int] | None
) -> DraftVocabulary:
    """The draft vocabulary; `selected` are the token ids of a trainer's side file, for files without d2t.

    Raises RefusedError for tables that are broken or contradict each other, OpenFactError where that is a
    question: with the reading of --fix-reading that repairs them, if there is one.
    """
    dims = drafter.dims
    d2t, t2d = _find_own_table(drafter, "d2t"), _find_own_table(drafter, "t2d")
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
        recorded = recorded_meaning(checkpoint.record, offsets)
        answer = answers.semantics.get("d2t", recorded)
        vocabulary = read_vocabulary(offsets, mask, dims.draft_vocab, dims.vocab, answer)
    except RefusedError as refusal:
        readings, place = table_readings(checkpoint, drafter), (refusal.topic, refusal.where)
        if len(readings) > 1:
            raise OpenFactError(BOTH_WHOLE, *place) from None
        if readings:
            words = f"{refusal}; or pass --fix-reading {readings[0]}, as that table is whole"
            raise OptionNeededError(words, *place) from None
        raise
    _refuse_copied_rows(checkpoint, drafter, vocabulary)
    return vocabulary


def _find_own_table(drafter: Drafter, name: str) -> Tensor | None:
    """d2t or t2d where it has numbers of its own: not made of the other (--fix-reading)."""
    tensor = drafter.tensors.get(name)
    return tensor if tensor and tensor.stored[0].endswith(name) else None


def table_readings(checkpoint: Checkpoint, drafter: Drafter) -> tuple[str, ...]:
    """The readings of --fix-reading that repair d2t or t2d; both where nothing shows which of them is right.

    None that t2d gives where lm_head's rows are not in its order.
    """
    d2t, t2d = drafter.tensors.get("d2t"), drafter.tensors.get("t2d")
    if d2t is None or t2d is None or not drafter.has_reduced_vocabulary:
        return ()
    try:
        mask = numbers("t2d", t2d.dtype, checkpoint.read(t2d.stored[0]))
    except RefusedError:
        return ()
    try:
        offsets = numbers("d2t", d2t.dtype, checkpoint.read(d2t.stored[0]))
    except RefusedError:  # rounded
        offsets = None
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


def tensor_steps(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, vocabulary: DraftVocabulary, dtype: str | None
) -> tuple[Step, ...]:
    """One step per tensor of the output, in the source's order so that neighbours are copied together."""
    is_permuted = not drafter.has_reduced_vocabulary and not vocabulary.is_identity
    steps = []
    for name, tensor in drafter.tensors.items():
        if name in ("d2t", "t2d"):
            continue
        if is_permuted and name == "lm_head.weight":
            tensor = tensor.with_rows(sorted(range(tensor.shape[0]), key=vocabulary.targets.__getitem__))
        steps.append(_step(checkpoint, tensor, layout, dtype))
    steps.extend(_vocabulary_steps(checkpoint, drafter, layout, vocabulary))
    steps.extend(_output_biases(drafter, layout, dtype))
    in_file = sorted(checkpoint.tensors.values(), key=lambda tensor: (tensor.file, tensor.start))
    place = {tensor.name: index for index, tensor in enumerate(in_file)}

    def order(step: Step) -> tuple[int, int, str]:
        first = step.origin[0].start if isinstance(step.origin, tuple) else 0
        return place.get(step.stored[0], -1) if step.stored else -1, first, step.name

    return tuple(sorted(steps, key=order))


def _step(checkpoint: Checkpoint, tensor: Tensor, layout: Layout, dtype: str | None) -> Step:
    name = written_name(tensor.name, layout)
    origin, written = _origin(tensor, dtype)
    if not isinstance(origin, tuple):
        nbytes = prod(tensor.shape) * DTYPE_BITS[written] // 8
        return Step(name, written, tensor.shape, nbytes, origin, tensor.stored)
    nbytes = sum(segment.stop - segment.start for segment in origin)
    first = origin[0].stored
    is_whole = origin == (Segment(first, 0, checkpoint.tensors[first].nbytes),)
    return Step(name, written, tensor.shape, nbytes, origin, tensor.stored, is_whole)


def _origin(tensor: Tensor, dtype: str | None) -> tuple[StepOrigin, str]:
    """The origin of the tensor's bytes as written, cast to `dtype` where one is given, and its dtype."""
    is_cast = dtype is not None and tensor.dtype in FLOATS and dtype != tensor.dtype
    match tensor.origin:
        case Computed(how=how):
            if tensor.dtype not in ITEM_SIZE:
                raise RefusedError(
                    f"{tensor.name} is {tensor.dtype}; {how} needs its numbers: convert the unquantised"
                    " drafter"
                )
            return tensor.origin, dtype or tensor.dtype
        case Absorbed() if is_cast:
            raise RefusedError(
                f"{tensor.name}: --dtype cannot be joined with rearranging w_kc and w_vc; convert first, then"
                " cast the result"
            )
        case Absorbed():
            if DTYPE_BITS[tensor.dtype] < 8:
                raise RefusedError(
                    f"{tensor.name}: w_kc and w_vc are {tensor.dtype}, whose elements cannot be moved one by"
                    " one"
                )
            return tensor.origin, tensor.dtype
        case segments:
            if is_cast and dtype is not None:
                return DtypeCast(segments, tensor.dtype), dtype
            return segments, tensor.dtype


def _vocabulary_steps(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, vocabulary: DraftVocabulary
) -> Iterator[Step]:
    """d2t (int64 offsets) and t2d (bool): kept as stored or generated; none for a full vocabulary."""
    if not drafter.has_reduced_vocabulary:
        if not layout.has_identity_map:
            return
        vocabulary = identity(drafter.dims.vocab)
    tables = [("d2t", "I64", as_int64(vocabulary.offsets))]
    if "t2d" in drafter.tensors or layout.has_identity_map:
        tables.append(("t2d", "BOOL", vocabulary.mask(drafter.dims.vocab)))
    for name, dtype, data in tables:
        tensor, written = drafter.tensors.get(name), written_name(name, layout)
        if tensor and tensor.dtype == dtype and checkpoint.read(tensor.stored[0]) == data:
            yield Step(written, dtype, tensor.shape, len(data), tensor.origin, tensor.stored, True)
        else:
            shape, made = (len(data) * 8 // DTYPE_BITS[dtype],), GeneratedBytes(data, vocabulary.how)
            yield Step(written, dtype, shape, len(data), made, tensor.stored if tensor else ())


def _output_biases(drafter: Drafter, layout: Layout, dtype: str | None) -> Iterator[Step]:
    """o_proj biases of zeros beside real q, k, v ones.

    vLLM builds all four or none, from uninitialised memory (llama.py:268).
    """
    if Feature.QK_NORM in drafter.features():
        return  # the Qwen3 class has no bias there
    for layer in range(drafter.dims.layers):
        module = f"layers.{layer}.self_attn"
        name = f"{module}.o_proj.bias"
        query, weight = (
            drafter.tensors.get(f"{module}.q_proj.bias"),
            drafter.tensors.get(f"{module}.o_proj.weight"),
        )
        if query is None or weight is None or name in drafter.tensors:
            continue
        written = dtype or query.dtype
        zeros = GeneratedBytes(bytes(weight.shape[0] * ITEM_SIZE[written]), "zeros: no bias was trained")
        yield Step(written_name(name, layout), written, weight.shape[:1], len(zeros.data), zeros, ())


def _refuse_copied_rows(checkpoint: Checkpoint, drafter: Drafter, vocabulary: DraftVocabulary) -> None:
    head = checkpoint.tensors.get("lm_head.weight")
    if head is None or not drafter.has_reduced_vocabulary:
        return

    def read_row(row: int) -> bytes:
        return checkpoint.read(head.name, row * head.row_bytes, (row + 1) * head.row_bytes)

    repeated = repeated_offsets(vocabulary.offsets, SAMPLED_ROWS)
    if row_copies([(read_row(row), read_row(row + 1)) for row in repeated]):
        raise RefusedError(
            "lm_head.weight repeats its row wherever d2t repeats its offset: it was pruned by rows of d2t,"
            " not of i + d2t (TorchSpec's pruning fault); export again from the unpruned checkpoint"
        )
