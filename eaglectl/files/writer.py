"""Write a folder, all or nothing: a sibling folder is filled, synced, and renamed into place.

A rename never replaces anything: what --force replaces is moved aside before, and removed afterwards.
Beside it the digests of ranges of open files, on as many threads as there are cores. Tensors have a BLAKE3
digest, which costs little on every processor; whole files SHA-256, as SHA256SUMS and the Hub give it.
"""

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from blake3 import blake3
from msgspec import Struct

from eaglectl.errors import UnreadableError, UsageError, check
from eaglectl.files.files import MIB, errors_about, read_small_file
from eaglectl.files.header import StoredTensor, parse_json
from eaglectl.files.layout import CARD, RECORD, RECORD_SCHEMA, SIGNATURE, SUMS
from eaglectl.files.scratch import (
    OLD,
    register_removal,
    scratch,
    stopped_by_signals,
    sync_folder,
    unregister_removal,
)
from eaglectl.text import brief, is_url, listed

# the kernel or the file system does not support the call, or a flag of it
MISSING = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
CHUNK = 32 << 20
# up to this size, copying in the kernel is not worth a call
SMALL = 1 << 16
# bytes after which the disk is started on what was written so far
EARLY = 64 << 20
# the disk is full, a quota is used up, or the file is too large
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# the largest record that is read of what --force may replace
MAX_RECORD = 64 * MIB


def rename_new(source: Path, target: Path) -> None:
    """Rename to a name that nothing has.

    Raises FileExistsError where something has it, and OSError for other failures.
    """
    taken = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    if os.path.lexists(target):
        raise taken
    try:
        source.rename(target)  # a folder replaces no file, and no folder but an empty one
    except OSError as error:
        raise taken if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR) else error from None


class Copy(Struct, frozen=True):
    """Bytes [start, stop) of a local file; `descriptor` is the open file, where there is one."""

    path: Path
    start: int
    stop: int
    descriptor: int | None = None


Bytes = Copy | bytes


class FolderKind(Struct, frozen=True):
    """A kind of folder that --force may replace: `record` of this `schema`, and what it or `files` lists."""

    name: str
    record: str
    schema: str
    files: frozenset[str]

    def obstacle(self, path: Path) -> str | None:
        """Return why --force may not replace `path`; None if it may, and for an empty folder."""
        if path.is_symlink() or not path.is_dir():
            return "it is not a folder"
        if not (entries := sorted(path.iterdir())):
            return None
        try:
            record = parse_json(self.record, read_small_file(path / self.record, MAX_RECORD))
        except UnreadableError:
            record = None
        if not isinstance(record, dict) or record.get("schema") != self.schema:
            return f"it has {_names(entries)}, and no {self.record} from eaglectl"
        listed_files = self.files.union(_listed_files(record))
        others = [
            entry
            for entry in entries
            if entry.name not in listed_files or entry.is_symlink() or not entry.is_file()
        ]
        return f"it has {_names(others)}, not listed in {self.record}" if others else None


def _listed_files(record: dict[str, object]) -> set[str]:
    parts = [part for key in ("output", "published") if isinstance(part := record.get(key), dict)]
    return {name for part in parts if isinstance(files := part.get("files"), dict) for name in files}


def _names(entries: Iterable[Path]) -> str:
    return listed((brief(entry.name) for entry in entries), most=3)


CHECKPOINT = FolderKind(
    "an output of `convert`", RECORD, RECORD_SCHEMA, frozenset((RECORD, CARD, SUMS, SIGNATURE))
)
STATISTICS = FolderKind(
    "an output of `calibrate`",
    "statistics.json",
    "eaglectl/statistics/1",
    frozenset(("statistics.json", "statistics.safetensors")),
)


class Folder:
    """A folder being written beside `out`: a context manager that leaves nothing behind unless `publish` ran.

    `work` is the folder that is filled. What a killed run left beside the same `out` is removed first;
    SIGTERM and SIGHUP leave nothing either. Raises UnreadableError for every error of the file system.
    """

    work: Path

    def __init__(self, out: Path, *, force: bool, kind: FolderKind = CHECKPOINT) -> None:
        check((is_url(str(out)), f"{out} is a URL; the output must be a local folder"))
        self.shown, self.force, self.kind = out, force, kind
        self.out = out.absolute()  # not resolved: a link at `out` must stay visible
        self.made: list[Path] = []
        self.stack = ExitStack()

    def __enter__(self) -> "Folder":
        # make the folder's parents and a folder beside it to write in; both go if anything fails
        with ExitStack() as stack:
            stack.enter_context(stopped_by_signals())
            stack.callback(unregister_removal, self._remove_made)
            stack.callback(self._remove_made)
            register_removal(self._remove_made)
            with errors_about(f"{self.shown.parent}: cannot write there"):
                for parent in reversed([parent for parent in self.out.parents if not parent.exists()]):
                    self.made.append(parent)
                    parent.mkdir()
                self.work = stack.enter_context(
                    scratch(self.out.parent, self.out.name, self.out.name, self._settle)
                )
            check_free(self.shown, force=self.force, kind=self.kind)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.stack.close()
        if isinstance(error, OSError):
            raise UnreadableError(self._message(error)) from None

    def _remove_made(self) -> None:
        for parent in reversed(self.made):
            with suppress(OSError):
                parent.rmdir()

    def write(
        self,
        name: str,
        parts: Iterable[Bytes],
        on_bytes: Callable[[int], None] | None = None,
        on_written: Callable[[int], None] | None = None,
    ) -> None:
        """Write a file from ranges of other files and from bytes in memory, and sync it.

        The disk writes the begin of a large file while the rest is copied. `on_bytes` is called with the size
        of each part once it is written, `on_written` with the file's descriptor before the wait for the disk.
        """
        try:
            with ExitStack() as opened:
                target = opened.enter_context((self.work / name).open("w+b")).fileno()
                disk = opened.enter_context(ThreadPoolExecutor(1, "sync"))
                copy = partial(_copy, opened, {}, target)
                dirty, syncing = 0, Future[None]()
                syncing.set_result(None)
                for part in parts:
                    size = copy(part) if isinstance(part, Copy) else _write(target, part)
                    dirty += size
                    if dirty >= EARLY and syncing.done():
                        syncing.result()  # the system tells an error of the disk once
                        dirty, syncing = 0, disk.submit(os.fsync, target)
                    if on_bytes:
                        on_bytes(size)
                if on_written:
                    on_written(target)
                syncing.result()
                os.fsync(target)
        except OSError as error:
            error.filename = error.filename or name
            raise

    def link(self, name: str, path: Path) -> bool:
        """Make a hard link to `path` under `name`; False if the file system does not allow one."""
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
        sync_folder(self.out.parent)

    def _check_replaced(self, aside: Path) -> None:
        text = f"{self.shown} changed and is no longer {self.kind.name}; it was not replaced: pass another -o"
        check((self.kind.obstacle(aside), text))

    def _settle(self, folder: Path) -> None:
        """Put back what was moved aside where nothing took its place, else remove what may be replaced.

        Raises UnreadableError where something else came into it.
        """
        aside = folder / OLD
        if not os.path.lexists(aside):
            return
        with suppress(FileExistsError):  # another run may publish at any time
            rename_new(aside, self.out)
            return
        if not self.kind.obstacle(aside):
            # the record comes last, so that an interrupted removal can continue
            for entry in sorted(aside.iterdir(), key=lambda entry: entry.name == self.kind.record):
                entry.unlink()
        try:
            aside.rmdir()
        except OSError:
            raise UnreadableError(
                f"another process changed {self.shown} while it was replaced; its other files are at {aside}"
            ) from None

    def _message(self, error: OSError) -> str:
        what = Path(os.fsdecode(error.filename)).name if error.filename else self.shown.name
        if error.errno in FULL:
            return f"{self.shown.parent}: no space left for {what}; nothing was written"
        if error.errno == errno.EXDEV:
            return (
                f"{self.shown} is in a lower layer of an overlay file system and cannot be renamed; nothing"
                " was written: remove it, or pass another -o"
            )
        return f"{what}: {error.strerror}; nothing was written"


def check_apart(out: Path, source: Path) -> None:
    """Raise UsageError where writing `out` could touch `source`."""
    try:
        output, input_path = out.resolve(), source.resolve()
    except ValueError:  # a null byte
        raise UsageError(f"{out} or {source} is not a path; pass another") from None
    except (OSError, RuntimeError):
        raise UsageError(
            f"{out}: a symbolic link in the path leads to itself; pass another -o", options=("-o",)
        ) from None
    check(
        (
            _is_in(output, input_path) or _is_in(input_path, output),
            f"the output {out} and the input {source} overlap, and eaglectl never overwrites its input: pass"
            " another -o",
            ("-o",),
        )
    )


def _is_in(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies in it, also by names that its file system takes for the same."""
    if path.is_relative_to(folder):
        return True
    return any(_is_one(parent, folder) for parent in (path, *path.parents))


def _is_one(path: Path, folder: Path) -> bool:
    """Whether two paths lead to one folder; exFAT by FUSE gives it an inode for each spelling of its name."""
    try:
        status, other = path.stat(), folder.stat()
    except OSError:
        return False
    is_alike = str(path).casefold() == str(folder).casefold() and status.st_mtime_ns == other.st_mtime_ns
    return is_alike or os.path.samestat(status, other)


def check_free(out: Path, *, force: bool, kind: FolderKind = CHECKPOINT) -> None:
    """Raise UsageError where no folder may be written at `out`; call it before long work too."""
    if not os.path.lexists(out):
        return
    if not force:
        raise _taken(out)
    if obstacle := kind.obstacle(out.absolute()):
        raise UsageError(
            f"{out} is not only {kind.name} ({obstacle}), so --force does not replace it; pass another -o,"
            " or move its files away",
            options=("--force",),
        )


def _taken(out: Path) -> UsageError:
    return UsageError(f"{out} exists already; pass another -o, or --force to replace it", options=("-o",))


def _write(target: int, data: bytes) -> int:
    written = 0
    while written < len(data):
        written += os.write(target, data[written:])
    return written


def _copy(opened: ExitStack, sources: dict[Path, int], target: int, part: Copy) -> int:
    # copy a range of a file to the descriptor `target`; `sources` are the files opened so far
    if part.path not in sources:
        sources[part.path] = part.descriptor or opened.enter_context(part.path.open("rb")).fileno()
    position = part.start
    while position < part.stop:
        moved = _move(sources[part.path], target, position, min(CHUNK, part.stop - position))
        if moved == 0:
            raise UnreadableError(f"{part.path} became shorter while it was read; nothing was written")
        position += moved
    return part.stop - part.start


def _move(source: int, target: int, position: int, size: int) -> int:
    # copy a piece in the kernel, which can share blocks; by hand where the file systems cannot
    if size > SMALL and hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, size, position)
        except OSError as error:
            if error.errno not in (*MISSING, errno.EXDEV, errno.EPERM):
                raise
    data = os.pread(source, min(size, 1 << 20), position)
    return os.write(target, data) if data else 0


# bytes that a thread reads at once: they stay in its core's cache while they are hashed
BLOCK = 1 << 18
# how a record states the digests of tensors; one that does not say it is from before BLAKE3
Algorithm = Literal["sha256", "blake3"]
ALGORITHMS = get_args(Algorithm)
TENSORS: Algorithm = "blake3"
# a range of a file: its first byte, and the byte after its last
Range = tuple[int, int]
# the key of the range before the first tensor of a safetensors file; no tensor may have that name
HEADER_KEY = "__metadata__"


def hashed(parts: Iterable[bytes], digest: "hashlib._Hash") -> Iterator[bytes]:
    """Yield the same parts, and add each to the digest."""
    for part in parts:
        digest.update(part)
        yield part


def tensor_ranges(tensors: Iterable[StoredTensor], file: str) -> dict[str, Range]:
    """Return where the tensors of a safetensors file lie in it, and the range before them."""
    ranges = {tensor.name: (tensor.start, tensor.stop) for tensor in tensors if tensor.file == file}
    return {HEADER_KEY: (0, min((start for start, _ in ranges.values()), default=0)), **ranges}


class Digests:
    """Threads that hash ranges of files: a context manager, which stops them at its end.

    `on_bytes` is called with the size of each block, by one thread at a time.
    """

    def __init__(self, on_bytes: Callable[[int], None] | None = None) -> None:
        self.on_bytes, self.counting = on_bytes, threading.Lock()
        self.is_stopped = False
        self.descriptors: list[int] = []
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1, "digest")

    def __enter__(self) -> "Digests":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_stopped = True
        self.pool.shutdown(cancel_futures=True)
        while self.descriptors:
            os.close(self.descriptors.pop())

    def of_ranges(
        self, name: str, descriptor: int, ranges: Mapping[str, Range], algorithm: Algorithm
    ) -> "RangeDigests":
        """Start on ranges of an open file; `name` is for messages, the descriptor is copied."""
        self.descriptors.append(os.dup(descriptor))

        def digest(place: Range) -> Future[str]:
            return self.pool.submit(self._hash, name, self.descriptors[-1], place, algorithm)

        in_order = sorted(ranges.items(), key=lambda item: item[1])
        return RangeDigests(name, {key: digest(place) for key, place in in_order})

    def _hash(self, name: str, descriptor: int, place: Range, algorithm: Algorithm) -> str:
        # the digest of a range of an open file, block by block, until the writer is stopped
        start, stop = place
        digest: Any = blake3() if algorithm == "blake3" else hashlib.sha256()
        buffer = memoryview(bytearray(min(BLOCK, stop - start)))
        while start < stop and not self.is_stopped:
            size = os.preadv(descriptor, [buffer[: stop - start]], start)
            if not size:
                raise UnreadableError(f"{name} became shorter while it was read; run the command again")
            digest.update(buffer[:size])
            start += size
            if self.on_bytes:
                with self.counting:
                    self.on_bytes(size)
        return str(digest.hexdigest())


class RangeDigests(Struct, frozen=True):
    """The digests of ranges of one file, as they are made."""

    name: str
    futures: Mapping[str, Future[str]]

    def result(self) -> dict[str, str]:
        """Return the digest of each range. Raises UnreadableError if the file cannot be read to its end."""
        with errors_about(self.name):
            return {key: future.result() for key, future in self.futures.items()}
