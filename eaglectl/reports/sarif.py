"""SARIF 2.1.0, for code scanning: every finding at the line of its key, or at the name of its tensor."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import eaglectl
from eaglectl.errors import printable
from eaglectl.reports.places import Place, Places
from eaglectl.reports.tallies import fingerprints, rule_url, rules_of
from eaglectl.validation.judging import Report, Suppressed
from eaglectl.validation.rule import Finding, Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(reports: Sequence[Report]) -> str:
    """The document: one run. What could not be looked at is told as notifications, never as a result."""
    rules = list({one.id: one for report in reports for one in rules_of(report)}.values())
    rules.sort(key=lambda one: int(one.id.removeprefix("EGL")))
    index = {one.id: number for number, one in enumerate(rules)}
    driver = {
        "name": "eaglectl", "version": eaglectl.__version__, "semanticVersion": eaglectl.__version__,
        "rules": [_rule(one) for one in rules],
    }  # fmt: skip
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(reports, index)],
        "results": [result for report in reports for result in _results(report, index)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id, "name": rule.name,
        "shortDescription": {"text": rule.sentence}, "fullDescription": {"text": f"{rule.sentence} {rule.why}"},
        "help": {"text": f"{rule.why}\n\nFix: {rule.fix}", "markdown": f"{rule.why}\n\n**Fix:** {rule.fix}"},
        "helpUri": rule_url(rule),
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"tags": [rule.family, *([rule.engines] if rule.engines else [])]},
    }  # fmt: skip


def _invocation(reports: Sequence[Report], index: Mapping[str, int]) -> dict[str, Any]:
    told = [one for report in reports for one in _notifications(report, index)]
    is_read = not any(report.problem for report in reports)
    return {"executionSuccessful": is_read, "toolExecutionNotifications": told}


def _notifications(report: Report, index: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    locations = [_location(Places(report.path).find(""))]
    for one in report.unlooked:
        yield {
            "level": "error" if one.is_required else "note",
            "message": {"text": f"{one.rule.id} {one.rule.name} could not look: {_plain(one.reason)}"},
            "associatedRule": {"id": one.rule.id, "index": index[one.rule.id]},
            "locations": locations,
        }
    if report.problem:
        message = {"text": f"{_plain(report.path)} could not be read: {_plain(report.problem)}"}
        yield {"level": "error", "message": message, "locations": locations}


def _results(report: Report, index: Mapping[str, int]) -> list[dict[str, Any]]:
    places = Places(report.path)
    hidden = {id(one.finding): one for one in report.suppressed}
    findings = [*report.findings, *(one.finding for one in report.suppressed)]
    return [
        _result(one, places.find(one.hit.where), name, index[one.rule.id], hidden.get(id(one)))
        for one, name in zip(findings, fingerprints(findings), strict=True)
    ]


def _result(one: Finding, place: Place, name: str, number: int, hidden: Suppressed | None) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": one.rule.id, "ruleIndex": number, "level": one.severity, "kind": "fail",
        "message": {"text": _plain(f"{one.hit.message}. Fix: {one.fix}")},
        "locations": [_location(place)],
        "partialFingerprints": {"eaglectl/v1": name},
        "properties": {"where": printable(one.hit.where), "engines": list(one.hit.engines)},
    }  # fmt: skip
    if hidden:
        result["suppressions"] = [{"kind": "external", "justification": _plain(hidden.by.reason)}]
    return result


def _location(place: Place) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": place.uri}}
    if place.line:
        column = {"startColumn": place.column} if place.column else {}
        physical["region"] = {"startLine": place.line, **column}
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.logical:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(place.logical), "kind": "resource"}]
    return location


def _plain(text: str) -> str:
    """Text in which a viewer finds no link: names come from files."""
    return printable(text).replace("](", "] (")
