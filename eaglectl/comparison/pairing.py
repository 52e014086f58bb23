"""The tensors of two drafters by canonical name, each pair compared by shape, dtype and data.

Data are read block by block: digests, and how far the numbers are apart.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.comparison.comparison import Numbers, SharedRows, Side, TensorPair, TensorSide
from eaglectl.conversion.arithmetic import encoded, join_absorbed
from eaglectl.conversion.rewriting import in_ascending_order
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.errors import RefusedError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import naming
from eaglectl.files.header import DTYPE_BITS
from eaglectl.files.hub import HubSource
from eaglectl.files.source import FolderSource, PinnedSource
from eaglectl.judge.samples import FLOAT_FORMATS
from eaglectl.judge.scanning import Floats, as_floats
from eaglectl.progress import ByteCounter, OnProgress
from eaglectl.verdicts import TensorState

MAPS = ("d2t", "t2d")  # compared as the tokens that they mean
HEAD = "lm_head.weight"
BLOCK = 4 << 20
# numbers at a time; as float64 they take eight bytes each
NUMBER_BLOCK = 128 << 10


class HeaderPair(Struct, frozen=True):
    """A pair compared by headers, and its tensors; both None where their data need not be read."""

    pair: TensorPair
    a: Tensor | None
    b: Tensor | None


class Content(Struct, frozen=True):
    """A canonical tensor, and the checkpoint that its bytes are read from."""

    tensor: Tensor
    checkpoint: Checkpoint

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        """The data in blocks of `size` bytes, the last one shorter. Raises UnreadableError."""
        held = bytearray()
        for part in self._parts(size):
            if not held and len(part) == size:
                yield part
                continue
            held += part
            while len(held) >= size:
                yield bytes(held[:size])
                del held[:size]
        if held:
            yield bytes(held)

    def _parts(self, size: int) -> Iterator[bytes]:
        match self.tensor.origin:
            case Absorbed(w_kc, w_vc):
                yield from join_absorbed(self.checkpoint, w_kc, w_vc)
            case Computed():
                yield from encoded(self.tensor, self.checkpoint)
            case segments:
                for segment in segments:
                    for start in range(segment.start, segment.stop, size):
                        stop = min(start + size, segment.stop)
                        yield self.checkpoint.read(segment.stored, start, stop)


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
        tensor_a, tensor_b, remark = tensors_a.get(name), tensors_b.get(name), ""
        is_head = name == HEAD and rows is not None and _has_rows(a, tensor_a) and _has_rows(b, tensor_b)
        if is_head and not rows:
            pair = _pair(name, tensor_a, tensor_b, "no token is in both")
            yield HeaderPair(replace(pair, state=TensorState.BYTES), None, None)
            continue
        if is_head and rows and tensor_a and tensor_b:
            tensor_a = tensor_a.with_rows([row for row, _ in rows])
            tensor_b = tensor_b.with_rows([row for _, row in rows])
            remark = f"the rows of {len(rows)} tokens that are in both"
        yield HeaderPair(_pair(name, tensor_a, tensor_b, remark), tensor_a, tensor_b)


def _has_rows(side: Side, head: Tensor | None) -> bool:
    """Whether an lm_head has a row for each draft token, stored as it is."""
    is_stored = head is not None and isinstance(head.origin, tuple)
    return is_stored and head is not None and head.shape[:1] == (side.drafter.dims.draft_vocab,)


def _pair(name: str, a: Tensor | None, b: Tensor | None, remark: str) -> TensorPair:
    state = TensorState.NOT_COMPARED
    if a is None or b is None:
        state = TensorState.ONLY_A if b is None else TensorState.ONLY_B
    elif a.shape != b.shape or a.dtype != b.dtype:
        state = TensorState.SHAPE if a.shape != b.shape else TensorState.DTYPE
    side_a, side_b = (
        None if tensor is None else TensorSide(tensor.dtype, tensor.shape, tensor.stored) for tensor in (a, b)
    )
    return TensorPair(name, state, side_a, side_b, remark=remark)


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
    stored = [(checkpoint.tensors[segment.stored], segment) for segment in tensor.origin]
    if any(whole.file not in known for whole, _ in stored):
        return None
    spans = [(known[whole.file], whole.start + part.start, whole.start + part.stop) for whole, part in stored]
    return tensor.shape, tensor.dtype, spans


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
    digests_a, digests_b = _digests(a or content, b or content, on_bytes)
    side_a = pair.a and replace(pair.a, sha256=digests_a[0], blake3=digests_a[1])
    side_b = pair.b and replace(pair.b, sha256=digests_b[0], blake3=digests_b[1])
    pair = replace(pair, a=side_a, b=side_b)
    if a is None or b is None:
        if pair.name.endswith(".bias") and _is_zero(content):
            return replace(pair, state=TensorState.ZEROS, remark="zeros, which add nothing")
        return pair
    if pair.state == TensorState.NOT_COMPARED:
        pair = replace(pair, state=TensorState.EQUAL if digests_a == digests_b else TensorState.BYTES)
    is_measured = pair.state not in (TensorState.SHAPE, TensorState.EQUAL)
    return replace(pair, numbers=_distance(a, b)) if is_measured else pair


def _nbytes(tensor: Tensor | None) -> int:
    """Bytes to read; 0 for a computed tensor."""
    if tensor is None or not isinstance(tensor.origin, tuple):
        return 0
    return sum(segment.stop - segment.start for segment in tensor.origin)


def _digests(
    a: Content, b: Content, on_bytes: Callable[[int], None]
) -> tuple[tuple[str, str], tuple[str, str]]:
    """SHA-256 and BLAKE3 of both; the second's are computed from the first difference on."""
    hashes_a: tuple[Any, ...] = (hashlib.sha256(), blake3())
    hashes_b = hashes_a
    for block_a, block_b in zip_longest(a.blocks(), b.blocks(), fillvalue=b""):
        if hashes_b is hashes_a and block_a != block_b:
            hashes_b = tuple(digest.copy() for digest in hashes_a)
        for digest in hashes_a:
            digest.update(block_a)
        for digest in hashes_b if hashes_b is not hashes_a else ():
            digest.update(block_b)
        on_bytes(len(block_a))
    (sha256_a, blake3_a), (sha256_b, blake3_b) = hashes_a, hashes_b
    return (sha256_a.hexdigest(), blake3_a.hexdigest()), (sha256_b.hexdigest(), blake3_b.hexdigest())


def _is_zero(content: Content) -> bool:
    dtype = content.tensor.dtype
    return dtype in FLOAT_FORMATS and not any(_numbers(dtype, block).any() for block in content.blocks())


def _distance(a: Content, b: Content) -> Numbers | None:
    """How far two tensors of one shape are apart; None for dtypes that cannot be compared (packed ones)."""
    dtypes = a.tensor.dtype, b.tensor.dtype
    widths = [DTYPE_BITS[dtype] // 8 for dtype in dtypes]
    is_float, is_one_dtype = set(dtypes) <= set(FLOAT_FORMATS), dtypes[0] == dtypes[1]
    if not widths[0] or not (is_float or is_one_dtype):
        return None
    differing = not_finite = 0
    max_abs = squared_difference = squared_a = 0.0
    blocks = (content.blocks(NUMBER_BLOCK * width) for content, width in zip((a, b), widths, strict=True))
    for raw_a, raw_b in zip(*blocks, strict=True):
        if is_one_dtype:  # by their words: -0 is not 0, and a NaN equals itself
            word = f"<u{widths[0]}"
            differing += int(np.count_nonzero(np.frombuffer(raw_a, word) != np.frombuffer(raw_b, word)))
        if not is_float:
            continue
        with np.errstate(all="ignore"):
            numbers_a, numbers_b = _numbers(dtypes[0], raw_a), _numbers(dtypes[1], raw_b)
            if not is_one_dtype:
                is_same = (numbers_a == numbers_b) | (np.isnan(numbers_a) & np.isnan(numbers_b))
                differing += int(np.count_nonzero(~is_same))
            sums = _difference(numbers_a, numbers_b)
        squared_a, squared_difference = squared_a + sums[0], squared_difference + sums[1]
        max_abs, not_finite = max(max_abs, sums[2]), not_finite + sums[3]
    if not is_float:
        return Numbers(prod(a.tensor.shape), differing)
    is_known = squared_a and isfinite(squared_a + squared_difference)
    return Numbers(
        prod(a.tensor.shape),
        differing,
        max_abs if isfinite(max_abs) else None,
        sqrt(squared_difference / squared_a) if is_known else None,
        not_finite,
    )


def _difference(a: Floats, b: Floats) -> tuple[float, float, float, int]:
    """The sums of the squares of A and of A - B, the largest |A - B|, and how many are not finite."""
    difference, not_finite = a - b, 0
    sums = float(a @ a), float(difference @ difference)
    if not isfinite(sum(sums)):  # the sums cost less than a look at each number
        is_finite = np.isfinite(a) & np.isfinite(b)
        not_finite = int(np.count_nonzero(~is_finite))
        a, difference = a[is_finite], difference[is_finite]
        sums = float(a @ a), float(difference @ difference)
    return *sums, float(np.abs(difference, out=difference).max(initial=0.0)), not_finite


def _numbers(dtype: str, raw: bytes) -> Floats:
    """As float64, with NaN for words of 8-bit floats that are no finite number."""
    with np.errstate(invalid="ignore"):
        values = as_floats(dtype, raw)
    form = FLOAT_FORMATS[dtype]
    if form.width == 1:
        words = np.frombuffer(raw, np.uint8)
        values[((words & form.magnitude) >= form.limit) | (words == form.nan)] = np.nan
    return values
