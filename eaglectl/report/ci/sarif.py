"""SARIF 2.1.0 for code scanning: each finding at the line of its config key, or at the name of its tensor."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import eaglectl
from eaglectl.judge.judge import Report
from eaglectl.judge.rule import Finding, Rule
from eaglectl.publish.project import repository
from eaglectl.report.ci.places import Place, Places
from eaglectl.report.findings import fingerprints, rule_url, sorted_rules
from eaglectl.text import printable

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(reports: Sequence[Report]) -> str:
    """Return a document of one run; rules that could not look are notifications, never results."""
    rules = sorted_rules(finding.rule for report in reports for finding in _findings(report))
    index = {rule.id: number for number, rule in enumerate(rules)}
    driver: dict[str, Any] = {
        "name": "eaglectl",
        "version": eaglectl.__version__,
        "semanticVersion": eaglectl.__version__,
        "rules": [_rule(rule) for rule in rules],
    }
    if address := repository():
        driver["informationUri"] = address
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(reports)],
        "results": [result for report in reports for result in _results(report, index)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    url = rule_url(rule)
    # a viewer can follow an absolute address alone
    link = {"helpUri": url} if url.startswith(("https://", "http://")) else {}
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.why}"},
        "help": {"text": f"{rule.why}\n\nFix: {rule.fix}", "markdown": f"{rule.why}\n\n**Fix:** {rule.fix}"},
        **link,
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"tags": [rule.family, *filter(None, [rule.engines])]},
    }


def _invocation(reports: Sequence[Report]) -> dict[str, Any]:
    overrides: dict[str, dict[str, object]] = {
        rule: {"enabled": False} for report in reports for rule in report.off
    }
    overrides |= {rule: {"level": level} for report in reports for rule, level in report.lowered.items()}
    return {
        "executionSuccessful": not any(report.problem for report in reports),
        "toolExecutionNotifications": [
            notification for report in reports for notification in _notifications(report)
        ],
        "ruleConfigurationOverrides": [
            {"descriptor": {"id": rule}, "configuration": overrides[rule]} for rule in sorted(overrides)
        ],
    }


def _notifications(report: Report) -> Iterator[dict[str, Any]]:
    locations = [_location(Places(report.path).find(""))]
    for unchecked in report.unchecked:
        rule = unchecked.rule
        text = f"{rule.id} {rule.name} could not look: {_plain(unchecked.reason)}"
        yield {
            "level": "error" if unchecked.is_required else "note",
            "message": {"text": text},
            "associatedRule": {"id": rule.id},
            "locations": locations,
        }
    for level, outcome, reason in (
        ("error", "could not be read", report.problem),
        ("note", "was skipped", report.skipped),
    ):
        if reason:
            yield {
                "level": level,
                "message": {"text": f"{_plain(report.path)} {outcome}: {_plain(reason)}"},
                "locations": locations,
            }


def _findings(report: Report) -> list[Finding]:
    """The findings, then those that the policy lets pass; no other rule is in the document."""
    return [*report.findings, *(suppressed.finding for suppressed in report.suppressed)]


def _results(report: Report, index: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    places = Places(report.path)
    reasons = [*[None] * len(report.findings), *(suppressed.by.reason for suppressed in report.suppressed)]
    findings = _findings(report)
    for finding, name, reason in zip(findings, fingerprints(findings), reasons, strict=True):
        match = finding.match
        result = {
            "ruleId": finding.rule.id,
            "ruleIndex": index[finding.rule.id],
            "level": finding.severity,
            "kind": "fail",
            "message": {"text": _plain(f"{match.message}. Fix: {finding.fix}")},
            "locations": [_location(places.find(match.where))],
            "partialFingerprints": {"eaglectl/v1": name},
            "properties": {"where": printable(match.where), "engines": list(match.engines)},
        }
        if reason is not None:
            result["suppressions"] = [{"kind": "external", "justification": _plain(reason)}]
        yield result


def _location(place: Place) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": place.uri}}
    if place.line:
        physical["region"] = {"startLine": place.line}
        if place.column:
            physical["region"]["startColumn"] = place.column
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.logical:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(place.logical), "kind": "resource"}]
    return location


def _plain(text: str) -> str:
    """Return text in which a viewer finds no Markdown link, as names come from files."""
    return printable(text).replace("](", "] (")
