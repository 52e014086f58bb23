"""What the reports of `validate` share: which findings fail, counts, rows, fingerprints, links to rules."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from eaglectl.formats.commands import COMMAND
from eaglectl.judge.judge import Report, overall_verdict
from eaglectl.judge.policy import Suppression
from eaglectl.judge.rule import SEVERITIES, Finding, Rule
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
# how findings are mended that need no sentence of their own
BY_NEXT, BY_ANSWER = "fixed by the next command", "answer with one of the options that it names"
USUAL_POLICY = "fails on error; policy: built in"
# rules that find no drafter at all
NO_DRAFTER = ("one-weight-source", "not-a-drafter")
WORST_FIRST = tuple(reversed(SEVERITIES))
# a reason why rules could not look, and their ids
UncheckedGroup = tuple[str, list[str]]


def reports_outline(reports: Sequence[Report], *, is_quiet: bool = False) -> Outline:
    """Each checkpoint with its verdict and its first findings, then totals; if quiet, only what fails."""
    verdict, common = overall_verdict(reports), common_unchecked(reports)
    parts = [_part(report, [] if is_quiet else common, is_quiet=is_quiet) for report in reports]
    policy = Words(f"({policy_line(reports)})", "quiet")
    rows = [(Words(report.path, is_code=True), toned(report.verdict), counted(report)) for report in reports]
    overview = Section("Checkpoints", [Table(("checkpoint", "verdict", ""), rows)], only="markdown")
    judged = "" if all(map(is_unreadable, reports)) else default_engines_line(reports)
    after = [] if is_quiet else _unchecked("Could not look, in every checkpoint", common)
    lead = (Words(total(reports), "strong"), " ", policy, " ", Words(judged, "quiet"))
    is_usual = policy_line(reports) == USUAL_POLICY
    last = [(toned(verdict), f"  {total(reports)}  ", Words("" if is_usual else policy.text, "quiet"))]
    if len(parts) == 1:
        (part,) = parts
        is_dense = is_quiet or is_unreadable(reports[0])
        return replace(part, lead=lead, sections=[*part.sections, *after], last=last, is_dense=is_dense)
    return Outline("validate", toned(verdict), "", lead, "", [overview, *after], last, parts, is_quiet)


def _part(report: Report, common: Sequence[UncheckedGroup], *, is_quiet: bool) -> Outline:
    """One checkpoint; `common` is what no rule could look at in any of them."""
    verdict = toned(report.verdict)
    name = Words(verdict.text.replace("-", " ").upper(), verdict.tone)
    head = (name, " ", Words(report.path, "strong"), f": {worst(report)}")
    if is_quiet:
        failing = [finding for finding in report.findings if finding.fails(report.fail_on)]
        cause = _causes(report, failing) if report.problem or report.skipped else ()
        sections = [*_findings(report, failing), _fixes(failing, "")]
        return Outline("validate", verdict, report.path, "", head, sections, cause=cause)
    changes = (*report.smallest_changes, *(finding.fix for finding in report.findings if _is_worse(finding)))
    command = next(filter(None, map(_command, changes)), "")
    first = _first(report)
    sections = [*_findings(report, first), _fixes(filter(_is_worse, first), command)]
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
    yield from _findings(report, rest, "More findings")
    yield _fixes((each for each in report.findings if each in rest or not _is_worse(each)), command)
    yield Section("Releases", [release_table(report.releases)], default_engines_line([report]))
    yield Section("Smallest change", [Lines(report.smallest_changes)], "that makes all pass")
    groups = [group for group in unchecked_groups(report) if group not in common]
    yield from _unchecked("Could not look", groups)
    for title, rows in suppression_rows(report):
        yield Section(title.capitalize(), [Table(("rule", "reason"), _quiet(rows), is_bare=True)])
    target = Words(f"target: {report.target}" if report.target else "", "quiet")
    lines = [line for line in (target, Words(COPIED if report.is_of_copy else "", "quiet")) if line.text]
    yield Section("Target", [Lines(lines)])


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


def _gaps(report: Report) -> Iterator[str]:
    """Why required rules could not look, and what leaves open what a release does."""
    yield from (f"could not look: {each.reason}" for each in report.unchecked if each.is_required)
    for verdict in report.releases:
        yield from () if verdict.rules else verdict.faults


def _first(report: Report) -> list[Finding]:
    """The findings that are shown without -v: the worst, of each rule the first; else notes."""
    if is_unreadable(report):
        errors = [finding for finding in report.findings if finding.severity == "error"]
        return sorted(errors, key=lambda finding: finding.rule.name not in NO_DRAFTER)
    by_rule = grouped((finding.rule.id, finding) for finding in report.findings)
    worst = [group[0] for group in by_rule.values() if _is_worse(group[0])]
    return (worst or [group[0] for group in by_rule.values()])[:MOST_SHOWN]


def _findings(report: Report, findings: Sequence[Finding], title: str = "Findings") -> list[Section]:
    """The first findings of each rule, with the values that they judge."""
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
    return [Section(title, [Entries(rows), rest], has_heading=title != "Findings")]


def _fixes(findings: Iterable[Finding], command: str) -> Section:
    """What mends findings, each fix once, where the command to run next does not."""
    ids = grouped((_repair(finding, command), finding.rule.id) for finding in findings)
    lines = [f"{', '.join(dict.fromkeys(rules))}: {repair}" for repair, rules in ids.items()]
    return Section("Fixes", [Lines(lines)], only="terminal", has_heading=False)


def _repair(finding: Finding, command: str) -> str:
    """How a finding is mended, in few words where they do."""
    if "; pass --" in finding.match.message:
        return BY_ANSWER
    match [repair[1] for repair in COMMAND.finditer(finding.fix)]:
        case [repair] if set(repair.split()) <= set(command.split()):
            return BY_NEXT
        case [repair]:
            return f"run `{repair}`"
    return finding.fix.partition("; ")[0]


def _is_worse(finding: Finding) -> bool:
    return finding.severity != "note"


def _command(text: str) -> str:
    """The first command in a text, or ""."""
    match = COMMAND.search(text)
    return match[1] if match else ""


def _unchecked(title: str, groups: Sequence[UncheckedGroup]) -> list[Section]:
    rows = [(plural(len(ids), "rule"), f"{reason} ({', '.join(ids)})") for reason, ids in groups]
    table = Table(("rules", "why"), _quiet(rows), is_whole=True, is_bare=True)
    return [Section(title, [table], is_more=True)]


def _quiet(rows: Iterable[tuple[str, str]]) -> list[tuple[Line, ...]]:
    return [(name, Words(text, "quiet")) for name, text in rows]


def fingerprints(findings: Sequence[Finding]) -> list[str]:
    """Return a stable name for each finding, from its rule, its place and its engines, not its message."""
    from hashlib import sha256  # late: it loads OpenSSL

    counts: Counter[tuple[str, ...]] = Counter()
    names = []
    for finding in findings:
        engines = sorted({engine.split("=")[0] for engine in finding.match.engines})
        key = (finding.rule.id, finding.match.where, *engines)
        counts[key] += 1
        names.append(sha256("\0".join((*key, str(counts[key]))).encode(errors="replace")).hexdigest())
    return names


def first_findings(findings: Iterable[Finding]) -> tuple[list[Finding], list[str]]:
    """Return the first findings of each rule, and a sentence for each rule that has more of them."""
    counts: Counter[tuple[str, str]] = Counter()
    first = []
    for finding in findings:
        name = (finding.rule.id, finding.rule.name)
        counts[name] += 1
        if counts[name] <= MOST_FINDINGS:
            first.append(finding)
    more = [
        f"and {count - MOST_FINDINGS:,} more of {rule} {name}; --json lists all"
        for (rule, name), count in counts.items()
        if count > MOST_FINDINGS
    ]
    return first, more


def rules_of(report: Report) -> list[Rule]:
    """Return every rule that ran, by id."""
    findings = [*report.findings, *(suppressed.finding for suppressed in report.suppressed)]
    looked = [*report.passed, *(finding.rule for finding in findings)]
    return sorted_rules([*looked, *(unchecked.rule for unchecked in report.unchecked)])


def sorted_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Return each rule once, by id."""
    return sorted({rule.id: rule for rule in rules}.values(), key=lambda rule: rule.number)


def unchecked_groups(report: Report) -> list[UncheckedGroup]:
    """Return the reasons why rules could not look, with their ids; those that the policy requires first."""
    ids_by_reason = grouped(
        ((not unchecked.is_required, unchecked.reason), unchecked.rule.id) for unchecked in report.unchecked
    )
    groups = sorted(ids_by_reason.items(), key=lambda item: (item[0][0], -len(item[1])))
    suffixes = {False: " (required)", True: ""}
    return [(f"{reason}{suffixes[is_optional]}", ids) for (is_optional, reason), ids in groups]


def required_reasons(report: Report) -> Iterator[tuple[Rule, str]]:
    """Yield why required rules could not look: the first rule of each reason, and of how many it is."""
    required = (unchecked for unchecked in report.unchecked if unchecked.is_required)
    for reason, rules in grouped((unchecked.reason, unchecked.rule) for unchecked in required).items():
        last = rules[-1]
        more = f" ({len(rules)} rules, the last is {last.id} {last.name})" if len(rules) > 1 else ""
        yield rules[0], f"{reason}{more}"


def common_unchecked(reports: Sequence[Report]) -> list[UncheckedGroup]:
    """Return the groups of `unchecked_groups` that all of several readable checkpoints share."""
    readable = [report for report in reports if not report.problem and not report.skipped]
    if len(readable) < 2:
        return []
    others = [unchecked_groups(report) for report in readable[1:]]
    return [group for group in unchecked_groups(readable[0]) if all(group in other for other in others)]


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
    if not rules_of(report):
        return "no rule could look"
    if report.unchecked:
        parts.append(f"{plural(len(report.unchecked), 'rule')} could not look")
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
    return "; ".join(
        filter(None, (f"{plural(len(reports), 'checkpoint')}: {outcomes}", ", ".join(_severities(reports))))
    )


def _severities(reports: Sequence[Report]) -> list[str]:
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    return [plural(counts[severity], severity) for severity in WORST_FIRST if counts[severity]]


def policy_line(reports: Sequence[Report]) -> str:
    """Return which severity fails, the policies that were applied, and how many rules they weaken."""
    policies = sorted({report.policy for report in reports})
    thresholds = {report.fail_on for report in reports}
    effect = "never fails" if thresholds == {None} else f"fails on {next(iter(thresholds))}"
    off = {rule for report in reports for rule in report.off}
    lowered = {rule for report in reports for rule in report.lowered}
    counts = ((len(off), "off"), (len(lowered), "of lower severity"))
    weakened = [f"{number} {what}" for number, what in counts if number]
    rules = f" (rules: {', '.join(weakened)})" if weakened else ""
    return f"{effect}; policy: {', '.join(policies)}{rules}"


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


def suppression_rows(report: Report) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield titles with rows of a rule and a reason: suppressed findings, unused and expired suppressions."""
    counts = Counter((suppressed.finding.rule.id, suppressed.by) for suppressed in report.suppressed)
    if counts:
        rows = [
            (rule, f"{plural(count, 'finding')}: {_reason(suppression)}")
            for (rule, suppression), count in counts.items()
        ]
        yield "suppressed", rows
    unused = [suppression for suppression in report.unused if suppression not in report.expired]
    for title, idle in (("unused suppressions", unused), ("expired suppressions", report.expired)):
        if idle:
            yield title, [(suppression.rule, _reason(suppression)) for suppression in idle]


def _reason(suppression: Suppression) -> str:
    until = f"until {suppression.until}" if suppression.until else ""
    limits = ", ".join(filter(None, (suppression.where, until)))
    return f"{suppression.reason} ({limits})" if limits else suppression.reason


def rule_url(rule: Rule) -> str:
    """Return where a rule is documented: $EAGLECTL_DOCS_URL, the repository, or else a command."""
    known = repository()
    page = os.environ.get(DOCS_VARIABLE) or (f"{known}/blob/HEAD/{DOCS}" if known else "")
    return f"{page}#{rule.id.lower()}-{rule.name.replace('.', '')}" if page else f"eaglectl rules {rule.id}"
