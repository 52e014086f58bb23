"""A source: named files whose bytes can be read by range. Nothing here knows what the bytes mean.

A pinned source opens each file once, so that what was read is one state of the folder, or an error.
"""

import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import UnreadableError
from eaglectl.files.files import FLAGS, MIB, Stamp, naming
from eaglectl.files.header import JSON, UNSAFE
from eaglectl.files.hub_cache import REPOSITORY, check_etag, etag_of, is_blob, is_compared, is_snapshot
from eaglectl.progress import notify
from eaglectl.text import listed

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
        """The weight file, where the user named a file and not a folder."""

    def names(self) -> tuple[str, ...]:
        """Paths of the files, relative, sorted."""

    def size(self, name: str) -> int:
        """Bytes of a file. Raises UnreadableError where there is none."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file; without `stop`, to its end.

        Raises UnreadableError where the file is shorter, or is large and was to be read whole.
        """

    def path(self, name: str) -> Path | None:
        """The file on this machine, if it is there."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A local folder, or one weight file in it beside its config.json.

    `name` and `shown` are the label and the place of a source that the folder is a copy of.
    """

    root: Path
    only: str | None = None
    name: str = ""
    shown: str = ""

    @property
    def label(self) -> str:
        """The folder's own name; the repository's (org/name) for a snapshot in the Hub client's cache."""
        root = self.root.resolve()
        if is_snapshot(root):
            return root.parent.parent.name.removeprefix(REPOSITORY).replace("--", "/")
        return self.name or root.name

    @property
    def is_cached(self) -> bool:
        """Whether the folder is a snapshot in the Hub client's cache."""
        return is_snapshot(self.root.resolve())

    @property
    def place(self) -> str:
        """The folder's path, as it was given."""
        return self.shown or str(self.root)

    def names(self) -> tuple[str, ...]:
        """Files in the folder, and in `model/` where that is a torch distributed checkpoint (TorchSpec)."""
        model = self.root / "model"
        with naming(self.root), os.scandir(self.root) as entries:
            # an entry itself raises an error for a link that leads to itself
            is_folder = {
                entry.name: Path(entry).is_dir() if entry.is_symlink() else entry.is_dir()
                for entry in entries
            }
            names = [name for name in is_folder if not is_folder[name]]
            if is_folder.get("model") and (model / ".metadata").is_file():
                names += [f"model/{entry.name}" for entry in model.iterdir() if entry.is_file()]
            return tuple(sorted(names))

    def path(self, name: str) -> Path:
        """The path of a regular file; its name and symbolic links must stay in the folder.

        Raises UnreadableError, for a pipe or a device too: opening one may block for ever.
        """
        pure, path = PurePosixPath(name), self.root / name
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            fault = f'"{name}" points out of the checkpoint folder; files must lie inside {self.place}'
            raise UnreadableError(fault, UNSAFE, name)
        try:
            # nothing to follow, which takes many calls of the system
            if len(pure.parts) == 1 and S_ISREG(path.lstat().st_mode):
                return path
        except OSError:
            pass  # nothing is there, which is for the caller to see
        except ValueError:
            fault = f'"{name}" cannot be the name of a file in {self.place}; rename it'
            raise UnreadableError(fault, UNSAFE, name) from None
        try:
            resolved, root = path.resolve(), self.root.resolve()
        except (OSError, RuntimeError):
            fault = f"{name} in {self.place} is a symbolic link that leads back to itself"
            raise UnreadableError(fault, UNSAFE, name) from None
        if not resolved.is_relative_to(root) and not is_blob(root, resolved):
            fault = f"{name} is a symbolic link that leaves {self.place}; put the file itself there"
            raise UnreadableError(fault, UNSAFE, name)
        if path.exists() and not path.is_file():
            raise self._irregular(name)
        return path

    def open_file(self, name: str, *, is_any_size: bool = False) -> BufferedReader:
        """A regular file, open for reading: what is opened is looked at, and not what has its name later.

        One of the Hub client's cache is compared with its digest there, a large one with `is_any_size`.
        Raises UnreadableError.
        """
        with naming(f"{name} in {self.place}"):
            file = os.fdopen(os.open(self.path(name), FLAGS), "rb")
        with ExitStack() as closed:
            closed.push(file)
            status = os.fstat(file.fileno())
            if not S_ISREG(status.st_mode):
                raise self._irregular(name)
            is_small = is_any_size or status.st_size <= MAX_WHOLE_FILE
            if is_small and (etag := etag_of(self.root / name)):
                check_etag(self.root / name, file, etag, f"{name} of {self.label}")
            closed.pop_all()
        return file

    def check_cached(self, names: Iterable[str]) -> None:
        """Compare files with their digests in the Hub client's cache, where they are in it.

        Raises UnreadableError for other bytes; a notice names files of a snapshot without a digest.
        """
        if not self.is_cached:
            return
        names = tuple(names)
        from concurrent.futures import ThreadPoolExecutor  # late: it loads logging

        with ThreadPoolExecutor() as pool:
            tuple(pool.map(lambda name: self.open_file(name, is_any_size=True).close(), names))
        if unnamed := [name for name in names if etag_of(self.root / name) is None]:
            notify(
                f"{self.label}: the Hub client's cache has no digest of {listed(unnamed)}; their bytes were"
                " not compared"
            )

    def uncompared(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the files that are in the Hub client's cache and were not compared with a digest."""
        if not self.is_cached:
            return ()
        return tuple(sorted(name for name in names if not is_compared(self.root / name)))

    def _irregular(self, name: str) -> UnreadableError:
        about = f"{name} in {self.place} is not a regular file; put the file itself there"
        return UnreadableError(about, UNSAFE, name)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        with naming(f"{name} in {self.place}"):
            return self.path(name).stat().st_size

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        with self.open_file(name) as file:
            return read_open(self.place, name, file.fileno(), start, stop)


def check_whole(label: str, name: str, size: int) -> None:
    """Raise UnreadableError for a file that is too large to be read whole."""
    if size > MAX_WHOLE_FILE:
        about = f"{name} in {label} has {size} bytes; at most {MAX_WHOLE_FILE} are read of such a file"
        raise UnreadableError(f"{about}: put the real one there", JSON, name)


def read_open(place: str, name: str, descriptor: int, start: int, stop: int | None) -> bytes:
    """Bytes [start, stop) of an open file, or those from `start` to its end; `place` is its folder.

    Raises UnreadableError.
    """
    if (end := stop) is None:
        end = os.fstat(descriptor).st_size
        check_whole(place, name, end - start)
    parts, position = [], start
    with naming(f"{name} in {place}"):
        while position < end and (part := os.pread(descriptor, end - position, position)):
            parts.append(part)
            position += len(part)
    if position < end:
        raise UnreadableError(
            f"{name} in {place} ended at byte {position}; {end} were expected: the file is truncated or being"
            " written"
        )
    return b"".join(parts)


class PinnedFile(Struct, frozen=True):
    """An open file, and its stamp when it was opened."""

    path: Path
    descriptor: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class PinnedSource(FolderSource):
    """A folder that opens each file once, when it is first read, and reads it through that descriptor.

    A context manager, which closes the files.
    """

    files: dict[str, PinnedFile] = field(default_factory=dict, compare=False)

    def __enter__(self) -> "PinnedSource":
        return self

    def __exit__(self, *_: object) -> None:
        while self.files:
            with suppress(OSError):  # of a file that was read alone, as FUSE gives it
                os.close(self.files.popitem()[1].descriptor)

    def pinned(self, name: str) -> PinnedFile:
        """The open file. Raises UnreadableError where it cannot be opened, or is no regular file."""
        if name not in self.files:
            with self.open_file(name) as file:
                descriptor = os.dup(file.fileno())
            self.files[name] = PinnedFile(self.root / name, descriptor, Stamp.of(os.fstat(descriptor)))
        return self.files[name]

    def size(self, name: str) -> int:
        """Bytes of a file when it was opened."""
        return self.pinned(name).stamp.size

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        return read_open(self.place, name, self.pinned(name).descriptor, start, stop)

    def restamp(self) -> None:
        """Take the status times of now for those of the opening: hard links were made in the meantime.

        Raises UnreadableError where more than that changed.
        """
        self.check_unchanged(is_status_compared=False)
        for name, file in self.files.items():
            self.files[name] = replace(file, stamp=Stamp.of(os.fstat(file.descriptor)))

    def check_unchanged(self, *, is_status_compared: bool = True) -> None:
        """Raise UnreadableError where a file that was opened, or what has its name now, is not as it was.

        `is_status_compared` False: a hard link or permissions may have changed.
        """
        for name, file in self.files.items():
            try:
                status = os.fstat(file.descriptor)
                stamps = Stamp.of(status), Stamp.of(file.path.stat())
            except OSError:
                raise changed(self, name) from None
            # another run that reads the file, as smoke does, makes a hard link of it
            is_compared = is_status_compared and status.st_nlink == 1
            is_same = stamps == (file.stamp, file.stamp)
            if not is_same and (is_compared or not all(map(file.stamp.is_same_content, stamps))):
                raise changed(self, name)


def changed(source: FolderSource, name: str) -> UnreadableError:
    """The error for a file that is not as it was when it was first read."""
    return UnreadableError(
        f"{source.root / name} changed while it was read; nothing was written. Run the command again when"
        " nothing writes to the folder"
    )
