"""The files of a folder that `upload` sends, each hashed once, and the folder as it was then.

Those bytes are judged and published, or it is an error.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from io import BufferedReader
from os import fstat
from pathlib import Path

from msgspec import Struct

from eaglectl.errors import EaglectlError, RefusedError, UnreadableError
from eaglectl.files.files import Stamp
from eaglectl.files.layout import NOT_WEIGHTS
from eaglectl.files.source import FolderSource, read_open
from eaglectl.judge.rules.files import CODE, KNOWN, PICKLE_SUFFIXES
from eaglectl.progress import ByteCounter, OnProgress

# files up to this size are kept in memory once they are hashed; what the Hub keeps outside of LFS is smaller
MAX_KEPT = 16 << 20
BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A file with its size and digests at the time it was hashed.

    `git_sha1` is git's name of the file, empty where it is too large to be kept outside of LFS. `stamp` is
    of the file on disk. `is_written`: eaglectl wrote it, and the folder has another or none.
    """

    name: str
    size: int
    sha256: str
    git_sha1: str
    content: bytes | Path = field(repr=False)
    stamp: Stamp | None = None
    is_written: bool = False


class LeftOut(Struct, frozen=True):
    """A file or folder that is not sent, and why."""

    name: str
    why: str


def written_file(name: str, data: bytes) -> UploadFile:
    """A file that eaglectl writes."""
    return UploadFile(
        name, len(data), hashlib.sha256(data).hexdigest(), _git_sha1(data), data, is_written=True
    )


def _reason_left_out(name: str, allowed: Sequence[str]) -> str:
    """Why a file is not sent; empty where it is."""
    if NOT_WEIGHTS.match(name):
        return "a trainer's state"
    if name.endswith(PICKLE_SUFFIXES):
        return "a pickle"
    if name.endswith(CODE):
        return "code"
    if name.startswith("."):
        return "a hidden file"
    if any(fnmatchcase(name, pattern) for pattern in (*KNOWN, *allowed)):
        return ""
    return "no file that a drafter's folder has a use for"


def _read_file(source: FolderSource, name: str, path: Path, on_bytes: Callable[[int], None]) -> UploadFile:
    source.check_cached([name])
    with source.open_file(name) as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        if stamp.size <= MAX_KEPT:
            data = read_open(source.place, name, file.fileno(), 0, stamp.size)
            on_bytes(len(data))
            return UploadFile(name, len(data), hashlib.sha256(data).hexdigest(), _git_sha1(data), data, stamp)
        digest, size = hashlib.sha256(), 0
        try:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
                on_bytes(len(block))
        except OSError as error:
            raise UnreadableError(f"{name} in {source.place}: {error.strerror}") from None
    if stamp_of(path) != stamp or size != stamp.size:
        raise RefusedError(
            f"{name} changed while it was hashed; run the command again when nothing writes to the folder"
        )
    return UploadFile(name, size, digest.hexdigest(), "", path, stamp)


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of the file that has this name now; None where there is none."""
    try:
        return Stamp.of(path.stat())
    except OSError:
        return None


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class FrozenSource(FolderSource):
    """A folder with the names that it had and the files that were hashed, and no others.

    Small files are read from memory. The others are read from the disk, and only while they are the file that
    was hashed: reading raises RefusedError otherwise.
    """

    listing: tuple[str, ...] = ()
    hashed: Mapping[str, UploadFile] = field(default_factory=dict, compare=False)

    def published(self, files: Sequence[UploadFile]) -> "FrozenSource":
        """What a download of `files` will be: with those that eaglectl wrote, without those left out."""
        by_name = {file.name: file for file in files}
        return replace(self, listing=tuple(sorted(by_name)), hashed=by_name)

    def names(self) -> tuple[str, ...]:
        """The files that the folder had."""
        return self.listing

    def size(self, name: str) -> int:
        """Bytes of a file when it was hashed."""
        return self.hashed[name].size if name in self.hashed else FolderSource.size(self, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        content = self.hashed[name].content if name in self.hashed else None
        if isinstance(content, bytes) and (stop is None or stop <= len(content)):
            return content[start:stop]
        with self.open_file(name) as file:
            return read_open(self.place, name, file.fileno(), start, stop)

    def open_file(self, name: str, *, is_any_size: bool = False) -> BufferedReader:
        """A file, open for reading. Raises RefusedError where it is not the one that was hashed."""
        file = FolderSource.open_file(self, name, is_any_size=is_any_size)
        if name in self.hashed and Stamp.of(fstat(file.fileno())) != self.hashed[name].stamp:
            file.close()
            raise changed(name)
        return file

    def check_unchanged(self) -> None:
        """Raise RefusedError where a file was changed, added or removed after the files were hashed."""
        try:
            names = set(FolderSource.names(self))
        except EaglectlError as error:
            raise RefusedError(
                f"{error}; the folder was there when it was hashed, and nothing was committed"
            ) from None
        for name in sorted(names ^ set(self.listing)):
            raise changed(name, "was added" if name in names else "was removed")
        for name, file in self.hashed.items():
            if file.stamp != stamp_of(self.root / name):
                raise changed(name)


def freeze(
    source: FolderSource, allowed: Sequence[str] = (), on_progress: OnProgress | None = None
) -> tuple[FrozenSource, tuple[UploadFile, ...], tuple[LeftOut, ...]]:
    """The folder as it is, every file of it that may be sent, hashed, and the others.

    `allowed` adds patterns of names. Raises RefusedError for a link that leaves the folder, UnreadableError
    for a file that cannot be read.
    """
    names = source.names()
    reasons = {name: _reason_left_out(name, allowed) for name in names}
    left_out = [LeftOut(name, why) for name, why in reasons.items() if why]
    sent = [name for name, why in reasons.items() if not why]
    try:
        paths = {name: source.path(name) for name in sent}
    except UnreadableError as error:
        raise RefusedError(str(error), error.topic, error.where) from None
    folders = sorted(entry.name for entry in source.root.iterdir() if entry.is_dir())
    left_out += [LeftOut(f"{name}/", "a folder; a drafter's files lie beside each other") for name in folders]
    counter = ByteCounter(on_progress, "hashing", sum(map(source.size, sent)))
    files = tuple(_read_file(source, name, path, counter.add) for name, path in paths.items())
    frozen = FrozenSource(source.root, source.only, listing=names, hashed={file.name: file for file in files})
    return frozen, files, tuple(left_out)


def changed(name: str, how: str = "changed") -> RefusedError:
    """The error for a file that is not as it was when the files were hashed."""
    return RefusedError(
        f"{name} {how} after the files were hashed: what was judged is not what lies there now, and nothing"
        " was committed. Run the command again when nothing writes to the folder"
    )
