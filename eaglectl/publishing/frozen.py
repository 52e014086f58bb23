"""A folder as it was when its files were hashed: those bytes are judged and published, or it is an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from os import fstat

from eaglectl.checkpoint.files import Stamp
from eaglectl.checkpoint.source import FolderSource, read_open
from eaglectl.errors import EaglectlError, RefusedError
from eaglectl.progress import OnProgress
from eaglectl.publishing.files import LeftOut, UploadFile, read_files, stamp_of


@dataclass(frozen=True, slots=True)
class FrozenSource(FolderSource):
    """A folder with the names that it had and the files that were hashed, and no others.

    Small files are read from memory. The others are read from the disk, and only while they are the file that
    was hashed: reading raises RefusedError otherwise.
    """

    listing: tuple[str, ...] = ()
    hashed: Mapping[str, UploadFile] = field(default_factory=dict, compare=False)

    def published(self, files: Sequence[UploadFile]) -> "FrozenSource":
        """What a download of `files` will be: with those that eaglectl wrote, without those left out."""
        by_name = {file.name: file for file in files}
        return replace(self, listing=tuple(sorted(by_name)), hashed=by_name)

    def names(self) -> tuple[str, ...]:
        """The files that the folder had."""
        return self.listing

    def size(self, name: str) -> int:
        """Bytes of a file when it was hashed."""
        return self.hashed[name].size if name in self.hashed else FolderSource.size(self, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        content = self.hashed[name].content if name in self.hashed else None
        if isinstance(content, bytes) and (stop is None or stop <= len(content)):
            return content[start:stop]
        with self.open_file(name) as file:
            return read_open(self.place, name, file.fileno(), start, stop)

    def open_file(self, name: str) -> BufferedReader:
        """A file, open for reading. Raises RefusedError where it is not the one that was hashed."""
        file = FolderSource.open_file(self, name)
        if name in self.hashed and Stamp.of(fstat(file.fileno())) != self.hashed[name].stamp:
            file.close()
            raise changed(name)
        return file

    def check_unchanged(self) -> None:
        """Raise RefusedError where a file was changed, added or removed after the files were hashed."""
        try:
            names = set(FolderSource.names(self))
        except EaglectlError as error:
            raise RefusedError(
                f"{error}; the folder was there when it was hashed, and nothing was committed"
            ) from None
        for name in sorted(names ^ set(self.listing)):
            raise changed(name, "was added" if name in names else "was removed")
        for name, file in self.hashed.items():
            if file.stamp != stamp_of(self.root / name):
                raise changed(name)


def freeze(
    source: FolderSource, allowed: Sequence[str] = (), on_progress: OnProgress | None = None
) -> tuple[FrozenSource, tuple[UploadFile, ...], tuple[LeftOut, ...]]:
    """Hash the files of a folder that may be sent (see read_files), and freeze the folder as it is."""
    names = source.names()
    files, left_out = read_files(source, allowed, on_progress)
    frozen = FrozenSource(source.root, source.only, names, {file.name: file for file in files})
    return frozen, files, left_out


def changed(name: str, how: str = "changed") -> RefusedError:
    """The error for a file that is not as it was when the files were hashed."""
    return RefusedError(
        f"{name} {how} after the files were hashed: what was judged is not what lies there now, and nothing"
        " was committed. Run the command again when nothing writes to the folder"
    )
