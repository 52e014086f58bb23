"""The bytes of a file against what the Hub lists for it: SHA-256 of files in LFS, git's id of the others."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from eaglectl.checkpoint.hub_errors import HubRequest
from eaglectl.errors import UnreadableError

BLOCK = 8 << 20
SHA1_DIGITS = 40


@dataclass(frozen=True, slots=True)
class ListedDigests:
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
        return self._matches(name, len(data), lambda update: update(data))

    def is_same_file(self, name: str, path: Path) -> bool:
        """Whether a file on disk is the listed one. Raises OSError."""

        def read(update: Callable[[bytes], None]) -> None:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    update(block)

        return self._matches(name, path.stat().st_size, read)

    def _matches(self, name: str, size: int, read: Callable[[Callable[[bytes], None]], None]) -> bool:
        listed = self.sha256.get(name) or self.git_ids.get(name)
        if listed is None:
            return True
        hashes = [hashlib.sha256()]
        if name not in self.sha256:
            # other Hubs give the digest of the bytes where git's has a head before them
            kind = "sha1" if len(listed) == SHA1_DIGITS else "sha256"
            plain, git = (hashlib.new(kind, usedforsecurity=False) for _ in range(2))
            git.update(b"blob %d\0" % size)
            hashes = [git, plain]

        def update(block: bytes) -> None:
            for one in hashes:
                one.update(block)

        read(update)
        return listed in {one.hexdigest() for one in hashes}


def other_bytes(request: HubRequest, name: str, listed: ListedDigests, *, advice: str) -> UnreadableError:
    """The error for a file whose bytes are not those that the Hub lists; `advice` is what to do."""
    return UnreadableError(
        f"{name} of {request.repo}: the bytes that came are not those that the Hub at {request.host} lists"
        f" ({listed.expected(name)}); {advice}"
    )
