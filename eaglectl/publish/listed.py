"""Files that are verified, of a folder or of a repository, and what lists state of them.

Lists are SHA256SUMS, eaglectl.json, and the listing of a repository on the Hub.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.digests import (
    ALGORITHMS,
    HEADER_KEY,
    Algorithm,
    Digests,
    RangeDigests,
    tensor_ranges,
)
from eaglectl.files.header import header_length, parse_header, parse_json
from eaglectl.files.hub import HubSource
from eaglectl.files.hub_cache import blocks_of, has_digest, is_blob
from eaglectl.files.layout import RECORD, SIGNATURE, SUMS
from eaglectl.files.source import FolderSource
from eaglectl.judge.rules.release import read_sums
from eaglectl.progress import ByteCounter

# .gitattributes is written by the Hub when a repository is created, and `hf download` brings it. The Hub's
# client keeps the state of a download in .cache/huggingface, under these names only: no loader reads them.
# A clone's .git is no such thing: git runs what its config and hooks name.
BOOKKEEPING = re.compile(
    r"\.gitattributes|\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG"
    r"|trees/[0-9a-f]{40,64}\.json|(download|upload)/(.+/)?[^/]+\.(metadata|lock|incomplete))"
)

# what a file is compared by: its SHA-256, its SHA-256 as the Hub lists it (of files in LFS), git's name of
# it, or the digests of its header and of each tensor
Digest = Literal["sha256", "lfs-sha256", "git-id", "tensors"]
Read = Callable[[str], bytes]


class FolderContents(Struct, frozen=True):
    """The files below a folder by relative path.

    `irregular`: links, pipes, devices and folders that are links, each with what it is. `bookkeeping`: what
    no list can name.
    """

    files: frozenset[str]
    irregular: dict[str, str]
    bookkeeping: tuple[str, ...]


def is_bookkeeping(name: str) -> bool:
    """Whether a file is written by the Hub or its client, after the lists."""
    return BOOKKEEPING.fullmatch(name) is not None


def read_contents(source: FolderSource) -> FolderContents:
    """Walk the folder without following links. Raises UnreadableError for a folder that cannot be listed."""
    files, irregular, bookkeeping = set(), {}, []
    for entry, name in _entries(source.root, source.root):
        if how := _irregularity(source, entry, name):
            irregular[name] = how
        elif is_bookkeeping(name):
            bookkeeping.append(name)
        else:
            files.add(name)
    return FolderContents(frozenset(files), dict(sorted(irregular.items())), tuple(sorted(bookkeeping)))


def _entries(folder: Path, root: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Everything below a folder but plain folders, with its relative path."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    else:
                        yield entry, Path(entry.path).relative_to(root).as_posix()
        except OSError as error:
            raise UnreadableError(
                f"{error.filename or folder}: {error.strerror}; what is in it cannot be compared"
            ) from None


def _irregularity(source: FolderSource, entry: os.DirEntry[str], name: str) -> str:
    """What an entry is, where it is no regular file; empty where it is."""
    if entry.is_file(follow_symlinks=False):
        return ""
    if not entry.is_symlink():
        return "is a pipe, a socket or a device, and no file"
    return "" if _is_of_hub_cache(source, name) else "is a symbolic link; a published drafter has none"


def _is_of_hub_cache(source: FolderSource, name: str) -> bool:
    """Whether a link is the Hub client's own: snapshots/COMMIT/NAME to a file in ../../blobs."""
    try:
        path, root = source.path(name), source.root.resolve()
    except UnreadableError:
        return False
    return path.is_file() and is_blob(root, path.resolve())


class Tensors(Struct, frozen=True):
    """Digests of what is before the first tensor of a safetensors file, and of each tensor's bytes."""

    header: str
    tensors: Mapping[str, str]
    algorithm: Algorithm


class ListedFile(Struct, frozen=True):
    """A file as a list states it; None where the list does not. Without any digest, it was never read.

    `others`: further SHA-256 that the list states for the same name. `is_lfs`: the SHA-256 is the Hub's.
    """

    size: int | None
    sha256: str | None = None
    others: tuple[str, ...] = ()
    tensors: Tensors | None = None
    git_id: str | None = None
    is_lfs: bool = False


Lists = Mapping[str, Mapping[str, ListedFile]]


def read_lists(names: frozenset[str], read: Read) -> Lists:
    """SHA256SUMS and eaglectl.json, those of them that are there and list files. Raises UnreadableError."""
    lists = {}
    if SUMS in names:
        lists[SUMS] = _read_sums(read(SUMS))
    if RECORD in names and (files := _read_record(read(RECORD))):
        lists[RECORD] = files
    return lists


def hub_list(source: HubSource) -> tuple[str, Mapping[str, ListedFile]]:
    """The listing of a repository, and its name in messages."""
    sizes = {**source.sizes, **source.below}
    files = {
        name: ListedFile(
            size,
            source.listed.sha256.get(name),
            git_id=source.listed.git_ids.get(name),
            is_lfs=name in source.listed.sha256,
        )
        for name, size in sizes.items()
        if not is_bookkeeping(name)
    }
    return f"{source.label}@{source.commit[:12]}", files


def can_list(list_name: str, name: str) -> bool:
    """Whether a list can name a file: it is written before itself and before what signs it."""
    if list_name == RECORD:
        return name not in (RECORD, SUMS, SIGNATURE)
    return list_name != SUMS or name not in (SUMS, SIGNATURE)


def _read_sums(data: bytes) -> Mapping[str, ListedFile]:
    sums = read_sums(data.decode("utf-8", "replace"))
    if sums.broken or not sums.digests:
        where = f"line {sums.broken[0]} is no digest and name" if sums.broken else "it is empty"
        raise UnreadableError(f"{SUMS} cannot be used: {where}; fetch it again")
    return {name: ListedFile(None, first, tuple(others)) for name, (first, *others) in sums.digests.items()}


def _read_record(data: bytes) -> Mapping[str, ListedFile] | None:
    """The files that were published; of what was not, those that `convert` wrote."""
    try:
        record: Any = parse_json(RECORD, data)
        files = record.get("published", record.get("output", {})).get("files")
        if files is None:
            return None
        if not files:
            raise ValueError("a list of no files")
        return {str(name): _recorded(file) for name, file in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise UnreadableError(
            f"{RECORD} cannot be used: it is not as eaglectl writes it; fetch it again"
        ) from None


def _recorded(file: Mapping[str, Any]) -> ListedFile:
    if "tensors" in file:
        tensors = {str(name): str(digest) for name, digest in file["tensors"].items()}
        if (algorithm := file.get("digest", "sha256")) not in ALGORITHMS:
            raise ValueError(algorithm)
        return ListedFile(int(file["size"]), tensors=Tensors(str(file["header"]), tensors, algorithm))
    digest = file["sha256"]
    return ListedFile(int(file["size"]), None if digest is None else str(digest))


class VerifiedFiles(Protocol):
    """The files of one folder or repository.

    `irregular`: what is no regular file, each with what it is. `bookkeeping`: what no list can name.
    """

    names: frozenset[str]
    irregular: Mapping[str, str]
    bookkeeping: tuple[str, ...]

    def size(self, name: str) -> int:
        """Bytes of a file."""

    def read(self, name: str) -> bytes:
        """A small file."""

    def sha256(self, name: str) -> str:
        """The digest of a file, made once. Raises UnreadableError for a file that cannot be read."""

    def is_listed_digest(self, name: str) -> bool:
        """Whether `sha256` is the Hub's, and the file is not read."""

    def has_git_id(self, name: str, listed: str) -> bool:
        """Whether git's name of a file is this one."""

    def tensors(self, name: str, algorithm: Algorithm) -> Tensors | None:
        """The digests of a weight file by parts; None where it would have to be downloaded.

        Raises UnreadableError for a file that is no safetensors file.
        """


class _UncomparedSource(FolderSource):
    """A folder whose files are as they are: what they should be is for the lists to state."""

    __slots__ = ()

    def open_file(self, name: str) -> BufferedReader:
        """A file, open for reading. Raises UnreadableError."""
        return self._open(name, 0)


class FolderFiles:
    """The files below a folder; `digests` are threads that hash them."""

    def __init__(self, source: FolderSource, digests: Digests, counter: ByteCounter) -> None:
        source = _UncomparedSource(source.root)
        contents = read_contents(source)
        self.names = contents.files
        self.irregular: Mapping[str, str] = contents.irregular
        self.bookkeeping = contents.bookkeeping
        self.source, self.digests, self.counter = source, digests, counter
        self.started: dict[str, RangeDigests] = {}

    def start(self, names: Iterable[str], every: Collection[str] = ()) -> None:
        """Have the threads begin with the SHA-256 of these files; `every` is what will be hashed in all."""
        if every:
            self.counter.total = sum(self.size(name) for name in self.names & set(every))
        for name in names:
            if name in self.names and name not in self.started:
                with self.source.open_file(name) as file:
                    size = os.fstat(file.fileno()).st_size
                    self.started[name] = self.digests.of_ranges(
                        name, file.fileno(), {name: (0, size)}, "sha256"
                    )

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self.source.size(name)

    def read(self, name: str) -> bytes:
        """A small file."""
        return self.source.read(name)

    def sha256(self, name: str) -> str:
        """The digest of a file."""
        self.start([name])
        return self.started[name].result()[name]

    def is_listed_digest(self, name: str) -> bool:
        """False: every file is read."""
        return False

    def has_git_id(self, name: str, listed: str) -> bool:
        """Whether git's name of a file is this one."""
        with self.source.open_file(name) as file:
            size = os.fstat(file.fileno()).st_size
            return has_digest(listed, size, blocks_of(file.fileno()))

    def tensors(self, name: str, algorithm: Algorithm) -> Tensors:
        """The digests of a weight file by parts."""
        with self.source.open_file(name) as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(name, file.read(8), size)
            header = parse_header(name, file.read(length), size)
            ranges = {**tensor_ranges(header.tensors, name), HEADER_KEY: (0, 8 + length)}
            made = self.digests.of_ranges(name, file.fileno(), ranges, algorithm)
        digests = made.result()
        return Tensors(digests.pop(HEADER_KEY), digests, algorithm)


class HubFiles:
    """The files of a repository at one commit; only files outside of LFS are downloaded, to be hashed."""

    def __init__(self, source: HubSource) -> None:
        sizes = {**source.sizes, **source.below}
        self.names = frozenset(name for name in sizes if not is_bookkeeping(name))
        self.irregular: Mapping[str, str] = {}
        self.bookkeeping = tuple(sorted(set(sizes) - self.names))
        self.source, self.sizes = source, sizes
        self.whole = replace(source, sizes=sizes)
        self.contents: dict[str, bytes] = {}

    def size(self, name: str) -> int:
        """Bytes of a file, as the Hub lists them."""
        return self.sizes[name]

    def read(self, name: str) -> bytes:
        """A small file, whose git id is the listing's. Raises UnreadableError where it is not."""
        if name not in self.contents:
            data = self.whole.read(name)
            if not self.source.listed.is_same(name, len(data), [data]):
                raise UnreadableError(
                    f"{name} of {self.source.label} came with other bytes than the Hub lists at"
                    f" {self.source.commit[:12]}; run the command again"
                )
            self.contents[name] = data
        return self.contents[name]

    def sha256(self, name: str) -> str:
        """The digest of a file: the Hub's of one in LFS, else of what it sends."""
        return self.source.listed.sha256.get(name) or hashlib.sha256(self.read(name)).hexdigest()

    def is_listed_digest(self, name: str) -> bool:
        """Whether the digest is the Hub's."""
        return name in self.source.listed.sha256

    def has_git_id(self, name: str, listed: str) -> bool:
        """Whether git's name of a file is this one."""
        return self.source.listed.git_ids.get(name) == listed

    def tensors(self, name: str, algorithm: Algorithm) -> Tensors | None:
        """None: tensors of a repository are not read."""
        return None
