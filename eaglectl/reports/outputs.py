"""The formats in which `validate` reports, and the files that they are written to."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from eaglectl.errors import Unreadable, Usage
from eaglectl.reports import documents
from eaglectl.reports.annotations import github, gitlab
from eaglectl.reports.files import Outputs, check_file, write_file
from eaglectl.reports.junit import junit
from eaglectl.reports.markdown import markdown
from eaglectl.reports.sarif import sarif
from eaglectl.validation.judging import Report


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
        check_file(f"--output {text}", path)
        if any(path.resolve() == other.resolve() for _, other in found):
            raise Usage(f"--output {text}: another --output writes {file} already")
        found.append((name, path))
    return found


def write_outputs(outputs: Outputs, reports: Sequence[Report]) -> None:
    """Write every report; one that cannot be written does not stop the others. Raises Unreadable after the last."""
    faults = []
    for name, path in outputs:
        try:
            write_file(path, render(name, reports) + "\n")
        except OSError as error:
            faults.append(f"{path}: {error.strerror}")
    if faults:
        raise Unreadable(f"--output was not written: {'; '.join(faults)}")


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
