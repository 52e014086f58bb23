"""A strict reader of GGUF headers; it never reads tensor data but the rotary factors, which are a setting.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from math import isfinite, prod
from typing import Any

from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.files.files import MIB
from eaglectl.files.header import (
    DTYPE_BITS,
    HEADER,
    LFS_POINTER,
    MAX_TENSORS,
    POINTER,
    PULL,
    StoredTensor,
)
from eaglectl.files.source import Source

MAGIC = b"GGUF"
ARCHITECTURE_KEY, ARCHITECTURE = "general.architecture", "eagle3"
VERSIONS = (2, 3)
# a header with a tokenizer of 256,000 tokens has 12 MB
MAX_HEADER = 64 * MIB
FIRST_READ = 64 << 10
MAX_NAME, MAX_AXES, MAX_ALIGNMENT = 65_535, 4, 1 << 20
# longer lists, and lists of texts, are a tokenizer's; they are stepped over
MAX_LIST = 64
ALIGNMENT, DEFAULT_ALIGNMENT = "general.alignment", 32
FACTORS, MAX_FACTORS = "rope_freqs.weight", 4_096
FLOAT, BOOL, TEXT, LIST = 6, 7, 8, 9
# by the number of a value's type (gguf.h, enum gguf_type)
NUMBERS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", FLOAT: "<f", BOOL: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
# by the number of a tensor's type (ggml.h, enum ggml_type); all others are blocks of a quantisation
DTYPES: Mapping[int, str] = {
    0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16",
}  # fmt: skip


class _Cursor:
    """The header of a file, read as far as it is needed."""

    def __init__(self, source: Source, file: str) -> None:
        self._read = partial(source.read, file)
        self.file, self.size = file, source.size(file)
        self.position = 0
        self._raw = bytearray()

    def refused(self, text: str) -> UnreadableError:
        return UnreadableError(f"{self.file}: {text}", HEADER, self.file)

    def step(self, count: int) -> None:
        """Go on by `count` bytes. Raises UnreadableError where the file or the limit ends before."""
        end = self.position + count
        if end > self.size:
            raise self.refused(f"the header goes on to byte {end} of {self.size}; the file is truncated")
        if end > MAX_HEADER:
            raise self.refused(f"the header goes on to byte {end}; at most {MAX_HEADER} are read")
        self.position = end

    def take(self, count: int) -> bytes:
        start = self.position
        self.step(count)
        if self.position > len(self._raw):
            ahead = max(self.position, 2 * len(self._raw), FIRST_READ)
            self._raw += self._read(len(self._raw), min(ahead, self.size, MAX_HEADER))
        return bytes(self._raw[start : self.position])

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        raw = self.take(self.number("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.refused(f"a text that ends at byte {self.position} is not UTF-8") from None

    def name(self, known: Mapping[str, object]) -> str:
        name = self.text()
        if not name or len(name) > MAX_NAME or name in known:
            raise self.refused(f"{name[:80]!r} is there twice, empty or too long for a name")
        return name


def read_gguf(source: Source, file: str) -> tuple[Mapping[str, Any], Mapping[str, StoredTensor]]:
    """Facts and tensors of a GGUF file; floats of 32 bits as the shortest decimal number that they are.

    A fact has its key as it stands; lists of texts and those of more than MAX_LIST entries are left out.
    Under FACTORS stand the rotary factors. Raises UnreadableError, RefusedError for another model.
    """
    cursor = _Cursor(source, file)
    count = _counts(cursor)
    facts: dict[str, Any] = {}
    for _ in range(count[1]):
        key = cursor.name(facts)
        facts[key] = _value(cursor, cursor.number("<I"))
    if (architecture := facts.get(ARCHITECTURE_KEY)) != ARCHITECTURE:
        raise RefusedError(
            f"{file} is a GGUF file of architecture {architecture!r}; a drafter has {ARCHITECTURE!r}",
            "not-a-drafter",
            file,
        )
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for _ in range(count[0]):
        name = cursor.name(tensors)
        tensors[name] = _tensor(cursor, name)
    placed = {tensor.name: tensor for tensor in _placed(cursor, facts, tensors)}
    if factors := placed.pop(FACTORS, None):
        facts[FACTORS] = _factors(cursor, factors, source.read)
    return {key: value for key, value in facts.items() if value is not None}, placed


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """The numbers of tensors and of facts."""
    if cursor.size < 24:
        raise cursor.refused(f"it has {cursor.size} bytes; a GGUF file has at least 24")
    magic = cursor.take(4)
    if magic == LFS_POINTER[:4] and cursor.size < 1024:
        text = f"{cursor.file} is a Git LFS pointer ({cursor.size} bytes), not the weights; run {PULL}"
        raise UnreadableError(text, POINTER, cursor.file)
    if magic != MAGIC:
        raise cursor.refused("it does not begin with GGUF; it is no GGUF file")
    version = cursor.number("<I")
    if version not in VERSIONS:
        raise cursor.refused(f"GGUF version {version}; {' and '.join(map(str, VERSIONS))} are read")
    tensors, facts = cursor.number("<Q"), cursor.number("<Q")
    if tensors > MAX_TENSORS or facts > cursor.size:
        raise cursor.refused(f"{tensors} tensors and {facts} facts; no drafter has as many")
    return tensors, facts


def _value(cursor: _Cursor, kind: int) -> Any:
    """The value of a fact; None for a list that is left out."""
    if kind == TEXT:
        return cursor.text()
    if kind != LIST:
        return _number(cursor, kind)
    kind, count = cursor.number("<I"), cursor.number("<Q")
    if kind == TEXT:
        for _ in range(count):
            cursor.step(cursor.number("<Q"))
        return None
    if count > MAX_LIST:
        cursor.step(count * struct.calcsize(_form(cursor, kind)))
        return None
    return [_number(cursor, kind) for _ in range(count)]


def _form(cursor: _Cursor, kind: int) -> str:
    if kind not in NUMBERS:
        raise cursor.refused(f"a value at byte {cursor.position} is of type {kind}, which GGUF has not there")
    return NUMBERS[kind]


def _number(cursor: _Cursor, kind: int) -> Any:
    value = cursor.number(_form(cursor, kind))
    return _shortest(value) if kind == FLOAT else value


def _shortest(value: float) -> float:
    """The shortest decimal number that a float of 32 bits is read from."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 10))
    return next((float(text) for text in texts if isfinite(value) and _as_float32(text) == value), value)


def _as_float32(text: str) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])
    except OverflowError:  # rounded up past the largest
        return float("inf")


def _tensor(cursor: _Cursor, name: str) -> tuple[str, tuple[int, ...], int]:
    """Dtype, shape and offset in the data."""
    axes = cursor.number("<I")
    if not 1 <= axes <= MAX_AXES:
        raise cursor.refused(f"{name[:80]} has {axes} axes; 1 to {MAX_AXES} are possible")
    # the innermost axis comes first
    shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]
    kind = cursor.number("<I")
    if kind not in DTYPES:
        raise cursor.refused(
            f"{name[:80]} is of ggml type {kind}, a quantisation or no type; {', '.join(DTYPES.values())} are"
            " read: give the file as it was before it was quantised"
        )
    return DTYPES[kind], shape, cursor.number("<Q")


def _placed(
    cursor: _Cursor, facts: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], int]]
) -> Iterator[StoredTensor]:
    """The tensors with their bytes, which are in the file and do not overlap."""
    alignment = facts.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.refused(f"{ALIGNMENT} is {alignment!r}; a power of two was expected")
    first = -(-cursor.position // alignment) * alignment
    found = []
    for name, (dtype, shape, offset) in tensors.items():
        start = first + offset
        stop = start + prod(shape) * DTYPE_BITS[dtype] // 8
        if offset % alignment or stop > cursor.size:
            raise cursor.refused(
                f"{name[:80]} is at bytes {start} to {stop} of {cursor.size}, by {alignment}; the file is"
                " truncated or damaged"
            )
        found.append(StoredTensor(name, dtype, shape, cursor.file, start, stop))
    for one, other in pairwise(sorted(found, key=lambda tensor: (tensor.start, tensor.stop))):
        if other.start < one.stop and other.nbytes:
            raise cursor.refused(f"{one.name[:80]} and {other.name[:80]} overlap; the file is damaged")
    yield from found


def _factors(cursor: _Cursor, tensor: StoredTensor, read: Callable[..., bytes]) -> list[float]:
    """What each rotary frequency is divided by."""
    if tensor.dtype != "F32" or len(tensor.shape) != 1 or not 0 < tensor.shape[0] <= MAX_FACTORS:
        raise cursor.refused(f"{FACTORS} is {tensor.dtype} {list(tensor.shape)}; a row of F32 was expected")
    raw = read(cursor.file, tensor.start, tensor.stop)
    return [_shortest(value) for value in struct.unpack(f"<{tensor.shape[0]}f", raw)]
