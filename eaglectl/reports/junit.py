"""JUnit XML: one test suite for each checkpoint, one test case for each rule."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import eaglectl
from eaglectl.errors import printable
from eaglectl.reports.tallies import fails, rules_of
from eaglectl.validation.judging import Report
from eaglectl.validation.rule import Finding, Rule


def junit(reports: Sequence[Report]) -> str:
    """The document. A rule that could not look is skipped; one that the policy requires, and an unreadable checkpoint, are errors."""
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
    for name, value in _properties(report).items():
        SubElement(properties, "property", {"name": name, "value": printable(value)})
    if report.problem:
        case = SubElement(
            suite, "testcase", {"name": "the checkpoint can be read", "classname": printable(report.path)}
        )
        _outcome(case, "error", "could-not-look", report.problem)
    for rule in rules_of(report):
        _case(suite, report, rule)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))


def _properties(report: Report) -> dict[str, str]:
    return {
        "eaglectl": eaglectl.__version__, "engines": ", ".join(report.engines), "verdict": report.verdict,
        "policy": report.policy, "fail-on": report.fail_on or "never",
        **{f"{one.engine}=={one.release}": ": ".join(filter(None, (one.outcome, ", ".join(one.rules)))) for one in report.releases},
    }  # fmt: skip


def _case(suite: Element, report: Report, rule: Rule) -> None:
    case = SubElement(suite, "testcase", {"name": f"{rule.id} {rule.name}", "classname": printable(report.path)})
    found = [one for one in report.findings if one.rule is rule]
    failing = [one for one in found if fails(one, report)]
    if failing:
        _outcome(case, "failure", failing[0].severity, failing[0].hit.message, [_told(one) for one in failing])
    for unlooked in report.unlooked:
        if unlooked.rule is rule:
            _outcome(case, "error" if unlooked.is_required else "skipped", "could-not-look", unlooked.reason)
    remarks = [_told(one) for one in found if one not in failing]
    remarks += [
        f"suppressed: {_told(one.finding)}; {one.by.reason}" for one in report.suppressed if one.finding.rule is rule
    ]
    if remarks:
        SubElement(case, "system-out").text = "\n".join(map(printable, remarks))


def _outcome(case: Element, tag: str, kind: str, message: str, lines: Sequence[str] = ()) -> None:
    element = SubElement(case, tag, {"type": kind, "message": printable(message)})
    element.text = "\n".join(map(printable, lines)) or None


def _told(one: Finding) -> str:
    place = f" [{one.hit.where}]" if one.hit.where else ""
    engines = f" ({', '.join(one.hit.engines)})" if one.hit.engines else ""
    return f"{one.severity}{place}{engines}: {one.hit.message}; fix: {one.fix}"
