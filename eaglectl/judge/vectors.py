"""How floating-point numbers are stored, and what those of small tensors are, without numpy.

numpy takes longer to load than norms take to read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from struct import pack, unpack

from msgspec import Struct

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
    summaries = {}
    groups = list(_neighbours(sorted(small, key=lambda tensor: (tensor.file, tensor.start))))
    for group in groups[:REQUESTS] if is_remote else groups:
        first = group[0].start
        if any(tensor.name in checkpoint.scattered for tensor in group):
            data = checkpoint.read(group[0].name)  # which says why it is not read
        data = source.read(group[0].file, first, max(tensor.stop for tensor in group))
        for tensor in group:
            raw = data[tensor.start - first : tensor.stop - first]
            summaries[tensor.name] = summarize(tensor.dtype, raw)
    return summaries


def _neighbours(tensors: Sequence[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """The tensors in groups that are near each other in one file."""
    group: list[StoredTensor] = []
    for tensor in tensors:
        if group and (tensor.file != group[-1].file or tensor.start - group[-1].stop > GAP):
            yield group
            group = []
        group.append(tensor)
    if group:
        yield group


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
