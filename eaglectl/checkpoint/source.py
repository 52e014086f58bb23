"""Where a checkpoint lies: named files whose bytes can be read by range. Nothing here knows what the bytes mean."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Protocol

from eaglectl.errors import Unreadable, Usage

if TYPE_CHECKING:
    from eaglectl.checkpoint.hub import HubSource

# the rule of validate that a file outside the folder is a case of
UNSAFE = "unsafe-file"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


class Source(Protocol):
    """A set of files at one fixed state, read by byte range (a folder, or a commit of a Hub repository)."""

    @property
    def label(self) -> str:
        """What to call it in messages and in published files; never a path of the machine."""

    @property
    def only(self) -> str | None:
        """The one weight file that was asked for, when the user named a file."""

    def names(self) -> tuple[str, ...]:
        """Paths of the files, relative, sorted."""

    def size(self, name: str) -> int:
        """Bytes of a file; raises Unreadable where there is none."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file; raises Unreadable where they are not all there."""

    def path(self, name: str) -> Path | None:
        """The file on this machine, when it is on this machine."""


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
        is_snapshot = root.parent.name == "snapshots" and repository.startswith("models--")
        return repository.removeprefix("models--").replace("--", "/") if is_snapshot else root.name

    def names(self) -> tuple[str, ...]:
        """Files directly in the folder, and those of a torch distributed checkpoint in its `model/` (TorchSpec)."""
        try:
            found = [entry.name for entry in self.root.iterdir() if not entry.is_dir()]
            if (self.root / "model" / ".metadata").is_file():
                found += [f"model/{entry.name}" for entry in (self.root / "model").iterdir() if entry.is_file()]
            return tuple(sorted(found))
        except OSError as error:
            raise Unreadable(f"{self.root}: {error.strerror}") from None

    def path(self, name: str) -> Path:
        """The file, after checking that it is one and that neither its name nor a symbolic link leads out of the folder.

        Raises Unreadable for a pipe or a device too: opening one may wait for ever.
        """
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise Unreadable(
                f'"{name}" points out of the checkpoint folder; files must lie inside {self.label}', UNSAFE, name
            )
        path = self.root / name
        resolved, root = self._resolved(name), self.root.resolve()
        if not resolved.is_relative_to(root) and not _in_hub_cache(root, resolved):
            about = f"{name} is a symbolic link that leaves {self.label}; put the file itself there"
            raise Unreadable(about, UNSAFE, name)
        if path.exists() and not path.is_file():
            about = f"{name} in {self.label} is not a regular file; put the file itself there"
            raise Unreadable(about, UNSAFE, name)
        return path

    def _resolved(self, name: str) -> Path:
        try:
            return (self.root / name).resolve()
        except ValueError:
            raise Unreadable(
                f'"{name}" cannot be the name of a file in {self.label}; rename it', UNSAFE, name
            ) from None
        except (OSError, RuntimeError):
            about = f"{name} in {self.label} is a symbolic link that leads back to itself"
            raise Unreadable(about, UNSAFE, name) from None

    def size(self, name: str) -> int:
        """Bytes of a file."""
        try:
            return self.path(name).stat().st_size
        except OSError as error:
            raise Unreadable(f"{name} in {self.label}: {error.strerror}") from None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file."""
        try:
            with self.path(name).open("rb") as file:
                file.seek(start)
                data = file.read() if stop is None else file.read(stop - start)
        except OSError as error:
            raise Unreadable(f"{name} in {self.label}: {error.strerror}") from None
        if stop is not None and len(data) != stop - start:
            raise Unreadable(
                f"{name} ended at byte {start + len(data)}; {stop} were expected: the file is truncated or being"
                " written"
            )
        return data


def open_source(text: str, *, is_config_enough: bool = False) -> "FolderSource | HubSource":
    """The source that `text` names: a folder, a weight file, or a Hub repository (a folder of that name wins).

    `is_config_enough`: only config.json is wanted, so that an offline Hub cache may lack the weights.
    """
    from eaglectl.checkpoint.hub import SCHEME, is_hub_name, open_hub

    path, mode = Path(text), 0 if text.startswith(SCHEME) else _mode(text)
    if S_ISDIR(mode):
        return FolderSource(path)
    if S_ISREG(mode):
        if path.suffix not in WEIGHT_SUFFIXES:
            raise Usage(
                f"{text} is not a weight file; give a checkpoint folder, or one of its {', '.join(WEIGHT_SUFFIXES)}"
                " files"
            )
        return FolderSource(path.parent, path.name)
    if mode:
        raise Unreadable(f"{text} is neither a folder nor a regular file")
    if is_hub_name(text):
        return open_hub(text, is_config_enough=is_config_enough)
    if text.startswith(SCHEME):
        raise Unreadable(f"{text} names no Hub repository; hf://org/name or hf://org/name@revision was expected")
    raise Unreadable(f"{text}: no such file or folder")


def open_folder(text: str) -> FolderSource:
    """What `text` names, on this machine: a Hub repository is downloaded into the Hub client's cache."""
    source = open_source(text)
    return source if isinstance(source, FolderSource) else source.downloaded()


def on_disk(text: str) -> str:
    """`text` where it names files of this machine; else where the Hub repository that it names now lies."""
    return str(open_folder(text).root) if hub_name(text) else text


def hub_name(text: str) -> tuple[str, str | None] | None:
    """Repository and revision, where `text` names one and nothing on this machine has that name."""
    from eaglectl.checkpoint.hub import SCHEME, is_hub_name, split_name

    is_remote = is_hub_name(text) and (text.startswith(SCHEME) or not _mode(text))
    return split_name(text) if is_remote else None


def _mode(text: str) -> int:
    """Kind and permissions of what `text` names; 0 where it names nothing."""
    try:
        return Path(text).stat().st_mode
    except PermissionError as error:
        raise Unreadable(f"{text}: {error.strerror}") from None
    except (OSError, ValueError):
        return 0


def _in_hub_cache(root: Path, resolved: Path) -> bool:
    # the Hub client's cache keeps snapshots/<commit>/<file> as links to ../../blobs/<hash>
    return root.parent.name == "snapshots" and resolved.is_relative_to(root.parent.parent / "blobs")
