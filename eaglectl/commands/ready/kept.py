"""What `ready` measured, kept for a run that is repeated: below the user's cache folder, by what it is of."""

import hashlib
import os
import platform
import re
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
from eaglectl.files.files import PART, home_folder, keep_file, open_regular
from eaglectl.files.source import FolderSource

MOST_FILES, MOST_BYTES = 100, 64 << 20
# bytes of a file's first line
SEAL = 65
OLD = 3600.0  # seconds after which what a killed run left of a file is removed
# what is kept, and the parts of it that are being written; a cache folder may be linked to another
NAMES = re.compile(r"[0-9a-f]{64}\.json|\.[0-9a-f]{8}" + re.escape(PART))
Value = TypeVar("Value")
Stamps = tuple[tuple[int, ...], ...]


class KeptRuns(Struct, frozen=True):
    """The measurements of one target, by what they are of; `is_on` false: none is read, and none is kept.

    `reused` are the names of those that were read, `digests` those of the folders that were read, with the
    state of their files then.
    """

    target: Path
    is_on: bool = True
    reused: list[str] = field(default_factory=list)
    digests: dict[Path, tuple[Stamps, str]] = field(default_factory=dict)

    def get(
        self,
        name: str,
        place: Path,
        options: object,
        make: Callable[[], Value],
        kind: Any,
        may_keep: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """What was kept of a run of the files at `place` with the `options`, of the type `kind`.

        Else it is made, and kept where that may be and its folders can be read. `name` is what reports call
        it.
        """
        if not self.is_on:
            return make()
        try:
            path = self.path(place, options)
        except (OSError, UnreadableError):
            return make()  # no home, or files that cannot be read, of which who runs them says why
        # a file that was cut, exchanged or nested deeply is one that was not kept
        with suppress(OSError, UnreadableError, msgspec.DecodeError, ValueError, RecursionError):
            with open_regular(path) as file:
                seal, data = file.readline(SEAL), file.read(MOST_BYTES)
            if seal == _seal(path, data):
                kept: Value = msgspec.json.decode(data, type=kind)
                os.utime(path)  # the oldest are removed first
                self.reused.append(name)
                return kept
        before = dict(self.digests)
        value = make()
        with suppress(OSError):  # files that are gone, or a cache that cannot be written
            # where files changed meanwhile, the run may have read others than those of the digests
            if may_keep(value) and path == self.path(place, options) and self.digests == before:
                data = msgspec.json.encode(value)
                keep_file(path, _seal(path, data) + data)
                for other in _surplus(path.parent):
                    other.unlink(missing_ok=True)
        return value

    def path(self, place: Path, options: object) -> Path:
        """Where a run of these files with these options is kept. Raises OSError where they cannot be read."""
        parts = (self._digest(place), self._digest(self.target), repr(options), *_versions())
        return cache_folder() / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"

    def _digest(self, folder: Path) -> str:
        source = FolderSource(folder)
        stamps = _stamps(source)
        if self.digests.get(folder, ((), ""))[0] != stamps:
            self.digests[folder] = stamps, folder_digest(source)
        return self.digests[folder][1]


def cache_folder() -> Path:
    """Where runs are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else home_folder() / ".cache") / "eaglectl" / "runs"


def _stamps(source: FolderSource) -> Stamps:
    """The state of a folder and of its files, but for hard links to them, as runs make."""
    states = [(source.root / name).stat() for name in (".", *source.names())]
    return tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)


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
    own = sorted(
        path
        for path in Path(eaglectl.__file__).parent.rglob("*")
        if path.suffix in (".py", ".json", ".jsonl")
    )
    stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in own]
    engines = [installed_release(engine) for engine in ENGINES.values()]
    return platform.node(), eaglectl.__version__, stamps, engines, *map(_version, ("torch", "transformers"))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _seal(path: Path, data: bytes) -> bytes:
    """The first line of a file: a digest of its name and of what follows."""
    return hashlib.sha256(path.name.encode() + data).hexdigest().encode() + b"\n"


def _surplus(folder: Path) -> Iterator[Path]:
    own = [path for path in folder.iterdir() if NAMES.fullmatch(path.name)]
    yield from (path for path in own if path.suffix == PART and time.time() - path.stat().st_mtime > OLD)
    yield from sorted((path for path in own if path.suffix != PART), key=lambda path: path.stat().st_mtime)[
        :-MOST_FILES
    ]
