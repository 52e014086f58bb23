"""A folder whose files are opened once each, so that what was read is one state of them, or an error."""

import os
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
        for file in self.files.values():
            file.stamp = Stamp.of(os.fstat(file.descriptor))

    def check_unchanged(self, *, is_status_compared: bool = True) -> None:
        """Raise UnreadableError where a file that was opened is not as it was then."""
        for name, file in self.files.items():
            if not file.is_unchanged(is_status_compared=is_status_compared):
                raise changed(self, name)


def changed(source: FolderSource, name: str) -> UnreadableError:
    """The error for a file that is not as it was when it was first read."""
    return UnreadableError(
        f"{source.root / name} changed while it was read; nothing was written. Run the command again when"
        " nothing writes to the folder"
    )
