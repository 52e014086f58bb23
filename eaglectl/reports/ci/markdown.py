"""Markdown for comments and step summaries: within their size limits, text from files made harmless."""

import re
from collections.abc import Iterator, Sequence

from eaglectl.reports.findings import counted, idle_suppressions, release_rows, unchecked_groups
from eaglectl.reports.wording import engine_ranges
from eaglectl.text import printable
from eaglectl.validation.finding import Finding
from eaglectl.validation.judge import Report, overall_verdict

# a GitHub comment holds 65,536 characters, GitLab's a million
LIMIT = 60_000


def markdown(reports: Sequence[Report], limit: int = LIMIT) -> str:
    """Return a section for each checkpoint; lines beyond `limit` characters are cut off."""
    lines = [f"## eaglectl validate: {overall_verdict(reports)}"]
    size = len(lines[0])
    every = [line for report in reports for line in _section(report)]
    for number, line in enumerate(every):
        size += len(line) + 1
        if size > limit:
            return "\n".join([*lines, "", f"*{len(every) - number} more lines were cut off.*"])
        lines.append(line)
    return "\n".join(lines)


def _section(report: Report) -> Iterator[str]:
    yield from ("", f"### {safe(report.path)}: {report.verdict}", "", f"{counted(report)}.")
    if report.problem:
        yield from ("", f"It could not be read: {safe(report.problem)}")
    if report.findings:
        yield from ("", "| severity | rule | where | finding | fix |", "|---|---|---|---|---|")
        yield from map(_finding_row, report.findings)
    if report.releases:
        yield from ("", "| releases | served as trained | why |", "|---|---|---|")
        for releases, outcome, reason in release_rows(report):
            yield f"| {safe(releases)} | {outcome} | {safe(reason)} |"
    if report.smallest_changes:
        yield from ("", "The smallest change that makes all pass:", "")
        yield from (f"* {safe(change)}" for change in report.smallest_changes)
    for title, lines in _folded_parts(report):
        yield from ("", f"<details><summary>{title}</summary>", "")
        yield from (f"* {line}" for line in lines)
        yield from ("", "</details>")


def _folded_parts(report: Report) -> Iterator[tuple[str, list[str]]]:
    if report.unchecked and not report.problem:
        groups = unchecked_groups(report)
        yield "could not look", [f"{', '.join(ids)}: {safe(reason)}" for reason, ids in groups]
    if report.suppressed:
        yield (
            "suppressed",
            [
                f"{hidden.finding.rule.id} {safe(hidden.finding.match.message)}: {safe(hidden.by.reason)}"
                for hidden in report.suppressed
            ],
        )
    for title, suppressions in idle_suppressions(report):
        yield title, [f"{safe(entry.rule)}: {safe(entry.reason)}" for entry in suppressions]


def _finding_row(finding: Finding) -> str:
    rule, match = finding.rule, finding.match
    engines = f" ({engine_ranges(match.engines)})" if match.engines else ""
    # the text of a rule holds nothing from a file, so its `code` may stay code
    fix = safe(match.fix) if match.fix else rule.fix.replace("|", "\\|")
    cells = (
        finding.severity,
        f"{rule.id} {rule.name}",
        safe(match.where),
        f"{safe(match.message)}{engines}",
        fix,
    )
    return f"| {' | '.join(cells)} |"


def safe(text: str) -> str:
    """Return text that Markdown shows literally, in a table cell too, without mentions and links."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = re.sub(r"([\\`*_{}\[\]|~$])", r"\\\1", escaped)
    return re.sub(r"([@#]|:/|www)(?=[\w/.])", "\\1\u200b", escaped)
