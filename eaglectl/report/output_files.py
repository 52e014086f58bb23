"""The files that reports are written to: atomically, and a page only over another page."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.scratch import create_locked, remove_unlocked, sync_folder
from eaglectl.files.signals import register_removal, stopped_by_signals, unregister_removal
from eaglectl.text import is_url

# of --output: formats and files
Outputs = Sequence[tuple[str, Path]]
# the first bytes of an HTML document; no file of a checkpoint begins like this
BEGIN = b"<!DOCTYPE HTML"
# the end of the name of a file that is being written
PART = ".eaglectl-part"


def check_file(option: str, path: Path) -> None:
    """Raise UsageError, naming the option as given, if `path` could not be written."""
    if is_url(str(path)):
        raise UsageError(f"{option}: a URL was given, and a file of this machine is written")
    try:
        if not path.resolve().parent.is_dir():
            raise UsageError(f"{option}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise UsageError(f"{option}: {path} is a folder; give the name of a file")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"{option}: {path.parent} is not writable")
    except (OSError, ValueError) as error:
        raise UsageError(f"{option}: {getattr(error, 'strerror', None) or error}") from None


def parse_page(file: str, outputs: Outputs = ()) -> Path:
    """Return the file of --page; it may replace nothing but a page. Raises UsageError."""
    path, option = Path(file), f"--page {file}"
    check_file(option, path)
    if any(path.resolve() == other.resolve() for _, other in outputs):
        raise UsageError(f"{option}: --output writes {file} already")
    _check_page(path)
    return path


def parse_new(option: str, file: str | None) -> Path | None:
    """Return the file of an option that writes over nothing. Raises UsageError."""
    if file is None:
        return None
    path, shown = Path(file), f"{option} {file}"
    check_file(shown, path)
    if path.exists():
        raise UsageError(f"{shown}: {file} is there already; give another name")
    return path


def write_new(option: str, path: Path, text: str) -> None:
    """Write the file. Raises UsageError where it came meanwhile, and UnreadableError."""
    parse_new(option, str(path))
    try:
        write_file(path, text)
    except OSError as error:
        raise UnreadableError(f"{option} was not written: {path}: {error.strerror}") from None


def _check_page(path: Path) -> None:
    try:
        if path.is_file() and not _is_page(path):
            raise UsageError(
                f"--page {path}: {path} is there and is no page; it is not written over, give another name"
            )
    except OSError as error:
        raise UsageError(f"--page {path}: {error.strerror}") from None


def _is_page(path: Path) -> bool:
    """Whether the file is empty or begins like an HTML document."""
    with path.open("rb") as file:
        begin = file.read(len(BEGIN))
    return begin.upper() in (b"", BEGIN)


def write_page(path: Path, page: str) -> None:
    """Write the page, after checking once more what it replaces. Raises UsageError and UnreadableError."""
    _check_page(path)
    try:
        write_file(path, page)
    except OSError as error:
        raise UnreadableError(f"--page was not written: {path}: {error.strerror}") from None


def write_file(path: Path, text: str) -> None:
    """Write the file atomically; a pipe or a device is written to directly.

    What killed runs left of it is removed; SIGTERM and SIGHUP leave nothing. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    _sweep_parts(path)
    with stopped_by_signals():
        part = _Part(path)
        try:
            with open(part.descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
                file.flush()
                os.fsync(part.descriptor)
            part.path.replace(path)
            sync_folder(path.parent)
        finally:
            part.remove()
            os.close(part.descriptor)


class _Part:
    """A new file beside `path`, open and locked; nothing that is there is followed or replaced."""

    def __init__(self, path: Path) -> None:
        while True:
            self.path = path.with_name(f".{path.name}.{os.urandom(8).hex()}{PART}")
            register_removal(self.remove)
            try:
                descriptor = create_locked(self.path, 0o666)
            except OSError as error:
                unregister_removal(self.remove)
                if isinstance(error, FileExistsError):
                    continue
                raise
            if descriptor is not None:  # else another process took it for what a killed run left
                self.descriptor = descriptor
                return

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        unregister_removal(self.remove)


def _sweep_parts(path: Path) -> None:
    """Remove the parts of `path` that killed runs left: files of this user that no process holds."""
    pattern = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{16}" + re.escape(PART))
    with suppress(OSError):
        for entry in list(path.parent.iterdir()):
            if pattern.fullmatch(entry.name):
                with suppress(OSError):
                    remove_unlocked(entry)
