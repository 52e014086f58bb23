"""One pass over the numbers of a checkpoint, and samples of single tensors.

Numbers are compared as the integers ("words") that they are stored as: without the sign bit, floats order as
their words do, so the largest word of a block shows whether a number is NaN or infinite. Two maxima of
integers cost less than one `isnan`.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from eaglectl.conversion.arithmetic import decode
from eaglectl.drafter.tensors import spread_over
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import naming
from eaglectl.files.header import StoredTensor
from eaglectl.files.source import FolderSource
from eaglectl.judge.samples import FLOAT_FORMATS, Summary
from eaglectl.progress import ByteCounter, OnProgress

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[Any]
# bytes that are read at once: a block stays in a core's cache for the passes over it
BLOCK_SIZE = 1 << 20
# a span of rows up to this size is read at once
SPAN_SIZE = 4 << 20
# bytes of a tensor that one thread reads, as the largest tensor may be half of a file
PIECE_SIZE = 64 << 20
# how many numbers of a tensor its spread is computed from, and how many runs they are read in
SAMPLE, RUNS = 1 << 20, 16


class Spread(Struct, frozen=True):
    """Mean, standard deviation and kurtosis (3 for a normal distribution) of `count` numbers."""

    count: int
    mean: float
    deviation: float
    kurtosis: float


class _Part(Struct):
    """What is known of a piece of a tensor, block by block: `peak` and `head` (its first number) are words.

    `first` is the index of the first number that is not finite, -1 for none.
    """

    count: int = 0
    peak: int = 0
    bad: int = 0
    first: int = -1
    head: int = 0
    is_constant: bool = True


def scan(
    source: FolderSource,
    tensors: Sequence[StoredTensor],
    on_progress: OnProgress | None = None,
    *,
    jobs: int = 1,
) -> Mapping[str, Summary]:
    """A summary of every floating-point tensor, in one pass over each file, by `jobs` threads.

    Raises UnreadableError.
    """
    floats = sorted(
        (tensor for tensor in tensors if tensor.dtype in FLOAT_FORMATS),
        key=lambda tensor: (tensor.file, tensor.start),
    )
    counter = ByteCounter(on_progress, "reading", sum(tensor.nbytes for tensor in floats))
    counting = threading.Lock()

    def read(piece: tuple[StoredTensor, int]) -> _Part:
        tensor, start = piece
        part, buffer = _Part(), memoryview(bytearray(min(BLOCK_SIZE, tensor.nbytes)))
        stop = min(start + PIECE_SIZE, tensor.stop)
        for place in range(start, stop, BLOCK_SIZE):
            block = buffer[: stop - place]
            with naming(tensor.file):
                size = os.preadv(files[tensor.file].fileno(), [block], place)
            if size != len(block):
                raise UnreadableError(
                    f"{tensor.file} ends within {tensor.name}: it is truncated or being written"
                )
            _add(part, block, tensor.dtype)
            with counting:
                counter.add(size)
        return part

    pieces = [(tensor, start) for tensor in floats for start in range(tensor.start, tensor.stop, PIECE_SIZE)]
    parts: dict[str, list[_Part]] = {tensor.name: [] for tensor in floats}
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        names = dict.fromkeys(tensor.file for tensor in floats)
        files = {name: stack.enter_context(source.open_file(name)) for name in names}
        for (tensor, _), part in zip(
            pieces, map(read, pieces) if jobs == 1 else pool.map(read, pieces), strict=True
        ):
            parts[tensor.name].append(part)
    return {tensor.name: _summary(tensor.dtype, parts[tensor.name]) for tensor in floats}


def _add(part: _Part, block: memoryview, dtype: str) -> None:
    form = FLOAT_FORMATS[dtype]
    words: Words = np.frombuffer(block, f"<u{form.width}")
    if not part.count:
        part.head = int(words[0])
    # two reductions without a temporary array: the largest positive number, and the largest negative one
    high = int(words.max())
    peak = max(int(words.view(f"<i{form.width}").max()), high & form.magnitude)
    part.peak = max(part.peak, peak)
    if peak >= form.limit or (form.nan >= 0 and high >= form.nan):
        bad = ((words & form.magnitude) >= form.limit) | (words == form.nan)
        count = int(np.count_nonzero(bad))
        if count and part.first < 0:
            part.first = part.count + int(bad.argmax())
        part.bad += count
    if part.is_constant:  # a few words decide it for nearly every tensor
        part.is_constant = bool((words[:64] == part.head).all() and (words == part.head).all())
    part.count += len(words)


def _summary(dtype: str, parts: Sequence[_Part]) -> Summary:
    bad, peak, first, count = sum(part.bad for part in parts), 0, -1, 0
    for part in parts:
        first = count + part.first if first < 0 <= part.first else first
        peak, count = max(peak, part.peak), count + part.count
    if bad:
        return Summary(float("inf"), bad, first, None)
    if not peak:  # zeros of both signs
        return Summary(0.0, 0, -1, 0.0 if count else None)
    width, head = FLOAT_FORMATS[dtype].width, parts[0].head
    raw = peak.to_bytes(width, "little") + head.to_bytes(width, "little")
    largest, constant = as_floats(dtype, raw).tolist()
    is_constant = all(part.is_constant and part.head == head for part in parts)
    return Summary(largest, 0, -1, constant if is_constant else None)


def spread(checkpoint: Checkpoint, name: str) -> Spread:
    """The spread of a tensor's numbers, from runs of them at equal distances."""
    tensor = checkpoint.tensors[name]
    width = FLOAT_FORMATS[tensor.dtype].width
    count = tensor.nbytes // width
    starts, length = [0], count
    if count > SAMPLE:
        length = max(SAMPLE // RUNS, 1)
        starts = sorted({(count - length) * i // (RUNS - 1) for i in range(RUNS)})
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
        parts = [block[(row - first) * width : (row - first + 1) * width] for row in rows]
    else:
        parts = [checkpoint.read(name, row * width, (row + 1) * width) for row in rows]
    return as_floats(tensor.dtype, b"".join(parts)).reshape(len(rows), -1)


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
    return float(
        np.divide((left * right).sum(axis=1), sizes, out=np.zeros(len(left)), where=sizes > 0).mean()
    )


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
