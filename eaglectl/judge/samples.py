"""Statistics of norms, and of a few rows of each matrix, without numpy, and the ranges of trained drafters.

numpy takes longer to load than norms take to read. Zeros and copies are compared as bytes, in whole rows; a
few thousand numbers are decoded for the rest.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, sqrt
from struct import pack, unpack

from msgspec import Struct

from eaglectl.drafter.drafter import Drafter
from eaglectl.drafter.tensors import PLAIN, spread_over
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import StoredTensor
from eaglectl.files.source import FolderSource

# a word and a number of these dtypes, as struct has them; a bfloat16 is half a float32
CODES: Mapping[str, tuple[str, str]] = {
    "F64": ("Q", "d"),
    "F32": ("I", "f"),
    "F16": ("H", "e"),
    "BF16": ("H", "f"),
}
# bytes of the largest tensor that is small, and those between two that one request reads
SMALL, GAP = 1 << 18, 1 << 16
# ranges of norms that are fetched from the Hub, each two requests
REQUESTS = 3


class FloatFormat(Struct, frozen=True):
    """A dtype's words: their width in bytes, and the least word, without its sign bit, that is not finite.

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
    """The largest magnitude of a tensor, how many numbers are NaN or infinite, and the index of the first.

    `constant` is the value of all numbers; None where they differ. `mean` is that of a small vector.
    """

    largest: float
    bad: int
    first: int
    constant: float | None
    mean: float | None = None


def read_vectors(checkpoint: Checkpoint) -> Mapping[str, Summary]:
    """A summary of each small vector of floating-point numbers, which norms and biases are.

    From the Hub those of one file that the fewest requests give. Raises UnreadableError.
    """
    source = checkpoint.source
    is_remote = not isinstance(source, FolderSource)
    if is_remote and len(checkpoint.weight_files) > 1:
        return {}
    small = [
        tensor
        for tensor in checkpoint.tensors.values()
        if len(tensor.shape) == 1 and tensor.dtype in CODES and 0 < tensor.nbytes <= SMALL
    ]
    groups = _neighbours(small)
    summaries = {}
    for group in groups[:REQUESTS] if is_remote else groups:
        first = group[0].start
        if any(tensor.name in checkpoint.scattered for tensor in group):
            checkpoint.read(group[0].name)  # which says why it is not read
        data = source.read(group[0].file, first, max(tensor.stop for tensor in group))
        for tensor in group:
            summaries[tensor.name] = summarize(tensor.dtype, data[tensor.start - first : tensor.stop - first])
    return summaries


def _neighbours(tensors: Iterable[StoredTensor]) -> Sequence[Sequence[StoredTensor]]:
    """The tensors in groups, each of neighbours in one file, which one request reads."""
    groups: list[list[StoredTensor]] = []
    for tensor in sorted(tensors, key=lambda tensor: (tensor.file, tensor.start)):
        last = groups[-1][-1] if groups else None
        if last is None or tensor.file != last.file or tensor.start - last.stop > GAP:
            groups.append([])
        groups[-1].append(tensor)
    return groups


def summarize(dtype: str, raw: bytes) -> Summary:
    """The summary of a small tensor's data."""
    form, (code, _) = FLOAT_FORMATS[dtype], CODES[dtype]
    words = unpack(f"<{len(raw) // form.width}{code}", raw)
    counts = Counter(words)
    bad = {word for word in counts if word & form.magnitude >= form.limit}
    peak = max(word & form.magnitude for word in counts)
    if bad:
        first = next(place for place, word in enumerate(words) if word in bad)
        return Summary(float("inf"), sum(counts[word] for word in bad), first, None)
    largest, head = as_numbers(dtype, [peak, words[0] if peak else 0])
    numbers = as_numbers(dtype, list(counts))
    mean = sum(number * count for number, count in zip(numbers, counts.values(), strict=True)) / len(words)
    is_constant = len(counts) == 1 or peak == 0
    return Summary(largest, 0, -1, head if is_constant else None, mean)


def as_numbers(dtype: str, words: Sequence[int]) -> list[float]:
    """The numbers that these words of a dtype in CODES are."""
    word_code, code = CODES[dtype]
    if dtype == "BF16":
        word_code, words = "I", [word << 16 for word in words]
    return list(unpack(f"<{len(words)}{code}", pack(f"<{len(words)}{word_code}", *words)))


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
        is_stored = isinstance(tensor.origin, tuple) and len(tensor.origin) == 1
        stored = weights.tensors.get(tensor.stored[0]) if is_stored else None
        if stored is None or stored.dtype not in PLAIN or name == "embed_tokens.weight":
            continue
        shape = stored.shape
        if len(shape) != 2 or shape != tensor.shape or shape[0] * shape[1] < LEAST_NUMBERS:
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
    size = tensor.row_bytes
    chosen = _chosen_rows(name, tensor.shape[0])
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


def _chosen_rows(name: str, count: int) -> Sequence[int]:
    """The numbers of the rows that are read of a matrix of `count` rows."""
    if not name.endswith("lm_head.weight") or count < 4:
        return spread_over(count, ROWS)
    half = count // 2
    firsts = {(half - 2) * i // (HEAD_ROWS - 1) for i in range(HEAD_ROWS)}
    return sorted({row for first in firsts for row in (first, first + 1, first + half)})


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
