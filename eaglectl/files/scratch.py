"""Folders for the time of a run, which a lock marks as living; what a killed run left is removed by the next.

`.STEM.XXXXXXXX.partial` holds one folder, and a lock: a file that is named by the device and inode of the
folder it lies in and that the process has locked. A folder without such a file is never removed, nor one
whose lock another process holds. What a run moved aside lies in it as OLD, and stays until that is settled.
"""

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files.files import naming
from eaglectl.files.signals import register_removal, stopped_by_signals, unregister_removal

NAME, OLD = "files", ".old"
# files that listing a folder in a folder opens
SPARE = 3


class Scratch:
    """A locked `.STEM.XXXXXXXX.partial` in `parent`; `work` is the folder `name` in it, which is empty.

    Raises OSError where it cannot be made.
    """

    def __init__(self, parent: Path, stem: str, name: str = NAME) -> None:
        self.folder: Path | None = None
        self.descriptor: int | None = None
        # closed before removing, which lists folders, also where no more files can be opened
        self.spare: list[int] = []
        register_removal(self.remove)
        try:
            self.spare += [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(SPARE)]
            while self.descriptor is None:  # another run may take a new folder for what a killed one left
                # named before it is made: a signal may come in between
                self.folder = parent / f".{stem}.{os.urandom(4).hex()}.partial"
                try:
                    self.folder.mkdir(0o700)
                except FileExistsError:
                    continue
                with suppress(FileNotFoundError):
                    self.descriptor = _lock(_lock_file(self.folder), os.O_CREAT | os.O_EXCL)
            assert self.folder is not None
            self.work = self.folder / name
            self.work.mkdir()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder but for OLD, as far as that is possible, and give the lock back."""
        while self.spare:
            os.close(self.spare.pop())
        if self.descriptor is not None and self.folder is not None:
            _remove(self.folder)
        elif self.folder is not None:  # it may be another's, of the same name
            with suppress(OSError):
                _lock_file(self.folder).unlink(missing_ok=True)
        descriptor, self.descriptor = self.descriptor, None
        _unlock(self.folder, descriptor)
        unregister_removal(self.remove)


def temporary_folder() -> Path:
    """The system's folder of temporary files. Raises UnreadableError where none can be written to."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise UnreadableError(
            "no folder for temporary files can be written to; mount one at /tmp, or set TMPDIR to one"
        ) from None


@contextmanager
def scratch_folder(near: Path | None = None) -> Iterator[Path]:
    """An empty folder in `near` or the system's temporary folder, removed at the end; SIGTERM ends it too.

    Raises UnreadableError where it cannot be made.
    """
    parent = near or temporary_folder()
    sweep(parent, "eaglectl")
    with stopped_by_signals():
        with naming(f"{parent}: cannot write there"):
            scratch = Scratch(parent, "eaglectl")
        try:
            yield scratch.work
        finally:
            scratch.remove()


def write_file(path: Path, text: str) -> None:
    """Write a file, all or nothing; a pipe or a device is written to directly. Raises OSError.

    What killed runs left of it is removed; SIGTERM and SIGHUP leave nothing.
    """
    data = text.encode()
    if path.exists() and not path.is_file():
        # without waiting for the reader of a pipe
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        return
    path = path.resolve()
    sweep(path.parent, path.name)
    with stopped_by_signals():
        scratch = Scratch(path.parent, path.name)
        try:
            with (scratch.work / path.name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            (scratch.work / path.name).replace(path)
            sync_folder(path.parent)
        finally:
            scratch.remove()


def sweep(parent: Path, stem: str, settle: Callable[[Path], object] | None = None) -> None:
    """Remove what killed runs left in `parent` under `stem`; what cannot be removed stays without a word.

    `settle` is called with each such folder first, for what was moved aside.
    """
    pattern = re.compile(re.escape(f".{stem}.") + r"[0-9a-f]{8}\.partial")
    with suppress(OSError):
        for folder in list(parent.iterdir()):
            if pattern.fullmatch(folder.name) and not folder.is_symlink():
                with suppress(OSError, EaglectlError):
                    _sweep_one(folder, settle)


def _sweep_one(folder: Path, settle: Callable[[Path], object] | None) -> None:
    """Remove a folder whose lock is held by nobody; without a lock, only an empty one."""
    try:
        descriptor = _lock(_lock_file(folder))
    except FileNotFoundError:
        folder.rmdir()
        return
    if descriptor is None:
        return
    try:
        if settle:
            settle(folder)
        _remove(folder)
    finally:
        _unlock(folder, descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, flags: int = 0) -> int | None:
    """The descriptor of a lock file, locked; None where another run has it, or it is not this user's.

    `flags` make a new one.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600)
    is_locked = True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_locked = False
    except OSError:
        is_locked = bool(flags)  # nobody can lock a file here, so nobody sweeps
    status = os.fstat(descriptor)
    is_own = flags or (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid())
    if is_locked and is_own and status.st_nlink:
        return descriptor
    os.close(descriptor)
    return None


def _lock_file(folder: Path) -> Path:
    """The lock of a folder: a copy of both is another folder, for which the lock does not count."""
    status = folder.lstat()
    return folder / f".{status.st_dev}-{status.st_ino}.lock"


def _remove(folder: Path) -> None:
    """Remove the folder, its lock last: an interrupted removal can be taken up by the next run."""
    with suppress(OSError):
        lock = _lock_file(folder)
        for entry in set(folder.iterdir()) - {lock, folder / OLD}:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        if set(folder.iterdir()) <= {lock}:
            lock.unlink(missing_ok=True)
            folder.rmdir()


def _unlock(folder: Path | None, descriptor: int | None) -> None:
    """Close the lock; until then, NFS and FUSE keep it under another name in the folder."""
    if descriptor is not None:
        os.close(descriptor)
    if folder is not None:
        with suppress(OSError):
            folder.rmdir()
