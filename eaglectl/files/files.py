"""Regular files: reading small ones up to a size, and the stamp that identifies a file's state.

Pipes and devices are refused: they may never end.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import EaglectlError, UnreadableError

if TYPE_CHECKING:
    from hashlib import _Hash

MIB = 1 << 20
# the end of the name of a file of a cache that is being written
PART = ".part"
# not following a terminal's control, and returning at once where a pipe has no writer
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def sha256(data: bytes = b"") -> "_Hash":
    """Start a SHA-256 of `data`, to which more can be added; late, as hashlib loads OpenSSL."""
    import hashlib

    return hashlib.sha256(data)


class Stamp(Struct, frozen=True):
    """The identity of one state of a file; times are in nanoseconds."""

    device: int
    inode: int
    size: int
    changed: int
    status_changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp of a file's status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def is_same_content(self, other: "Stamp") -> bool:
        """Whether at most the time of the status differs, which a hard link or permissions change too."""
        return self == replace(other, status_changed=self.status_changed)


@contextmanager
def errors_about(
    place: object, error: type[EaglectlError] = UnreadableError, advice: str = "", source: str = ""
) -> Iterator[None]:
    """Raise a system error on `place` as `error`, with `advice`.

    `source` is the checkpoint that `place` names.
    """
    try:
        yield
    except OSError as failure:
        raise error(f"{place}: {failure.strerror}{advice}", source=source) from None


def current_folder() -> Path:
    """Return the current folder. Raises UnreadableError if it was removed, or its parents may not be read."""
    with errors_about("the current folder", advice="; change to another folder"):
        return Path.cwd()


def is_folder(path: Path) -> bool:
    """Whether a folder exists; False for a name that no file can have, or a link that cannot be followed.

    Path.is_dir raises for these.
    """
    with suppress(OSError):
        return path.is_dir()
    return False


def is_regular(path: Path) -> bool:
    """Whether a regular file exists; False for a link that cannot be followed (Path.is_file raises)."""
    with suppress(OSError):
        return path.is_file()
    return False


def open_regular(path: Path, what: str = "", error: type[EaglectlError] = UnreadableError) -> BufferedReader:
    """Open a regular file for reading; `what` begins the message, like "--prompts".

    Raises `error` for another kind of file, or one that cannot be opened.
    """
    place = f"{what} {path}".strip()
    try:
        descriptor = os.open(path, FLAGS)
    except (OSError, ValueError) as failure:
        raise error(f"{place}: {getattr(failure, 'strerror', None) or failure}") from None
    # of the descriptor, not of the path: the file at a path can be exchanged at any time
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((name for is_kind, name in KINDS if is_kind(mode)), "no regular file")
        raise error(f"{place} is {kind}; pass a regular file")
    return os.fdopen(descriptor, "rb")


def read_small_file(
    path: Path, limit: int, what: str = "", error: type[EaglectlError] = UnreadableError
) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises as `open_regular` does."""
    with open_regular(path, what, error) as file, errors_about(f"{what} {path}".strip(), error):
        parts = list(pieces(file, limit + 1))
    if sum(map(len, parts)) > limit:
        raise error(f"{what} {path} has more than {limit} bytes, the limit for this file".strip())
    return b"".join(parts)


def pieces(file: BinaryIO, count: int) -> Iterator[bytes]:
    """Yield up to `count` bytes of an open file, in pieces that bound the memory of one read."""
    while count and (piece := file.read(min(count, MIB))):
        count -= len(piece)
        yield piece


def decoded(
    path: Path,
    raw: bytes,
    what: str = "",
    error: type[EaglectlError] = UnreadableError,
    *,
    place: int = 0,
) -> str:
    """Decode the UTF-8 bytes of a file, or its bytes from `place` on; lines end with a newline.

    A byte order mark is removed. Raises `error` if the bytes are not UTF-8.
    """
    try:
        text = raw.decode("utf-8" if place else "utf-8-sig")
    except UnicodeDecodeError as failure:
        byte = place + failure.start
        raise error(f"{what} {path}: byte {byte} is not UTF-8; save it as UTF-8".strip()) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def write_cached(path: Path, data: bytes) -> None:
    """Put a file into a cache, whole or not at all. Raises OSError where that cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.urandom(4).hex()}{PART}")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
