"""The data of two tensors, read block by block: digests, and how far their numbers are apart."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
from blake3 import blake3
from msgspec import Struct

from eaglectl.comparison.comparison import Numbers
from eaglectl.conversion.arithmetic import encoded, join_absorbed
from eaglectl.drafter.tensors import Absorbed, Computed, Tensor
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.header import DTYPE_BITS
from eaglectl.judge.samples import FLOAT_FORMATS
from eaglectl.judge.scanning import Floats, as_floats

BLOCK = 4 << 20
# numbers at a time; as float64 they take eight bytes each
NUMBER_BLOCK = 128 << 10


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


def digests(
    a: Content, b: Content, on_bytes: Callable[[int], None]
) -> tuple[tuple[str, str], tuple[str, str]]:
    """SHA-256 and BLAKE3 of both; the second's are computed from the first difference on.

    `on_bytes` counts bytes of A.
    """
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


def is_zero(content: Content) -> bool:
    """Whether a tensor of floats holds only zeros, of either sign."""
    dtype = content.tensor.dtype
    return dtype in FLOAT_FORMATS and not any(_numbers(dtype, block).any() for block in content.blocks())


def distance(a: Content, b: Content) -> Numbers | None:
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
        if is_one_dtype:
            differing += _count_words(widths[0], raw_a, raw_b)
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
    is_known = squared_a and isfinite(squared_a) and isfinite(squared_difference)
    return Numbers(
        prod(a.tensor.shape),
        differing,
        max_abs if isfinite(max_abs) else None,
        sqrt(squared_difference / squared_a) if is_known else None,
        not_finite,
    )


def _count_words(width: int, raw_a: bytes, raw_b: bytes) -> int:
    """How many words of `width` bytes differ: -0 is not 0, and a NaN equals itself."""
    words_a, words_b = (np.frombuffer(raw, f"<u{width}") for raw in (raw_a, raw_b))
    return int(np.count_nonzero(words_a != words_b))


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
