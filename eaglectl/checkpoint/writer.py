"""Writing a checkpoint folder, all or nothing: a sibling folder is filled, synced, and renamed into place."""

import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from eaglectl.errors import Unreadable, Usage

CHUNK = 32 << 20
SMALL = 1 << 16
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes [start, stop) of a local file."""

    path: Path
    start: int
    stop: int


Bytes = Copy | bytes


class Folder:
    """A folder being written beside `out`; use as a context manager, and nothing is left behind unless `publish` ran.

    Every fault of the file system on the way becomes Unreadable, in one sentence.
    """

    def __init__(self, out: Path, *, force: bool, kind: "Kind | None" = None) -> None:
        self.shown = out
        self.kind = kind or CHECKPOINT
        self.out = out.absolute()  # not resolved: a link at `out` must stay visible
        self.force = force
        self.work = self.out.parent / f".{self.out.name}.{secrets.token_hex(4)}.partial"
        self.made: list[Path] = []

    def __enter__(self) -> "Folder":
        try:
            self._check()
            missing = [parent for parent in self.out.parents if not parent.exists()]
            for parent in reversed(missing):
                parent.mkdir()
                self.made.append(parent)
            self.work.mkdir()
        except (OSError, KeyboardInterrupt) as error:
            self._remove()
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Unreadable(f"{self.shown.parent}: cannot write there: {error.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._remove(is_failed=error is not None)
        if isinstance(error, OSError):
            raise Unreadable(self._fault(error)) from None

    def write(self, name: str, parts: Iterable[Bytes], told: Callable[[int], None] | None = None) -> None:
        """Write one file from ranges of other files and from bytes in memory, and sync it."""
        with ExitStack() as opened:
            file = opened.enter_context((self.work / name).open("wb"))
            sources: dict[Path, int] = {}
            try:
                for part in parts:
                    if isinstance(part, Copy) and part.path not in sources:
                        sources[part.path] = opened.enter_context(part.path.open("rb")).fileno()
                    if isinstance(part, Copy):
                        size = _copy(sources[part.path], file.fileno(), part)
                    else:
                        size = _write(file.fileno(), part)
                    if told:
                        told(size)
                os.fsync(file.fileno())
            except OSError as error:
                if error.errno in FULL:
                    raise Unreadable(f"{self.shown.parent}: no space left for {name}; nothing was written") from None
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
        self._check()
        if not os.path.lexists(self.out):
            self.work.rename(self.out)
        elif not _exchange(self.work, self.out):
            aside = self.work.with_suffix(".old")
            self.out.rename(aside)
            try:
                self.work.rename(self.out)
            except BaseException:
                aside.rename(self.out)
                raise
            shutil.rmtree(aside)
        self.made.clear()
        _sync(self.out.parent)

    def _check(self) -> None:
        if not os.path.lexists(self.out):
            return
        if not self.force:
            raise Usage(f"{self.shown} is there already; give another -o, or --force to replace it")
        if not self.kind.is_at(self.out):
            raise Usage(f"{self.shown} is not {self.kind.name}, so --force does not replace it; give another -o")

    def _remove(self, *, is_failed: bool = True) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        for parent in reversed(self.made if is_failed else []):
            with suppress(OSError):
                parent.rmdir()

    def _fault(self, error: OSError) -> str:
        what = Path(os.fsdecode(error.filename)).name if error.filename else self.shown.name
        if error.errno in FULL:
            return f"{self.shown.parent}: no space left for {what}; nothing was written"
        return f"{what}: {error.strerror}; nothing was written"


def check_apart(out: Path, source: Path) -> None:
    """Raise Usage where writing `out` could touch `source`."""
    try:
        there, here = out.resolve(), source.resolve()
    except (OSError, RuntimeError):
        raise Usage(f"{out}: a symbolic link on the way leads to itself; give another -o") from None
    if there == here or there in here.parents or here in there.parents:
        raise Usage(
            f"{out} and the input {source} lie in one another; eaglectl never writes over its input: give another -o"
        )


# what a folder may hold and still be replaced by --force: a checkpoint, and nothing that is somebody's work
CHECKPOINT_FILES = re.compile(
    r".+\.(json|safetensors|bin|pt|pth|md|txt|model|jinja|sig)|SHA256SUMS|(LICENSE|NOTICE).*|\.gitattributes"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What stands at OUT and may be replaced by --force: what the command writes itself, and nothing else."""

    name: str
    files: re.Pattern[str]
    needed: str

    def is_at(self, path: Path) -> bool:
        """Whether `path` is a folder of this kind, or an empty one."""
        if path.is_symlink() or not path.is_dir():
            return False
        entries = list(path.iterdir())
        fits = all(entry.is_file() and self.files.fullmatch(entry.name) for entry in entries)
        return not entries or (fits and (path / self.needed).is_file())


CHECKPOINT = Kind("a checkpoint folder", CHECKPOINT_FILES, "config.json")
STATISTICS = Kind("a folder that `calibrate` wrote", re.compile(r"statistics\.(json|safetensors)"), "statistics.json")


def check_free(out: Path, *, force: bool, kind: Kind = CHECKPOINT) -> None:
    """Raise Usage where no folder may be written at `out`: to be asked before long work, not after it."""
    if not os.path.lexists(out) or (force and kind.is_at(out.absolute())):
        return
    if force:
        raise Usage(f"{out} is not {kind.name}, so --force does not replace it; give another -o")
    raise Usage(f"{out} is there already; give another -o, or --force to replace it")


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
