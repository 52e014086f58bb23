"""Writing a checkpoint folder, all or nothing: a sibling folder is filled, synced, and renamed into place."""

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from eaglectl.errors import Unreadable, Usage

CHUNK = 32 << 20
SMALL = 1 << 16


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes [start, stop) of a local file."""

    path: Path
    start: int
    stop: int


Bytes = Copy | bytes


class Folder:
    """A folder being written beside `out`; use as a context manager, and nothing is left behind unless `publish` ran."""

    def __init__(self, out: Path, *, force: bool) -> None:
        self.out = out
        self.force = force
        self.work = out.parent / f".{out.name}.{secrets.token_hex(4)}.partial"

    def __enter__(self) -> "Folder":
        if os.path.lexists(self.out) and not self.force:
            raise Usage(f"{self.out} is there already; give another -o, or --force to replace it")
        if os.path.lexists(self.out) and not _is_ours(self.out):
            raise Usage(f"{self.out} is not a checkpoint folder, so --force does not replace it; give another -o")
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.work.mkdir()
        except OSError as error:
            raise Unreadable(f"{self.out.parent}: cannot write there: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.work, ignore_errors=True)

    def write(self, name: str, parts: Iterable[Bytes], told: Callable[[int], None] | None = None) -> None:
        """Write one file from ranges of other files and from bytes in memory, and sync it."""
        with ExitStack() as opened:
            file = opened.enter_context((self.work / name).open("wb"))
            sources: dict[Path, int] = {}
            try:
                for part in parts:
                    if isinstance(part, Copy) and part.path not in sources:
                        sources[part.path] = opened.enter_context(part.path.open("rb")).fileno()
                    size = (
                        _write(file.fileno(), part)
                        if isinstance(part, bytes)
                        else _copy(sources[part.path], file.fileno(), part)
                    )
                    if told:
                        told(size)
                os.fsync(file.fileno())
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise Unreadable(f"{self.out.parent}: no space left for {name}; nothing was written") from None
                raise

    def link(self, name: str, path: Path) -> bool:
        """A hard link to `path` under `name`; False where the file system does not allow one."""
        try:
            os.link(path, self.work / name)
        except OSError:
            return False
        return True

    def publish(self) -> None:
        """Give the finished folder its name; what stood there before is exchanged in one step where the system can."""
        _sync(self.work)
        if not os.path.lexists(self.out):
            self.work.rename(self.out)
        elif not _exchange(self.work, self.out):
            aside = self.work.with_suffix(".old")
            self.out.rename(aside)
            self.work.rename(self.out)
            shutil.rmtree(aside)
        _sync(self.out.parent)


def check_apart(out: Path, source: Path) -> None:
    """Raise Usage where writing `out` could touch `source`."""
    there, here = out.resolve(), source.resolve()
    if there == here or there in here.parents or here in there.parents:
        raise Usage(
            f"{out} and the source {source} lie in one another; eaglectl never writes over its input: give another -o"
        )


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    return not names or "config.json" in names


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
            raise Unreadable(f"{part.path.name} became shorter while it was read; nothing was written")
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


def _exchange(one: Path, other: Path) -> bool:
    """renameat2 with RENAME_EXCHANGE (Linux); False where there is none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return bool(call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
