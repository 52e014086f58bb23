"""The tensors of two drafters by canonical name, each pair compared by shape, dtype and data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.comparison.comparison import Side, TensorPair, TensorSide
from eaglectl.comparison.values import Content, Files, digests, distance, is_zero
from eaglectl.comparison.vocabulary import SharedRows
from eaglectl.conversion.aux_blocks import in_ascending_order
from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import Segment, Tensor
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.verdicts import TensorState

# SHA-256 by file of each side's files that are known without reading; equal files need not be read
KnownDigests = tuple[Mapping[str, str], Mapping[str, str]]
MAPS = ("d2t", "t2d")  # compared as the tokens that they mean
HEAD = "lm_head.weight"


class HeaderPair(Struct, frozen=True):
    """A pair compared by headers, and its tensors; both None where their data need not be read."""

    pair: TensorPair
    a: Tensor | None
    b: Tensor | None


def in_one_order(a: Side, b: Side) -> tuple[Side, Side, tuple[str, ...]]:
    """Both sides with fc's blocks by ascending boundary, where their orders differ; and notes."""
    if a.drafter.aux.order == b.drafter.aux.order:
        return a, b, ()
    try:
        ordered = [replace(side, drafter=in_ascending_order(side.drafter).drafter) for side in (a, b)]
    except RefusedError as error:
        return a, b, (f"fc is compared as stored, its blocks in two orders: {error}",)
    return ordered[0], ordered[1], ()


def tensors_of(side: Side) -> dict[str, Tensor]:
    """Canonical tensors, and unknown tensors under their own names."""
    tensors = {name: tensor for name, tensor in side.drafter.tensors.items() if name not in MAPS}
    for name in side.drafter.unknown:
        stored = side.checkpoint.tensors[name]
        segment = Segment(name, 0, stored.nbytes)
        tensors.setdefault(name, Tensor(name, stored.dtype, stored.shape, (segment,)))
    return tensors


def pair_headers(a: Side, b: Side, rows: SharedRows | None = None) -> Iterator[HeaderPair]:
    """Every pair by its headers, "not-compared" where they do not differ; heads have the shared rows only."""
    tensors_a, tensors_b = tensors_of(a), tensors_of(b)
    for name in dict.fromkeys((*tensors_a, *tensors_b)):
        tensor_a, tensor_b = tensors_a.get(name), tensors_b.get(name)
        if rows is not None and _is_head(name, tensor_a, a.drafter) and _is_head(name, tensor_b, b.drafter):
            assert tensor_a and tensor_b
            yield _pair_heads(tensor_a, tensor_b, rows)
        else:
            yield HeaderPair(_pair(name, tensor_a, tensor_b), tensor_a, tensor_b)


def _is_head(name: str, tensor: Tensor | None, drafter: Drafter) -> bool:
    """Whether this is an lm_head with a row for each draft token."""
    if name != HEAD or tensor is None or not tensor.shape:
        return False
    return tensor.shape[0] == drafter.dims.draft_vocab and isinstance(tensor.origin, tuple)


def _pair_heads(a: Tensor, b: Tensor, rows: SharedRows) -> HeaderPair:
    if not rows:
        pair = replace(_pair(HEAD, a, b), state=TensorState.BYTES, remark="no token is in both")
        return HeaderPair(pair, None, None)
    a, b = (tensor.with_rows(kept) for tensor, kept in zip((a, b), zip(*rows, strict=True), strict=True))
    remark = f"the rows of {len(rows)} tokens that are in both"
    return HeaderPair(replace(_pair(HEAD, a, b), remark=remark), a, b)


def _pair(name: str, a: Tensor | None, b: Tensor | None) -> TensorPair:
    state = TensorState.NOT_COMPARED
    if a is None or b is None:
        state = TensorState.ONLY_A if b is None else TensorState.ONLY_B
    elif a.shape != b.shape or a.dtype != b.dtype:
        state = TensorState.SHAPE if a.shape != b.shape else TensorState.DTYPE
    return TensorPair(name, state, _side(a), _side(b))


def _side(tensor: Tensor | None) -> TensorSide | None:
    return None if tensor is None else TensorSide(tensor.dtype, tensor.shape, tensor.stored)


def is_known_equal(a: Checkpoint, b: Checkpoint, header: HeaderPair, known: KnownDigests) -> bool:
    """Whether two tensors of one shape and dtype are the same bytes of files with the same digest."""
    if header.a is None or header.b is None:
        return False
    if (header.a.shape, header.a.dtype) != (header.b.shape, header.b.dtype):
        return False
    places = _places(a, header.a, known[0])
    return places is not None and places == _places(b, header.b, known[1])


def _places(
    checkpoint: Checkpoint, tensor: Tensor, known: Mapping[str, str]
) -> list[tuple[str, int, int]] | None:
    """Digest of the file, start and stop of each segment; None where a digest is not known."""
    if not isinstance(tensor.origin, tuple):
        return None
    places = []
    for segment in tensor.origin:
        stored = checkpoint.tensors[segment.stored]
        if stored.file not in known:
            return None
        places.append((known[stored.file], stored.start + segment.start, stored.start + segment.stop))
    return places


def files_to_read(checkpoint: Checkpoint, headers: Iterable[HeaderPair], side: Literal["a", "b"]) -> set[str]:
    """Weight files of one side whose data `headers` need."""
    tensors = (header.a if side == "a" else header.b for header in headers)
    return {checkpoint.tensors[name].file for tensor in tensors if tensor for name in tensor.stored}


def pair_values(
    a: Checkpoint,
    b: Checkpoint,
    headers: Sequence[HeaderPair],
    known: KnownDigests,
    on_progress: OnProgress | None = None,
) -> Iterator[TensorPair]:
    """Every pair with its data compared; `on_progress` is called with bytes of A. Raises UnreadableError."""
    total = sum(_nbytes(header.a or header.b) for header in headers)
    counter = ByteCounter(on_progress, "comparing", total)
    with Files(a) as files_a, Files(b) as files_b:
        for header in headers:
            if is_known_equal(a, b, header, known):
                yield replace(header.pair, state=TensorState.EQUAL)
                counter.add(_nbytes(header.a))
            else:
                yield _pair_data(header, files_a, files_b, counter.add)


def _pair_data(
    header: HeaderPair, files_a: Files, files_b: Files, on_bytes: Callable[[int], None]
) -> TensorPair:
    """The pair with its data compared; of a tensor of one side only, with its digest.

    A bias of zeros adds nothing: vLLM requires one beside q, k and v biases, and convert writes it.
    """
    a = Content(header.a, files_a) if header.a else None
    b = Content(header.b, files_b) if header.b else None
    if a and b:
        return _compare_data(header.pair, a, b, on_bytes)
    if (content := a or b) is None:
        return header.pair
    pair, (digest, _) = header.pair, digests(content, content, on_bytes)
    pair = replace(pair, a=_with_digest(pair.a, digest), b=_with_digest(pair.b, digest))
    if pair.name.endswith(".bias") and is_zero(content):
        return replace(pair, state=TensorState.ZEROS, remark="zeros, which add nothing")
    return pair


def _with_digest(side: TensorSide | None, digests: tuple[str, str]) -> TensorSide | None:
    sha256, blake3 = digests
    return None if side is None else replace(side, sha256=sha256, blake3=blake3)


def _compare_data(pair: TensorPair, a: Content, b: Content, on_bytes: Callable[[int], None]) -> TensorPair:
    digest_a, digest_b = digests(a, b, on_bytes)
    pair = replace(pair, a=_with_digest(pair.a, digest_a), b=_with_digest(pair.b, digest_b))
    if pair.state == TensorState.NOT_COMPARED:
        pair = replace(pair, state=TensorState.EQUAL if digest_a == digest_b else TensorState.BYTES)
    is_measured = pair.state not in (TensorState.SHAPE, TensorState.EQUAL)
    return replace(pair, numbers=distance(a, b)) if is_measured else pair


def _nbytes(tensor: Tensor | None) -> int:
    """Bytes to read; 0 for a computed tensor."""
    if tensor is None or not isinstance(tensor.origin, tuple):
        return 0
    return sum(segment.stop - segment.start for segment in tensor.origin)
