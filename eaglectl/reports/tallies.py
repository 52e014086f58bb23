"""What the reports of `validate` share: which findings fail, how they are counted, and what each is called."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from eaglectl.reports import wording
from eaglectl.validation.judging import Outcome, Report
from eaglectl.validation.policy import Suppression
from eaglectl.validation.rule import SEVERITIES, Finding, Rule, Severity

# where the rules' page lies; a pipeline may give the address at which its people read it
DOCS = "docs/rules.md"
DOCS_VARIABLE = "EAGLECTL_DOCS_URL"


def fingerprints(findings: Sequence[Finding]) -> list[str]:
    """A stable name for each finding, whatever its numbers say: of its rule, its place and its engines."""
    seen: Counter[tuple[Any, ...]] = Counter()
    names = []
    for one in findings:
        what = (one.rule.id, one.hit.where, *sorted({engine.split("=")[0] for engine in one.hit.engines}))
        seen[what] += 1
        names.append(digest(*what, str(seen[what])))
    return names


def digest(*parts: str) -> str:
    """SHA-256 over texts."""
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


def fails(finding: Finding, report: Report) -> bool:
    """Whether a finding is of a severity that fails the checkpoint."""
    return bool(report.fail_on) and SEVERITIES.index(finding.severity) >= SEVERITIES.index(report.fail_on or "error")


def rules_of(report: Report) -> list[Rule]:
    """Every rule that ran, by id."""
    ran = [*report.passed, *(one.rule for one in report.findings), *(one.rule for one in report.unlooked)]
    ran += [one.finding.rule for one in report.suppressed]
    return sorted({one.id: one for one in ran}.values(), key=lambda one: int(one.id.removeprefix("EGL")))


# a reason for which rules could not look, and their ids
Blindness = tuple[str, list[str]]


def blindness(report: Report) -> list[Blindness]:
    """Each reason for which rules could not look, and their ids; what the policy requires first."""
    by_reason: dict[tuple[bool, str], list[str]] = {}
    for one in report.unlooked:
        by_reason.setdefault((not one.is_required, one.reason), []).append(one.rule.id)
    ordered = sorted(by_reason.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [(reason if is_optional else f"{reason} (required)", ids) for (is_optional, reason), ids in ordered]


def shared_blindness(reports: Sequence[Report]) -> list[Blindness]:
    """What could not be looked at in any of several checkpoints, for the same reasons."""
    read = [report for report in reports if not report.problem]
    if len(read) < 2:
        return []
    others = [blindness(report) for report in read[1:]]
    return [one for one in blindness(read[0]) if all(one in other for other in others)]


def release_rows(report: Report) -> list[tuple[str, Outcome, str]]:
    """Engine releases with one outcome for the same reasons, that outcome, and why: the rules that found it, or in words."""
    groups: dict[tuple[str, Outcome, str], list[str]] = {}
    for one in report.releases:
        why = ", ".join(one.rules) or "; ".join(one.reasons)
        groups.setdefault((one.engine, one.outcome, why), []).append(
            f"{one.engine}=={one.release}" if one.release else one.engine
        )
    return [(wording.engines(named), outcome, why) for (_, outcome, why), named in groups.items()]


def counted(report: Report) -> str:
    """How many findings of each severity, and how many rules could not look and passed."""
    tally = Counter(one.severity for one in report.findings)
    severities: tuple[Severity, ...] = ("error", "warning", "note")
    words = [plural(tally[severity], severity) for severity in severities if tally[severity]]
    words += [f"{len(report.suppressed)} suppressed"] if report.suppressed else []
    words += [f"{plural(len(report.unlooked), 'rule')} could not look"] if report.unlooked else []
    return ", ".join([*words, f"{len(report.passed)} passed"])


def total(reports: Sequence[Report]) -> str:
    """How many of what there are over all checkpoints."""
    if len(reports) == 1:
        return counted(reports[0])
    verdicts = Counter(report.verdict for report in reports)
    tally = Counter(one.severity for report in reports for one in report.findings)
    words = [f"{count} {verdict}" for verdict, count in sorted(verdicts.items())]
    severities = [plural(tally[one], one) for one in ("error", "warning", "note") if tally[one]]
    return f"{plural(len(reports), 'checkpoint')}: {', '.join(words)}" + (
        f"; {', '.join(severities)}" if severities else ""
    )


def asked(reports: Sequence[Report]) -> str:
    """What fails, and by which policies."""
    policies = sorted({report.policy for report in reports})
    least = {report.fail_on for report in reports}
    until = "never fails" if least == {None} else f"fails on {next(iter(least))}"
    return f"{until}; policy: {', '.join(policies)}"


def suppressions(report: Report) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Findings that suppressions let pass, and suppressions that do nothing: a title, and rules with reasons under it."""
    hidden = Counter((one.finding.rule.id, one.by) for one in report.suppressed)
    if hidden:
        yield (
            "suppressed",
            [(rule, f"{plural(count, 'finding')}: {_reason(by)}") for (rule, by), count in hidden.items()],
        )
    unused = [one for one in report.unused if one not in report.expired]
    for title, found in (("suppressions that met nothing", unused), ("suppressions that have run out", report.expired)):
        if found:
            yield title, [(one.rule, _reason(one)) for one in found]


def _reason(by: Suppression) -> str:
    limits = [by.where, f"until {by.until}" if by.until else ""]
    shown = ", ".join(limit for limit in limits if limit)
    return f"{by.reason} ({shown})" if shown else by.reason


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rule_url(rule: Rule) -> str:
    """The rule's paragraph in its page: in this repository, or at $EAGLECTL_DOCS_URL."""
    return f"{os.environ.get(DOCS_VARIABLE) or DOCS}#{rule.id.lower()}-{rule.name}"
