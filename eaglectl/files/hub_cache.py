"""Repositories of the Hub by name, and their files in the client's cache, compared with their digests there.

A snapshot's files are links, snapshots/COMMIT/FILE to blobs/ETAG, and the Hub's etags are digests: SHA-256 of
files in LFS, git's id of the others. Newer clients make blobs/ETAG a link too, into a store that the
repositories share, where files that came by Xet lie under names that say nothing of their bytes.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.files import Stamp
from eaglectl.shell import quote

SCHEME = "hf://"
REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
NAME = re.compile(rf"{REPO.pattern}(@\S+)?", re.ASCII)
# names from before there were organisations have no org/
OLD_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}(@\S+)?", re.ASCII)


def is_hub_name(text: str) -> bool:
    """Whether `text` can name a Hub repository: org/name, org/name@revision, or hf:// before either."""
    pattern = OLD_NAME if text.startswith(SCHEME) else NAME
    return pattern.fullmatch(text.removeprefix(SCHEME)) is not None


def is_repo_name(text: str) -> bool:
    """Whether `text` is org/name, without a revision."""
    return REPO.fullmatch(text) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """Repository and revision of a name."""
    repo, _, revision = text.removeprefix(SCHEME).partition("@")
    return repo, (unquote(revision) if text.startswith(SCHEME) else revision) or None


# repositories opened within `shared_repositories` by their texts: a lock, and a HubSource once it is there
SHARED: list[dict[str, tuple[threading.Lock, list[Any]]]] = []


@contextmanager
def shared_repositories() -> Iterator[None]:
    """Until the block ends, list each repository once, at the commit of the first time, for all threads."""
    SHARED.append({})
    try:
        yield
    finally:
        SHARED.pop()


# bytes that are read at once: they stay in the core's cache while they are hashed
BLOCK = 1 << 18
SHA1_DIGITS = 40


class ListedDigests(Struct, frozen=True):
    """What a Hub lists of files at one commit: `sha256` of those in LFS, `git_ids` of the others."""

    sha256: dict[str, str]
    git_ids: dict[str, str]

    def __contains__(self, name: object) -> bool:
        """Whether a digest of the file is listed."""
        return name in self.sha256 or name in self.git_ids

    def expected(self, name: str) -> str:
        """The listed digest of a file, as text for messages."""
        if name in self.sha256:
            return f"SHA-256 {self.sha256[name][:12]}..."
        return f"git id {self.git_ids[name][:12]}..."

    def is_same(self, name: str, size: int, blocks: Iterable[bytes]) -> bool:
        """Whether `blocks`, `size` bytes together, are the file's; True where no digest of it is listed."""
        listed = self.sha256.get(name) or self.git_ids.get(name)
        return listed is None or has_digest(listed, size, blocks, is_plain=name in self.sha256)


def has_digest(listed: str, size: int, blocks: Iterable[bytes], *, is_plain: bool = False) -> bool:
    """Whether a file of `size` bytes has a digest: git's id of it, or, as other Hubs give, that of its bytes.

    `is_plain`: the digest can only be of the bytes, as those of files in LFS.
    """
    import hashlib  # late: it loads OpenSSL, and most files are not of the cache

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


ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
REPOSITORY, SNAPSHOTS, BLOBS = "models--", "snapshots", "blobs"
# larger files are kept in LFS
MAX_OUTSIDE_LFS = 16 << 20
# files that had the digest when they were last read, and their state at the time
COMPARED: dict[Path, Stamp] = {}


def is_snapshot(root: Path) -> bool:
    """Whether a folder, without links in its path, is a snapshot in the cache."""
    return root.parent.name == SNAPSHOTS and root.parent.parent.name.startswith(REPOSITORY)


def is_blob(root: Path, path: Path) -> bool:
    """Whether a file is a blob of a snapshot's repository, or of the store that repositories share.

    Both paths are without links.
    """
    places = (root.parent.parent / BLOBS, root.parent.parent.parent / BLOBS)
    return is_snapshot(root) and any(path.is_relative_to(place) for place in places)


def etag_of(path: Path) -> str | None:
    """The digest that a snapshot's file is named by; None where its name is none, or it is no such file."""
    try:
        link = path.readlink()
    except OSError:  # no link, as nearly always
        return None
    blob = Path(os.path.normpath(path.parent.resolve() / link))
    is_of_cache = blob.parent.name == BLOBS and blob.parent.parent.name.startswith(REPOSITORY)
    return blob.name if is_of_cache and ETAG.fullmatch(blob.name) else None


def is_compared(path: Path) -> bool:
    """Whether a file was compared with its digest and is as it was then."""
    path = path.resolve()
    return path in COMPARED and COMPARED[path] == Stamp.of(path.stat())


def compared(path: Path, stamp: Stamp) -> None:
    """Record that a file had its digest while it had this stamp."""
    COMPARED[path.resolve()] = stamp


def check_etag(path: Path, file: BufferedReader, etag: str, what: str) -> None:
    """Compare an open file with the digest that it is named by; once, as long as it stays as it is.

    `etag` is `etag_of(path)`, `what` names the file in the error. Raises UnreadableError for other bytes.
    """
    status = os.fstat(file.fileno())
    stamp = Stamp.of(status)
    if COMPARED.get(path.resolve()) == stamp:
        return
    is_plain = len(etag) == 64 and status.st_size > MAX_OUTSIDE_LFS
    if not has_digest(etag, status.st_size, blocks_of(file.fileno()), is_plain=is_plain):
        raise UnreadableError(
            f"{what} is in the Hub client's cache with other bytes than its name there says"
            f" ({etag[:12]}...): it was changed or damaged; {repair(path)}"
        )
    compared(path, stamp)


def repair(path: Path) -> str:
    """The advice for a file of the cache that has other bytes than it should have.

    Only of huggingface.co it is known that an etag in hexadecimal is a digest.
    """
    advice = f"run `rm {quote(str(path.resolve()))}`, and the command again, which downloads the file"
    cached = next((part for part in path.parts if part.startswith(REPOSITORY)), None)
    if cached is None or not os.environ.get("HF_ENDPOINT"):
        return advice
    repo = cached.removeprefix(REPOSITORY).replace("--", "/", 1)
    folder = quote(repo.rpartition("/")[2])
    return (
        f"{advice}; where that does not help, the ETags of this Hub are no digests: run `hf download"
        f" {quote(repo)} --local-dir {folder}` and give {folder}"
    )
