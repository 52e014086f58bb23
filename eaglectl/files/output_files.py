"""The files that reports are written to: atomically, and over nothing but eaglectl's own of the same kind."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eaglectl.errors import UnreadableError, UsageError, check
from eaglectl.files.layout import CONFIG, WEIGHT_SUFFIXES
from eaglectl.files.scratch import write_file
from eaglectl.text import is_url

# the formats and files of --output
Outputs = Sequence[tuple[str, Path]]
# the beginnings of files that may be replaced, by kind: eaglectl's own pages and reports
BEGINS = {
    "page": re.compile(rb"<!DOCTYPE html>\n.{1,300}?<title>eaglectl</title>", re.DOTALL),
    "report": re.compile(
        rb'\{\s*"schema": "eaglectl/validate/|\{\s*"\$schema": "[^"]*sarif.{1,300}?"name": "eaglectl"'
        rb'|<\?xml[^>]*>\s*<testsuites name="eaglectl '
        rb"|## eaglectl validate: |eaglectl: (pass|fail|could not look|skipped)\s"
        # a title with a rule, or of a report as a whole (ci.github)
        rb"|::(error|warning|notice) (file=[^\n]*?,)?title=(EGL\d+ |"
        rb"(more findings|could.not.look|skipped|fail)::)"
        rb"|skipped: [^\n]+: "
        # a source's name may be broken into lines
        rb"|(pass|fail|could not look): .{1,2000}?: (no errors|not read|\d+ (error|warning|note)s?\b)",
        re.DOTALL,
    ),
}
# bytes of a file that are compared with these
BEGIN = 4096


def check_file(option: str, path: Path, kind: str) -> None:
    """Raise UsageError, with the option as given, if `path` cannot be written or is of another kind."""
    try:
        with suppress(FileNotFoundError):
            path.stat()
        is_other, model = path.is_file() and not _begins_like(path, kind), _model_above(path)
        faults = (
            (is_url(str(path)), "the output must be a local file, not a URL"),
            (str(path) == "-", "stdout has the command's own report; pass the name of a file"),
            (not path.resolve().parent.is_dir(), f"there is no folder {path.parent}; make it first"),
            (path.is_dir(), f"{path} is a folder; pass the name of a file"),
            (not os.access(path.parent, os.W_OK), f"{path.parent} is not writable"),
            (is_other, f"{path} exists, is not a {kind} by eaglectl, and stays; pass another name"),
            (
                model,
                f"{model} is a model's folder, and reports are not written into it; pass a name outside it",
            ),
        )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{option}: {getattr(error, 'strerror', None) or error}", options=(option,)
        ) from None
    check(*((is_present, f"{option}: {fault}") for is_present, fault in faults))


def _model_above(path: Path) -> Path | None:
    """Return the folder of a checkpoint or target that would contain the file; None if there is none."""
    for folder in path.resolve().parents:
        if (folder / CONFIG).is_file() and any(p.name.endswith(WEIGHT_SUFFIXES) for p in folder.iterdir()):
            return folder
    return None


def _begins_like(path: Path, kind: str) -> bool:
    with path.open("rb") as file:
        begin = file.read(BEGIN)
    return not begin or BEGINS[kind].match(begin) is not None


def parse_page(file: str, outputs: Outputs = ()) -> Path:
    """Return the file of --page; it may replace nothing but a page. Raises UsageError."""
    if file.lower().endswith(".svg"):
        raise UsageError(
            f"--page {file}: a page is HTML; pass a name that ends in .html", options=("--page",)
        )
    return parse_output("--page", file, file, outputs, "page")


def parse_output(option: str, value: str, file: str, outputs: Outputs, kind: str) -> Path:
    """Return the path of an option's file, after checking what it would replace. Raises UsageError."""
    path = Path(file)
    check_file(f"{option} {value}", path, kind)
    others = "another --output" if option == "--output" else "--output"
    if any(path.resolve() == other.resolve() for _, other in outputs):
        raise UsageError(f"{option} {value}: {others} writes {file} already", options=(option,))
    return path


def parse_new(option: str, file: str | None) -> Path | None:
    """Return the file of an option that writes over nothing. Raises UsageError."""
    if file is None:
        return None
    if os.path.lexists(file):
        raise UsageError(f"{option} {file}: {file} exists already; pass another name", options=(option,))
    return parse_output(option, file, file, (), "page")


def write_new(option: str, path: Path, text: str) -> None:
    """Write the file. Raises UsageError if it appeared meanwhile, and UnreadableError."""
    parse_new(option, str(path))
    write_report(option, path, text, "page")


def write_report(option: str, path: Path, text: str, kind: str = "report") -> None:
    """Write a file, after checking once more what it replaces. Raises UsageError and UnreadableError."""
    check_file(f"{option} {path}", path, kind)
    try:
        write_file(path, text)
    except OSError as error:
        raise UnreadableError(
            f"{option} was not written: {path}: {error.strerror}", options=(option,)
        ) from None
