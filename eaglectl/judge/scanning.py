"""One pass over the numbers of a checkpoint, and samples of single tensors.

Numbers are compared as the integers ("words") that they are stored as: without the sign bit, floats order
like their words, so the largest word of a block shows whether a number is NaN or infinite. Two maxima of
integers cost less than one `isnan`.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np

from eaglectl.drafter.floats import decode
from eaglectl.drafter.tensors import evenly_spaced
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.files import errors_about
from eaglectl.files.header import StoredTensor
from eaglectl.files.source import FolderSource
from eaglectl.judge.samples import FLOAT_FORMATS, Sample, Summary
from eaglectl.progress import ByteCounter, OnProgress

Floats = np.ndarray[Any, np.dtype[np.float64]]
Words = np.ndarray[Any, np.dtype[Any]]
# bytes that are read at once: a block stays in a core's cache for the passes over it
BLOCK_SIZE = 1 << 20
# a span of rows up to this size is read at once
SPAN_SIZE = 4 << 20
# bytes of a tensor that one thread reads, as the largest tensor may be half of a file
PIECE_SIZE = 64 << 20
# threads that read
THREADS = min(os.cpu_count() or 1, 4)
# relative distance of a sample's spread from a framework's within which the spread is computed exactly
FRESH = 0.1
# the count of numbers of a tensor that its spread is computed from, and of runs that they are read in
SAMPLE, RUNS = 1 << 20, 16


# of a block: the count of numbers, the largest word, the count of numbers that are not finite, the index of
# the first of these (-1 for none), the word of all numbers (None if they differ), the count of zero rows
_Block = tuple[int, int, int, int, int | None, int]


def scan(
    source: FolderSource,
    tensors: Sequence[StoredTensor],
    on_progress: OnProgress | None = None,
    *,
    jobs: int = THREADS,
) -> Mapping[str, Summary]:
    """Summarise every floating-point tensor, in one pass over each file, by `jobs` threads.

    Raises UnreadableError.
    """
    floats = sorted(
        (tensor for tensor in tensors if tensor.dtype in FLOAT_FORMATS),
        key=lambda tensor: (tensor.file, tensor.start),
    )
    counter = ByteCounter(on_progress, "reading", sum(tensor.nbytes for tensor in floats))
    sizes = {tensor.name: PIECE_SIZE // _block_size(tensor) * _block_size(tensor) for tensor in floats}
    pieces = [
        (tensor, start, min(start + sizes[tensor.name], tensor.stop))
        for tensor in floats
        for start in range(tensor.start, tensor.stop, sizes[tensor.name])
    ]
    blocks: dict[str, list[_Block]] = {tensor.name: [] for tensor in floats}
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        files = {
            name: stack.enter_context(source.open_file(name))
            for name in dict.fromkeys(tensor.file for tensor in floats)
        }
        for (tensor, start, stop), looks in zip(
            pieces,
            (map if jobs == 1 else pool.map)(
                lambda piece: _read_blocks(files[piece[0].file], *piece), pieces
            ),
            strict=True,
        ):
            blocks[tensor.name] += looks
            counter.add(stop - start)
    return {tensor.name: _join_blocks(tensor.dtype, blocks[tensor.name]) for tensor in floats}


def _read_blocks(file: BinaryIO, tensor: StoredTensor, start: int, stop: int) -> list[_Block]:
    # summaries of a range of a tensor, block by block, as it may be larger than memory
    step, blocks = _block_size(tensor), list[_Block]()
    columns = tensor.shape[1] if len(tensor.shape) == 2 and step % tensor.row_bytes == 0 else 0
    buffer = memoryview(bytearray(min(step, stop - start)))
    for place in range(start, stop, step):
        block = buffer[: stop - place]
        with errors_about(tensor.file):
            size = os.preadv(file.fileno(), [block], place)
        if size != len(block):
            raise UnreadableError(
                f"{tensor.file} ends within {tensor.name}: it is truncated or being written"
            )
        blocks.append(_summarise_block(block, tensor.dtype, columns))
    return blocks


def _block_size(tensor: StoredTensor) -> int:
    """Return how many bytes are read at once: whole rows of a matrix, unless a row is larger than a block."""
    row = tensor.row_bytes if len(tensor.shape) == 2 else 0
    return BLOCK_SIZE // row * row if 0 < row <= BLOCK_SIZE else BLOCK_SIZE


def _zero_rows(words: Words, columns: int, magnitude: int) -> int:
    # nearly no row of a trained matrix begins with a zero, so that few are compared as a whole
    rows = words.reshape(-1, columns)
    rows = rows[(rows[:, 0] & magnitude) == 0]
    return len(rows) - int((rows & magnitude).any(axis=1).sum())


def _summarise_block(block: memoryview, dtype: str, columns: int) -> _Block:
    # the figures of `_Block`; as integers, positive floats compare as they do as numbers
    form = FLOAT_FORMATS[dtype]
    words: Words = np.frombuffer(block, f"<u{form.width}")
    # two reductions without a temporary array: the largest positive number, and the largest negative one
    high, count, first = int(words.max()), 0, -1
    peak = max(int(words.view(f"<i{form.width}").max()), high & form.magnitude)
    if peak >= form.limit or (form.nan >= 0 and high >= form.nan):
        bad = ((words & form.magnitude) >= form.limit) | (words == form.nan)
        count = int(np.count_nonzero(bad))
        first = int(bad.argmax()) if count else -1
    # a few words decide it for nearly every block
    is_constant = (words[:64] == words[0]).all() and (words == words[0]).all()
    zeros = _zero_rows(words, columns, form.magnitude) if columns else 0
    return len(words), peak, count, first, int(words[0]) if is_constant else None, zeros


def _join_blocks(dtype: str, blocks: Sequence[_Block]) -> Summary:
    # a tensor's summary from those of its blocks, in order
    place, peak = 0, max((block[1] for block in blocks), default=0)
    for size, _, bad, first, *_ in blocks:
        if bad:
            return Summary(float("inf"), sum(block[2] for block in blocks), place + first, None)
        place += size
    if not peak:  # zeros of both signs
        return Summary(0.0, 0, -1, 0.0 if blocks else None)
    (head, *others), width = {block[4] for block in blocks}, FLOAT_FORMATS[dtype].width
    raw = peak.to_bytes(width, "little") + (head or 0).to_bytes(width, "little")
    largest, constant = as_floats(dtype, raw).tolist()
    zeros = sum(block[5] for block in blocks)
    return Summary(largest, 0, -1, None if others or head is None else constant, zero_rows=zeros)


def read_rows(checkpoint: Checkpoint, name: str, rows: Sequence[int]) -> Floats:
    """Read some rows of a matrix, [rows, columns]."""
    width, dtype = checkpoint.tensors[name].row_bytes, checkpoint.tensors[name].dtype
    first, stop = min(rows), max(rows) + 1
    if (stop - first) * width <= SPAN_SIZE:
        block = as_floats(dtype, checkpoint.read(name, first * width, stop * width))
        return block.reshape(stop - first, -1)[[row - first for row in rows]]
    data = b"".join(checkpoint.read(name, row * width, (row + 1) * width) for row in rows)
    return as_floats(dtype, data).reshape(len(rows), -1)


# rows and columns of a matrix whose singular values are computed, and a tolerance of the largest for chance
NOISE_ROWS, NOISE_COLUMNS, CHANCE = 256, 4096, 1.05


def is_noise(checkpoint: Checkpoint, name: str) -> bool:
    """Whether the largest singular value of a part of a matrix is that of independent numbers.

    Training adds directions that all rows share, which stand out of the values of noise (Marchenko and
    Pastur, 1967) long before the spread of single numbers changes.
    """
    rows = evenly_spaced(checkpoint.tensors[name].shape[0], NOISE_ROWS)
    part = read_rows(checkpoint, name, rows)[:, :NOISE_COLUMNS]
    edge = float(part.std()) * (len(part) ** 0.5 + part.shape[1] ** 0.5)
    return bool(np.linalg.eigvalsh(part @ part.T)[-1] ** 0.5 < edge * CHANCE)


def untrained_matrices(
    checkpoint: Checkpoint, samples: Mapping[str, tuple[str, Sample]], initializer_range: Any
) -> Mapping[str, tuple[str, str]]:
    """Return the matrices that still look randomly initialised: stored name and distribution, by name."""
    is_stated = isinstance(initializer_range, int | float) and initializer_range > 0
    deviation = float(initializer_range) if is_stated else 0.02
    untrained = dict[str, tuple[str, str]]()
    for name, (stored, sample) in samples.items():
        spreads = deviation, (3 * checkpoint.tensors[stored].shape[-1]) ** -0.5
        # the spread of a few numbers; that of all is computed where it fits
        if any(abs(sample.rms / expected - 1) < FRESH for expected in spreads):
            words = _distribution(checkpoint, stored, deviation)
            if words and is_noise(checkpoint, stored):
                untrained[name] = stored, words
    return untrained


def _distribution(checkpoint: Checkpoint, name: str, deviation: float) -> str:
    """Return the distribution of a matrix, from runs of numbers at equal distances; "" if none fits."""
    tensor = checkpoint.tensors[name]
    width, columns = FLOAT_FORMATS[tensor.dtype].width, tensor.shape[-1]
    count = tensor.nbytes // width
    length = max(SAMPLE // RUNS, 1) if count > SAMPLE else count
    starts = sorted({(count - length) * i // (RUNS - 1) for i in range(RUNS)})
    values = np.concatenate(
        [
            as_floats(tensor.dtype, checkpoint.read(name, start * width, (start + length) * width))
            for start in starts
        ]
    )
    mean = float(values.mean())
    squares = (values - mean) ** 2
    variance = float(squares.mean())
    kurtosis = float((squares * squares).mean()) / variance**2 if variance else 0.0
    error = 4 / len(values) ** 0.5  # four standard errors, in units of each statistic
    for of_fresh, expected, words in (
        (3.0, deviation, f"normal, deviation {deviation:g}"),
        (1.8, (3 * columns) ** -0.5, f"uniform within 1/sqrt({columns})"),
    ):
        if (
            abs(mean) <= expected * max(0.01, error)
            and abs(variance**0.5 / expected - 1) <= max(0.01, error * ((of_fresh - 1) / 4) ** 0.5)
            and abs(kurtosis - of_fresh) <= max(0.03, error * 24**0.5)
        ):
            return words
    return ""


def as_floats(dtype: str, raw: bytes) -> Floats:
    """Return raw little-endian data of a dtype in FLOAT_FORMATS as numbers."""
    if dtype in _EIGHT_BITS:
        return _EIGHT_BITS[dtype][np.frombuffer(raw, np.uint8)]
    return decode(raw, dtype, dtype)


def same_rows(left: Floats, right: Floats, step: float) -> list[bool]:
    """Return whether each row is the same in two matrices, up to a relative rounding of `step`."""
    # subnormal numbers of float16 are rounded by an absolute step
    allowed = step * np.abs(right) + (2.0**-24 if step else 0.0)
    return [
        bool((np.abs(row - other) <= tolerance).all())
        for row, other, tolerance in zip(left, right, allowed, strict=True)
    ]


def similarity(left: Floats, right: Floats) -> float:
    """Return the mean cosine of the centered rows of two matrices: 1 if equal, about 0 if unrelated."""
    left, right = left - left.mean(axis=0), right - right.mean(axis=0)
    sizes = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(
        np.divide((left * right).sum(axis=1), sizes, out=np.zeros(len(left)), where=sizes > 0).mean()
    )


# angles of two random embeddings differ by about sqrt(2 / columns); bfloat16 changes them by 0.0002 in 96
# columns, subtracting the mean of each row by about 1 / columns
SAME_ANGLES, SAME_LENGTHS, OTHER_ROWS = 0.005, 1 / 64, 0.5
LEAST_ROWS = 8


def is_rotated(left: Floats, right: Floats) -> bool:
    """Whether rows of two matrices have the same lengths and angles but other values: one is rotated."""
    sizes, others = np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1)
    # a padded vocabulary has rows of zeros; rows that are not finite are a fault of their own
    usable = (sizes > 0) & (others > 0) & np.isfinite(sizes) & np.isfinite(others)
    sizes, others = sizes[usable], others[usable]
    if len(sizes) < LEAST_ROWS or not bool((np.abs(sizes - others) <= SAME_LENGTHS * sizes).all()):
        return False
    left, right = left[usable] / sizes[:, None], right[usable] / others[:, None]
    angles = float(np.sqrt(np.square(left @ left.T - right @ right.T).mean()))
    return angles <= SAME_ANGLES and float((left * right).sum(axis=1).mean()) < OTHER_ROWS


def _eight_bits(exponent: int, bias: int, *, is_unsigned_zero: bool) -> Floats:
    # the value of each of the 256 words; those of words that are not finite are arbitrary
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
