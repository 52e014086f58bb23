"""Scratch folders: removed at the end of a run or by a signal; those of killed runs by the next run.

SIGTERM and SIGHUP are exceptions meanwhile. As one can be raised inside the code that removes, removals
are registered, and run again at the end of the process until they were not interrupted.

`.STEM.XXXXXXXX.partial` holds one folder and a mark: a file that is named by the device and inode of the
folder it lies in. The run holds a lock on it. A folder that is locked, or that holds anything without such a
mark, is never removed. What a run moved aside lies in it as OLD, and stays until that is settled.
"""

import atexit
import errno
import fcntl
import itertools
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from eaglectl.errors import EaglectlError, UnreadableError
from eaglectl.files.files import errors_about

STOPPING = (signal.SIGTERM, signal.SIGHUP)
NAME, OLD = "files", ".old"
# files that removing opens, closed before it: a run may be at the limit of open files
SPARE = 3
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# in the order they were registered, with the process that did: a fork inherits them and must not run them
_removals: dict[Callable[[], None], int] = {}


class Terminated(SystemExit):
    """The end of the process by a signal: exit code 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Terminated for SIGTERM and SIGHUP in the main thread.

    A signal that is ignored (nohup) or that the caller handles is left as it is, and so are other threads.
    """
    handled: list[signal.Signals] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        # a second signal must not end the removal that the first one began
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if signal.getsignal(number) is signal.SIG_DFL:
                handled.append(number)
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def register_removal(remove: Callable[[], None]) -> None:
    """Register `remove` to be called at the end of the process, unless it is unregistered before."""
    _removals[remove] = os.getpid()


def unregister_removal(remove: Callable[[], None]) -> None:
    """Forget a removal, if it is registered."""
    _removals.pop(remove, None)


@atexit.register
def run_removals() -> bool:
    """Run the registered removals, the last first; return whether all succeeded."""
    is_done = True
    while _removals:
        remove, pid = _removals.popitem()
        if pid == os.getpid():
            try:
                remove()
            except (OSError, EaglectlError):
                is_done = False
    return is_done


@contextmanager
def scratch(
    parent: Path, stem: str, name: str = NAME, settle: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Yield an empty folder `name` in a new locked `.STEM.XXXXXXXX.partial` of `parent`.

    What killed runs left under `stem` is removed first. `settle` is called with each such folder before its
    removal, for what was moved aside. Raises OSError.
    """
    with stopped_by_signals():
        sweep(parent, stem, settle)
        paths = (parent / f".{stem}.{os.urandom(4).hex()}.partial" for _ in itertools.count())
        folder = next(path for path in paths if not os.path.lexists(path))
        remove = partial(_remove, folder, settle)
        register_removal(remove)  # before it is made: a signal may come in between
        with ExitStack() as lock, ExitStack() as spare:
            try:
                for _ in range(SPARE):
                    spare.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                _make(folder, lock)
                (folder / name).mkdir()
                yield folder / name
            finally:
                spare.close()
                remove()
                unregister_removal(remove)


def _make(folder: Path, lock: ExitStack) -> None:
    while True:  # where another run takes the new one for a killed run's
        folder.mkdir(0o700)
        with suppress(FileNotFoundError):
            _lock(folder, lock)
            _mark(folder).touch()
            return


def _lock(folder: Path, lock: ExitStack, flags: int = 0) -> None:
    """Lock a folder until `lock` closes. Raises OSError, for a new folder only where it is not there.

    What was opened may have been removed since, and another folder made at its path.
    """
    descriptor = os.open(folder, FOLDER)
    lock.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:
        if flags:
            raise
        # folders cannot be locked here (NFS): then no run removes those of others
    if not os.path.samestat(os.fstat(descriptor), folder.lstat()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _mark(folder: Path) -> Path:
    """Return the mark of a folder: in a copy of both it has another name. Raises OSError without such a
    folder.
    """
    status = folder.lstat()
    return folder / f".{status.st_dev}-{status.st_ino}.mark"


def _remove(folder: Path, settle: Callable[[Path], None] | None) -> None:
    # settle what a run moved aside (OLD), then remove all else; the folder stays while OLD does
    try:
        if settle:
            settle(folder)
    finally:
        with suppress(OSError):
            mark = _mark(folder)
            for entry in set(folder.iterdir()) - {mark, folder / OLD}:
                shutil.rmtree(entry, ignore_errors=True)
            if set(folder.iterdir()) <= {mark}:
                mark.unlink(missing_ok=True)
                folder.rmdir()


def sweep(parent: Path, stem: str, settle: Callable[[Path], None] | None = None) -> None:
    """Remove what killed runs left in `parent` under `stem`; ignore what cannot be removed."""
    pattern = re.compile(re.escape(f".{stem}.") + r"[0-9a-f]{8}\.partial")
    with suppress(OSError):
        for folder in [path for path in parent.iterdir() if pattern.fullmatch(path.name)]:
            with suppress(OSError, EaglectlError), ExitStack() as lock:
                _lock(folder, lock, fcntl.LOCK_NB)
                mark, is_own = _mark(folder), folder.stat().st_uid == os.geteuid()
                if is_own and mark.is_file() and not mark.is_symlink():
                    _remove(folder, settle)
                elif is_own:
                    folder.rmdir()  # which fails where it holds anything


@contextmanager
def scratch_folder(near: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder in `near` or the system's temporary folder; it is removed at the end or by
    SIGTERM.

    Raises UnreadableError if it cannot be made.
    """
    import tempfile  # late: it loads random

    try:
        parent = near or Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise UnreadableError("no temporary folder is writable; mount one at /tmp, or set TMPDIR") from None
    with ExitStack() as stack:
        with errors_about(f"{parent}: cannot write there"):
            folder = stack.enter_context(scratch(parent, "eaglectl"))
        yield folder


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
    with scratch(path.parent, path.name) as folder:
        with (folder / path.name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        (folder / path.name).replace(path)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
