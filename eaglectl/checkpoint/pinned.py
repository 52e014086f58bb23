"""A folder whose files are opened once each, so that what was read is one state of them, or an error."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from eaglectl.checkpoint.files import Stamp
from eaglectl.checkpoint.source import FolderSource, check_whole, read_open
from eaglectl.errors import UnreadableError


class PinnedFile(Struct):
    """An open file, and its stamp when it was opened."""

    path: Path
    descriptor: int
    stamp: Stamp
    links: int

    @classmethod
    def of(cls, path: Path, descriptor: int) -> "PinnedFile":
        """An open file as it is now."""
        status = os.fstat(descriptor)
        return cls(path, descriptor, Stamp.of(status), status.st_nlink)

    def is_unchanged(self, *, is_status_compared: bool) -> bool:
        """Whether the open file, and what has its name now, are as they were when it was opened."""
        try:
            stamps = Stamp.of(os.fstat(self.descriptor)), Stamp.of(self.path.stat())
        except OSError:
            return False
        if is_status_compared:
            return stamps == (self.stamp, self.stamp)
        return all(stamp.is_same_content(self.stamp) for stamp in stamps)


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
            self.files[name] = PinnedFile.of(self.root / name, descriptor)
        return self.files[name]

    def size(self, name: str) -> int:
        """Bytes of a file when it was opened."""
        return self.pinned(name).stamp.size

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        file = self.pinned(name)
        if stop is None:
            check_whole(self.place, name, file.stamp.size - start)
            stop = file.stamp.size
        return read_open(self.place, name, file.descriptor, start, stop)

    def restamp(self) -> None:
        """Take the status times of now for those of the opening: hard links were made in the meantime.

        Raises UnreadableError where more than that changed.
        """
        self.check_unchanged(is_status_compared=False)
        for name, file in self.files.items():
            self.files[name] = PinnedFile.of(file.path, file.descriptor)

    def check_unchanged(
        self, *, is_status_compared: bool = True, has_same_bytes: Callable[[str], bool] | None = None
    ) -> None:
        """Raise UnreadableError where a file that was opened is not as it was then.

        `has_same_bytes` is asked of a file of which at most the status changed, as it does where another
        process makes or removes a hard link.
        """
        for name, file in self.files.items():
            if file.is_unchanged(is_status_compared=is_status_compared):
                continue
            is_status_alone = file.is_unchanged(is_status_compared=False)
            if not (is_status_alone and has_same_bytes and has_same_bytes(name)):
                raise changed(self, name)

    def has_other_links(self, name: str) -> bool:
        """Whether hard links of a file were made or removed since it was opened."""
        file = self.pinned(name)
        return os.fstat(file.descriptor).st_nlink != file.links


def changed(source: FolderSource, name: str) -> UnreadableError:
    """The error for a file that is not as it was when it was first read."""
    return UnreadableError(
        f"{source.root / name} changed while it was read; nothing was written. Run the command again when"
        " nothing writes to the folder"
    )
