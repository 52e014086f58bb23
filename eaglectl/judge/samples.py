"""Statistics of a few rows of each matrix, without numpy, and the ranges that trained drafters have.

Zeros and copies are compared as bytes, in whole rows; a few thousand numbers are decoded for the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, sqrt
from struct import unpack

from msgspec import Struct

from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import PLAIN, spread_over
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.judge.vectors import CODES, FLOAT_FORMATS, as_numbers

# rows that are read of a matrix, and numbers of each block of such a row that are decoded
ROWS, NUMBERS = 16, 64
# of lm_head more rows: each with the next one, and with the one half of the matrix later
HEAD_ROWS = 32
# a matrix of fewer numbers, and a norm of fewer, say nothing of how they are distributed
LEAST_NUMBERS, LEAST_WIDTH = 1 << 12, 64


class Range(Struct, frozen=True):
    """What trained drafters have of a statistic, and the limits beyond which a rule speaks."""

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
    """What a few rows of a matrix show: `zeros` and `copies` of `rows` are whole rows.

    `small` is the share of numbers below a tenth of `rms`, which is of all blocks of columns; `blocks` has
    that of each.
    """

    rows: int
    zeros: int
    copies: int
    rms: float
    blocks: tuple[float, ...]
    small: float


def sample_matrices(weights: Checkpoint, drafter: Drafter) -> Mapping[str, tuple[str, Sample]]:
    """A sample of each matrix that training changes, with its stored name, by its canonical name.

    None of small matrices, of constant ones and of those that are not finite. Raises UnreadableError.
    """
    samples = {}
    for name, tensor in drafter.tensors.items():
        if not isinstance(tensor.origin, tuple) or len(tensor.origin) != 1:
            continue
        stored = weights.tensors.get(tensor.stored[0])
        is_matrix = stored is not None and len(stored.shape) == 2 and stored.shape == tensor.shape
        if stored is None or not is_matrix or stored.dtype not in PLAIN or name == "embed_tokens.weight":
            continue
        if stored.shape[0] * stored.shape[1] < LEAST_NUMBERS:
            continue
        blocks = drafter.dims.aux if name == "fc.weight" else 1
        if name.startswith("layers.0.self_attn.") and tensor.shape[1] == 2 * drafter.dims.hidden:
            blocks = 2
        sample = _sample(weights, stored.name, tensor.dtype, blocks)
        if sample is not None:
            samples[name] = (stored.name, sample)
    return samples


def _sample(weights: Checkpoint, name: str, dtype: str, blocks: int) -> Sample | None:
    tensor = weights.tensors[name]
    size, count = tensor.row_bytes, tensor.shape[0]
    chosen = list(_rows(count, is_head=name.endswith("lm_head.weight")))
    rows = [weights.read(name, row * size, (row + 1) * size) for row in chosen]
    if len(set(rows)) == 1:
        return None  # a constant matrix, of which another rule speaks
    zeros = sum(row.count(0) == size for row in rows)
    copies = len(rows) - zeros - len(set(rows)) + bool(zeros)
    numbers = [_numbers(dtype, rows[:: max(1, len(rows) // ROWS)], at, blocks) for at in range(blocks)]
    if not all(isfinite(number) for block in numbers for number in block):
        return None
    every = [abs(number) for block in numbers for number in block]
    rms = _rms(every)
    if not rms or not isfinite(rms):
        return None
    small = sum(0 < number < rms / 10 for number in every) / sum(number > 0 for number in every)
    return Sample(len(rows), zeros, copies, rms, tuple(map(_rms, numbers)), small)


def _rows(count: int, *, is_head: bool) -> Iterator[int]:
    """Row numbers spread over the matrix, each once."""
    if not is_head or count < 4:
        yield from spread_over(count, ROWS)
        return
    half = count // 2
    firsts = {(half - 2) * i // (HEAD_ROWS - 1) for i in range(HEAD_ROWS)}
    yield from sorted({row for first in firsts for row in (first, first + 1, first + half)})


def _numbers(dtype: str, rows: Sequence[bytes], at: int, blocks: int) -> list[float]:
    """Numbers of one block of columns, each row's from a place of its own."""
    code, width = CODES[dtype][0], FLOAT_FORMATS[dtype].width
    words: list[int] = []
    for index, row in enumerate(rows):
        columns = len(row) // width // blocks
        taken = min(NUMBERS, columns)
        # not along the diagonal, which may be an identity's
        place = (columns - taken) * (5 * index % ROWS) // (ROWS - 1)
        first = (at * columns + place) * width
        words += unpack(f"<{taken}{code}", row[first : first + taken * width])
    return as_numbers(dtype, words)


def _rms(numbers: Sequence[float]) -> float:
    return sqrt(sum(number * number for number in numbers) / len(numbers))
