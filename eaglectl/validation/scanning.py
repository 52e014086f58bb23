"""One pass over a checkpoint's numbers, and samples of single tensors; numpy's home for weights that are judged.

Words are looked at as they lie in the file: without their signs, floats order as their words do, so the largest word of a
block tells whether any of its numbers is NaN or infinite, and two maxima of whole numbers cost less than one `isnan`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.checkpoint.header import StoredTensor
from eaglectl.checkpoint.source import Source
from eaglectl.errors import Unreadable

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[Any]
Told = Callable[[int, int], None]
BLOCK = 4 << 20
# bytes of one request, where the file is on another machine
FETCHED = 16 << 20
# numbers of a tensor that its spread is taken from, and the runs that they come in
SAMPLE, RUNS = 1 << 20, 16


@dataclass(frozen=True, slots=True)
class Form:
    """How a dtype's words are read: their width in bytes, and the least word, without its sign, that is no finite number.

    `hole` is a word that is no number although it is smaller.
    """

    width: int
    limit: int
    hole: int = -1

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return (1 << 8 * self.width - 1) - 1


FORMS: Mapping[str, Form] = {
    "F64": Form(8, 0x7FF0_0000_0000_0000), "F32": Form(4, 0x7F80_0000), "F16": Form(2, 0x7C00), "BF16": Form(2, 0x7F80),
    "F8_E4M3": Form(1, 0x7F), "F8_E5M2": Form(1, 0x7C), "F8_E4M3FNUZ": Form(1, 0x80, 0x80), "F8_E5M2FNUZ": Form(1, 0x80, 0x80),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """What one pass says of a tensor: the largest magnitude, how many numbers are NaN or infinite and where the first is.

    `constant` is the number that all of them are; None where they differ.
    """

    largest: float
    bad: int
    first: int
    constant: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, standard deviation and kurtosis (3 for a normal distribution) of `count` numbers."""

    count: int
    mean: float
    deviation: float
    kurtosis: float


def scan(source: Source, tensors: Sequence[StoredTensor], told: Told | None = None) -> Mapping[str, Summary]:
    """A summary of every floating-point tensor, in one pass over each file. Raises Unreadable.

    `told` hears after each block how many bytes of how many are done.
    """
    floats = sorted((one for one in tensors if one.dtype in FORMS), key=lambda one: (one.file, one.start))
    total, done = sum(one.nbytes for one in floats), 0
    buffer = memoryview(bytearray(min(BLOCK, max((one.nbytes for one in floats), default=0))))
    found: dict[str, Summary] = {}
    for file, group in groupby(floats, key=lambda one: one.file):
        with _opened(source, file) as stream:
            for tensor in group:
                tally = _Tally(tensor.dtype)
                for block in _blocks(stream, tensor, buffer) if stream else _fetched(source, tensor):
                    tally.add(block)
                    done += block.nbytes
                    if told:
                        told(done, total)
                found[tensor.name] = tally.summary()
    return found


def spread(checkpoint: Checkpoint, name: str) -> Spread:
    """How the numbers of a tensor are spread, from runs of them that lie evenly over it."""
    tensor = checkpoint.tensors[name]
    width = FORMS[tensor.dtype].width
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
    """Some rows of a matrix as numbers, [rows, columns]."""
    tensor = checkpoint.tensors[name]
    width = tensor.row_bytes
    raw = b"".join(checkpoint.read(name, row * width, (row + 1) * width) for row in rows)
    return as_floats(tensor.dtype, raw).reshape(len(rows), -1)


def as_floats(dtype: str, raw: bytes) -> Floats:
    """Raw little-endian data of a dtype in FORMS as numbers."""
    match dtype:
        case "BF16":
            return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "F16" | "F32" | "F64":
            return np.frombuffer(raw, f"<f{FORMS[dtype].width}").astype(np.float64)
    return _EIGHT_BITS[dtype][np.frombuffer(raw, np.uint8)]


def same_rows(one: Floats, other: Floats, step: float) -> list[bool]:
    """Whether each row of two matrices is the same, but for a relative rounding of `step`."""
    # the least numbers of float16 are rounded by an absolute step
    allowed = step * np.abs(other) + (2.0**-24 if step else 0.0)
    return [bool((np.abs(mine - theirs) <= most).all()) for mine, theirs, most in zip(one, other, allowed, strict=True)]


def likeness(one: Floats, other: Floats) -> float:
    """The mean cosine of the rows of two matrices, each less its mean row: 1 for the same rows, about 0 for others."""
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines = np.divide((one * other).sum(axis=1), sizes, out=np.zeros(len(one)), where=sizes > 0)
    return float(cosines.mean())


@contextmanager
def _opened(source: Source, file: str) -> Iterator[FileIO | None]:
    """The file, if it is on this machine."""
    path = source.path(file)
    if path is None:
        yield None
        return
    try:
        with path.open("rb", buffering=0) as stream:
            yield stream
    except OSError as error:
        raise Unreadable(f"{file} in {source.label}: {error.strerror}") from None


def _blocks(stream: FileIO, tensor: StoredTensor, buffer: memoryview) -> Iterator[memoryview]:
    stream.seek(tensor.start)
    left = tensor.nbytes
    while left:
        block = buffer[: min(left, len(buffer))]
        if stream.readinto(block) != len(block):
            raise Unreadable(f"{tensor.file} ends within {tensor.name}: it is truncated or being written")
        left -= len(block)
        yield block


def _fetched(source: Source, tensor: StoredTensor) -> Iterator[memoryview]:
    for start in range(tensor.start, tensor.stop, FETCHED):
        yield memoryview(source.read(tensor.file, start, min(start + FETCHED, tensor.stop)))


class _Tally:
    """The summary of one tensor, block by block."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.form = dtype, FORMS[dtype]
        self.seen = self.peak = self.bad = 0
        self.first, self.head, self.is_constant = -1, 0, True

    def add(self, block: memoryview) -> None:
        form = self.form
        words: Words = np.frombuffer(block, f"<u{form.width}")
        if not self.seen:
            self.head = int(words[0])
        # two reductions that write nothing: the largest positive number, and the largest of the others
        high = int(words.max())
        peak = max(int(words.view(f"<i{form.width}").max()), high & form.magnitude)
        self.peak = max(self.peak, peak)
        if peak >= form.limit or (form.hole >= 0 and high >= form.hole):
            self._count(words)
        if self.is_constant:  # a look at a few settles it for nearly every tensor
            self.is_constant = bool((words[:64] == self.head).all() and (words == self.head).all())
        self.seen += len(words)

    def _count(self, words: Words) -> None:
        bad = (words & self.form.magnitude) >= self.form.limit
        if self.form.hole >= 0:
            bad |= words == self.form.hole
        if (count := int(np.count_nonzero(bad))) and self.first < 0:
            self.first = self.seen + int(bad.argmax())
        self.bad += count

    def summary(self) -> Summary:
        largest = float("inf") if self.bad else self._number(self.peak)
        constant = self.is_constant and self.seen and not self.bad
        if self.peak == 0 and self.seen and not self.bad:  # zeros of both signs
            return Summary(0.0, 0, -1, 0.0)
        return Summary(largest, self.bad, self.first, self._number(self.head) if constant else None)

    def _number(self, word: int) -> float:
        return float(as_floats(self.dtype, word.to_bytes(self.form.width, "little"))[0])


def _eight_bits(exponent: int, bias: int, *, is_unsigned_zero: bool) -> Floats:
    """The number of each of the 256 words of an 8-bit float; what is no finite number in it does not matter here."""
    words = np.arange(256)
    fraction = 7 - exponent
    power, rest = (words & 0x7F) >> fraction, (words & ((1 << fraction) - 1)) / (1 << fraction)
    size = np.where(power > 0, (1 + rest) * 2.0 ** (power - bias), rest * 2.0 ** (1 - bias))
    values = np.where(words < 128, size, -size)
    if is_unsigned_zero:
        values[128] = np.nan
    return values


_EIGHT_BITS: Mapping[str, Floats] = {
    "F8_E4M3": _eight_bits(4, 7, is_unsigned_zero=False), "F8_E5M2": _eight_bits(5, 15, is_unsigned_zero=False),
    "F8_E4M3FNUZ": _eight_bits(4, 8, is_unsigned_zero=True), "F8_E5M2FNUZ": _eight_bits(5, 16, is_unsigned_zero=True),
}  # fmt: skip
