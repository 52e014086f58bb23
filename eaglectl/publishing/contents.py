"""Every file below a downloaded folder, subfolders included, and what no list of its files can name."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from eaglectl.checkpoint.hub_cache import is_blob
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import UnreadableError

# .gitattributes is written by the Hub when a repository is created, and `hf download` brings it. The Hub's
# client keeps the state of a download in .cache/huggingface, under these names only: no loader reads them.
# A clone's .git is no such thing: git runs what its config and hooks name.
BOOKKEEPING = re.compile(
    r"\.gitattributes|\.cache/huggingface/(\.gitignore|CACHEDIR\.TAG"
    r"|trees/[0-9a-f]{40,64}\.json|(download|upload)/(.+/)?[^/]+\.(metadata|lock|incomplete))"
)


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
