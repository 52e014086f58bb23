"""The tensors of a plan: which bytes go where, in a layout's names."""

from collections.abc import Iterator, Sequence
from math import prod

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.header import DTYPE_BITS
from eaglectl.conversion.plan import Cast, Derived, Step, Way
from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.drafter.vocabulary import (
    DraftVocabulary,
    from_tokens,
    identity,
    numbers,
    read_vocabulary,
    repeated_offsets,
    row_copies,
)
from eaglectl.errors import Refused
from eaglectl.formats.format import Answers, Layout
from eaglectl.formats.writing import written_name

FLOATS = ("BF16", "F16", "F32")
ITEM = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
SAMPLED_ROWS = 64


def draft_vocabulary(
    checkpoint: Checkpoint, drafter: Drafter, answers: Answers, selected: Sequence[int] | None
) -> DraftVocabulary:
    """The draft vocabulary as numbers; `selected` are token ids from a trainer's side file, used when d2t and t2d are absent."""
    dims = drafter.dims

    def read(name: str) -> Tensor | None:
        return drafter.tensors.get(name)

    d2t, t2d = read("d2t"), read("t2d")
    if d2t is None and t2d is not None and drafter.producer == "automodel" and selected is None:
        raise Refused(
            "d2t is missing, and NeMo's lm_head rows are not in the order of t2d; restore d2t, or put"
            " speculative_token_map.pt beside the weights"
        )
    if d2t is None and (t2d is None or selected is not None):
        if not drafter.has_reduced_vocabulary:
            return identity(dims.vocab)
        if selected is not None:
            return from_tokens(selected, dims.draft_vocab, dims.vocab)
    values = [
        None if tensor is None else numbers(tensor.name, tensor.dtype, checkpoint.read(tensor.stored[0]))
        for tensor in (d2t, t2d)
    ]
    vocabulary = read_vocabulary(values[0], values[1], dims.draft_vocab, dims.vocab, answers.semantics.get("d2t"))
    _refuse_copied_rows(checkpoint, drafter, vocabulary)
    return vocabulary


def tensor_steps(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, vocabulary: DraftVocabulary, dtype: str | None
) -> tuple[Step, ...]:
    """One step for each tensor of the output, the source's order kept so that neighbours are copied together."""
    steps = []
    for name, tensor in drafter.tensors.items():
        if name in ("d2t", "t2d"):
            continue
        way: Way = tensor.origin
        if name == "lm_head.weight" and not drafter.has_reduced_vocabulary and not vocabulary.is_identity:
            way = _permuted(tensor, vocabulary).origin
        steps.append(_step(checkpoint, name, tensor, layout, way, dtype))
    steps.extend(_vocabulary_steps(checkpoint, drafter, layout, vocabulary))
    steps.extend(_output_biases(drafter, layout, dtype))
    place = {
        name: index
        for index, name in enumerate(
            sorted(checkpoint.tensors, key=lambda n: (checkpoint.tensors[n].file, checkpoint.tensors[n].start))
        )
    }
    return tuple(
        sorted(steps, key=lambda step: (place.get(step.origin[0], -1) if step.origin else -1, _first(step), step.name))
    )


def _step(checkpoint: Checkpoint, name: str, tensor: Tensor, layout: Layout, way: Way, dtype: str | None) -> Step:
    nbytes = _size(way)
    written = tensor.dtype
    if isinstance(way, Computed):
        if written not in ITEM:
            raise Refused(f"{name} is {written}; {way.how} needs its numbers: convert the unquantised drafter")
        written = dtype or written
        nbytes = prod(tensor.shape) * ITEM[written]
    elif dtype and tensor.dtype in FLOATS and dtype != tensor.dtype:
        if not isinstance(way, tuple):
            raise Refused(
                f"{name}: --dtype cannot be joined with rearranging w_kc and w_vc; convert first, then cast the result"
            )
        way, nbytes, written = Cast(way, tensor.dtype), nbytes // ITEM[tensor.dtype] * ITEM[dtype], dtype
    elif isinstance(way, Absorbed):
        bits = DTYPE_BITS[tensor.dtype]
        if bits < 8:
            raise Refused(f"{name}: w_kc and w_vc are {tensor.dtype}, whose elements cannot be moved one by one")
        nbytes = prod(tensor.shape) * bits // 8
    is_whole = isinstance(way, tuple) and way == (Segment(way[0].stored, 0, checkpoint.tensors[way[0].stored].nbytes),)
    origin = tuple(dict.fromkeys(s.stored for s in way)) if isinstance(way, tuple) else tensor.stored
    return Step(written_name(name, layout), written, tensor.shape, nbytes, way, origin, is_whole)


def _size(way: Way) -> int:
    return sum(segment.stop - segment.start for segment in way) if isinstance(way, tuple) else 0


def _first(step: Step) -> int:
    return step.way[0].start if isinstance(step.way, tuple) else 0


def _vocabulary_steps(
    checkpoint: Checkpoint, drafter: Drafter, layout: Layout, vocabulary: DraftVocabulary
) -> list[Step]:
    """d2t (int64 offsets) and t2d (bool): kept where they already say it so, else derived; none for a full vocabulary."""
    if not drafter.has_reduced_vocabulary:
        if not layout.has_identity_map:
            return []
        vocabulary = identity(drafter.dims.vocab)
    wanted = {"d2t": ("I64", vocabulary.offsets.astype("<i8").tobytes(), len(vocabulary.targets))}
    if "t2d" in drafter.tensors or layout.has_identity_map:
        wanted["t2d"] = ("BOOL", vocabulary.mask(drafter.dims.vocab).tobytes(), drafter.dims.vocab)
    steps = []
    for name, (dtype, data, size) in wanted.items():
        tensor = drafter.tensors.get(name)
        if tensor and tensor.dtype == dtype and checkpoint.read(tensor.stored[0]) == data:
            steps.append(Step(name, dtype, tensor.shape, len(data), tensor.origin, tensor.stored, True))
        else:
            steps.append(
                Step(name, dtype, (size,), len(data), Derived(data, vocabulary.how), tensor.stored if tensor else ())
            )
    return steps


def _output_biases(drafter: Drafter, layout: Layout, dtype: str | None) -> Iterator[Step]:
    """Zero o_proj biases beside real q, k, v ones: vLLM builds all four or none, from uninitialised memory (llama.py:268)."""
    names = drafter.tensors
    if Feature.QK_NORM in drafter.features():
        return  # the Qwen3 class has no bias there
    for layer in range(drafter.dims.layers):
        name, weight = f"layers.{layer}.self_attn.o_proj.bias", names.get(f"layers.{layer}.self_attn.o_proj.weight")
        if f"layers.{layer}.self_attn.q_proj.bias" not in names or name in names or weight is None:
            continue
        written = dtype or names[f"layers.{layer}.self_attn.q_proj.bias"].dtype
        data = bytes(weight.shape[0] * ITEM[written])
        yield Step(
            written_name(name, layout),
            written,
            weight.shape[:1],
            len(data),
            Derived(data, "zeros: no bias was trained"),
            (),
        )


def _permuted(tensor: Tensor, vocabulary: DraftVocabulary) -> Tensor:
    """lm_head rows by target token: new[i + d2t[i]] = old[i], for a full vocabulary in another order (formats.md, C11)."""
    source = [0] * tensor.shape[0]
    for draft, target in enumerate(vocabulary.targets.tolist()):
        source[target] = draft
    return tensor.with_rows(source)


def _refuse_copied_rows(checkpoint: Checkpoint, drafter: Drafter, vocabulary: DraftVocabulary) -> None:
    head = checkpoint.tensors.get("lm_head.weight")
    if head is None or not drafter.has_reduced_vocabulary:
        return
    row = head.row_bytes
    pairs = [
        (checkpoint.read(head.name, i * row, (i + 1) * row), checkpoint.read(head.name, (i + 1) * row, (i + 2) * row))
        for i in repeated_offsets(vocabulary.offsets, SAMPLED_ROWS)
    ]
    if row_copies(pairs):
        raise Refused(
            "lm_head.weight repeats its row wherever d2t repeats its offset: it was pruned by rows of d2t, not of i +"
            " d2t (TorchSpec's pruning fault); export again from the unpruned checkpoint"
        )
