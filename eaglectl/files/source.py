"""A source: named files whose bytes can be read by range. The contents are interpreted elsewhere.

A pinned source opens each file once, so that all reads are of one state of the folder, or an error.

Files in the Hub client's cache are compared with their digests there. A snapshot's files are links,
snapshots/COMMIT/FILE to blobs/ETAG, and the Hub's etags are digests: SHA-256 of files in LFS, git's id of the
others. Newer clients make blobs/ETAG a link too, into a store that the repositories share, where files from
Xet have names that are not digests.
"""

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Any, Protocol
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import UnreadableError
from eaglectl.files.files import FLAGS, MIB, Stamp, errors_about, is_folder, is_regular, open_regular
from eaglectl.files.header import JSON, UNSAFE
from eaglectl.progress import notify
from eaglectl.shell import quote
from eaglectl.text import listed

SCHEME = "hf://"
# what the Hub refuses in a name: -- or .. in it, and .git, - or . at an end
REFUSED = r"(?![\w./-]*(?:--|\.\.|[.-]/|(?:\.git|[.-])(?![\w./-])))"
REPO = rf"(?a){REFUSED}[A-Za-z0-9][\w.-]{{0,95}}/[A-Za-z0-9][\w.-]{{0,95}}"
# a revision has no colon (git's rule for names of branches), a folder in the repository follows one
REST = r"(@[^\s:]+)?(:[^\s:@]+)?"
NAME = rf"{REPO}{REST}"
# names from before there were organisations have no org/
OLD_NAME = rf"(?a){REFUSED}([A-Za-z0-9][\w.-]{{0,95}}/)?[A-Za-z0-9][\w.-]{{0,95}}{REST}"


def is_hub_name(text: str) -> bool:
    """Whether `text` can name a Hub repository: org/name[@revision][:folder], or hf:// before it."""
    pattern = OLD_NAME if text.startswith(SCHEME) else NAME
    return re.fullmatch(pattern, text.removeprefix(SCHEME)) is not None


def is_repo_name(text: str) -> bool:
    """Whether `text` is org/name, without a revision."""
    return re.fullmatch(REPO, text) is not None


def split_name(text: str) -> tuple[str, str | None]:
    """Return the repository and revision of a name."""
    repo, _, revision = split_folder(text)[0].removeprefix(SCHEME).partition("@")
    return repo, (unquote(revision) if text.startswith(SCHEME) else revision) or None


def split_folder(text: str) -> tuple[str, str]:
    """Return a name without its folder, and the folder in the repository; "" for the repository itself."""
    scheme = SCHEME if text.startswith(SCHEME) else ""
    name, _, folder = text.removeprefix(scheme).partition(":")
    return scheme + name, folder.strip("/")


# repositories opened within `shared_repositories` by their texts: a lock, and a HubSource once it is there
SHARED: list[dict[str, tuple[threading.Lock, list[Any]]]] = []


@contextmanager
def shared_repositories() -> Iterator[None]:
    """List each repository once, at the commit of the first time, for all threads until the block ends."""
    SHARED.append({})
    try:
        yield
    finally:
        SHARED.pop()


# bytes that are read at once: they stay in the core's cache while they are hashed
BLOCK = 1 << 18
SHA1_DIGITS = 40


class ListedDigests(Struct, frozen=True):
    """The digests that a Hub lists at one commit: `sha256` of files in LFS, `git_ids` of the others."""

    sha256: dict[str, str]
    git_ids: dict[str, str]

    def of(self, name: str) -> str | None:
        """Return the digest of a file; None if none is listed."""
        return self.sha256.get(name) or self.git_ids.get(name)


def has_digest(listed: str, size: int, blocks: Iterable[bytes]) -> bool:
    """Whether a file of `size` bytes has a digest: git's id of it, or that of its bytes.

    Files in LFS have that of their bytes, as have all files of some other Hubs.
    """
    import hashlib  # late: it loads OpenSSL, and most files are not of the cache

    kind = "sha1" if len(listed) == SHA1_DIGITS else "sha256"
    hashes = [hashlib.new(kind, usedforsecurity=False)]
    if size <= MAX_OUTSIDE_LFS or kind == "sha1":  # git has a head before the bytes
        hashes.append(hashlib.new(kind, b"blob %d\0" % size, usedforsecurity=False))
    for block in blocks:
        for digest in hashes:
            digest.update(block)
    return listed in {digest.hexdigest() for digest in hashes}


def blocks_of(descriptor: int) -> Iterator[bytes]:
    """Yield the bytes of an open file from its start; its position does not move. Raises OSError."""
    start = 0
    while block := os.pread(descriptor, BLOCK, start):
        yield block
        start += len(block)


# how far below a folder checkpoints are looked for
MAX_LEVELS, MAX_FOLDERS = 3, 500
ETAG = r"[0-9a-f]{40}|[0-9a-f]{64}"
REPOSITORY, SNAPSHOTS, BLOBS = "models--", "snapshots", "blobs"
# larger files are kept in LFS
MAX_OUTSIDE_LFS = 16 << 20
# files that had the digest when they were last read, and their state at the time
COMPARED: dict[Path, Stamp] = {}


def hub_cache() -> Path:
    """Return the folder where the Hub's client keeps repositories, resolved."""
    if client := sys.modules.get("huggingface_hub.constants"):
        return Path(os.path.realpath(client.HF_HUB_CACHE))
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface"
    cache = os.environ.get("HUGGINGFACE_HUB_CACHE", os.environ.get("HF_HOME", home) + "/hub")
    cache = os.environ.get("HF_HUB_CACHE", cache)
    return Path(os.path.realpath(os.path.expandvars(os.path.expanduser(cache))))  # noqa: PTH111


def is_snapshot(root: Path) -> bool:
    """Whether a folder, without links in its path, is as a snapshot in the cache, wherever it lies."""
    return root.parent.name == SNAPSHOTS and root.parent.parent.name.startswith(REPOSITORY)


def snapshot_of(folder: Path) -> Path | None:
    """Return the snapshot that a folder, without links in its path, is or lies in; None if there is none."""
    return next((root for root in (folder, *folder.parents) if is_snapshot(root)), None)


def is_blob(folder: Path, path: Path) -> bool:
    """Whether a file is a blob of a snapshot's repository, or of the store that repositories share.

    `folder` is the snapshot, or in it. Both paths are without links.
    """
    root = snapshot_of(folder)
    places = (root.parent.parent / BLOBS, root.parent.parent.parent / BLOBS) if root else ()
    return any(path.is_relative_to(place) for place in places)


def etag_of(path: Path) -> str | None:
    """Return the digest in the name of a file of the cache; None for any other file."""
    try:
        link = path.readlink()
    except OSError:  # no link, as nearly always
        return None
    blob = Path(os.path.normpath(path.parent.resolve() / link))
    is_of_cache = blob.parent.name == BLOBS and blob.parent.parent.name.startswith(REPOSITORY)
    return blob.name if is_of_cache and re.fullmatch(ETAG, blob.name) else None


def is_compared(path: Path) -> bool:
    """Whether a file was compared with its digest and is as it was then."""
    path = path.resolve()
    return path in COMPARED and COMPARED[path] == Stamp.of(path.stat())


def check_digest(path: Path, file: BufferedReader, digest: str, name: str, label: str) -> None:
    """Compare an open file of the cache with its digest; once, as long as it stays as it is.

    `name` and the source's `label` are for the error. Raises UnreadableError for other bytes.
    """
    stamp, place = Stamp.of(os.fstat(file.fileno())), path.resolve()
    if COMPARED.get(place) == stamp:
        return
    if not has_digest(digest, stamp.size, blocks_of(file.fileno())):
        raise UnreadableError(
            f"{name} of {label} in the Hub client's cache does not match its digest ({digest[:12]}...): it"
            f" was changed or damaged; run `rm {quote(str(place))}`, then this command again, which"
            " downloads the file",
            source=label,
        )
    COMPARED[place] = stamp


# bytes of a file that is read whole: a config, an index, a tokenizer
MAX_WHOLE_FILE = 64 * MIB


class Source(Protocol):
    """A set of files at one fixed state, read by byte range (a folder, or a commit of a Hub repository)."""

    @property
    def label(self) -> str:
        """Its name in published files; never a path of this machine."""

    @property
    def place(self) -> str:
        """Its name in messages: the whole path of a folder, the name of a repository."""

    @property
    def only(self) -> str | None:
        """The weight file, if the user named a file and not a folder."""

    def names(self) -> tuple[str, ...]:
        """Return the relative paths of the files, sorted."""

    def size(self, name: str) -> int:
        """Return the bytes of a file. Raises UnreadableError if there is none."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of a file; without `stop`, to its end.

        Raises UnreadableError if the file is shorter, or is too large to be read whole.
        """

    def path(self, name: str) -> Path | None:
        """Return the file's path on this machine; None if it is not there."""

    def names_below(self) -> tuple[str, ...]:
        """Return the relative paths of the files in its folders."""

    def place_of(self, folder: str) -> str:
        """Return the name of a folder in it, as a command takes it."""


class FolderSource(Struct, frozen=True):
    """A local folder, or one weight file in it beside its config.json.

    `name` and `shown` are the label and the place of a source that the folder is a copy of.
    """

    root: Path
    only: str | None = None
    name: str = ""
    shown: str = ""

    @property
    def label(self) -> str:
        """The folder's own name; org/name[:folder] for a snapshot in the Hub client's cache, or in one.

        A snapshot that was copied elsewhere has the last part of that name, as it is no repository.
        """
        folder = self.root.resolve()
        if (root := snapshot_of(folder)) is None:
            return self.name or folder.name
        name = root.parent.parent.name.removeprefix(REPOSITORY).replace("--", "/")
        if root.parents[2] != hub_cache():
            return name.rpartition("/")[2] if root == folder else folder.name
        return name if root == folder else f"{name}:{folder.relative_to(root).as_posix()}"

    @property
    def is_cached(self) -> bool:
        """Whether the folder is a snapshot in the Hub client's cache, or in one."""
        return snapshot_of(self.root.resolve()) is not None

    @property
    def place(self) -> str:
        """The folder's path, as it was given."""
        return self.shown or str(self.root)

    def names(self) -> tuple[str, ...]:
        """Return the files in the folder, and in `model/` if that is a torch distributed checkpoint
        (TorchSpec).
        """
        model = self.root / "model"
        with errors_about(self.root, source=self.place), os.scandir(self.root) as entries:
            # an entry itself raises an error for a link that leads to itself
            folders = {
                entry.name: is_folder(Path(entry)) if entry.is_symlink() else entry.is_dir()
                for entry in entries
            }
            names = [name for name in folders if not folders[name]]
            if folders.get("model") and is_regular(model / ".metadata"):
                names += [f"model/{entry.name}" for entry in model.iterdir() if is_regular(entry)]
            return tuple(sorted(names))

    def names_below(self) -> tuple[str, ...]:
        """Return the relative paths of the files in its folders, MAX_LEVELS down; links to folders are
        skipped.
        """
        files, level = list[str](), [self.root]
        for _ in range(MAX_LEVELS):
            entries = [entry for parent in level for entry in _entries(parent)]
            folders = (entry for entry in entries if not entry.is_symlink() and entry.is_dir())
            level = sorted(folders)[:MAX_FOLDERS]
            inside = (entry for folder in level for entry in _entries(folder) if is_regular(entry))
            files += [entry.relative_to(self.root).as_posix() for entry in inside]
        return tuple(files)

    def place_of(self, folder: str) -> str:
        """Return the path of a folder in it; org/name:folder for the cache's snapshot of a branch main."""
        root = self.root.resolve()
        main = root.parent.parent / "refs/main"
        is_main = (
            is_snapshot(root)
            and main.is_file()
            and main.read_text(encoding="utf-8", errors="replace") == root.name
        )
        return f"{self.label}:{folder}" if is_main and is_hub_name(self.label) else str(self.root / folder)

    def path(self, name: str) -> Path:
        """Return the path of a regular file; its name and symbolic links must stay in the folder.

        Raises UnreadableError, for a pipe or a device too: opening one may block for ever.
        """
        pure, path = PurePosixPath(name), self.root / name
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise UnreadableError(
                f'"{name}" points out of the checkpoint folder; files must lie inside {self.place}',
                UNSAFE,
                name,
                source=self.place,
            )
        try:
            # nothing to follow, which takes many calls of the system
            if S_ISREG(path.lstat().st_mode) and len(pure.parts) == 1:
                return path
        except OSError:
            pass  # nothing is there, which is for the caller to see
        except ValueError:
            raise UnreadableError(
                f'"{name}" cannot be the name of a file in {self.place}; rename it',
                UNSAFE,
                name,
                source=self.place,
            ) from None
        try:
            resolved, root = path.resolve(), self.root.resolve()
        except (OSError, RuntimeError):
            raise UnreadableError(
                f"{name} in {self.place} is a symbolic link that leads back to itself",
                UNSAFE,
                name,
                source=self.place,
            ) from None
        if not resolved.is_relative_to(root) and not is_blob(root, resolved):
            raise UnreadableError(
                f"{name} is a symbolic link that leaves {self.place}; put the file itself there",
                UNSAFE,
                name,
                source=self.place,
            )
        if path.exists() and not path.is_file():
            raise self._irregular(name)
        return path

    def open_file(self, name: str) -> BufferedReader:
        """Open a regular file for reading; the checks are of the opened file, not of its path.

        A small file of the Hub client's cache is compared with its digest there. Raises UnreadableError.
        """
        with errors_about(f"{name} in {self.place}", source=self.place):
            file = os.fdopen(os.open(self.path(name), FLAGS), "rb")
        with ExitStack() as closed:
            closed.push(file)
            status = os.fstat(file.fileno())
            if not S_ISREG(status.st_mode):
                raise self._irregular(name)
            if status.st_size <= MAX_WHOLE_FILE and (etag := etag_of(self.root / name)):
                check_digest(self.root / name, file, etag, name, self.label)
            closed.pop_all()
        return file

    def check_cached(self, names: Iterable[str], hub: ListedDigests | None = None) -> None:
        """Compare files in the Hub client's cache with what the Hub lists, or their digests there.

        Raises UnreadableError for other bytes; a notice names files without a digest.
        """
        if not self.is_cached:
            return
        digests = {name: (hub and hub.of(name)) or etag_of(self.root / name) for name in names}

        def compare(name: str) -> None:
            path = self.path(name)
            if digest := digests[name]:
                with open_regular(path) as file:
                    check_digest(path, file, digest, name, self.label)

        from concurrent.futures import ThreadPoolExecutor  # late: it loads logging

        with ThreadPoolExecutor() as pool:
            tuple(pool.map(compare, digests))
        if unknown := [name for name, digest in digests.items() if digest is None]:
            notify(
                f"{self.label}: neither the Hub nor its client's cache has a digest of"
                f" {listed(unknown)}; their bytes were not compared"
            )

    def uncompared(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the files that the Hub client cached and no digest was compared with."""
        if not self.is_cached:
            return ()
        return tuple(sorted(name for name in names if not is_compared(self.root / name)))

    def _irregular(self, name: str) -> UnreadableError:
        return UnreadableError(
            f"{name} in {self.place} is not a regular file; put the file itself there",
            UNSAFE,
            name,
            source=self.place,
        )

    def size(self, name: str) -> int:
        """Return the bytes of a file. Raises UnreadableError."""
        with errors_about(f"{name} in {self.place}", source=self.place):
            return self.path(name).stat().st_size

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of a file. Raises UnreadableError."""
        with self.open_file(name) as file:
            return read_open(self.place, name, file.fileno(), start, stop)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def check_whole(label: str, name: str, size: int) -> None:
    """Raise UnreadableError for a file that is too large to be read whole."""
    if size > MAX_WHOLE_FILE:
        about = f"{name} in {label} has {size} bytes; the limit for such a file is {MAX_WHOLE_FILE}"
        raise UnreadableError(f"{about}: restore the original file", JSON, name, source=label)


def read_open(place: str, name: str, descriptor: int, start: int, stop: int | None) -> bytes:
    """Return bytes [start, stop) of an open file, without `stop` to its end; `place` is its folder.

    Raises UnreadableError.
    """
    if (end := stop) is None:
        end = os.fstat(descriptor).st_size
        check_whole(place, name, end - start)
    parts, position = [], start
    with errors_about(f"{name} in {place}", source=place):
        while position < end and (part := os.pread(descriptor, end - position, position)):
            parts.append(part)
            position += len(part)
    if position < end:
        raise UnreadableError(
            f"{name} in {place} ended at byte {position}; {end} were expected: the file is truncated or being"
            " written",
            source=place,
        )
    return b"".join(parts)


class _PinnedFile(Struct, frozen=True):
    """An open file, and its stamp when it was opened."""

    path: Path
    descriptor: int
    stamp: Stamp


class PinnedSource(FolderSource, frozen=True, eq=False):
    """A folder that opens each file once, when it is first read, and reads it through that descriptor.

    A context manager, which closes the files.
    """

    files: dict[str, _PinnedFile] = {}
    hashes: dict[str, int] = {}  # of files that were read whole; hashlib loads OpenSSL

    def __enter__(self) -> "PinnedSource":
        return self

    def __exit__(self, *_: object) -> None:
        while self.files:
            with suppress(OSError):  # of a file that was read alone, as FUSE gives it
                os.close(self.files.popitem()[1].descriptor)

    def pinned(self, name: str) -> _PinnedFile:
        """Return the open file. Raises UnreadableError if it cannot be opened, or is no regular file."""
        if name not in self.files:
            with self.open_file(name) as file:
                descriptor = os.dup(file.fileno())
            self.files[name] = _PinnedFile(self.root / name, descriptor, Stamp.of(os.fstat(descriptor)))
        return self.files[name]

    def size(self, name: str) -> int:
        """Return the bytes of a file when it was opened."""
        return self.pinned(name).stamp.size

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes [start, stop) of a file."""
        data = read_open(self.place, name, self.pinned(name).descriptor, start, stop)
        if (start, stop) == (0, None):
            self.hashes.setdefault(name, hash(data))
        return data

    def restamp(self) -> None:
        """Record the present status times, which hard links change.

        Raises UnreadableError if more than that changed.
        """
        self.check_unchanged()
        for name, file in self.files.items():
            self.files[name] = replace(file, stamp=Stamp.of(os.fstat(file.descriptor)))

    def check_unchanged(self) -> tuple[str, ...]:
        """Return the opened files whose status alone changed, and which were not read again here.

        Hard links that other runs make and remove change it, and so does whoever writes and sets the time
        back; what was read whole is compared here. Raises UnreadableError if an opened file, or the file
        that has its name now, changed.
        """
        touched = list[str]()
        for name, file in self.files.items():
            try:
                stamps = Stamp.of(os.fstat(file.descriptor)), Stamp.of(file.path.stat())
            except OSError:
                raise changed(self, name) from None
            if not all(map(file.stamp.is_same_content, stamps)):
                raise changed(self, name)
            if stamps == (file.stamp, file.stamp):
                continue
            if name not in self.hashes:
                touched.append(name)
            elif self.hashes[name] != hash(self.read(name)):
                raise changed(self, name)
        return tuple(touched)


def changed(source: FolderSource, name: str) -> UnreadableError:
    """Return the error for a file that changed since it was first read."""
    return UnreadableError(
        f"{source.root / name} changed while it was read; nothing was written. Run the command again when no"
        " other process writes to the folder"
    )
