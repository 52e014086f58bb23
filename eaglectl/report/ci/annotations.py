"""Findings beside the lines of a change: GitHub's workflow commands."""

from collections.abc import Iterator, Sequence

from eaglectl.judge.judge import Report, overall_verdict
from eaglectl.report.ci.places import Place, Places
from eaglectl.report.findings import first_findings, required_reasons
from eaglectl.text import printable

GITHUB_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def github(reports: Sequence[Report]) -> str:
    """Return a workflow command for each finding, and for each required rule that could not look."""
    lines = [line for report in reports for line in _commands(report)]
    return "\n".join([*lines, f"eaglectl: {overall_verdict(reports)}"])


def _commands(report: Report) -> Iterator[str]:
    places = Places(report.path)
    first, more = first_findings(report.findings)
    for finding in first:
        title, text = f"{finding.rule.id} {finding.rule.name}", f"{finding.match.message}. Fix: {finding.fix}"
        yield _command(GITHUB_LEVELS[finding.severity], places.find(finding.match.where), title, text)
    whole = places.find("")
    yield from (_command("notice", whole, "more findings", sentence) for sentence in more)
    if report.problem:
        yield _command("error", whole, "could not look", f"{report.path}: {report.problem}")
    if report.skipped:
        yield _command("notice", whole, report.verdict, f"{report.path}: {report.skipped}")
    for rule, text in required_reasons(report):
        yield _command("error", whole, f"{rule.id} {rule.name} could not look", text)


def _command(level: str, place: Place, title: str, message: str) -> str:
    """A workflow command; line breaks in texts come from files, and stay escapes."""
    named = {"file": place.path, "line": place.line, "col": place.column, "title": title}
    escaped = {
        name: printable(str(value)).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
        for name, value in named.items()
        if value
    }
    properties = ",".join(f"{name}={value}" for name, value in escaped.items())
    return f"::{level} {properties}::{printable(message).replace('%', '%25')}"
