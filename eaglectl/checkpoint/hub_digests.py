"""The bytes of a file against what the Hub lists for it: SHA-256 of files in LFS, git's id of the others."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader

from msgspec import Struct

from eaglectl.checkpoint.hub_errors import HubRequest
from eaglectl.errors import UnreadableError

# bytes that are read at once: they stay in the core's cache while they are hashed
BLOCK = 1 << 18
SHA1_DIGITS = 40


class ListedDigests(Struct, frozen=True):
    """What a Hub lists of files at one commit: `sha256` of those in LFS, `git_ids` of the others."""

    sha256: Mapping[str, str]
    git_ids: Mapping[str, str]

    def __contains__(self, name: object) -> bool:
        """Whether a digest of the file is listed."""
        return name in self.sha256 or name in self.git_ids

    def expected(self, name: str) -> str:
        """The listed digest of a file, as text for messages."""
        if name in self.sha256:
            return f"SHA-256 {self.sha256[name][:12]}..."
        return f"git id {self.git_ids[name][:12]}..."

    def is_same(self, name: str, data: bytes) -> bool:
        """Whether bytes are those of the file; True where no digest of it is listed."""
        return self._matches(name, len(data), [data])

    def is_same_file(self, name: str, file: BufferedReader) -> bool:
        """Whether an open file is the listed one. Raises OSError."""
        return self._matches(name, os.fstat(file.fileno()).st_size, blocks_of(file.fileno()))

    def _matches(self, name: str, size: int, blocks: Iterable[bytes]) -> bool:
        listed = self.sha256.get(name) or self.git_ids.get(name)
        return listed is None or has_digest(listed, size, blocks, is_plain=name in self.sha256)


def has_digest(listed: str, size: int, blocks: Iterable[bytes], *, is_plain: bool = False) -> bool:
    """Whether a file of `size` bytes has a digest: git's id of it, or, as other Hubs give, that of its bytes.

    `is_plain`: the digest can only be of the bytes, as those of files in LFS.
    """
    kind = "sha1" if len(listed) == SHA1_DIGITS else "sha256"
    hashes = [hashlib.new(kind, usedforsecurity=False)]
    if not is_plain:  # git has a head before the bytes
        hashes.append(hashlib.new(kind, b"blob %d\0" % size, usedforsecurity=False))
    for block in blocks:
        for digest in hashes:
            digest.update(block)
    return listed in {digest.hexdigest() for digest in hashes}


def blocks_of(descriptor: int) -> Iterator[bytes]:
    """The bytes of an open file from its start, whose position stays where it is. Raises OSError."""
    start = 0
    while block := os.pread(descriptor, BLOCK, start):
        yield block
        start += len(block)


def other_bytes(
    request: HubRequest, name: str, listed: ListedDigests, *, advice: str, where: str = "that came"
) -> UnreadableError:
    """The error for a file whose bytes are not those that the Hub lists; `advice` is what to do."""
    return UnreadableError(
        f"{name} of {request.repo}: the bytes {where} are not those that the Hub at {request.host} lists"
        f" ({listed.expected(name)}); {advice}"
    )
