"""Files that are verified, of a folder or of a repository on the Hub: their names, sizes and digests."""

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from io import BufferedReader
from typing import Protocol

from eaglectl.checkpoint.digests import HEADER_KEY, Digests, RangeDigests, tensor_ranges
from eaglectl.checkpoint.header import header_length, parse_header
from eaglectl.checkpoint.hub import HubSource
from eaglectl.checkpoint.hub_cache import blocks_of, has_digest
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import UnreadableError
from eaglectl.progress import ByteCounter
from eaglectl.publishing.contents import is_bookkeeping, read_contents
from eaglectl.publishing.stated import Tensors


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

    def tensors(self, name: str) -> Tensors | None:
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
                    self.started[name] = self.digests.of_ranges(name, file.fileno(), {name: (0, size)})

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

    def tensors(self, name: str) -> Tensors:
        """The digests of a weight file by parts."""
        with self.source.open_file(name) as file:
            size = os.fstat(file.fileno()).st_size
            length = header_length(name, file.read(8), size)
            header = parse_header(name, file.read(length), size)
            ranges = {**tensor_ranges(header.tensors, name), HEADER_KEY: (0, 8 + length)}
            made = self.digests.of_ranges(name, file.fileno(), ranges)
        digests = made.result()
        return Tensors(digests.pop(HEADER_KEY), digests)


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

    def tensors(self, name: str) -> Tensors | None:
        """None: tensors of a repository are not read."""
        return None
