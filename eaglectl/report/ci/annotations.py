"""Findings beside the lines of a change: GitHub's workflow commands."""

from collections.abc import Iterator, Sequence

from eaglectl.judge.judge import Report, overall_verdict
from eaglectl.judge.rule import Finding, Rule
from eaglectl.report.ci.places import Place, Places
from eaglectl.report.findings import first_findings, group_text, required_groups
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
        level, place = GITHUB_LEVELS[finding.severity], places.find(finding.match.where)
        yield _command(level, place, _title(finding), _text(finding))
    whole = places.find("")
    yield from (_command("notice", whole, "more findings", sentence) for sentence in more)
    if report.problem:
        yield _command("error", whole, "could not look", f"{report.path}: {report.problem}")
    if report.skipped:
        yield _command("notice", whole, report.verdict, f"{report.path}: {report.skipped}")
    for reason, rules in required_groups(report):
        yield _command("error", whole, _unchecked_title(rules[0]), group_text(reason, rules))


def _command(level: str, place: Place, title: str, message: str) -> str:
    named = {"file": place.path, "line": place.line, "col": place.column, "title": title}
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in named.items() if value)
    return f"::{level} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """A line break of the text comes from a file, and stays an escape."""
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _title(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.rule.name}"


def _text(finding: Finding) -> str:
    return f"{finding.match.message}. Fix: {finding.fix}"


def _unchecked_title(rule: Rule) -> str:
    return f"{rule.id} {rule.name} could not look"
