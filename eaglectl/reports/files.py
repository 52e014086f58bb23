"""The files that reports are written to: whole or not at all, and a page over nothing but a page."""

import os
from collections.abc import Sequence
from pathlib import Path

from eaglectl.errors import Unreadable, Usage

# formats and files of --output
Outputs = Sequence[tuple[str, Path]]
# of an HTML document; checkpoints hold none
BEGIN = b"<!DOCTYPE HTML"


def check_file(option: str, path: Path) -> None:
    """Raise Usage, with the option as it was given, where no file of that name could be written."""
    try:
        if not path.resolve().parent.is_dir():
            raise Usage(f"{option}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise Usage(f"{option}: {path} is a folder; give the name of a file")
        if not os.access(path.parent, os.W_OK):
            raise Usage(f"{option}: nothing may be written in {path.parent}")
    except (OSError, ValueError) as error:
        raise Usage(f"{option}: {getattr(error, 'strerror', None) or error}") from None


def parse_page(file: str | None, outputs: Outputs = ()) -> Path | None:
    """The file of --page, looked at before the work begins; no other file than a page is replaced. Raises Usage."""
    if file is None:
        return None
    path, option = Path(file), f"--page {file}"
    check_file(option, path)
    if any(path.resolve() == other.resolve() for _, other in outputs):
        raise Usage(f"{option}: --output writes {file} already")
    _check_page(path)
    return path


def _check_page(path: Path) -> None:
    try:
        if path.is_file() and not _is_page(path):
            raise Usage(f"--page {path}: {path} is there and is no page; it is not written over, give another name")
    except OSError as error:
        raise Usage(f"--page {path}: {error.strerror}") from None


def _is_page(path: Path) -> bool:
    """Whether the file is empty or begins as every page does."""
    with path.open("rb") as file:
        begin = file.read(len(BEGIN))
    return begin.upper() in (b"", BEGIN)


def write_page(path: Path, page: str) -> None:
    """Write the page, if by now nothing else is there. Raises Usage and Unreadable."""
    _check_page(path)
    try:
        write_file(path, page)
    except OSError as error:
        raise Unreadable(f"--page was not written: {path}: {error.strerror}") from None


def write_file(path: Path, text: str) -> None:
    """Replace the file at once. A pipe or a device is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
