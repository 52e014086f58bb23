"""What `ready` measured, kept for a run that is repeated: below the user's cache folder, by what it is of."""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

import eaglectl
from eaglectl.engines.registry import ENGINES, installed_release
from eaglectl.errors import UnreadableError
from eaglectl.files.files import PART, keep_file, open_regular
from eaglectl.files.source import FolderSource

MOST_FILES, MOST_BYTES = 100, 64 << 20
# bytes of a file's first line
SEAL = 65
OLD = 3600.0  # seconds after which what a killed run left of a file is removed
Value = TypeVar("Value")


class Run(Struct, frozen=True):
    """A run of the files at `place` with the options `asked`; `name` is what reports call it."""

    name: str
    place: Path
    asked: object


class KeptRuns(Struct, frozen=True):
    """The measurements of one target, by what they are of; `is_on` false: none is read, and none is kept.

    `reused` are the names of those that were read, `digests` those of the folders that were read.
    """

    target: Path
    is_on: bool = True
    reused: list[str] = field(default_factory=list)
    digests: dict[Path, str] = field(default_factory=dict)

    def get(
        self,
        what: Run,
        make: Callable[[], Value],
        kind: Any,
        may_keep: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """What was kept of a run, of the type `kind`.

        Else it is made, and kept where that may be and its folders can be read.
        """
        path = self._path(what) if self.is_on else None
        if path is None:
            return make()
        # a file that was cut, exchanged or nested deeply is one that was not kept
        with suppress(OSError, UnreadableError, msgspec.DecodeError, ValueError, RecursionError):
            kept: Value = msgspec.json.decode(_kept_bytes(path), type=kind)
            os.utime(path)  # the oldest are removed first
            self.reused.append(what.name)
            return kept
        value = make()
        if may_keep(value):
            data = msgspec.json.encode(value)
            with suppress(OSError):  # a cache that cannot be written
                keep_file(path, _seal(path, data) + data)
                for other in _surplus(path.parent):
                    other.unlink(missing_ok=True)
        return value

    def _path(self, what: Run) -> Path | None:
        try:
            parts = (self._digest(what.place), self._digest(self.target), repr(what.asked), *_versions())
        except OSError:
            return None  # who runs it says why it cannot be read
        return cache_folder() / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"

    def _digest(self, folder: Path) -> str:
        if folder not in self.digests:
            self.digests[folder] = folder_digest(FolderSource(folder))
        return self.digests[folder]


def cache_folder() -> Path:
    """Where runs are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "eaglectl" / "runs"


def folder_digest(source: FolderSource) -> str:
    """SHA-256 of the names and the bytes of all files of a folder. Raises OSError."""
    digest = hashlib.sha256()
    for name in sorted(source.names()):
        with (source.root / name).open("rb") as file:
            digest.update(f"{name}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


@cache
def _versions() -> tuple[Any, ...]:
    """All that runs depend on beside their inputs: the machine, eaglectl's own files, and what runs them."""
    package = Path(eaglectl.__file__).parent
    own = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".json", ".jsonl"))
    stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in own]
    engines = [installed_release(engine) for engine in ENGINES.values()]
    return platform.node(), eaglectl.__version__, stamps, engines, *map(_version, ("torch", "transformers"))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kept_bytes(path: Path) -> bytes:
    """What was kept under a name. Raises OSError, UnreadableError for what is not what was kept."""
    with open_regular(path) as file:
        seal, data = file.readline(SEAL), file.read(MOST_BYTES)
    if seal != _seal(path, data):
        raise UnreadableError(f"{path} is not what was kept there")
    return data


def _seal(path: Path, data: bytes) -> bytes:
    """The first line of a file: a digest of its name and of what follows."""
    return hashlib.sha256(path.name.encode() + data).hexdigest().encode() + b"\n"


def _surplus(folder: Path) -> Iterator[Path]:
    parts = [path for path in folder.iterdir() if path.suffix == PART]
    yield from (path for path in parts if time.time() - path.stat().st_mtime > OLD)
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    yield from kept[:-MOST_FILES]
