"""Findings beside the lines of a change: GitHub's workflow commands and GitLab's code quality report."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eaglectl.reports.ci.places import Place, Places
from eaglectl.reports.findings import digest, fingerprints, first_findings, group_text, required_groups
from eaglectl.text import printable
from eaglectl.validation.judge import Report, overall_verdict
from eaglectl.validation.rule import Finding, Rule

GITHUB_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
GITLAB_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


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


def gitlab(reports: Sequence[Report]) -> str:
    """Return GitLab's code quality report: a list of issues."""
    return json.dumps([issue for report in reports for issue in _issues(report)], indent=2)


def _issues(report: Report) -> Iterator[dict[str, Any]]:
    places = Places(report.path)
    for finding, name in zip(report.findings, fingerprints(report.findings), strict=True):
        place, severity = places.find(finding.match.where), GITLAB_SEVERITIES[finding.severity]
        yield _issue(place, _title(finding), _text(finding), name, severity)
    whole, error = places.find(""), GITLAB_SEVERITIES["error"]
    if report.problem:
        yield _issue(whole, "could not look", report.problem, "unreadable", error)
    for reason, rules in required_groups(report):
        title, text = _unchecked_title(rules[0]), group_text(reason, rules)
        yield _issue(whole, title, text, rules[0].id, error)


def _issue(place: Place, title: str, text: str, name: str, severity: str) -> dict[str, Any]:
    tensor = f" ({place.logical})" if place.logical else ""
    return {
        "check_name": printable(title),
        "description": printable(f"{title}: {text}{tensor}"),
        "severity": severity,
        "fingerprint": digest(place.path, title, name),
        "location": {"path": printable(place.path), "lines": {"begin": place.line or 1}},
    }


def _title(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.rule.name}"


def _text(finding: Finding) -> str:
    return f"{finding.match.message}. Fix: {finding.fix}"


def _unchecked_title(rule: Rule) -> str:
    return f"{rule.id} {rule.name} could not look"
