"""One pass over the numbers of a checkpoint, and samples of single tensors.

Numbers are compared as the integers ("words") that they are stored as: without the sign bit, floats order as
their words do, so the largest word of a block shows whether a number is NaN or infinite. Two maxima of
integers cost less than one `isnan`.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from eaglectl.conversion.arithmetic import decode
from eaglectl.drafter.tensors import spread_over
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import StoredTensor
from eaglectl.files.source import FolderSource, Source
from eaglectl.judge.vectors import FLOAT_FORMATS, Summary
from eaglectl.progress import ByteCounter, OnProgress

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[Any]
# bytes that are read at once: a block stays in a core's cache for the passes over it
BLOCK_SIZE = 1 << 20
# a span of rows up to this size is read at once
SPAN_SIZE = 4 << 20
# bytes of a tensor that one thread reads, as the largest tensor may be half of a file
PIECE_SIZE = 64 << 20
# bytes of one request to another machine
FETCH_SIZE = 16 << 20
# how many numbers of a tensor its spread is computed from, and how many runs they are read in
SAMPLE, RUNS = 1 << 20, 16


class Spread(Struct, frozen=True):
    """Mean, standard deviation and kurtosis (3 for a normal distribution) of `count` numbers."""

    count: int
    mean: float
    deviation: float
    kurtosis: float


def scan(
    source: Source, tensors: Sequence[StoredTensor], on_progress: OnProgress | None = None, *, jobs: int = 1
) -> Mapping[str, Summary]:
    """A summary of every floating-point tensor, in one pass over each file, by `jobs` threads.

    Raises UnreadableError.
    """
    floats = sorted(
        (tensor for tensor in tensors if tensor.dtype in FLOAT_FORMATS),
        key=lambda tensor: (tensor.file, tensor.start),
    )
    counter = ByteCounter(on_progress, "reading", sum(tensor.nbytes for tensor in floats))
    counting, buffers = threading.Lock(), threading.local()

    def summarize(piece: _Piece) -> _Summarizer:
        summarizer = _Summarizer(piece.tensor.dtype)
        for block in _blocks(source, piece, buffers):
            summarizer.add(block)
            with counting:
                counter.add(block.nbytes)
        return summarizer

    summaries: dict[str, Summary] = {}
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        names = dict.fromkeys(tensor.file for tensor in floats)
        opened = {name: _descriptor(source, name, stack) for name in names}
        pieces = [
            _Piece(tensor, start, min(start + PIECE_SIZE, tensor.stop), opened[tensor.file])
            for tensor in floats
            for start in range(tensor.start, max(tensor.stop, tensor.start + 1), PIECE_SIZE)
        ]
        parts = map(summarize, pieces) if jobs == 1 else pool.map(summarize, pieces)
        for tensor, group in groupby(zip(pieces, parts, strict=True), key=lambda pair: pair[0].tensor):
            whole = _Summarizer(tensor.dtype)
            for _, part in group:
                whole.append(part)
            summaries[tensor.name] = whole.summary()
    return summaries


class _Piece(Struct, frozen=True):
    """Bytes [start, stop) of a file, of one tensor; `descriptor` is the open file, where it is here."""

    tensor: StoredTensor
    start: int
    stop: int
    descriptor: int | None


def _descriptor(source: Source, file: str, stack: ExitStack) -> int | None:
    """The descriptor of an open file, which `stack` closes; None where it is not on this machine."""
    path = source.path(file)
    if path is None:
        return None
    try:
        stream = source.open_file(file) if isinstance(source, FolderSource) else path.open("rb")
    except OSError as error:
        raise UnreadableError(f"{file} in {source.place}: {error.strerror}") from None
    return stack.enter_context(stream).fileno()


def spread(checkpoint: Checkpoint, name: str) -> Spread:
    """The spread of a tensor's numbers, from runs of them at equal distances."""
    tensor = checkpoint.tensors[name]
    width = FLOAT_FORMATS[tensor.dtype].width
    count = tensor.nbytes // width
    run = min(count, max(SAMPLE // RUNS, 1))
    starts = sorted({(count - run) * i // (RUNS - 1) for i in range(RUNS)}) if count > SAMPLE else [0]
    length = run if count > SAMPLE else count
    parts = [checkpoint.read(name, start * width, (start + length) * width) for start in starts]
    values = np.concatenate([as_floats(tensor.dtype, part) for part in parts])
    mean = float(values.mean())
    values -= mean
    squares = values * values
    variance = float(squares.mean())
    kurtosis = float((squares * squares).mean()) / variance**2 if variance else 0.0
    return Spread(len(values), mean, variance**0.5, kurtosis)


def read_rows(checkpoint: Checkpoint, name: str, rows: Sequence[int]) -> Floats:
    """Some rows of a matrix, [rows, columns]."""
    tensor = checkpoint.tensors[name]
    width = tensor.row_bytes
    first, stop = min(rows), max(rows) + 1
    if (stop - first) * width <= SPAN_SIZE:
        block = checkpoint.read(name, first * width, stop * width)
        raw = b"".join(block[(row - first) * width : (row - first + 1) * width] for row in rows)
    else:
        raw = b"".join(checkpoint.read(name, row * width, (row + 1) * width) for row in rows)
    return as_floats(tensor.dtype, raw).reshape(len(rows), -1)


# rows and columns of a matrix whose singular values are computed, and how far chance takes the largest
NOISE_ROWS, NOISE_COLUMNS, CHANCE = 256, 4096, 1.05


def is_noise(checkpoint: Checkpoint, name: str) -> bool:
    """Whether the largest singular value of a part of a matrix is that of independent numbers.

    Training adds directions that all rows share, which stand out of the values of noise (Marchenko and
    Pastur, 1967) long before the spread of single numbers changes.
    """
    rows = spread_over(checkpoint.tensors[name].shape[0], NOISE_ROWS)
    part = read_rows(checkpoint, name, rows)[:, :NOISE_COLUMNS]
    largest = float(np.linalg.eigvalsh(part @ part.T)[-1]) ** 0.5
    edge = float(part.std()) * (len(part) ** 0.5 + part.shape[1] ** 0.5)
    return bool(largest < edge * CHANCE)


def as_floats(dtype: str, raw: bytes) -> Floats:
    """Raw little-endian data of a dtype in FLOAT_FORMATS as numbers."""
    if dtype in _EIGHT_BITS:
        return _EIGHT_BITS[dtype][np.frombuffer(raw, np.uint8)]
    return decode(raw, dtype, dtype)


def same_rows(left: Floats, right: Floats, step: float) -> list[bool]:
    """Whether each row is the same in two matrices, up to a relative rounding of `step`."""
    # subnormal numbers of float16 are rounded by an absolute step
    allowed = step * np.abs(right) + (2.0**-24 if step else 0.0)
    return [
        bool((np.abs(row - other) <= tolerance).all())
        for row, other, tolerance in zip(left, right, allowed, strict=True)
    ]


def similarity(left: Floats, right: Floats) -> float:
    """The mean cosine of the rows of two matrices after centering each: 1 for equal rows, about 0 for
    unrelated ones.
    """
    left, right = left - left.mean(axis=0), right - right.mean(axis=0)
    sizes = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = np.divide((left * right).sum(axis=1), sizes, out=np.zeros(len(left)), where=sizes > 0)
    return float(cosines.mean())


# two embeddings of chance have angles that differ by about sqrt(2 / columns); bfloat16 changes them by 0.0002
# in 96 columns, and a mean taken from each row by about 1 / columns
SAME_ANGLES, SAME_LENGTHS, OTHER_ROWS = 0.005, 1 / 64, 0.5
LEAST_ROWS = 8


def is_rotated(left: Floats, right: Floats) -> bool:
    """Whether rows have the same lengths and angles in two matrices and are others: one is rotated."""
    sizes, others = np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1)
    # a padded vocabulary has rows of zeros; rows that are not finite are a fault of their own
    kept = (sizes > 0) & (others > 0) & np.isfinite(sizes) & np.isfinite(others)
    sizes, others = sizes[kept], others[kept]
    if len(sizes) < LEAST_ROWS or not bool((np.abs(sizes - others) <= SAME_LENGTHS * sizes).all()):
        return False
    left, right = left[kept] / sizes[:, None], right[kept] / others[:, None]
    angles = float(np.sqrt(np.square(left @ left.T - right @ right.T).mean()))
    return angles <= SAME_ANGLES and float((left * right).sum(axis=1).mean()) < OTHER_ROWS


def _blocks(source: Source, piece: _Piece, buffers: threading.local) -> Iterator[memoryview]:
    """The bytes in blocks; those of a file on this machine in the buffer of the thread."""
    if piece.descriptor is None:
        for start in range(piece.start, piece.stop, FETCH_SIZE):
            yield memoryview(source.read(piece.tensor.file, start, min(start + FETCH_SIZE, piece.stop)))
        return
    if not hasattr(buffers, "buffer"):
        buffers.buffer = memoryview(bytearray(BLOCK_SIZE))
    for start in range(piece.start, piece.stop, BLOCK_SIZE):
        block = buffers.buffer[: min(BLOCK_SIZE, piece.stop - start)]
        try:
            size = os.preadv(piece.descriptor, [block], start)
        except OSError as error:
            raise UnreadableError(f"{piece.tensor.file}: {error.strerror}") from None
        if size != len(block):
            raise UnreadableError(
                f"{piece.tensor.file} ends within {piece.tensor.name}: it is truncated or being written"
            )
        yield block


class _Summarizer:
    """The summary of one tensor, or of a piece of it, block by block."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.format = dtype, FLOAT_FORMATS[dtype]
        self.count = self.peak = self.bad = 0
        self.first, self.head_word, self.is_constant = -1, 0, True

    def add(self, block: memoryview) -> None:
        format = self.format
        words: Words = np.frombuffer(block, f"<u{format.width}")
        if not self.count:
            self.head_word = int(words[0])
        # two reductions without a temporary array: the largest positive number, and the largest negative one
        high = int(words.max())
        peak = max(int(words.view(f"<i{format.width}").max()), high & format.magnitude)
        self.peak = max(self.peak, peak)
        if peak >= format.limit or (format.nan >= 0 and high >= format.nan):
            bad = (words & format.magnitude) >= format.limit
            if format.nan >= 0:
                bad |= words == format.nan
            if (count := int(np.count_nonzero(bad))) and self.first < 0:
                self.first = self.count + int(bad.argmax())
            self.bad += count
        if self.is_constant:  # a few words decide it for nearly every tensor
            self.is_constant = bool((words[:64] == self.head_word).all() and (words == self.head_word).all())
        self.count += len(words)

    def append(self, part: "_Summarizer") -> None:
        """Add what is known of the piece that follows."""
        if not part.count:
            return
        if not self.count:
            self.head_word = part.head_word
        if self.first < 0 <= part.first:
            self.first = self.count + part.first
        self.is_constant = self.is_constant and part.is_constant and self.head_word == part.head_word
        self.peak, self.bad = max(self.peak, part.peak), self.bad + part.bad
        self.count += part.count

    def summary(self) -> Summary:
        largest = float("inf") if self.bad else self._number(self.peak)
        constant = self.is_constant and self.count and not self.bad
        if self.peak == 0 and self.count and not self.bad:  # zeros of both signs
            return Summary(0.0, 0, -1, 0.0)
        return Summary(largest, self.bad, self.first, self._number(self.head_word) if constant else None)

    def _number(self, word: int) -> float:
        return float(as_floats(self.dtype, word.to_bytes(self.format.width, "little"))[0])


def _eight_bits(exponent: int, bias: int, *, is_unsigned_zero: bool) -> Floats:
    """The value of each of the 256 words of an 8-bit float; values of words that are not finite are
    arbitrary.
    """
    words = np.arange(256)
    fraction = 7 - exponent
    power, rest = (words & 0x7F) >> fraction, (words & ((1 << fraction) - 1)) / (1 << fraction)
    size = np.where(power > 0, (1 + rest) * 2.0 ** (power - bias), rest * 2.0 ** (1 - bias))
    values = np.where(words < 128, size, -size)
    if is_unsigned_zero:
        values[128] = np.nan
    return values


_EIGHT_BITS: Mapping[str, Floats] = {
    "F8_E4M3": _eight_bits(4, 7, is_unsigned_zero=False),
    "F8_E5M2": _eight_bits(5, 15, is_unsigned_zero=False),
    "F8_E4M3FNUZ": _eight_bits(4, 8, is_unsigned_zero=True),
    "F8_E5M2FNUZ": _eight_bits(5, 16, is_unsigned_zero=True),
}
