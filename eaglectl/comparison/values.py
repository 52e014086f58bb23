"""The data of two tensors, read by range and block by block: digests, and how far numbers are apart."""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import FileIO
from itertools import accumulate
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from eaglectl.comparison.comparison import Numbers
from eaglectl.conversion.arithmetic import encode, evaluate, join_absorbed
from eaglectl.drafter.tensors import Absorbed, Computed, Segment, Tensor
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import DTYPE_BITS
from eaglectl.judge.scanning import Floats, as_floats
from eaglectl.judge.vectors import FLOAT_FORMATS

OnBytes = Callable[[int], None]
BLOCK = 4 << 20
# bytes of numbers at a time; as float64 they take up to eight times as many
NUMBER_BLOCK = 256 << 10


class Files(ExitStack):
    """The weight files of a checkpoint, kept open while it is read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self._open: dict[str, FileIO | None] = {}

    def read(self, stored: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a stored tensor's data. Raises UnreadableError."""
        tensor = self.checkpoint.tensors[stored]
        try:
            if tensor.file not in self._open:
                path = self.checkpoint.source.path(tensor.file)
                self._open[tensor.file] = self.enter_context(path.open("rb", buffering=0)) if path else None
            if (stream := self._open[tensor.file]) is None:
                return self.checkpoint.read(stored, start, stop)
            stream.seek(tensor.start + start)
            data = stream.read(stop - start)
        except OSError as error:
            raise UnreadableError(
                f"{tensor.file} in {self.checkpoint.source.place}: {error.strerror}"
            ) from None
        if len(data) != stop - start:
            raise UnreadableError(f"{tensor.file} ends within {stored}: it is truncated or being written")
        return data


class Content:
    """The data of a canonical tensor as contiguous bytes; a computed tensor is held in memory."""

    def __init__(self, tensor: Tensor, files: Files) -> None:
        self.tensor, self._files = tensor, files
        self._whole: bytes | None = None
        self._segments: tuple[Segment, ...] = ()
        match tensor.origin:
            case Absorbed(w_kc, w_vc):
                self._whole = b"".join(join_absorbed(files.checkpoint, w_kc, w_vc))
            case Computed():
                self._whole = encode(evaluate(tensor, files.checkpoint), tensor.dtype, tensor.name)
            case segments:
                self._segments = segments
        self._ends = list(accumulate(segment.stop - segment.start for segment in self._segments))
        self.nbytes = len(self._whole) if self._whole is not None else (self._ends or [0])[-1]

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop)."""
        if self._whole is not None:
            return self._whole[start:stop]
        parts = []
        for index in range(bisect_right(self._ends, start), bisect_left(self._ends, stop) + 1):
            segment, end = self._segments[index], min(stop, self._ends[index])
            shift = segment.stop - self._ends[index]
            parts.append(self._files.read(segment.stored, start + shift, end + shift))
            start = end
        return parts[0] if len(parts) == 1 else b"".join(parts)


def digests(a: Content, b: Content, on_bytes: OnBytes) -> tuple[tuple[str, str], tuple[str, str]]:
    """SHA-256 and BLAKE3 of both; the second's are computed from the first difference on.

    `on_bytes` counts bytes of A.
    """
    hashes_a: tuple[Any, ...] = (hashlib.sha256(), blake3())
    hashes_b = hashes_a
    size = max(a.nbytes, b.nbytes)
    for start in range(0, size, BLOCK):
        block_a, block_b = _block(a, start), _block(b, start)
        if hashes_b is hashes_a and block_a != block_b:
            hashes_b = tuple(digest.copy() for digest in hashes_a)
        for digest in hashes_a:
            digest.update(block_a)
        for digest in hashes_b if hashes_b is not hashes_a else ():
            digest.update(block_b)
        on_bytes(len(block_a))
    (sha256_a, blake3_a), (sha256_b, blake3_b) = hashes_a, hashes_b
    return (
        (sha256_a.hexdigest(), blake3_a.hexdigest()),
        (sha256_b.hexdigest(), blake3_b.hexdigest()),
    )


def _block(content: Content, start: int) -> bytes:
    """The block at `start`; empty beyond the end."""
    return content.read(start, min(start + BLOCK, content.nbytes)) if start < content.nbytes else b""


def is_zero(content: Content) -> bool:
    """Whether a tensor of floats holds only zeros, of either sign."""
    if content.tensor.dtype not in FLOAT_FORMATS:
        return False
    starts = range(0, content.nbytes, BLOCK)
    return not any(_numbers(content.tensor.dtype, _block(content, start)).any() for start in starts)


def distance(a: Content, b: Content) -> Numbers | None:
    """How far two tensors of one shape are apart; None for dtypes that cannot be compared (packed ones)."""
    count = prod(a.tensor.shape)
    dtype_a, dtype_b = a.tensor.dtype, b.tensor.dtype
    if dtype_a in FLOAT_FORMATS and dtype_b in FLOAT_FORMATS:
        sums = _DifferenceSums()
        for raw_a, raw_b, is_same in _blocks(a, b):
            numbers_b = None if is_same else _numbers(dtype_b, raw_b)
            # words of one dtype: -0 is not 0, and a NaN equals itself
            width = FLOAT_FORMATS[dtype_a].width
            differing = _count_differing(width, raw_a, raw_b) if dtype_a == dtype_b else None
            sums.add(_numbers(dtype_a, raw_a), numbers_b, differing)
        return sums.numbers(count)
    if dtype_a != dtype_b or DTYPE_BITS[dtype_a] < 8:
        return None
    width = DTYPE_BITS[dtype_a] // 8
    return Numbers(count, sum(_count_differing(width, raw_a, raw_b) for raw_a, raw_b, _ in _blocks(a, b)))


def _blocks(a: Content, b: Content) -> Iterator[tuple[bytes, bytes, bool]]:
    """The same numbers of both, and whether they are the same bytes of one dtype."""
    width_a, width_b = (DTYPE_BITS[content.tensor.dtype] // 8 for content in (a, b))
    is_one_dtype = a.tensor.dtype == b.tensor.dtype
    step = NUMBER_BLOCK // max(width_a, width_b)
    count = a.nbytes // width_a
    for start in range(0, count, step):
        stop = min(start + step, count)
        raw_a = a.read(start * width_a, stop * width_a)
        raw_b = b.read(start * width_b, stop * width_b)
        yield raw_a, raw_b, is_one_dtype and raw_a == raw_b


def _count_differing(width: int, raw_a: bytes, raw_b: bytes) -> int:
    """How many words of `width` bytes differ."""
    words_a, words_b = (np.frombuffer(raw, f"<u{width}") for raw in (raw_a, raw_b))
    return int(np.count_nonzero(words_a != words_b))


def _numbers(dtype: str, raw: bytes) -> Floats:
    """As float64, with NaN for words of 8-bit floats that are no finite number."""
    with np.errstate(invalid="ignore"):
        values = as_floats(dtype, raw)
    form = FLOAT_FORMATS[dtype]
    if form.width == 1:
        words = np.frombuffer(raw, np.uint8)
        values[((words & form.magnitude) >= form.limit) | (words == form.nan)] = np.nan
    return values


class _DifferenceSums:
    """Sums over the differences of two tensors, block by block."""

    def __init__(self) -> None:
        self.differing = self.not_finite = 0
        self.max_abs = self.squared_difference = self.squared_a = 0.0

    def add(self, a: Floats, b: Floats | None, differing: int | None) -> None:
        """Add a block; `b` None: it equals `a`; `differing`: words that differ, if both are of one dtype."""
        with np.errstate(all="ignore"):
            if self._add_if_finite(a, b, differing):
                return
            is_known = np.isfinite(a) if b is None else np.isfinite(a) & np.isfinite(b)
            self.not_finite += len(a) - int(np.count_nonzero(is_known))
            self.differing += _count_numbers(a, b, differing, is_known)
            self._add(a[is_known], None if b is None else b[is_known])

    def _add_if_finite(self, a: Floats, b: Floats | None, differing: int | None) -> bool:
        """Add a block whose numbers are all finite, which finite sums show at less cost than the numbers."""
        before = self.squared_a, self.squared_difference, self.max_abs
        self._add(a, b)
        if not isfinite(self.squared_a + self.squared_difference):
            self.squared_a, self.squared_difference, self.max_abs = before
            return False
        if b is not None:
            self.differing += int(np.count_nonzero(a != b)) if differing is None else differing
        return True

    def _add(self, a: Floats, b: Floats | None) -> None:
        self.squared_a += float(a @ a)
        if b is not None and len(a):
            difference = a - b
            self.squared_difference += float(difference @ difference)
            self.max_abs = max(self.max_abs, float(difference.max()), -float(difference.min()))

    def numbers(self, count: int) -> Numbers:
        """The result for tensors of `count` numbers."""
        relative = None
        if self.squared_a and isfinite(self.squared_difference) and isfinite(self.squared_a):
            relative = sqrt(self.squared_difference / self.squared_a)
        max_abs = self.max_abs if isfinite(self.max_abs) else None
        return Numbers(count, self.differing, max_abs, relative, self.not_finite)


def _count_numbers(
    a: Floats, b: Floats | None, differing: int | None, is_known: npt.NDArray[np.bool_]
) -> int:
    """How many numbers differ; two NaN are equal where no words were compared."""
    if b is None:
        return 0
    if differing is not None:
        return differing
    is_same = (a == b) | (np.isnan(a) & np.isnan(b) & ~is_known)
    return len(a) - int(np.count_nonzero(is_same))
