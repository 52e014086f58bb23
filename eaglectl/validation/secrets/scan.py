"""Scanning whole files for secrets, in blocks that overlap: bytes, UTF-16, UTF-32, texts in PNG images."""

import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.validation.secrets.patterns import SecretRule, rules_near

Read = Callable[[int, int], bytes]
BLOCK = 1 << 20
# the longest secret that is sure to be seen where it lies across two blocks, and what a rule reads before it
OVERLAP, BEFORE = 8192, 256
# how much of a text near a keyword a rule reads
AFTER = 2048
PNG = b"\x89PNG\r\n\x1a\n"
PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
# the compressed text of a chunk: after a keyword and a method, in iTXt after two more texts
COMPRESSED = {
    b"zTXt": re.compile(rb"[^\x00]*\x00.(.*)", re.DOTALL),
    b"iTXt": re.compile(rb"[^\x00]*\x00\x01.[^\x00]*\x00[^\x00]*\x00(.*)", re.DOTALL),
}
MAX_PNG_TEXT = 64 << 20
# of one file; weights but for their headers are not searched
MAX_SCANNED = 256 << 20
# of a header: 4,096 tensors, the most of a drafter, take a tenth of it
MAX_HEADER_SCANNED = 8 << 20
BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Secret(Struct, frozen=True):
    """A secret's kind and where it begins, never the secret; `place` is like "line 3"."""

    kind: str
    place: str


def scan_file(name: str, size: int, read: Read, token: str | None = None) -> Iterator[Secret]:
    """The secrets of a file of `size` bytes, the first of each kind; `token` is one more secret.

    Of .safetensors files only the header is read. Raises UnreadableError where `read` does, for a larger
    file than is searched, or for a PNG whose texts are too long.
    """
    if name.lower().endswith(".safetensors"):
        size = min(size, 8 + int.from_bytes(read(0, min(size, 8)), "little"))  # checked by other rules
        check_searched(f"the header of {name}", size, MAX_HEADER_SCANNED)
    check_searched(name, size)
    seen = set()
    for secret in _scan(size, read, token):
        if secret.kind not in seen:
            seen.add(secret.kind)
            yield secret


def check_searched(name: str, size: int, most: int = MAX_SCANNED) -> None:
    """Raise UnreadableError for a file, or a header, that is too large to be searched."""
    if size > most:
        raise UnreadableError(f"{name} has {size} bytes; at most {most} are searched")


def scan_text(text: str, token: str | None = None) -> Iterator[Secret]:
    """The secrets of a text."""
    data = text.encode("utf-8", "replace")
    return scan_file("", len(data), lambda start, stop: data[start:stop], token)


def _scan(size: int, read: Read, token: str | None) -> Iterator[Secret]:
    head = read(0, min(size, len(PNG)))
    yield from _scan_blocks(_blocks(size, read), token)
    if head == PNG:
        for text in _png_texts(size, read):
            for secret in _scan_blocks([text], token):
                yield Secret(secret.kind, "the texts of the image")
    encoding = next((encoding for mark, encoding in BOMS if head.startswith(mark)), None)
    if encoding is not None:
        texts = codecs.iterdecode(_blocks(size, read), encoding, "replace")
        yield from _scan_blocks((text.encode("utf-8", "replace") for text in texts), token)


def _blocks(size: int, read: Read) -> Iterator[bytes]:
    for start in range(0, size, BLOCK):
        yield read(start, min(start + BLOCK, size))


def overlapping(size: int, read: Read) -> Iterator[bytes]:
    """The blocks of a file, each after the end of the block before it."""
    end = b""
    for block in _blocks(size, read):
        yield end + block
        end = (end + block)[-BEFORE:]


def _scan_blocks(blocks: Iterable[bytes], token: str | None) -> Iterator[Secret]:
    """The secrets in a text that comes in blocks."""
    lines, text, first = 1, b"", 0
    for block in blocks:
        text += block
        if len(text) > OVERLAP + BEFORE:
            end = len(text) - OVERLAP
            yield from _scan_span(text, first, end, lines, token)
            lines += text.count(b"\n", 0, end - BEFORE)
            text, first = text[end - BEFORE :], BEFORE
    yield from _scan_span(text, first, len(text) + 1, lines, token)


def _scan_span(text: bytes, first: int, end: int, lines: int, token: str | None) -> Iterator[Secret]:
    """The secrets that begin at [first, end), as bytes and without the zeros that UTF-16 has between them."""
    for start, kind in find_secrets(text, token):
        if first <= start < end:
            line = lines + text.count(b"\n", 0, start)
            yield Secret(kind, f"line {line}")
    if b"\0" in text:
        for _, kind in find_secrets(text.replace(b"\0", b""), token):
            yield Secret(kind, "text with two or four bytes a character")


def find_secrets(text: bytes, token: str | None = None) -> Iterator[tuple[int, str]]:
    """Where secrets begin in a text, and their kinds; of two that overlap the first rule's."""
    if token and (start := text.find(token.encode())) >= 0:
        yield start, "the token that this call uses"
    lower, spans = text.lower(), list[tuple[int, int]]()
    for rule in rules_near(lower):
        for start, stop in _spans(text, lower, rule):
            if all(stop <= taken_start or taken_stop <= start for taken_start, taken_stop in spans):
                spans.append((start, stop))
                yield start, rule.kind


def _spans(text: bytes, lower: bytes, rule: SecretRule) -> Iterator[tuple[int, int]]:
    for start, stop in _windows(lower, rule.keywords):
        for match in rule.regex.finditer(text, start, stop):
            # a match that the window cuts off: in the whole text it may go on, or be none
            whole = rule.regex.match(text, match.start()) if match.end() == stop < len(text) else match
            if whole and rule.is_secret(whole):
                yield whole.span()


def _windows(lower: bytes, keywords: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """The parts of a text near a keyword, in order, those that touch joined."""
    matches = (match for keyword in keywords for match in re.finditer(re.escape(keyword), lower))
    start = stop = -1
    for place in sorted({match.start() for match in matches}):
        if place - BEFORE > stop:
            if stop >= 0:
                yield start, min(stop, len(lower))
            start = max(0, place - BEFORE)
        stop = place + AFTER
    if stop >= 0:
        yield start, min(stop, len(lower))


def _png_texts(size: int, read: Read) -> Iterator[bytes]:
    """The texts in a PNG image, decompressed; ends where the chunks make no sense."""
    place, left = len(PNG), MAX_PNG_TEXT
    while place + 12 <= size:
        head = read(place, place + 8)
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if place + 12 + length > size:
            return
        if kind in PNG_TEXTS:
            text = _png_text(kind, read(place + 8, place + 8 + min(length, left)), left)
            left -= max(len(text), length)
            if left <= 0:
                raise UnreadableError(f"the texts of the image have more than {MAX_PNG_TEXT >> 20} MiB")
            yield text
        place += 12 + length


def _png_text(kind: bytes, data: bytes, limit: int) -> bytes:
    """The text of a chunk, at most `limit` bytes; as it is where it is not compressed."""
    match = COMPRESSED[kind].match(data) if kind in COMPRESSED else None
    if match is None:
        return data
    try:
        return zlib.decompressobj().decompress(match[1], limit)
    except zlib.error:
        return b""
