"""Folders for the time of a run, which a lock marks as living; what a killed run left is removed by the next.

`.STEM.HEX.partial` holds one folder, NAME, and its lock, `.NAME.lock`: a file that names the device and inode
of the folder it lies in and that the process has locked. A folder without such a file is never removed, nor
one whose lock another process holds.
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

from eaglectl.files.files import naming
from eaglectl.files.signals import register_removal, stopped_by_signals, unregister_removal

TRIES = 10
WRITING, REPLACING = "writing", "replacing"
NAME = "files"

# whether what a killed run left may be removed: its folder, and the state in its lock
MayRemove = Callable[[Path, str], bool]


class Scratch:
    """`.STEM.HEX.partial` in `parent`, held by a lock; `work` is the folder NAME in it.

    Raises OSError where it cannot be made.
    """

    def __init__(self, parent: Path, stem: str, name: str = NAME) -> None:
        self.descriptor: int | None = None
        self.state = WRITING
        self.folder = parent / f".{stem}.{os.urandom(4).hex()}.partial"
        register_removal(self._remove_unfinished)
        try:
            self._create(parent, stem, name)
        except OSError:
            unregister_removal(self._remove_unfinished)
            raise
        self.work = self.folder / name
        try:
            self.note(WRITING)
            self.work.mkdir()
        except BaseException:
            self.remove()
            raise

    def _create(self, parent: Path, stem: str, name: str) -> None:
        """Make the folder and take its lock."""
        for _ in range(TRIES):
            self.lock = self.folder / _lock_name(name)
            self.folder.mkdir(0o700)
            try:
                self.descriptor = create_locked(self.lock)
            except FileNotFoundError:
                pass  # another process took the empty folder for one that a killed run left
            except BaseException:
                _remove(self.folder, self.lock)
                raise
            if self.descriptor is not None:
                return
            self.folder = parent / f".{stem}.{os.urandom(4).hex()}.partial"
        raise FileExistsError(f"{self.folder}: taken away while it was made")

    def note(self, state: str) -> None:
        """Write the state into the lock, for the run that finds it."""
        assert self.descriptor is not None, "the lock was given back"
        self.state = state
        record = _record(self.folder, state)
        os.pwrite(self.descriptor, record, 0)
        os.ftruncate(self.descriptor, len(record))

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as that is possible, and give the lock back."""
        _remove(self.folder, self.lock)
        self.release()

    def release(self) -> None:
        """Give the lock back."""
        unregister_removal(self._remove_unfinished)
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)
            _remove_empty(self.folder)

    def _remove_unfinished(self) -> None:
        """Remove what an exception between two steps left; a folder that replaces another is its owner's."""
        if self.descriptor is None:
            with suppress(OSError):
                self.folder.rmdir()
        elif self.state == WRITING:
            self.remove()


@contextmanager
def scratch_folder(near: Path | None = None) -> Iterator[Path]:
    """An empty folder in `near` or the system's temporary folder, removed at the end; SIGTERM ends it too.

    Raises UnreadableError where it cannot be made.
    """
    parent = near or Path(tempfile.gettempdir())
    sweep(parent, "eaglectl", NAME, lambda folder, state: True)
    with stopped_by_signals():
        with naming(f"{parent}: cannot write there"):
            scratch = Scratch(parent, "eaglectl")
        try:
            yield scratch.work
        finally:
            scratch.remove()


def sweep(parent: Path, stem: str, name: str, may_remove: MayRemove) -> None:
    """Remove what killed runs left in `parent` under `stem`; what cannot be removed stays without a word."""
    pattern = re.compile(re.escape(f".{stem}.") + r"[0-9a-f]{8}\.partial")
    with suppress(OSError):
        for entry in list(parent.iterdir()):
            if pattern.fullmatch(entry.name) and not entry.is_symlink():
                with suppress(OSError):
                    _sweep_one(entry, entry / _lock_name(name), may_remove)


def take_lock(path: Path) -> int | None:
    """The descriptor of a lock file that no process holds; None where one does, or where it is not ours.

    Raises OSError where it cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if _is_own_file(descriptor) and _lock(descriptor) and os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)
    return None


def remove_unlocked(path: Path) -> None:
    """Remove a file of this user that no process holds. Raises OSError."""
    descriptor = take_lock(path)
    if descriptor is not None:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_locked(path: Path, mode: int = 0o600) -> int | None:
    """The descriptor of a new file, locked; None where another process swept it before it was locked.

    Raises FileExistsError where there is one, a link too.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        is_locked = _lock(descriptor)
    except OSError:
        is_locked = True  # nobody can lock a file here, so nobody sweeps
    if is_locked and os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_own_file(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _lock_name(name: str) -> str:
    return f".{name}.lock"


def _record(folder: Path, state: str) -> bytes:
    status = folder.lstat()
    return f"eaglectl {status.st_dev} {status.st_ino} {state}\n".encode()


def _sweep_one(folder: Path, lock: Path, may_remove: MayRemove) -> None:
    """Remove a folder whose lock names it and is held by nobody; without a lock, only an empty one."""
    try:
        descriptor = take_lock(lock)
    except FileNotFoundError:
        folder.rmdir()
        return
    if descriptor is None:
        return
    try:
        record = os.pread(descriptor, 200, 0)
        if not record:
            lock.unlink()
            folder.rmdir()
            return
        for state in (WRITING, REPLACING):
            if record == _record(folder, state) and may_remove(folder, state):
                _remove(folder, lock)
    finally:
        os.close(descriptor)
        _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    """Remove a folder in which the lock stayed under another name until it was closed, as on NFS and FUSE."""
    with suppress(OSError):
        folder.rmdir()


def _remove(folder: Path, lock: Path) -> None:
    """Remove the folder, its lock last: an interrupted removal can be taken up by the next run."""
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry == lock:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with suppress(OSError):
                    entry.unlink()
        if list(folder.iterdir()) in ([lock], []):
            lock.unlink(missing_ok=True)
        folder.rmdir()
