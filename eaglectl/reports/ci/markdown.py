"""Markdown for comments and step summaries: within their size limits, text from files made harmless."""

from collections.abc import Iterator, Sequence

from eaglectl.reports.findings import (
    counted,
    default_engines_line,
    first_findings,
    idle_suppressions,
    release_rows,
    unchecked_groups,
)
from eaglectl.reports.wording import engine_ranges
from eaglectl.text import as_markdown
from eaglectl.validation.finding import Finding
from eaglectl.validation.judge import Report, Suppressed, overall_verdict

# a GitHub comment holds 65,536 characters, GitLab's a million
LIMIT = 60_000


def markdown(reports: Sequence[Report], limit: int = LIMIT) -> str:
    """Return a section for each checkpoint; lines beyond `limit` characters are cut off."""
    lines = [f"## eaglectl validate: {overall_verdict(reports)}"]
    if engines := default_engines_line(reports):
        lines += ["", f"{as_markdown(engines)}."]
    size = sum(len(line) + 1 for line in lines) - 1
    every = [line for report in reports for line in _section(report)]
    for number, line in enumerate(every):
        size += len(line) + 1
        if size > limit:
            return "\n".join([*lines, "", f"*{len(every) - number} more lines were cut off.*"])
        lines.append(line)
    return "\n".join(lines)


def _section(report: Report) -> Iterator[str]:
    yield from ("", f"### {as_markdown(report.path)}: {report.verdict}", "", f"{counted(report)}.")
    if report.problem:
        yield from ("", f"It could not be read: {as_markdown(report.problem)}")
    if report.skipped:
        yield from ("", f"It is no drafter: {as_markdown(report.skipped)}")
    if report.findings:
        first, more = first_findings(report.findings)
        yield from ("", "| severity | rule | where | finding | fix |", "|---|---|---|---|---|")
        yield from map(_finding_row, first)
        yield from (line for sentence in more for line in ("", f"{as_markdown(sentence)}."))
    if report.releases:
        yield from ("", "| releases | served as trained | why |", "|---|---|---|")
        for releases, outcome, reason in release_rows(report):
            yield f"| {as_markdown(releases)} | {outcome} | {as_markdown(reason)} |"
    if report.smallest_changes:
        yield from ("", "The smallest change that makes all pass:", "")
        yield from (f"* {as_markdown(change)}" for change in report.smallest_changes)
    for title, lines in _folded_parts(report):
        yield from ("", f"<details><summary>{title}</summary>", "")
        yield from (f"* {line}" for line in lines)
        yield from ("", "</details>")


def _folded_parts(report: Report) -> Iterator[tuple[str, list[str]]]:
    if report.unchecked and not report.problem:
        groups = unchecked_groups(report)
        yield "could not look", [f"{', '.join(ids)}: {as_markdown(reason)}" for reason, ids in groups]
    if report.suppressed:
        yield (
            "suppressed",
            list(map(_suppressed, report.suppressed)),
        )
    for title, suppressions in idle_suppressions(report):
        yield title, [f"{as_markdown(entry.rule)}: {as_markdown(entry.reason)}" for entry in suppressions]


def _suppressed(hidden: Suppressed) -> str:
    text = as_markdown(f"{hidden.finding.match.message}: {hidden.by.reason}")
    return f"{hidden.finding.rule.id} {text}"


def _finding_row(finding: Finding) -> str:
    rule, match = finding.rule, finding.match
    engines = f" ({engine_ranges(match.engines)})" if match.engines else ""
    # the text of a rule holds nothing from a file, so its `code` may stay code
    fix = as_markdown(match.fix) if match.fix else rule.fix.replace("|", "\\|")
    cells = (
        finding.severity,
        f"{rule.id} {rule.name}",
        as_markdown(match.where),
        f"{as_markdown(match.message)}{engines}",
        fix,
    )
    return f"| {' | '.join(cells)} |"
