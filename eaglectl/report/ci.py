"""The reports of `validate` as CI systems read them: GitHub's workflow commands, JUnit XML, SARIF 2.1.0."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import eaglectl
from eaglectl.judge.judgement import Report, overall_verdict
from eaglectl.judge.rule import Finding, Rule
from eaglectl.project import repository
from eaglectl.report.findings import Place, Places, first_findings, rule_url
from eaglectl.report.section import grouped
from eaglectl.text import printable
from eaglectl.verdicts import CheckVerdict

GITHUB_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def required_reasons(report: Report) -> Iterator[tuple[Rule, str]]:
    """Yield why required rules could not look: each reason with its first rule, and the count of rules."""
    required = (unchecked for unchecked in report.unchecked if unchecked.is_required)
    for reason, rules in grouped((unchecked.reason, unchecked.rule) for unchecked in required).items():
        last = rules[-1]
        more = f" ({len(rules)} rules, the last is {last.id} {last.name})" if len(rules) > 1 else ""
        yield rules[0], f"{reason}{more}"


def _every_finding(report: Report) -> list[Finding]:
    return [*report.findings, *(suppressed.finding for suppressed in report.suppressed)]


def _sorted_rules(rules: Iterable[Rule]) -> list[Rule]:
    return sorted({rule.id: rule for rule in rules}.values(), key=lambda rule: rule.number)


def github(reports: Sequence[Report]) -> str:
    """Return a workflow command for each finding, and for each required rule that could not look."""
    lines = (line for report in reports for line in _commands(report))
    return "\n".join([*lines, f"eaglectl: {overall_verdict(reports)}"])


def _commands(report: Report) -> Iterator[str]:
    # a report as GitHub's workflow commands, which annotate files
    places = Places(report.path)
    first, more = first_findings(report.findings)
    for finding in first:
        place, text = places.find(finding.match.where), f"{finding.match.message}. Fix: {finding.fix}"
        level, rule = GITHUB_LEVELS[finding.severity], finding.rule
        yield _command(level, place, f"{rule.id} {rule.name}", text)
    whole = places.find("")
    yield from (_command("notice", whole, "more findings", sentence) for sentence in more)
    if report.problem:
        yield _command("error", whole, "could not look", f"{report.path}: {report.problem}")
    if report.skipped:
        yield _command("notice", whole, report.verdict, f"{report.path}: {report.skipped}")
    for rule, text in required_reasons(report):
        yield _command("error", whole, f"{rule.id} {rule.name} could not look", text)
    for text in report.unreported:
        yield _command("error", whole, report.verdict, f"{report.path}: {text}")


def _command(level: str, place: Place, title: str, message: str) -> str:
    """Return a GitHub workflow command.

    No text of a file can start another, as each begins a line: `printable` writes line breaks as escapes,
    which GitHub then shows as they are.
    """
    named = {"file": place.path, "line": place.line, "col": place.column, "title": title}
    escaped = {
        name: printable(str(value)).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
        for name, value in named.items()
        if value
    }
    return f"::{level} {','.join(map('='.join, escaped.items()))}::{printable(message).replace('%', '%25')}"


def junit(reports: Sequence[Report]) -> str:
    """Return JUnit XML: one test suite for each checkpoint, one test case for each rule.

    A rule that could not look is skipped. Of required rules that could not look for the same reason, the
    first is an error. A checkpoint that could not be read is an error too.
    """
    root = Element("testsuites", {"name": "eaglectl validate"})
    for report in reports:
        _suite(root, report)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.attrib[name]) for suite in root)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode")


def _suite(root: Element, report: Report) -> None:
    # a report as one JUnit suite: a case for each rule, and for what prevents a verdict
    path = printable(report.path)
    suite = SubElement(root, "testsuite", {"name": path})
    for name, tag, kind, reason in (
        ("the checkpoint can be read", "error", CheckVerdict.COULD_NOT_LOOK, report.problem),
        ("the folder is a drafter's", "skipped", report.verdict, report.skipped),
        ("engines are known to serve it", "error", report.verdict, "; ".join(report.unreported)),
    ):
        if reason:
            case = SubElement(suite, "testcase", {"name": name, "classname": path})
            _add_outcome(case, tag, kind, reason)
    errors = {rule.id: text for rule, text in required_reasons(report)}
    reasons = {unchecked.rule.id: unchecked.reason for unchecked in report.unchecked}
    looked = [*report.passed, *(finding.rule for finding in _every_finding(report))]
    for rule in _sorted_rules([*looked, *(unchecked.rule for unchecked in report.unchecked)]):
        case = SubElement(suite, "testcase", {"name": f"{rule.id} {rule.name}", "classname": path})
        _add_findings(case, report, rule)
        if rule.id in reasons:
            tag = "error" if rule.id in errors else "skipped"
            _add_outcome(case, tag, CheckVerdict.COULD_NOT_LOOK, errors.get(rule.id, reasons[rule.id]))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))


def _add_findings(case: Element, report: Report, rule: Rule) -> None:
    # a failure for findings that fail, the others as output of the case
    findings = [finding for finding in report.findings if finding.rule is rule]
    remarks = [_line(finding) for finding in findings if not finding.fails(report.fail_on)]
    remarks += [
        f"suppressed: {_line(suppressed.finding)}; {suppressed.by.reason}"
        for suppressed in report.suppressed
        if suppressed.finding.rule is rule
    ]
    if failures := [finding for finding in findings if finding.fails(report.fail_on)]:
        lines = "\n".join(printable(_line(finding)) for finding in failures)
        _add_outcome(case, "failure", failures[0].severity, failures[0].match.message, lines)
    if remarks:
        SubElement(case, "system-out").text = "\n".join(map(printable, remarks))


def _add_outcome(case: Element, tag: str, kind: str, message: str, text: str = "") -> None:
    SubElement(case, tag, {"type": kind, "message": printable(message)}).text = text or None


def _line(finding: Finding) -> str:
    match = finding.match
    place = f" [{match.where}]" if match.where else ""
    engines = f" ({', '.join(match.engines)})" if match.engines else ""
    return f"{finding.severity}{place}{engines}: {match.message}; fix: {finding.fix}"


def sarif(reports: Sequence[Report]) -> str:
    """Return SARIF of one run: each finding at the line of its config key, or at the name of its tensor.

    Rules that could not look are notifications, never results.
    """
    rules = _sorted_rules(finding.rule for report in reports for finding in _every_finding(report))
    index = {rule.id: number for number, rule in enumerate(rules)}
    address = repository()
    driver = {
        "name": "eaglectl",
        "version": eaglectl.__version__,
        "semanticVersion": eaglectl.__version__,
        "rules": [_rule(rule) for rule in rules],
        **({"informationUri": address} if address else {}),
    }
    invocation = {
        "executionSuccessful": not any(report.problem for report in reports),
        "toolExecutionNotifications": [entry for report in reports for entry in _notifications(report)],
        "ruleConfigurationOverrides": _overrides(reports),
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": [result for report in reports for result in _results(report, index)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _overrides(reports: Sequence[Report]) -> list[dict[str, Any]]:
    overrides: dict[str, dict[str, object]] = {
        rule: {"enabled": False} for report in reports for rule in report.off
    }
    overrides |= {rule: {"level": level} for report in reports for rule, level in report.lowered.items()}
    return [{"descriptor": {"id": rule}, "configuration": overrides[rule]} for rule in sorted(overrides)]


def _rule(rule: Rule) -> dict[str, Any]:
    # a rule's entry in SARIF
    url = rule_url(rule)
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.why}"},
        "help": {"text": f"{rule.why}\n\nFix: {rule.fix}", "markdown": f"{rule.why}\n\n**Fix:** {rule.fix}"},
        # a viewer can follow only an absolute address
        **({"helpUri": url} if url.startswith(("https://", "http://")) else {}),
        "defaultConfiguration": {"level": rule.severity},
        "properties": {"tags": [rule.family, *filter(None, [rule.engines])]},
    }


def _notifications(report: Report) -> Iterator[dict[str, Any]]:
    # what could not be looked at, as SARIF's notifications, which are no results
    locations = [_location(Places(report.path).find(""))]
    for unchecked in report.unchecked:
        name = f"{unchecked.rule.id} {unchecked.rule.name}"
        yield {
            "level": "error" if unchecked.is_required else "note",
            "message": {"text": f"{name} could not look: {_plain(unchecked.reason)}"},
            "associatedRule": {"id": unchecked.rule.id},
            "locations": locations,
        }
    for level, outcome, reason in (
        ("error", "could not be read", report.problem),
        ("note", "was skipped", report.skipped),
        *(("error", report.verdict, text) for text in report.unreported),
    ):
        if reason:
            text = f"{_plain(report.path)} {outcome}: {_plain(reason)}"
            yield {"level": level, "message": {"text": text}, "locations": locations}


def _results(report: Report, index: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    # each finding as a SARIF result; suppressed ones keep their reason
    places, findings = Places(report.path), _every_finding(report)
    reasons = [*[None] * len(report.findings), *(suppressed.by.reason for suppressed in report.suppressed)]
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


def fingerprints(findings: Sequence[Finding]) -> list[str]:
    """Return a stable name for each finding, from its rule, its place and its engines, not its message."""
    counts: Counter[tuple[str, ...]] = Counter()
    names = []
    for finding in findings:
        engines = sorted({engine.split("=")[0] for engine in finding.match.engines})
        key = (finding.rule.id, finding.match.where, *engines)
        counts[key] += 1
        names.append(sha256("\0".join((*key, str(counts[key]))).encode(errors="replace")).hexdigest())
    return names


def _location(place: Place) -> dict[str, Any]:
    # a finding's place in SARIF: file and line, and the key or tensor as a logical location
    physical: dict[str, Any] = {"artifactLocation": {"uri": place.uri}}
    if place.line:
        column = {"startColumn": place.column} if place.column else {}
        physical["region"] = {"startLine": place.line, **column}
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.logical:
        location["logicalLocations"] = [{"fullyQualifiedName": printable(place.logical), "kind": "resource"}]
    return location


def _plain(text: str) -> str:
    """Return text without Markdown links, which names in files could otherwise make."""
    return printable(text).replace("](", "] (")
