"""Markdown for comments on a change and for step summaries: short enough to be posted, names made harmless."""

import re
from collections.abc import Iterator, Sequence

from eaglectl.errors import printable
from eaglectl.reports import wording
from eaglectl.reports.tallies import blindness, counted, release_rows
from eaglectl.validation.judging import Report, merged
from eaglectl.validation.rule import Finding

# a GitHub comment holds 65,536 characters, GitLab's a million; what is cut off is said
LIMIT = 60_000


def markdown(reports: Sequence[Report], limit: int = LIMIT) -> str:
    """The page: one section for each checkpoint, findings as a table, the rest folded away."""
    lines = [f"## eaglectl validate: {merged(reports)}"]
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
        yield from (_row(one) for one in report.findings)
    if report.releases:
        yield from ("", "| releases | served as trained | why |", "|---|---|---|")
        yield from (f"| {safe(named)} | {outcome} | {safe(why)} |" for named, outcome, why in release_rows(report))
    if report.ways_out:
        yield from ("", "The smallest change that makes all pass:", "", *(f"* {safe(way)}" for way in report.ways_out))
    if report.unlooked and not report.problem:
        yield from _folded("could not look", [f"{', '.join(ids)}: {safe(reason)}" for reason, ids in blindness(report)])
    if report.suppressed:
        shown = [
            f"{each.finding.rule.id} {safe(each.finding.hit.message)}: {safe(each.by.reason)}"
            for each in report.suppressed
        ]
        yield from _folded("suppressed", shown)
    unused = [one for one in report.unused if one not in report.expired]
    for title, found in (("suppressions that met nothing", unused), ("suppressions that have run out", report.expired)):
        if found:
            yield from _folded(title, [f"{safe(one.rule)}: {safe(one.reason)}" for one in found])


def _row(one: Finding) -> str:
    engines = f" ({wording.engines(one.hit.engines)})" if one.hit.engines else ""
    message = f"{safe(one.hit.message)}{engines}"
    # a rule's own words hold nothing of a file, and their `code` may stay code
    fix = safe(one.hit.fix) if one.hit.fix else one.rule.fix.replace("|", "\\|")
    return f"| {one.severity} | {one.rule.id} {one.rule.name} | {safe(one.hit.where)} | {message} | {fix} |"


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield from ("", f"<details><summary>{title}</summary>", "", *(f"* {line}" for line in lines), "", "</details>")


def safe(text: str) -> str:
    """Text that Markdown shows as it is, in a table cell too; it mentions nobody and links to nothing."""
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*_{}\[\]|~$])", r"\\\1", shown)
    return re.sub(r"([@#]|:/|www)(?=[\w/.])", "\\1\u200b", shown)
