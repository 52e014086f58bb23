"""The formats of --output: each loads its own module, and paths are checked before anything is judged."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.files.output_files import Outputs, parse_output, write_report

if TYPE_CHECKING:
    from eaglectl.judge.judgement import Report

# by the function of the same name in ci.py
CI_FORMATS = ("junit", "sarif", "github")
FORMATS = ("text", "json", *CI_FORMATS, "markdown")


def render(name: str, reports: "Sequence[Report]") -> str:
    """Return the reports in one of FORMATS; modules of other formats are not loaded."""
    if name in CI_FORMATS:
        from eaglectl.report import ci

        text: str = getattr(ci, name)(reports)
        return text
    if name == "json":
        from eaglectl.report.documents import render_json

        return render_json(*reports)
    from eaglectl.report.findings import reports_outline

    if name == "text":
        from eaglectl.report.terminal import as_text

        return as_text(reports_outline(reports))
    from eaglectl.report.markdown import markdown

    return markdown(reports_outline(reports))


def parse_outputs(texts: Sequence[str]) -> Outputs:
    """Parse `FORMAT=FILE` of --output, and check the paths before anything is judged. Raises UsageError."""
    outputs: list[tuple[str, Path]] = []
    for text in texts:
        name, _, file = text.partition("=")
        if name not in FORMATS or not file:
            raise UsageError(
                f"--output {text}: expected FORMAT=FILE; FORMAT is one of {', '.join(FORMATS)}",
                options=("--output",),
            )
        outputs.append((name, parse_output("--output", text, file, outputs, "report")))
    return outputs


def write_outputs(outputs: Outputs, reports: "Sequence[Report]") -> None:
    """Write every report, then raise UnreadableError for those that could not be written."""
    problems = []
    for name, path in outputs:
        try:
            write_report("--output", path, render(name, reports) + "\n")
        except EaglectlError as error:
            problems.append(str(error))
    if problems:
        raise UnreadableError("; ".join(problems))


def append_summary(reports: "Sequence[Report]") -> None:
    """Append the Markdown report to $GITHUB_STEP_SUMMARY if GitHub sets it. Raises UnreadableError."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(render("markdown", reports) + "\n")
    except OSError as error:
        raise UnreadableError(f"$GITHUB_STEP_SUMMARY was not written: {path}: {error.strerror}") from None
