"""A source: named files whose bytes can be read by range. Nothing here knows what the bytes mean."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from eaglectl.checkpoint.topics import UNSAFE
from eaglectl.errors import UnreadableError


class Source(Protocol):
    """A set of files at one fixed state, read by byte range (a folder, or a commit of a Hub repository)."""

    @property
    def label(self) -> str:
        """Its name in messages and in published files; never a path of this machine."""

    @property
    def only(self) -> str | None:
        """The weight file, where the user named a file and not a folder."""

    def names(self) -> tuple[str, ...]:
        """Paths of the files, relative, sorted."""

    def size(self, name: str) -> int:
        """Bytes of a file. Raises UnreadableError where there is none."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file. Raises UnreadableError where the file is shorter."""

    def path(self, name: str) -> Path | None:
        """The file on this machine, if it is there."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A local folder, or one weight file in it beside its config.json."""

    root: Path
    only: str | None = None

    @property
    def label(self) -> str:
        """The folder's own name; the repository's (org/name) for a snapshot in the Hub client's cache."""
        root = self.root.resolve()
        repository = root.parent.parent.name
        if root.parent.name == "snapshots" and repository.startswith("models--"):
            return repository.removeprefix("models--").replace("--", "/")
        return root.name

    def names(self) -> tuple[str, ...]:
        """Files in the folder, and in `model/` where that is a torch distributed checkpoint (TorchSpec)."""
        model = self.root / "model"
        try:
            names = [entry.name for entry in self.root.iterdir() if not entry.is_dir()]
            if (model / ".metadata").is_file():
                names += [f"model/{entry.name}" for entry in model.iterdir() if entry.is_file()]
            return tuple(sorted(names))
        except OSError as error:
            raise UnreadableError(f"{self.root}: {error.strerror}") from None

    def path(self, name: str) -> Path:
        """The path of a regular file; its name and symbolic links must stay in the folder.

        Raises UnreadableError, for a pipe or a device too: opening one may block for ever.
        """
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise UnreadableError(
                f'"{name}" points out of the checkpoint folder; files must lie inside {self.label}',
                UNSAFE,
                name,
            )
        path = self.root / name
        resolved, root = self._resolved(name), self.root.resolve()
        if not resolved.is_relative_to(root) and not _in_hub_cache(root, resolved):
            about = f"{name} is a symbolic link that leaves {self.label}; put the file itself there"
            raise UnreadableError(about, UNSAFE, name)
        if path.exists() and not path.is_file():
            about = f"{name} in {self.label} is not a regular file; put the file itself there"
            raise UnreadableError(about, UNSAFE, name)
        return path

    def _resolved(self, name: str) -> Path:
        try:
            return (self.root / name).resolve()
        except ValueError:
            raise UnreadableError(
                f'"{name}" cannot be the name of a file in {self.label}; rename it', UNSAFE, name
            ) from None
        except (OSError, RuntimeError):
            about = f"{name} in {self.label} is a symbolic link that leads back to itself"
            raise UnreadableError(about, UNSAFE, name) from None

    def size(self, name: str) -> int:
        """Bytes of a file."""
        try:
            return self.path(name).stat().st_size
        except OSError as error:
            raise UnreadableError(f"{name} in {self.label}: {error.strerror}") from None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        try:
            with self.path(name).open("rb") as file:
                file.seek(start)
                data = file.read() if stop is None else file.read(stop - start)
        except OSError as error:
            raise UnreadableError(f"{name} in {self.label}: {error.strerror}") from None
        if stop is not None and len(data) != stop - start:
            raise UnreadableError(
                f"{name} ended at byte {start + len(data)}; {stop} were expected: the file is truncated"
                " or being"
                " written"
            )
        return data


def _in_hub_cache(root: Path, resolved: Path) -> bool:
    # the Hub client's cache keeps snapshots/<commit>/<file> as links to ../../blobs/<hash>
    return root.parent.name == "snapshots" and resolved.is_relative_to(root.parent.parent / "blobs")
