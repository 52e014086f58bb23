"""Two tensors' data against each other, block by block: digests, and how far their numbers are apart; one of numpy's homes."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglectl.checkpoint.header import DTYPE_BITS
from eaglectl.comparison.comparison import Numbers
from eaglectl.comparison.contents import Content
from eaglectl.validation.scanning import FORMS, Floats, as_floats

Read = Callable[[int], None]
BLOCK = 4 << 20
# bytes of numbers at a time, which take eight times as much as float64
NUMBERS = 256 << 10


@dataclass(frozen=True, slots=True)
class Digests:
    """SHA-256 of the data of each side."""

    a: str
    b: str


def digests(a: Content, b: Content, read: Read) -> Digests:
    """Digests of both, the second one only computed from where they part. `read` hears how many bytes of A each block had."""
    mine, theirs = hashlib.sha256(), None
    size = max(a.nbytes, b.nbytes)
    for start in range(0, size, BLOCK):
        one = a.read(start, min(start + BLOCK, a.nbytes)) if start < a.nbytes else b""
        other = b.read(start, min(start + BLOCK, b.nbytes)) if start < b.nbytes else b""
        if theirs is None and one != other:
            theirs = mine.copy()
        mine.update(one)
        if theirs:
            theirs.update(other)
        read(len(one))
    return Digests(mine.hexdigest(), (theirs or mine).hexdigest())


def digest(content: Content, read: Read) -> str:
    """SHA-256 of the data of a tensor that only one side has."""
    return digests(content, content, read).a


def is_zero(content: Content) -> bool:
    """Whether a tensor of floats is zeros, of either sign."""
    if content.tensor.dtype not in FORMS:
        return False
    starts = range(0, content.nbytes, BLOCK)
    return not any(
        _numbers(content.tensor.dtype, content.read(at, min(at + BLOCK, content.nbytes))).any() for at in starts
    )


def distance(a: Content, b: Content) -> Numbers | None:
    """How far two tensors of one shape are apart; None where their dtypes have no numbers in common (packed ones)."""
    count = prod(a.tensor.shape)
    mine, theirs = a.tensor.dtype, b.tensor.dtype
    if mine in FORMS and theirs in FORMS:
        tally = _Tally()
        for x, y, is_same in _blocks(a, b):
            tally.add(_numbers(mine, x), None if is_same else _numbers(theirs, y), _parted(mine, theirs, x, y))
        return tally.numbers(count)
    if mine != theirs or DTYPE_BITS[mine] < 8:
        return None
    words = f"u{DTYPE_BITS[mine] // 8}"
    return Numbers(count, sum(int(np.count_nonzero(_words(words, x) != _words(words, y))) for x, y, _ in _blocks(a, b)))


def _blocks(a: Content, b: Content) -> Iterator[tuple[bytes, bytes, bool]]:
    """The same numbers of both, and whether they are the same bytes of one dtype."""
    one, other = (DTYPE_BITS[content.tensor.dtype] // 8 for content in (a, b))
    step = NUMBERS // max(one, other)
    count = a.nbytes // one
    for start in range(0, count, step):
        stop = min(start + step, count)
        x, y = a.read(start * one, stop * one), b.read(start * other, stop * other)
        yield x, y, one == other and a.tensor.dtype == b.tensor.dtype and x == y


def _words(kind: str, raw: bytes) -> npt.NDArray[Any]:
    return np.frombuffer(raw, f"<{kind}")


def _numbers(dtype: str, raw: bytes) -> Floats:
    """As float64, with NaN for words of 8-bit floats that are no finite number."""
    with np.errstate(invalid="ignore"):
        values = as_floats(dtype, raw)
    form = FORMS[dtype]
    if form.width == 1:
        words = np.frombuffer(raw, np.uint8)
        values[((words & form.magnitude) >= form.limit) | (words == form.hole)] = np.nan
    return values


def _parted(mine: str, theirs: str, x: bytes, y: bytes) -> int | None:
    """How many words differ, where both are of one dtype: -0 is not 0, and a NaN is itself."""
    if mine != theirs:
        return None
    kind = f"u{FORMS[mine].width}"
    return int(np.count_nonzero(_words(kind, x) != _words(kind, y)))


class _Tally:
    """Differences of two tensors' numbers, block by block."""

    def __init__(self) -> None:
        self.differing = self.not_finite = 0
        self.largest = self.apart = self.size = 0.0

    def add(self, x: Floats, y: Floats | None, parted: int | None) -> None:
        """Add a block; `y` is None where it is the same as `x`."""
        with np.errstate(all="ignore"):
            if not self._added(x, y, parted):
                known = np.isfinite(x) if y is None else np.isfinite(x) & np.isfinite(y)
                self.not_finite += len(x) - int(np.count_nonzero(known))
                self.differing += self._apart(x, y, parted, known)
                self._add(x[known], None if y is None else y[known])

    def _added(self, x: Floats, y: Floats | None, parted: int | None) -> bool:
        """Whether the block was added: sums that are finite are of numbers that are, which costs less than to look at each."""
        before = self.size, self.apart, self.largest
        self._add(x, y)
        if not isfinite(self.size + self.apart):
            self.size, self.apart, self.largest = before
            return False
        if y is not None:
            self.differing += int(np.count_nonzero(x != y)) if parted is None else parted
        return True

    def _add(self, x: Floats, y: Floats | None) -> None:
        self.size += float(x @ x)
        if y is not None and len(x):
            between = x - y
            self.apart += float(between @ between)
            self.largest = max(self.largest, float(between.max()), -float(between.min()))

    @staticmethod
    def _apart(x: Floats, y: Floats | None, parted: int | None, known: npt.NDArray[np.bool_]) -> int:
        if y is None:
            return 0
        if parted is not None:
            return parted
        same = (x == y) | (np.isnan(x) & np.isnan(y) & ~known)
        return len(x) - int(np.count_nonzero(same))

    def numbers(self, count: int) -> Numbers:
        relative = sqrt(self.apart / self.size) if self.size and isfinite(self.apart) and isfinite(self.size) else None
        largest = self.largest if isfinite(self.largest) else None
        return Numbers(count, self.differing, largest, relative, self.not_finite)
