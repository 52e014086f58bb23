"""The formats in which `validate` reports, and the files that they are written to: whole or not at all."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from eaglectl.errors import Unreadable, Usage
from eaglectl.reports import documents
from eaglectl.reports.annotations import github, gitlab
from eaglectl.reports.junit import junit
from eaglectl.reports.markdown import markdown
from eaglectl.reports.sarif import sarif
from eaglectl.validation.judging import Report

Outputs = Sequence[tuple[str, Path]]


def render(name: str, reports: Sequence[Report]) -> str:
    """The reports in one format."""
    if name == "text":
        from eaglectl.reports.validation import as_text

        return as_text(reports)
    return MACHINE[name](reports)


def _json(reports: Sequence[Report]) -> str:
    return json.dumps(documents.validation(reports), indent=2)


MACHINE: Mapping[str, Callable[[Sequence[Report]], str]] = {
    "json": _json, "junit": junit, "sarif": sarif, "github": github, "gitlab": gitlab, "markdown": markdown,
}  # fmt: skip
FORMATS = ("text", *MACHINE)


def parse_outputs(texts: Sequence[str]) -> Outputs:
    """`FORMAT=FILE` of --output, looked at before anything is judged. Raises Usage."""
    found: list[tuple[str, Path]] = []
    for text in texts:
        name, equals, file = text.partition("=")
        if name not in FORMATS or not equals or not file:
            raise Usage(f"--output {text}: FORMAT=FILE was expected, with one of {', '.join(FORMATS)}")
        path = Path(file)
        _check(text, path)
        if any(path.resolve() == other.resolve() for _, other in found):
            raise Usage(f"--output {text}: another --output writes {file} already")
        found.append((name, path))
    return found


def _check(text: str, path: Path) -> None:
    try:
        if not path.resolve().parent.is_dir():
            raise Usage(f"--output {text}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise Usage(f"--output {text}: {path} is a folder; give the name of a file")
        if not os.access(path.parent, os.W_OK):
            raise Usage(f"--output {text}: nothing may be written in {path.parent}")
    except (OSError, ValueError) as error:
        raise Usage(f"--output {text}: {getattr(error, 'strerror', None) or error}") from None


def write_outputs(outputs: Outputs, reports: Sequence[Report]) -> None:
    """Write every report; one that cannot be written does not stop the others. Raises Unreadable after the last."""
    faults = []
    for name, path in outputs:
        try:
            _write(path, render(name, reports) + "\n")
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
    if faults:
        raise Unreadable(f"--output was not written: {'; '.join(faults)}")


def _write(path: Path, text: str) -> None:
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


def append_summary(reports: Sequence[Report]) -> None:
    """Append the Markdown page to $GITHUB_STEP_SUMMARY, where GitHub sets it."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(markdown(reports) + "\n")
    except OSError as error:
        raise Unreadable(f"$GITHUB_STEP_SUMMARY was not written: {path}: {error.strerror}") from None
