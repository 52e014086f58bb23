"""Write a folder, all or nothing: a sibling folder is filled, synced, and renamed into place.

A rename never replaces anything: what --force replaces is moved aside before, and removed afterwards.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.digests import RangeDigests
from eaglectl.files.files import MIB, read_small_file
from eaglectl.files.header import parse_json
from eaglectl.files.layout import CARD, RECORD, SIGNATURE, SUMS
from eaglectl.files.record import RECORD_SCHEMA
from eaglectl.files.scratch import OLD, Scratch, sweep, sync_folder
from eaglectl.files.signals import register_removal, stopped_by_signals, unregister_removal
from eaglectl.text import brief, is_url, listed

AT_CWD = -100
# renameat2 of Linux, renamex_np of macOS
LINUX_NOREPLACE, MACOS_EXCL = 1, 4
# the kernel or the file system does not have the call, or not this flag of it
MISSING = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def rename_new(source: Path, target: Path) -> None:
    """Rename to a name that nothing has.

    Raises FileExistsError where something has it, however late it came there; OSError for other failures.
    """
    if _rename(source, target):
        return
    if source.is_symlink() or not source.is_dir():
        _rename_file(source, target)
        return
    # only one process can make the folder, and a rename replaces an empty folder and no other
    target.mkdir()
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        target.rmdir()
        raise


def _rename_file(source: Path, target: Path) -> None:
    """Rename a file by a second link; where there are none, over a new empty file that only we can make."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (*MISSING, errno.EPERM, errno.EMLINK):
            raise
    else:
        source.unlink()
        return
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    os.close(descriptor)
    try:
        source.replace(target)
    except OSError:
        target.unlink()
        raise


def _rename(source: Path, target: Path) -> bool:
    """Rename with the system's own flag; False where it has no such call."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if hasattr(library, "renameat2"):
        status = library.renameat2(AT_CWD, names[0], AT_CWD, names[1], LINUX_NOREPLACE)
    elif hasattr(library, "renamex_np"):
        status = library.renamex_np(*names, MACOS_EXCL)
    else:
        return False
    if status == 0:
        return True
    number = ctypes.get_errno()
    if number in MISSING:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


CHUNK = 32 << 20
# up to this size, copying in the kernel is not worth a call
SMALL = 1 << 16
# bytes after which the disk is started on what was written so far
EARLY = 64 << 20
# the disk is full, a quota is used up, or the file is too large
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Copy(Struct, frozen=True):
    """Bytes [start, stop) of a local file; `descriptor` is the open file, where there is one."""

    path: Path
    start: int
    stop: int
    descriptor: int | None = None

    def opened(self, opened: ExitStack) -> int:
        """The descriptor of the file, opened now if it is not open."""
        if self.descriptor is not None:
            return self.descriptor
        return opened.enter_context(self.path.open("rb")).fileno()


Bytes = Copy | bytes


# the largest record that is read of what --force may replace
MAX_RECORD = 64 * MIB


class FolderKind(Struct, frozen=True):
    """A kind of folder that --force may replace: `record` of this `schema`, and what it or `files` lists."""

    name: str
    record: str
    schema: str
    files: frozenset[str]

    def obstacle(self, path: Path) -> str | None:
        """What keeps --force from replacing `path`; None for a folder of this kind, or an empty one."""
        if path.is_symlink() or not path.is_dir():
            return "it is no folder"
        entries = sorted(path.iterdir())
        if not entries:
            return None
        if (known := self._known(path / self.record)) is None:
            return f"{_names(entries)} there, without {self.record} as eaglectl writes it"
        others = [entry for entry in entries if entry.name not in known or not _is_plain(entry)]
        return f"{_names(others)} there, not listed in {self.record}" if others else None

    def _known(self, path: Path) -> frozenset[str] | None:
        """The names that may lie beside the record, its own among them; None where it is not of this kind."""
        try:
            record = parse_json(path.name, read_small_file(path, MAX_RECORD))
        except UnreadableError:
            return None
        if not isinstance(record, dict) or record.get("schema") != self.schema:
            return None
        lists = [record[key].get("files") for key in ("output", "published") if _is_object(record.get(key))]
        return self.files.union(*(names for names in lists if _is_object(names)))


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_plain(entry: Path) -> bool:
    return entry.is_file() and not entry.is_symlink()


def _names(entries: Iterable[Path]) -> str:
    return listed((brief(entry.name) for entry in entries), most=3)


CHECKPOINT = FolderKind(
    "what `convert` wrote", RECORD, RECORD_SCHEMA, frozenset((RECORD, CARD, SUMS, SIGNATURE))
)
STATISTICS = FolderKind(
    "what `calibrate` wrote",
    "statistics.json",
    "eaglectl/statistics/1",
    frozenset(("statistics.json", "statistics.safetensors")),
)


class _EarlySync:
    """Has the disk write the begin of a large file while the rest is still copied: a context manager.

    The last sync then waits for the rest alone. An error of the disk is raised by `add` or `finish`, as the
    system tells it once.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.dirty = descriptor, 0
        self.pool: ThreadPoolExecutor | None = None
        self.running: Future[None] | None = None

    def __enter__(self) -> "_EarlySync":
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool:
            self.pool.shutdown()

    def add(self, nbytes: int) -> None:
        """Count bytes that were written, and start the disk where it is idle and they are many."""
        self.dirty += nbytes
        if self.dirty < EARLY or (self.running and not self.running.done()):
            return
        self.finish()
        self.pool = self.pool or ThreadPoolExecutor(1, "sync")
        self.running, self.dirty = self.pool.submit(_sync_data, self.descriptor), 0

    def finish(self) -> None:
        """Wait for the disk."""
        if self.running:
            self.running.result()


def _sync_data(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


class Folder:
    """A folder being written beside `out`: a context manager that leaves nothing behind unless `publish` ran.

    What a killed run left beside the same `out` is removed first; SIGTERM and SIGHUP leave nothing either.
    Raises UnreadableError for every error of the file system.
    """

    def __init__(self, out: Path, *, force: bool, kind: FolderKind = CHECKPOINT) -> None:
        if is_url(str(out)):
            raise UsageError(f"{out} is a URL, and a folder of this machine is written; give one")
        self.shown = out
        self.kind = kind
        self.out = out.absolute()  # not resolved: a link at `out` must stay visible
        self.force = force
        self.made: list[Path] = []
        self.signals = ExitStack()
        self.scratch: Scratch | None = None

    @property
    def work(self) -> Path:
        """The folder that is filled."""
        assert self.scratch is not None, "only inside `with`"
        return self.scratch.work

    def __enter__(self) -> "Folder":
        sweep(self.out.parent, self.out.name, self._settle)
        self.signals.enter_context(stopped_by_signals())
        register_removal(self._finish)
        try:
            check_free(self.shown, force=self.force, kind=self.kind)
            missing = [parent for parent in self.out.parents if not parent.exists()]
            for parent in reversed(missing):
                self.made.append(parent)
                parent.mkdir()
            self.scratch = Scratch(self.out.parent, self.out.name, self.out.name)
        except BaseException as error:
            self._finish()
            if isinstance(error, OSError):
                raise UnreadableError(f"{self.shown.parent}: cannot write there: {error.strerror}") from None
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._finish(is_failed=error is not None)
        if isinstance(error, OSError):
            raise UnreadableError(self._message(error)) from None

    def _finish(self, *, is_failed: bool = True) -> None:
        """Remove what is not published; registered until all of it could be done."""
        try:
            if self.scratch is not None:
                try:
                    self._settle(self.work.parent)
                finally:
                    self.scratch.remove()
            for parent in reversed(self.made if is_failed else []):
                with suppress(OSError):
                    parent.rmdir()
            unregister_removal(self._finish)
        finally:
            self.signals.close()

    def write(
        self,
        name: str,
        parts: Iterable[Bytes],
        on_bytes: Callable[[int], None] | None = None,
        digests: RangeDigests | None = None,
    ) -> None:
        """Write a file from ranges of other files and from bytes in memory, and sync it.

        `on_bytes` is called with the size of each part once it is written; `digests` are made meanwhile.
        """
        try:
            with ExitStack() as opened:
                file = opened.enter_context((self.work / name).open("w+b"))
                early = opened.enter_context(_EarlySync(file.fileno()))
                if digests:
                    opened.callback(digests.end)
                    digests.attach(file.fileno())
                sources: dict[Path, int] = {}
                for part in parts:
                    if isinstance(part, Copy) and part.path not in sources:
                        sources[part.path] = part.opened(opened)
                    if isinstance(part, Copy):
                        size = _copy(sources[part.path], file.fileno(), part)
                    else:
                        size = _write(file.fileno(), part)
                    early.add(size)
                    if digests:
                        digests.advance(size)
                    if on_bytes:
                        on_bytes(size)
                early.finish()
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno in FULL:
                raise UnreadableError(
                    f"{self.shown.parent}: no space left for {name}; nothing was written"
                ) from None
            raise

    def link(self, name: str, path: Path) -> bool:
        """A hard link to `path` under `name`; False where the file system does not allow one."""
        try:
            os.link(path, self.work / name)
        except OSError:
            return False
        return True

    def publish(self) -> None:
        """Rename the folder to `out`, which nothing may have; with `force`, replace a folder of its kind.

        What is replaced is looked at again once it is out of the way: what may not be replaced is put back.
        """
        sync_folder(self.work)
        check_free(self.shown, force=self.force, kind=self.kind)
        if self.force:
            aside = self.work.parent / OLD
            with suppress(FileNotFoundError):
                rename_new(self.out, aside)
                self._check_replaced(aside)
        try:
            rename_new(self.work, self.out)
        except FileExistsError:
            raise _taken(self.shown) from None
        self.made.clear()
        sync_folder(self.out.parent)

    def _check_replaced(self, aside: Path) -> None:
        """Raise UsageError where what was moved out of the way may not be replaced."""
        if self.kind.obstacle(aside):
            raise UsageError(
                f"{self.shown} became something else than {self.kind.name} while it was to be replaced; it"
                " is back in its place, give another -o"
            )

    def _settle(self, scratch: Path) -> None:
        """Put back what was moved aside where nothing took its place, else remove what may be replaced.

        Raises UnreadableError where something else came into it.
        """
        aside = scratch / OLD
        if not os.path.lexists(aside):
            return
        with suppress(FileExistsError):  # another run may publish at any time
            rename_new(aside, self.out)
            return
        if not self.kind.obstacle(aside):
            # what tells the kind comes last: an interrupted removal can be taken up
            for entry in sorted(aside.iterdir(), key=lambda entry: entry.name == self.kind.record):
                entry.unlink()
        try:
            aside.rmdir()
        except OSError:
            raise UnreadableError(
                f"{self.shown} was changed by another process while it was replaced; what is not eaglectl's"
                f" was left at {aside}"
            ) from None

    def _message(self, error: OSError) -> str:
        what = Path(os.fsdecode(error.filename)).name if error.filename else self.shown.name
        if error.errno in FULL:
            return f"{self.shown.parent}: no space left for {what}; nothing was written"
        if error.errno == errno.EXDEV:
            return (
                f"{self.shown} lies in a lower layer of an overlay file system, which renames none; nothing"
                " was written: remove it, or give another -o"
            )
        return f"{what}: {error.strerror}; nothing was written"


def check_apart(out: Path, source: Path) -> None:
    """Raise UsageError where writing `out` could touch `source`."""
    try:
        there, here = out.resolve(), source.resolve()
    except ValueError:  # a null byte
        raise UsageError(f"{out} or {source} is no path; give another") from None
    except (OSError, RuntimeError):
        raise UsageError(f"{out}: a symbolic link on the way leads to itself; give another -o") from None
    folded = Path(str(there).casefold()), Path(str(here).casefold())
    if _is_related(*folded) and _is_related(_spelled(there), _spelled(here)):
        raise UsageError(
            f"{out} and the input {source} lie in one another; eaglectl never writes over its input: give"
            f" another -o"
        )


def _is_related(first: Path, second: Path) -> bool:
    return first == second or first in second.parents or second in first.parents


def _spelled(path: Path) -> Path:
    """A path in the letters that its folders list, where the file system takes others for the same name."""
    spelled = Path(path.anchor)
    for name in path.parts[1:]:
        with suppress(OSError):  # a folder that may not be listed, or is not there
            names = {entry.name: entry for entry in spelled.iterdir()}
            if name not in names and os.path.lexists(spelled / name):
                name = next((other for other in names if other.casefold() == name.casefold()), name)
        spelled /= name
    return spelled


def check_free(out: Path, *, force: bool, kind: FolderKind = CHECKPOINT) -> None:
    """Raise UsageError where no folder may be written at `out`; call it before long work too."""
    if not os.path.lexists(out):
        return
    if not force:
        raise _taken(out)
    if obstacle := kind.obstacle(out.absolute()):
        raise UsageError(
            f"{out} is not {kind.name} alone ({obstacle}), so --force does not replace it; give another -o,"
            " or move what is there away"
        )


def _taken(out: Path) -> UsageError:
    return UsageError(f"{out} is there already; give another -o, or --force to replace it")


def _write(target: int, data: bytes) -> int:
    written = 0
    while written < len(data):
        written += os.write(target, data[written:])
    return written


def _copy(source: int, target: int, part: Copy) -> int:
    position = part.start
    while position < part.stop:
        moved = _move(source, target, position, min(CHUNK, part.stop - position))
        if moved == 0:
            raise UnreadableError(f"{part.path} became shorter while it was read; nothing was written")
        position += moved
    return part.stop - part.start


def _move(source: int, target: int, position: int, size: int) -> int:
    if size > SMALL and hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, size, position)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM):
                raise
    data = os.pread(source, min(size, 1 << 20), position)
    return os.write(target, data) if data else 0
