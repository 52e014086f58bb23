"""Statistics of norms, and of a few rows of each matrix, without numpy, and the ranges of trained drafters.

numpy takes longer to load than norms take to read. Zeros and copies are compared as bytes, in whole rows; a
few thousand numbers are decoded for the rest.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite, prod, sqrt
from operator import mul
from struct import calcsize, pack, unpack

from msgspec import Struct

from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import PLAIN, evenly_spaced
from eaglectl.files.checkpoint import Checkpoint

# a number of these dtypes, as struct has them; a bfloat16 is half a float32
CODES = {"F64": "d", "F32": "f", "F16": "e", "BF16": "f"}
# a word of so many bytes, as struct has it
WORDS = {2: "H", 4: "I", 8: "Q"}
SMALL = 1 << 18  # bytes of the largest tensor that is small


class FloatFormat(Struct, frozen=True):
    """A dtype's words: their width in bytes, and the least word (without sign bit) that is not finite.

    `nan` is a word below `limit` that is NaN, -1 for none.
    """

    width: int
    limit: int
    nan: int = -1

    @property
    def magnitude(self) -> int:
        """The mask of all bits but the sign."""
        return (1 << 8 * self.width - 1) - 1


FLOAT_FORMATS: Mapping[str, FloatFormat] = {
    "F64": FloatFormat(8, 0x7FF0_0000_0000_0000),
    "F32": FloatFormat(4, 0x7F80_0000),
    "F16": FloatFormat(2, 0x7C00),
    "BF16": FloatFormat(2, 0x7F80),
    "F8_E4M3": FloatFormat(1, 0x7F),
    "F8_E5M2": FloatFormat(1, 0x7C),
    "F8_E4M3FNUZ": FloatFormat(1, 0x80, 0x80),
    "F8_E5M2FNUZ": FloatFormat(1, 0x80, 0x80),
}


class Summary(Struct, frozen=True):
    """Statistics of a tensor: its largest magnitude, the count of NaN or infinite numbers, the first's index.

    `constant` is the value that all numbers have; None if they differ. `mean` is for small vectors.
    `zero_rows` counts the zero rows of a matrix that was read completely and is finite.
    """

    largest: float
    bad: int
    first: int
    constant: float | None
    mean: float | None = None
    zero_rows: int = 0


def read_vectors(checkpoint: Checkpoint) -> Mapping[str, Summary]:
    """Summarise each small vector of floating-point numbers, as norms and biases are.

    Raises UnreadableError.
    """
    return {
        tensor.name: summarize(tensor.dtype, checkpoint.read(tensor.name))
        for tensor in checkpoint.tensors.values()
        if len(tensor.shape) == 1 and tensor.dtype in CODES and 0 < tensor.nbytes <= SMALL
    }


def summarize(dtype: str, raw: bytes) -> Summary:
    """Summarise a small tensor's data."""
    letter = WORDS[FLOAT_FORMATS[dtype].width]
    words = unpack(f"<{len(raw) // calcsize(letter)}{letter}", raw)
    counts = Counter(words)
    # each distinct word is decoded once: most norms hold few
    numbers = dict(zip(counts, as_numbers(dtype, pack(f"<{len(counts)}{letter}", *counts)), strict=True))
    bad = {word for word, number in numbers.items() if not isfinite(number)}
    if bad:
        places = (place for place, word in enumerate(words) if word in bad)
        return Summary(float("inf"), sum(counts[word] for word in bad), next(places), None)
    # zeros of both signs are one
    constant = numbers[words[0]] + 0.0 if len(set(numbers.values())) == 1 else None
    mean = sum(number * counts[word] for word, number in numbers.items()) / len(words)
    return Summary(max(map(abs, numbers.values())), 0, -1, constant, mean)


def as_numbers(dtype: str, raw: bytes) -> Sequence[float]:
    """Return raw little-endian data of a dtype in CODES as numbers."""
    if dtype == "BF16":  # half a float32
        words = unpack(f"<{len(raw) // 2}H", raw)
        raw = pack(f"<{len(words)}I", *(word << 16 for word in words))
    code = CODES[dtype]
    return unpack(f"<{len(raw) // calcsize(code)}{code}", raw)


# rows of a matrix that are read, and numbers of each block of such a row that are decoded
ROWS, NUMBERS = 16, 64
# of lm_head more rows: each with the next one, and with the one half of the matrix later
HEAD_ROWS = 32
# a matrix with fewer numbers, and a norm with fewer, show no distribution
LEAST_NUMBERS, LEAST_WIDTH = 1 << 12, 64


class Range(Struct, frozen=True):
    """The values of a statistic in trained drafters, and the limits beyond which a rule reports."""

    what: str
    lowest: float
    highest: float
    below: float | None = None
    above: float | None = None


# measured on fixtures/real, fixtures/tiny and fixtures/second; tests/validation/test_plausible.py compares
RANGES: Mapping[str, Range] = {
    "block": Range("RMS of a block of fc or of the first layer's input / that of the matrix", 0.1, 1.7, 0.01),
    "rows": Range("share of rows that are zeros or copies of others", 0, 0, above=1 / 8),
    "peak": Range("largest number / RMS", 3, 40, above=1000),
    "small": Range("share of numbers below a tenth of the RMS", 0.06, 0.3, 0.01),
    "scale": Range("RMS of a matrix", 0.02, 0.3, 2.0**-20),
    "norm": Range("mean of a norm", 0.34, 1.8),
    "highest norm": Range("the highest mean of a layer's norms", 0.9, 1.5, 0.3),
    "lowest norm": Range("the lowest mean of all norms", 0.34, 1.2, above=1.6),
    "epsilon": Range("rms_norm_eps", 1e-6, 1e-5, above=1e-4),
}


class Sample(Struct, frozen=True):
    """Statistics of a few rows of a matrix: of `rows` rows, `zeros` are zero and `copies` equal another row.

    `rms` is that of all blocks of columns, `blocks` that of each. `small` is the share of numbers below a
    tenth of `rms`.
    """

    rows: int
    zeros: int
    copies: int
    rms: float
    blocks: tuple[float, ...]
    small: float


def sample_matrices(weights: Checkpoint, drafter: Drafter) -> Mapping[str, tuple[str, Sample]]:
    """Sample each matrix that training changes; returns its stored name and sample, by canonical name.

    Small, constant and non-finite matrices are left out. Raises UnreadableError.
    """
    samples = {}
    for name, tensor in drafter.tensors.items():
        is_stored = isinstance(tensor.origin, tuple) and len(tensor.origin) == 1
        stored = weights.tensors.get(tensor.stored[0]) if is_stored else None
        if stored is None or stored.dtype not in PLAIN or name == "embed_tokens.weight":
            continue
        if len(stored.shape) != 2 or stored.shape != tensor.shape or prod(stored.shape) < LEAST_NUMBERS:
            continue
        blocks = drafter.dims.aux if name == "fc.weight" else 1
        if name.startswith("layers.0.self_attn.") and tensor.shape[1] == 2 * drafter.dims.hidden:
            blocks = 2
        if sample := _sample(weights, stored.name, tensor.dtype, blocks):
            samples[name] = (stored.name, sample)
    return samples


def _sample(weights: Checkpoint, name: str, dtype: str, blocks: int) -> Sample | None:
    # figures of sampled rows that tell trained weights from others; None if they cannot
    size, count = weights.tensors[name].row_bytes, weights.tensors[name].shape[0]
    rows = [weights.read(name, row * size, (row + 1) * size) for row in _chosen_rows(name, count)]
    if len(set(rows)) == 1:
        return None  # another rule reports a constant matrix
    # a zero may be -0.0
    filled = [row for row in rows if row.strip(b"\0\x80") or any(as_numbers(dtype, row))]
    numbers = [_numbers(dtype, rows[:: max(1, len(rows) // ROWS)], at, blocks) for at in range(blocks)]
    every, of_blocks = [abs(number) for block in numbers for number in block], tuple(map(_rms, numbers))
    rms = _rms(of_blocks)  # as they are equally long
    if not rms or not isfinite(rms):  # as where one of them is not
        return None
    nulls = every.count(0)
    small = (sum(map((rms / 10).__gt__, every)) - nulls) / (len(every) - nulls)
    zeros, copies = len(rows) - len(filled), len(filled) - len(set(filled))
    return Sample(len(rows), zeros, copies, rms, of_blocks, small)


def _chosen_rows(name: str, count: int) -> Sequence[int]:
    if not name.endswith("lm_head.weight") or count < 4:
        return evenly_spaced(count, ROWS)
    half = count // 2
    firsts = {(half - 2) * i // (HEAD_ROWS - 1) for i in range(HEAD_ROWS)}
    return sorted({row for first in firsts for row in (first, first + 1, first + half)})


def _numbers(dtype: str, rows: Sequence[bytes], at: int, blocks: int) -> Sequence[float]:
    # of one block of columns, each row's from a place of its own
    width, parts = FLOAT_FORMATS[dtype].width, list[bytes]()
    for index, row in enumerate(rows):
        columns = len(row) // width // blocks
        taken = min(NUMBERS, columns)
        # not along the diagonal, which may be an identity's
        first = (at * columns + (columns - taken) * (5 * index % ROWS) // (ROWS - 1)) * width
        parts.append(row[first : first + taken * width])
    return as_numbers(dtype, b"".join(parts))


def _rms(numbers: Sequence[float]) -> float:
    return sqrt(sum(map(mul, numbers, numbers)) / len(numbers))
