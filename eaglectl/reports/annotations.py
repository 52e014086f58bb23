"""Findings beside the lines of a change: GitHub's workflow commands and GitLab's code quality report."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from eaglectl.errors import printable
from eaglectl.reports.places import Place, Places
from eaglectl.reports.tallies import digest, fingerprints
from eaglectl.validation.judging import Report, merged

GITHUB = {"error": "error", "warning": "warning", "note": "notice"}
GITLAB = {"error": "critical", "warning": "major", "note": "info"}


def github(reports: Sequence[Report]) -> str:
    """One workflow command for each finding, and for each thing that had to be looked at and could not be."""
    lines = [line for report in reports for line in _commands(report)]
    return "\n".join([*lines, f"eaglectl: {merged(reports)}"])


def _commands(report: Report) -> Iterator[str]:
    places = Places(report.path)
    for one in report.findings:
        title = f"{one.rule.id} {one.rule.name}"
        yield _command(GITHUB[one.severity], places.find(one.hit.where), title, f"{one.hit.message}. Fix: {one.fix}")
    if report.problem:
        yield _command("error", places.find(""), "could not look", f"{report.path}: {report.problem}")
    for each in report.unlooked:
        if each.is_required:
            title = f"{each.rule.id} {each.rule.name} could not look"
            yield _command("error", places.find(""), title, each.reason)


def _command(level: str, place: Place, title: str, message: str) -> str:
    named = {"file": place.path, "line": place.line, "col": place.column, "title": title}
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in named.items() if value)
    return f"::{level} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab(reports: Sequence[Report]) -> str:
    """GitLab's code quality report: a list of issues."""
    return json.dumps([issue for report in reports for issue in _issues(report)], indent=2)


def _issues(report: Report) -> Iterator[dict[str, Any]]:
    places = Places(report.path)
    for one, name in zip(report.findings, fingerprints(report.findings), strict=True):
        title, text = f"{one.rule.id} {one.rule.name}", f"{one.hit.message}. Fix: {one.fix}"
        yield _issue(places.find(one.hit.where), title, text, name, GITLAB[one.severity])
    if report.problem:
        yield _issue(places.find(""), "could not look", report.problem, "unreadable", GITLAB["error"])
    for each in report.unlooked:
        if each.is_required:
            title = f"{each.rule.id} {each.rule.name} could not look"
            yield _issue(places.find(""), title, each.reason, each.rule.id, GITLAB["error"])


def _issue(place: Place, title: str, text: str, name: str, severity: str) -> dict[str, Any]:
    where = f" ({place.logical})" if place.logical else ""
    return {
        "check_name": printable(title), "description": printable(f"{title}: {text}{where}"), "severity": severity,
        "fingerprint": digest(place.path, title, name), "location": {"path": printable(place.path), "lines": {"begin": place.line or 1}},
    }  # fmt: skip
