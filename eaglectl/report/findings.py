"""The outline of `validate`: which findings fail, counts, rows, what no rule looked at, links to rules."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from eaglectl.formats.commands import COMMAND
from eaglectl.judge.judgement import Report, overall_verdict
from eaglectl.judge.rule import SEVERITIES, Finding, Rule, Suppression
from eaglectl.publish.project import repository
from eaglectl.report.ci.places import Places
from eaglectl.report.section import (
    Entries,
    Entry,
    Line,
    Lines,
    Outline,
    Section,
    Table,
    Words,
    grouped,
    toned,
)
from eaglectl.report.wording import answer_line, engine_ranges, plural, release_table

# the page of the rules in the repository; the variable names another address for it
DOCS = "docs/rules.md"
DOCS_VARIABLE = "EAGLECTL_DOCS_URL"
COPIED = "the weights are pickles: they were copied to a temporary folder, and nothing in them was run"
# the most findings of one rule that are shown to people
MOST_FINDINGS = 20
# the most findings, and reasons under the first line, without -v
MOST_SHOWN, MOST_CAUSES = 3, 2
USUAL_POLICY = "fails on error; policy: built in"
# rules that find no drafter at all
NO_DRAFTER = ("one-weight-source", "not-a-drafter")
# a reason why rules could not look, and their ids
UncheckedGroup = tuple[str, list[str]]


def reports_outline(reports: Sequence[Report], *, is_quiet: bool = False) -> Outline:
    """Each checkpoint with its verdict and its first findings, then totals; if quiet, only what fails."""
    verdict, common = toned(overall_verdict(reports)), [] if is_quiet else common_unchecked(reports)
    parts = [_part(report, common, is_quiet=is_quiet) for report in reports]
    totals, policy = total(reports), policy_line(reports)
    judged = "" if all(map(is_unreadable, reports)) else default_engines_line(reports)
    after = [] if is_quiet else [_unchecked("Could not look, in every checkpoint", common)]
    lead = (Words(totals, "strong"), " ", Words(f"({policy})", "quiet"), " ", Words(judged, "quiet"))
    last = [(verdict, f"  {totals}  ", Words("" if policy == USUAL_POLICY else f"({policy})", "quiet"))]
    if len(parts) == 1:
        sections, is_dense = [*parts[0].sections, *after], is_quiet or is_unreadable(reports[0])
        return replace(parts[0], lead=lead, sections=sections, last=last, is_dense=is_dense)
    rows = [(Words(report.path, is_code=True), toned(report.verdict), counted(report)) for report in reports]
    overview = Section("Checkpoints", [Table(("checkpoint", "verdict", ""), rows)], only="markdown")
    return Outline("validate", verdict, "", lead, "", [overview, *after], last, parts, is_quiet)


def _part(report: Report, common: Sequence[UncheckedGroup], *, is_quiet: bool) -> Outline:
    """One checkpoint; `common` is what no rule could look at in any of them."""
    verdict = toned(report.verdict)
    name = Words(verdict.text.replace("-", " ").upper(), verdict.tone)
    head = (name, " ", Words(report.path, "strong"), f": {worst(report)}")
    if is_quiet:
        first = [finding for finding in report.findings if finding.fails(report.fail_on)]
        cause = _causes(report, first) if report.problem or report.skipped else []
        sections = [_findings(report, first), _fixes(first, "")]
        return Outline("validate", verdict, report.path, "", head, sections, cause=cause)
    changes = (*report.smallest_changes, *(finding.fix for finding in report.findings if _is_worse(finding)))
    command = next((found[1] for change in changes for found in COMMAND.finditer(change)), "")
    first = _first(report)
    sections = [_findings(report, first), _fixes(filter(_is_worse, first), command)]
    if not is_unreadable(report):
        more = _more(report, first, command, common)
        sections += [replace(section, is_more=True) for section in more]
    cause = _causes(report, first)
    return Outline("validate", verdict, report.path, "", head, sections, cause=cause, next=command)


def _more(
    report: Report, first: Sequence[Finding], command: str, common: Sequence[UncheckedGroup]
) -> Iterator[Section]:
    """What is not shown of one checkpoint without -v."""
    rest = [finding for finding in report.findings if finding not in first]
    yield _findings(report, rest, "More findings")
    yield _fixes((each for each in report.findings if each in rest or not _is_worse(each)), command)
    yield Section("Releases", [release_table(report.releases)], default_engines_line([report]))
    yield Section("Smallest change", [Lines(report.smallest_changes)], "that makes all pass")
    yield _unchecked("Could not look", [group for group in unchecked_groups(report) if group not in common])
    yield from _suppressions(report)
    target = f"target: {report.target}" if report.target else ""
    lines = [Words(line, "quiet") for line in (target, COPIED if report.is_of_copy else "") if line]
    yield Section("Target", [Lines(lines)])


def _suppressions(report: Report) -> Iterator[Section]:
    counts = Counter((suppressed.finding.rule.id, suppressed.by) for suppressed in report.suppressed)
    suppressions = {
        "Suppressed": [
            (rule, f"{plural(count, 'finding')}: {_reason(by)}") for (rule, by), count in counts.items()
        ],
        "Unused suppressions": [(unused.rule, _reason(unused)) for unused in report.unused],
        "Expired suppressions": [(expired.rule, _reason(expired)) for expired in report.expired],
    }
    for title, rows in suppressions.items():
        if rows:
            yield Section(title, [Table(("rule", "reason"), _quiet(rows), is_bare=True)])


def _causes(report: Report, shown: Sequence[Finding]) -> list[Line]:
    """What the engine releases do, and what is not known, where no finding that is `shown` says so."""
    if is_unreadable(report) or report.skipped:
        problem = report.problem and f"could not be read: {report.problem}"
        return [text for text in (problem, report.skipped) if text]
    texts = [finding.match.message for finding in shown]
    for gap in _gaps(report):
        if not any(gap in text or text in gap for text in texts):
            texts.append(gap)
    causes: list[Line] = [answer_line(report.releases)] if report.releases else []
    return [*causes, *texts[len(shown) :][:MOST_CAUSES]]


def _gaps(report: Report) -> list[str]:
    """Why required rules could not look, and the faults in engine releases that no rule reports."""
    gaps = [f"could not look: {each.reason}" for each in report.unchecked if each.is_required]
    faults = [fault for verdict in report.releases if not verdict.rules for fault in verdict.faults]
    return gaps + faults


def _first(report: Report) -> list[Finding]:
    """The findings that are shown without -v: the worst, of each rule the first; else notes."""
    if is_unreadable(report):
        errors = [finding for finding in report.findings if finding.severity == "error"]
        return sorted(errors, key=lambda finding: finding.rule.name not in NO_DRAFTER)
    by_rule = grouped((finding.rule.id, finding) for finding in report.findings)
    firsts = [group[0] for group in by_rule.values()]
    return (list(filter(_is_worse, firsts)) or firsts)[:MOST_SHOWN]


def _findings(report: Report, findings: Sequence[Finding], title: str = "Findings") -> Section:
    first, more = first_findings(findings)
    places = Places(report.path)
    rows = [
        Entry(
            toned(finding.severity),
            Words(f"{finding.rule.id} {finding.rule.name}", "strong"),
            finding.match.where,
            engine_ranges(finding.match.engines),
            finding.match.message,
            finding.fix,
            places.code(finding.match.where),
        )
        for finding in first
    ]
    rest = Lines([Words(sentence, "quiet") for sentence in more])
    return Section(title, [Entries(rows), rest], has_heading=title != "Findings")


def _fixes(findings: Iterable[Finding], command: str) -> Section:
    ids = grouped((_repair(finding, command), finding.rule.id) for finding in findings)
    lines = [f"{', '.join(dict.fromkeys(rules))}: {repair}" for repair, rules in ids.items()]
    return Section("Fixes", [Lines(lines)], only="terminal", has_heading=False)


def _repair(finding: Finding, command: str) -> str:
    if "; pass --" in finding.match.message:
        return "answer with one of the options that it names"
    match [repair[1] for repair in COMMAND.finditer(finding.fix)]:
        case [repair] if set(repair.split()) <= set(command.split()):
            return "fixed by the next command"
        case [repair]:
            return f"run `{repair}`"
    return finding.fix.partition("; ")[0]


def _is_worse(finding: Finding) -> bool:
    return finding.severity != "note"


def _unchecked(title: str, groups: Sequence[UncheckedGroup]) -> Section:
    rows = [(plural(len(ids), "rule"), f"{reason} ({', '.join(ids)})") for reason, ids in groups]
    return Section(title, [Table(("rules", "why"), _quiet(rows), is_whole=True, is_bare=True)], is_more=True)


def _quiet(rows: Iterable[tuple[str, str]]) -> list[tuple[Line, ...]]:
    return [(name, Words(text, "quiet")) for name, text in rows]


def first_findings(findings: Iterable[Finding]) -> tuple[list[Finding], list[str]]:
    """Return the first findings of each rule, and a sentence for each rule that has more of them."""
    by_rule = grouped((f"{finding.rule.id} {finding.rule.name}", finding) for finding in findings)
    more = [
        f"and {len(group) - MOST_FINDINGS:,} more of {rule}; --json lists all"
        for rule, group in by_rule.items()
        if len(group) > MOST_FINDINGS
    ]
    return [finding for group in by_rule.values() for finding in group[:MOST_FINDINGS]], more


def unchecked_groups(report: Report) -> list[UncheckedGroup]:
    """Return the reasons why rules could not look, with their ids; those that the policy requires first."""
    ids_by_reason = grouped(
        ((not unchecked.is_required, unchecked.reason), unchecked.rule.id) for unchecked in report.unchecked
    )
    groups = sorted(ids_by_reason.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [(reason if is_optional else f"{reason} (required)", ids) for (is_optional, reason), ids in groups]


def common_unchecked(reports: Sequence[Report]) -> list[UncheckedGroup]:
    """Return the groups of `unchecked_groups` that all of several readable checkpoints share."""
    groups = [unchecked_groups(report) for report in reports if not report.problem and not report.skipped]
    return [group for group in groups[0] if all(group in other for other in groups)] if groups[1:] else []


def is_unreadable(report: Report) -> bool:
    """Whether there was no drafter to look at: no files, no weights, or another model."""
    has_looked = len(report.passed) > len(report.unchecked)
    is_none = any(finding.rule.name in NO_DRAFTER for finding in report.findings)
    return bool(report.problem) or (is_none and not has_looked)


def counted(report: Report) -> str:
    """Return how many findings of each severity there are, and how many rules could not look and passed."""
    if report.skipped:
        return "not judged"
    parts = _severities([report])
    if report.suppressed:
        parts.append(f"{len(report.suppressed)} suppressed")
    if report.unchecked:
        parts.append(f"{plural(len(report.unchecked), 'rule')} could not look")
    if not parts and not report.passed:
        return "no rule could look"
    return ", ".join([*parts, f"{len(report.passed)} passed"])


def worst(report: Report) -> str:
    """Return how many errors and warnings there are, or how many notes."""
    if report.problem or report.skipped:
        return "not read" if report.problem else "not judged"
    parts = _severities([report])
    return ", ".join(part for part in parts if "note" not in part) or ", ".join(["no errors", *parts])


def total(reports: Sequence[Report]) -> str:
    """Return the counts over all checkpoints."""
    if len(reports) == 1:
        return counted(reports[0])
    verdicts = Counter(report.verdict for report in reports)
    outcomes = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    parts = (f"{plural(len(reports), 'checkpoint')}: {outcomes}", ", ".join(_severities(reports)))
    return "; ".join(filter(None, parts))


def _severities(reports: Sequence[Report]) -> list[str]:
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    return [plural(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity]]


def policy_line(reports: Sequence[Report]) -> str:
    """Return which severity fails, the policies that were applied, and how many rules they weaken."""
    policies = ", ".join(sorted({report.policy for report in reports}))
    fail_on = next((report.fail_on for report in reports if report.fail_on), None)
    effect = f"fails on {fail_on}" if fail_on else "never fails"
    off = {rule for report in reports for rule in report.off}
    lowered = {rule for report in reports for rule in report.lowered}
    counts = ((len(off), "off"), (len(lowered), "of lower severity"))
    weakened = ", ".join(f"{number} {what}" for number, what in counts if number)
    return f"{effect}; policy: {policies}{f' (rules: {weakened})' if weakened else ''}"


def default_engines_line(reports: Sequence[Report]) -> str:
    """Return the releases judged that nobody named, why, and how to name others; "" for none."""
    judged = dict.fromkeys(pair for report in reports if report.releases for pair in report.default_engines)
    if not judged:
        return ""
    by_reason = grouped((why, release.replace("==", " ")) for release, why in judged)
    releases = ", ".join(f"{' and '.join(names)} ({why})" for why, names in by_reason.items())
    engine = next(iter(judged))[0].partition("==")[0]
    return (
        f"judged by default for {releases}; --engine {engine} judges for that one, --no-engines by the rules"
        " alone"
    )


def _reason(suppression: Suppression) -> str:
    until = f"until {suppression.until}" if suppression.until else ""
    limits = ", ".join(filter(None, (suppression.where, until)))
    return f"{suppression.reason} ({limits})" if limits else suppression.reason


def rule_url(rule: Rule) -> str:
    """Return where a rule is documented: $EAGLECTL_DOCS_URL, the repository, or else a command."""
    known = repository()
    page = os.environ.get(DOCS_VARIABLE) or (f"{known}/blob/HEAD/{DOCS}" if known else "")
    return f"{page}#{rule.id.lower()}-{rule.name.replace('.', '')}" if page else f"eaglectl rules {rule.id}"
