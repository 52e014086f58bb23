"""What would be published: a list of exact files, each hashed once, and what the repository has of them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from eaglectl.checkpoint.checkpoint import NOT_WEIGHTS
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import Refused, Unreadable
from eaglectl.validation.files import CODE, KNOWN, UNPICKLED

# files up to this size are kept in memory from the freeze on; what the Hub keeps outside of LFS is smaller
KEPT = 16 << 20
BLOCK = 8 << 20
CARD, RECORD, SUMS, SIGNATURE = "README.md", "eaglectl.json", "SHA256SUMS", "model.sig"
Change = Literal["new", "changed", "unchanged", "unknown"]


@dataclass(frozen=True, slots=True)
class File:
    """One file as it was when it was hashed. `git_sha1` is git's name for it, empty where it is too large to need one.

    `stamp` is size, time of change and inode of a file on disk; `is_written`: eaglectl made these bytes, DIR has others or none.
    """

    name: str
    size: int
    sha256: str
    git_sha1: str
    content: bytes | Path = field(repr=False)
    stamp: tuple[int, int, int] | None = None
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder in DIR that is not sent, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A file as the repository has it: `sha256` for large ones, git's sha1 for the others."""

    size: int
    sha256: str | None
    git_sha1: str

    def holds(self, file: File) -> bool:
        """Whether this is the file, byte for byte."""
        same = self.git_sha1 == file.git_sha1 if self.sha256 is None else self.sha256 == file.sha256
        return same and self.size == file.size

    def difference(self, file: File) -> str:
        """How this differs from what was sent."""
        if self.size != file.size:
            return f"{self.size} bytes there, {file.size} here"
        there, here = (self.git_sha1, file.git_sha1) if self.sha256 is None else (self.sha256, file.sha256)
        return f"{'git sha1' if self.sha256 is None else 'SHA-256'} {there[:12]}... there, {here[:12]}... here"


@dataclass(frozen=True, slots=True)
class State:
    """A repository as it was when it was read: the head of the revision, its files, its tags, and the heads of pull requests."""

    head: str
    is_private: bool
    stored: Mapping[str, Stored]
    tags: Mapping[str, str] = field(default_factory=dict)
    pulls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What `upload` will do. `state` None: the repository is not there, or (`is_seen` False) could not be looked at.

    `proposed` is an open pull request that holds all of it already.
    """

    repo: str
    revision: str
    files: tuple[File, ...]
    left_out: tuple[LeftOut, ...]
    state: State | None
    is_seen: bool
    is_pull: bool
    is_private: bool
    tag: str | None
    title: str
    description: str
    proposed: str | None = None

    def change(self, file: File) -> Change:
        """What becomes of a file in the repository."""
        if self.state is None:
            return "new" if self.is_seen else "unknown"
        there = self.state.stored.get(file.name)
        return "new" if there is None else "unchanged" if there.holds(file) else "changed"

    @property
    def changed(self) -> tuple[File, ...]:
        """The files that the commit holds."""
        return tuple(file for file in self.files if self.change(file) != "unchanged")

    @property
    def extra(self) -> tuple[str, ...]:
        """Files that only the repository has; they stay."""
        mine = {file.name for file in self.files} | {".gitattributes"}
        return tuple(sorted(set(self.state.stored) - mine)) if self.state else ()

    @property
    def nbytes(self) -> int:
        """Bytes of the files that the commit holds."""
        return sum(file.size for file in self.changed)


def freeze(
    source: FolderSource, allowed: Sequence[str] = (), told: Callable[[int, int], None] | None = None
) -> tuple[tuple[File, ...], tuple[LeftOut, ...]]:
    """Every file of the folder that may be sent, hashed; the rest with the reason. `allowed` adds to the names that may.

    Raises Refused for a link that leaves the folder and Unreadable for what cannot be read. `told` hears bytes of bytes.
    """
    sent, left = _sorted_out(source, allowed)
    total, done, files = sum(source.size(name) for name in sent), 0, []

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if told:
            told(done, total)

    for name in sent:
        files.append(_frozen(source, name, count))
    return tuple(files), left


def written(name: str, data: bytes) -> File:
    """A file that eaglectl made."""
    return File(name, len(data), hashlib.sha256(data).hexdigest(), _git(data), data, is_written=True)


def check_unchanged(files: Sequence[File]) -> None:
    """Raise Refused where a file on disk is no longer the one that was hashed."""
    for file in files:
        if isinstance(file.content, Path) and _stamp(file.content) != file.stamp:
            raise Refused(
                f"{file.name} changed after it was hashed; nothing was committed. Run the command again when nothing writes to the folder"
            )


def _sorted_out(source: FolderSource, allowed: Sequence[str]) -> tuple[list[str], tuple[LeftOut, ...]]:
    sent, left = [], []
    for name in source.names():
        if why := _why_not(name, allowed):
            left.append(LeftOut(name, why))
            continue
        try:
            source.path(name)
        except Unreadable as error:
            raise Refused(str(error), error.topic, error.where) from None
        sent.append(name)
    folders = sorted(entry.name for entry in source.root.iterdir() if entry.is_dir())
    left += [LeftOut(f"{name}/", "a folder; a drafter's files lie beside each other") for name in folders]
    return sent, tuple(left)


def _why_not(name: str, allowed: Sequence[str]) -> str:
    if NOT_WEIGHTS.match(name):
        return "a trainer's state"
    if name.endswith(UNPICKLED):
        return "a pickle"
    if name.endswith(CODE):
        return "code"
    if name.startswith("."):
        return "a hidden file"
    if any(fnmatchcase(name, pattern) for pattern in (*KNOWN, *allowed)):
        return ""
    return "no file that a drafter's folder has a use for"


def _frozen(source: FolderSource, name: str, count: Callable[[int], None]) -> File:
    path = source.path(name)
    try:
        stamp = _stamp(path)
        if stamp[0] <= KEPT:
            data = path.read_bytes()
            count(len(data))
            return File(name, len(data), hashlib.sha256(data).hexdigest(), _git(data), data)
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
                count(len(block))
    except OSError as error:
        raise Unreadable(f"{name} in {source.label}: {error.strerror}") from None
    if _stamp(path) != stamp or size != stamp[0]:
        raise Refused(f"{name} changed while it was hashed; run the command again when nothing writes to the folder")
    return File(name, size, digest.hexdigest(), "", path, stamp)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (-1, 0, 0)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
