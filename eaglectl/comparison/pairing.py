"""The tensors of two drafters by canonical name, each pair compared by shape, dtype and data."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.comparison.comparison import Side, TensorPair, TensorSide
from eaglectl.comparison.values import Content, digests, distance, is_zero
from eaglectl.comparison.vocabulary import SharedRows
from eaglectl.conversion.rewriting import in_ascending_order
from eaglectl.drafter.tensors import Segment, Tensor
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import naming
from eaglectl.files.hub import HubSource
from eaglectl.files.source import FolderSource, PinnedSource
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.verdicts import TensorState

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
        is_head = name == HEAD and rows is not None and _has_rows(a, tensor_a) and _has_rows(b, tensor_b)
        if not is_head:
            yield HeaderPair(_pair(name, tensor_a, tensor_b), tensor_a, tensor_b)
        elif not rows:
            pair = replace(_pair(name, tensor_a, tensor_b), state=TensorState.BYTES)
            yield HeaderPair(replace(pair, remark="no token is in both"), None, None)
        else:
            assert tensor_a and tensor_b
            tensor_a = tensor_a.with_rows([row for row, _ in rows])
            tensor_b = tensor_b.with_rows([row for _, row in rows])
            remark = f"the rows of {len(rows)} tokens that are in both"
            pair = replace(_pair(name, tensor_a, tensor_b), remark=remark)
            yield HeaderPair(pair, tensor_a, tensor_b)


def _has_rows(side: Side, head: Tensor | None) -> bool:
    """Whether an lm_head has a row for each draft token, stored as it is."""
    if head is None or not isinstance(head.origin, tuple):
        return False
    return head.shape[:1] == (side.drafter.dims.draft_vocab,)


def _pair(name: str, a: Tensor | None, b: Tensor | None) -> TensorPair:
    state = TensorState.NOT_COMPARED
    if a is None or b is None:
        state = TensorState.ONLY_A if b is None else TensorState.ONLY_B
    elif a.shape != b.shape or a.dtype != b.dtype:
        state = TensorState.SHAPE if a.shape != b.shape else TensorState.DTYPE
    side_a, side_b = (
        None if tensor is None else TensorSide(tensor.dtype, tensor.shape, tensor.stored) for tensor in (a, b)
    )
    return TensorPair(name, state, side_a, side_b)


def compare_data(
    a: Checkpoint, b: Checkpoint, headers: Sequence[HeaderPair], on_progress: OnProgress | None = None
) -> Iterator[TensorPair]:
    """Every pair with its data compared; `on_progress` is called with bytes of A. Raises UnreadableError.

    Tensors at one place in files of one digest are equal: such files of the Hub are not downloaded.
    """
    digests_a, digests_b = _known_digests(a, b), _known_digests(b, a)
    places = [(_places(a, header.a, digests_a), _places(b, header.b, digests_b)) for header in headers]
    is_equal = [place is not None and place == other for place, other in places]
    needed = [header for header, is_known in zip(headers, is_equal, strict=True) if not is_known]
    counter = ByteCounter(on_progress, "comparing", sum(_nbytes(pair.a or pair.b) for pair in headers))
    with (
        _readable(a, [header.a for header in needed]) as read_a,
        _readable(b, [header.b for header in needed]) as read_b,
    ):
        for header, is_known in zip(headers, is_equal, strict=True):
            if is_known:
                yield replace(header.pair, state=TensorState.EQUAL)
                counter.add(_nbytes(header.a))
            else:
                content_a = Content(header.a, read_a) if header.a else None
                content_b = Content(header.b, read_b) if header.b else None
                yield _with_data(header.pair, content_a, content_b, counter.add)


def _known_digests(checkpoint: Checkpoint, other: Checkpoint) -> Mapping[str, str]:
    """SHA-256 of whole weight files that the Hub lists, and of local ones that it may have too, by size."""
    source, hub = checkpoint.source, other.source
    if isinstance(source, HubSource):
        return source.listed.sha256
    if not isinstance(hub, HubSource):
        return {}
    sizes, digests = {hub.size(file) for file in other.weight_files}, {}
    for file in checkpoint.weight_files:
        if source.size(file) in sizes and (path := source.path(file)):
            with naming(path), path.open("rb") as stream:
                digests[file] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def _places(checkpoint: Checkpoint, tensor: Tensor | None, known: Mapping[str, str]) -> Any:
    """Shape, dtype, and for each segment the digest of its file with its start and stop.

    None where a digest is not known.
    """
    if tensor is None or not isinstance(tensor.origin, tuple):
        return None
    places: list[Any] = [tensor.shape, tensor.dtype]
    for segment in tensor.origin:
        stored = checkpoint.tensors[segment.stored]
        if stored.file not in known:
            return None
        places.append((known[stored.file], stored.start + segment.start, stored.start + segment.stop))
    return places


@contextmanager
def _readable(checkpoint: Checkpoint, tensors: Iterable[Tensor | None]) -> Iterator[Checkpoint]:
    """The checkpoint with the files of `tensors` on this machine, each opened once.

    Those of the Hub are downloaded. Raises UnreadableError, also for files in the Hub client's cache that are
    not what was downloaded.
    """
    files = {checkpoint.tensors[name].file for tensor in tensors if tensor for name in tensor.stored}
    source = checkpoint.source
    if isinstance(source, FolderSource):
        source.check_cached(files)
    elif isinstance(source, HubSource) and files:
        source = source.downloaded(set(checkpoint.weight_files) - files)
    if not isinstance(source, FolderSource):
        yield checkpoint
        return
    with PinnedSource(source.root, source.only) as pinned:
        yield replace(checkpoint, source=pinned)


def _with_data(
    pair: TensorPair, a: Content | None, b: Content | None, on_bytes: Callable[[int], None]
) -> TensorPair:
    """The pair with its data compared; of a tensor of one side only, with its digest.

    A bias of zeros adds nothing: vLLM requires one beside q, k and v biases, and convert writes it.
    """
    if (content := a or b) is None:
        return pair
    digests_a, digests_b = digests(a or content, b or content, on_bytes)
    side_a = pair.a and replace(pair.a, sha256=digests_a[0], blake3=digests_a[1])
    side_b = pair.b and replace(pair.b, sha256=digests_b[0], blake3=digests_b[1])
    pair = replace(pair, a=side_a, b=side_b)
    if a is None or b is None:
        if pair.name.endswith(".bias") and is_zero(content):
            return replace(pair, state=TensorState.ZEROS, remark="zeros, which add nothing")
        return pair
    if pair.state == TensorState.NOT_COMPARED:
        pair = replace(pair, state=TensorState.EQUAL if digests_a == digests_b else TensorState.BYTES)
    is_measured = pair.state not in (TensorState.SHAPE, TensorState.EQUAL)
    return replace(pair, numbers=distance(a, b)) if is_measured else pair


def _nbytes(tensor: Tensor | None) -> int:
    """Bytes to read; 0 for a computed tensor."""
    if tensor is None or not isinstance(tensor.origin, tuple):
        return 0
    return sum(segment.stop - segment.start for segment in tensor.origin)
