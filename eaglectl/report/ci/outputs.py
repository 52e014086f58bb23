"""The report formats of `validate`, and the files that --output writes."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from eaglectl.errors import EaglectlError, UnreadableError, UsageError
from eaglectl.judge.judge import Report
from eaglectl.report.output_files import Outputs, check_file, write_report

# the modules of the formats that one function of the same name makes
MODULES = {
    "junit": "junit",
    "sarif": "sarif",
    "github": "annotations",
}
FORMATS = ("text", "json", *MODULES, "markdown")


def render(name: str, reports: Sequence[Report], json_version: int = 1) -> str:
    """Return the reports in one format."""
    if name == "text":
        from eaglectl.report.findings import reports_outline
        from eaglectl.report.terminal import as_text

        return as_text(reports_outline(reports))
    if name == "markdown":
        from eaglectl.report.findings import reports_outline
        from eaglectl.report.markdown import markdown

        return markdown(reports_outline(reports))
    if name == "json":
        from eaglectl.report.documents.document import render_json

        return render_json(*reports, version=json_version)
    text: str = getattr(import_module(f"eaglectl.report.ci.{MODULES[name]}"), name)(reports)
    return text


def parse_outputs(texts: Sequence[str]) -> Outputs:
    """Parse `FORMAT=FILE` of --output, and check the files before anything is judged. Raises UsageError."""
    outputs: list[tuple[str, Path]] = []
    for text in texts:
        name, equals, file = text.partition("=")
        if name not in FORMATS or not equals or not file:
            raise UsageError(f"--output {text}: FORMAT=FILE was expected, with one of {', '.join(FORMATS)}")
        path = Path(file)
        check_file(f"--output {text}", path, "report")
        if any(path.resolve() == other.resolve() for _, other in outputs):
            raise UsageError(f"--output {text}: another --output writes {file} already")
        outputs.append((name, path))
    return outputs


def write_outputs(outputs: Outputs, reports: Sequence[Report], json_version: int = 1) -> None:
    """Write every report. Raises UnreadableError, after the last, for those that cannot be written."""
    problems = []
    for name, path in outputs:
        try:
            write_report("--output", path, render(name, reports, json_version) + "\n")
        except EaglectlError as error:
            problems.append(str(error))
    if problems:
        raise UnreadableError("; ".join(problems))


def append_summary(reports: Sequence[Report]) -> None:
    """Append the Markdown report to $GITHUB_STEP_SUMMARY if GitHub sets it. Raises UnreadableError."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(render("markdown", reports) + "\n")
    except OSError as error:
        raise UnreadableError(f"$GITHUB_STEP_SUMMARY was not written: {path}: {error.strerror}") from None
