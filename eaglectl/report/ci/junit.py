"""JUnit XML: one test suite for each checkpoint, one test case for each rule."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import eaglectl
from eaglectl.judge.judge import Report
from eaglectl.judge.rule import Finding, Rule
from eaglectl.report.findings import required_reasons, rules_of
from eaglectl.text import printable
from eaglectl.verdicts import CheckVerdict


def junit(reports: Sequence[Report]) -> str:
    """Return the document.

    A rule that could not look is skipped; of those that the policy requires and that could not for one
    reason the first is an error. Nothing that could be read is an error too.
    """
    root = Element("testsuites", {"name": "eaglectl validate"})
    for report in reports:
        _suite(root, report)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.attrib[name]) for suite in root)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode")


def _suite(root: Element, report: Report) -> None:
    suite = SubElement(root, "testsuite", {"name": printable(report.path)})
    properties = SubElement(suite, "properties")
    facts = {
        "eaglectl": eaglectl.__version__,
        "engines": ", ".join(report.engines),
        "verdict": report.verdict,
        "policy": report.policy,
        "fail-on": report.fail_on or "never",
    }
    for verdict in report.releases:
        check = ", ".join(filter(None, (verdict.outcome.check, verdict.unread)))
        outcome = ": ".join(filter(None, (check, ", ".join(verdict.rules))))
        facts[f"{verdict.engine}=={verdict.release}"] = outcome
    for name, value in facts.items():
        SubElement(properties, "property", {"name": name, "value": printable(value)})
    if report.problem:
        case = _testcase(suite, report, "the checkpoint can be read")
        _add_outcome(case, "error", CheckVerdict.COULD_NOT_LOOK, report.problem)
    if report.skipped:
        case = _testcase(suite, report, "the folder is a drafter's")
        _add_outcome(case, "skipped", report.verdict, report.skipped)
    errors = {rule.id: text for rule, text in required_reasons(report)}
    reasons = {unchecked.rule.id: unchecked.reason for unchecked in report.unchecked}
    for rule in rules_of(report):
        case = _testcase(suite, report, f"{rule.id} {rule.name}")
        _add_findings(case, report, rule)
        if rule.id in errors:
            _add_outcome(case, "error", CheckVerdict.COULD_NOT_LOOK, errors[rule.id])
        elif rule.id in reasons:
            _add_outcome(case, "skipped", CheckVerdict.COULD_NOT_LOOK, reasons[rule.id])
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))


def _testcase(suite: Element, report: Report, name: str) -> Element:
    return SubElement(suite, "testcase", {"name": name, "classname": printable(report.path)})


def _add_findings(case: Element, report: Report, rule: Rule) -> None:
    """The findings of a rule that fail the checkpoint; as output the others, and the suppressed ones."""
    findings = [finding for finding in report.findings if finding.rule is rule]
    failures = [finding for finding in findings if finding.fails(report.fail_on)]
    remarks = [_line(finding) for finding in findings if not finding.fails(report.fail_on)]
    remarks += [
        f"suppressed: {_line(suppressed.finding)}; {suppressed.by.reason}"
        for suppressed in report.suppressed
        if suppressed.finding.rule is rule
    ]
    if failures:
        worst = failures[0]
        _add_outcome(case, "failure", worst.severity, worst.match.message, list(map(_line, failures)))
    if remarks:
        SubElement(case, "system-out").text = "\n".join(map(printable, remarks))


def _add_outcome(case: Element, tag: str, kind: str, message: str, lines: Sequence[str] = ()) -> None:
    element = SubElement(case, tag, {"type": kind, "message": printable(message)})
    element.text = "\n".join(map(printable, lines)) or None


def _line(finding: Finding) -> str:
    match = finding.match
    place = f" [{match.where}]" if match.where else ""
    engines = f" ({', '.join(match.engines)})" if match.engines else ""
    return f"{finding.severity}{place}{engines}: {match.message}; fix: {finding.fix}"
