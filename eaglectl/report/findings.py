"""`validate`: its outline, the places of findings in files, and its JSON documents."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.engines.engine import Verdict
from eaglectl.errors import EaglectlError
from eaglectl.files.layout import INDEX, SINGLE
from eaglectl.files.source import FolderSource
from eaglectl.judge.judgement import Report, Suppressed, Unchecked, overall_verdict
from eaglectl.judge.rule import SEVERITIES, Finding, Match, Rule, Suppression
from eaglectl.project import repository
from eaglectl.report.documents import Parts, document, part
from eaglectl.report.section import (
    Entries,
    Entry,
    Line,
    Lines,
    Outline,
    Section,
    Table,
    Words,
    first_line,
    grouped,
    toned,
)
from eaglectl.report.wording import (
    MOST_CAUSES,
    answer_line,
    choice_section,
    engine_ranges,
    plural,
    release_table,
    shortened,
    unserved_words,
)
from eaglectl.text import listed
from eaglectl.verdicts import CheckVerdict, first_word

# the page of the rules in the repository; the variable names another address for it
DOCS = "docs/rules.md"
DOCS_VARIABLE = "EAGLECTL_DOCS_URL"
COPIED = "the weights are pickles: eaglectl copied them to a temporary folder and ran no code in them"
# the most findings of one rule that are shown to people
MOST_FINDINGS = 20
# the most findings without -v
MOST_SHOWN = 3
USUAL_POLICY = "fails on error; policy: built in"
# rules that report that there is no drafter
NO_DRAFTER = ("one-weight-source", "not-a-drafter")


def reports_outline(reports: Sequence[Report], *, is_quiet: bool = False) -> Outline:
    """Return each checkpoint's verdict and first findings, then totals; if quiet, only what fails."""
    verdict, parts = toned(overall_verdict(reports)), [_part(report, is_quiet=is_quiet) for report in reports]
    totals, policy = total(reports), _policy_line(reports)
    lead = (Words(totals, "strong"), " ", Words(f"({policy})", "quiet"))
    word = "" if len(reports) == 1 else f"{first_word(overall_verdict(reports))}: "
    notes = "" if policy == USUAL_POLICY else f"  ({policy})"
    last: list[Line] = [(f"{word}{totals}", Words(notes, "quiet"))]
    repairs = [
        repair
        for report, part in zip(reports, parts, strict=True)
        for repair in _repairs(
            [finding for finding in _first(report, is_quiet=is_quiet) if is_quiet or _is_worse(finding)],
            part.next if len(reports) == 1 else "",
        )
    ]
    last += [f"fixable by: {listed(dict.fromkeys(repairs), '; ')}"] if repairs else []
    if len(parts) == 1:
        return replace(parts[0], lead=lead, last=last, is_dense=is_quiet or _is_unreadable(reports[0]))
    rows = [(Words(report.path, is_code=True), toned(report.verdict), counted(report)) for report in reports]
    overview = Section("Checkpoints", [Table(("checkpoint", "verdict", ""), rows)], only="markdown")
    return Outline("validate", verdict, "", lead, "", [overview], last, parts, is_quiet)


def _part(report: Report, *, is_quiet: bool) -> Outline:
    # a report as one part of the result: first line, causes, findings, next command
    named = () if report.default_engines else report.releases
    words = unserved_words((verdict.outcome, verdict) for verdict in named)
    head = first_line(report.verdict, Words(report.path, "strong"), f": {_worst(report)}", *words)
    first, command = _first(report, is_quiet=is_quiet), "" if is_quiet else _next(report)
    is_explained = report.verdict == CheckVerdict.PASS or (first and not report.problem)
    cause = [] if is_quiet and is_explained else _causes(report, first)
    cause += _losses(report) if command else []
    sections = [choice_section(report.following), _findings(report, first)]
    if not is_quiet and not _is_unreadable(report):
        sections += [replace(section, is_more=True) for section in _more(report, first)]
    verdict = toned(report.verdict)
    return Outline("validate", verdict, report.path, "", head, sections, cause=cause, next=command)


def _losses(report: Report) -> Iterator[Line]:
    """Yield which engines no longer run the drafter as trained after the next command."""
    lost = [step.lost for change in report.changes for step in change.steps if step.lost]
    yield from (f"after the next command {engines} will not run it as trained" for engines in lost[:1])


def _next(report: Report) -> str:
    repairs = (*report.changes, *(finding.repair for finding in report.findings if _is_worse(finding)))
    commands = (offered for repair in repairs for offered in repair.commands)
    return next((offered.line for offered in commands if not offered.lacks_target), "")


def _more(report: Report, first: Sequence[Finding]) -> Iterator[Section]:
    # the sections that -v shows
    rest = [finding for finding in report.findings if finding not in first]
    yield _findings(report, rest, "More findings")
    others = [finding for finding in report.findings if finding in rest or not _is_worse(finding)]
    yield Section("More fixes", [Lines(_repairs(others, _next(report)))], only="terminal")
    yield Section("Releases", [release_table(report.releases)], _why_judged(report))
    yield Section("Smallest change", [Lines(report.smallest_changes)], "that makes all pass")
    yield _unchecked(report)
    yield from _suppressions(report)
    lines = [f"target: {report.target}"] if report.target else []
    lines += [COPIED] if report.is_of_copy else []
    yield Section("Target", [Lines([Words(line, "quiet") for line in lines])])


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


def _causes(report: Report, first: Sequence[Finding]) -> list[Line]:
    """Return what the engine releases do, and the gaps that none of the `first` findings states."""
    if _is_unreadable(report) or report.skipped:
        problem = report.problem and f"could not be read: {report.problem}"
        return [text for text in (problem, report.skipped) if text]
    keys = {finding.match.key or finding.rule.id for finding in first}
    gaps: dict[str, str] = {}
    for key, gap in _gaps(report):
        gaps.setdefault(key, gap)
    causes: list[Line] = [answer_line(report.releases, report.trained)] if report.releases else []
    return [*causes, *[gap for key, gap in gaps.items() if key not in keys][:MOST_CAUSES]]


def _gaps(report: Report) -> Iterator[tuple[str, str]]:
    """Yield why required rules could not look, and the faults of engine releases that no rule reports."""
    yield from ((gap.key, f"could not look: {gap.reason}") for gap in report.unchecked if gap.is_required)
    for verdict in report.releases:
        if not verdict.rules and not verdict.outcome.is_served:
            yield from verdict.keyed_reasons
    if report.unreported:
        yield from ((note.key, note.reason) for note in report.open_notes)


def _first(report: Report, *, is_quiet: bool) -> list[Finding]:
    """Return the findings to show without -v: the first of each rule, without notes unless all are notes.

    If quiet, return all that fail.
    """
    if is_quiet:
        return [finding for finding in report.findings if finding.fails(report.fail_on)]
    if _is_unreadable(report):
        errors = [finding for finding in report.findings if finding.severity == "error"]
        return sorted(errors, key=lambda finding: finding.rule.name not in NO_DRAFTER)
    by_rule = grouped((finding.rule.id, finding) for finding in report.findings)
    firsts = [group[0] for group in by_rule.values()]
    return (list(filter(_is_worse, firsts)) or firsts)[:MOST_SHOWN]


def _findings(report: Report, findings: Sequence[Finding], title: str = "Findings") -> Section:
    # the first findings, and sentences on the rest
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
    rest = [Words(sentence, "quiet") for sentence in more]
    return Section(title, [Entries(rows), Lines(rest)], has_heading=title != "Findings")


def _repairs(findings: Iterable[Finding], command: str) -> list[str]:
    rules = grouped((_repair(finding, command), finding.rule.id) for finding in findings)
    return [f"{repair} ({', '.join(dict.fromkeys(ids))})" for repair, ids in rules.items()]


def _repair(finding: Finding, command: str) -> str:
    # the fix in a few words: the next command, a command, or its first steps
    if finding.match.options:
        return "one of the options that the finding names"
    match finding.repair.commands:
        case [offered] if set(offered.line.split()) <= set(command.split()):
            return "the next command"
        case [offered]:
            return f"`{offered.line}`"
    first = takewhile(lambda step: step.lead != "; ", finding.repair.steps)
    return replace(finding.repair, steps=tuple(first), end="").text


def _is_worse(finding: Finding) -> bool:
    return finding.severity != "note"


def _unchecked(report: Report) -> Section:
    """Return the reasons why rules could not look, those of required rules first."""
    groups = grouped(((gap.is_required, gap.reason), gap.rule.id) for gap in report.unchecked)
    rows = [
        (plural(len(ids), "rule"), f"{reason}{' (required)' * is_required} ({', '.join(ids)})")
        for (is_required, reason), ids in sorted(
            groups.items(), key=lambda item: (not item[0][0], -len(item[1]))
        )
    ]
    return Section("Could not look", [Table(("rules", "why"), _quiet(rows), is_whole=True, is_bare=True)])


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


def _is_unreadable(report: Report) -> bool:
    """Whether there was no drafter to look at: no files, no weights, or another model."""
    is_none = any(finding.rule.name in NO_DRAFTER for finding in report.findings)
    return bool(report.problem) or (is_none and len(report.passed) <= len(report.unchecked))


def counted(report: Report) -> str:
    """Return how many findings of each severity there are, and how many rules could not look and passed."""
    if report.skipped:
        return "not judged"
    parts = _severities([report])
    parts += [f"{len(report.suppressed)} suppressed"] if report.suppressed else []
    parts += [f"{plural(len(report.unchecked), 'rule')} could not look"] if report.unchecked else []
    return (
        ", ".join([*parts, f"{len(report.passed)} passed"])
        if parts or report.passed
        else "no rule could look"
    )


def _worst(report: Report) -> str:
    if report.problem or report.skipped:
        return "not read" if report.problem else "not judged"
    parts = _severities([report])
    return ", ".join(part for part in parts if "note" not in part) or ", ".join(["no errors", *parts])


def total(reports: Sequence[Report]) -> str:
    """Return the counts over all checkpoints."""
    if len(reports) == 1:
        return counted(reports[0])
    verdicts = sorted(Counter(first_word(report.verdict) for report in reports).items())
    outcomes = ", ".join(f"{count} {verdict}" for verdict, count in verdicts)
    parts = (f"{plural(len(reports), 'checkpoint')}: {outcomes}", ", ".join(_severities(reports)))
    return "; ".join(filter(None, parts))


def _severities(reports: Sequence[Report]) -> list[str]:
    counts = Counter(finding.severity for report in reports for finding in report.findings)
    return [plural(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity]]


def _policy_line(reports: Sequence[Report]) -> str:
    # what fails, by which policy, and how many rules it turns off or lowers
    policies = ", ".join(sorted({report.policy for report in reports}))
    fail_on = next((f"fails on {report.fail_on}" for report in reports if report.fail_on), "never fails")
    weakened = {
        "off": {rule for report in reports for rule in report.off},
        "of lower severity": {rule for report in reports for rule in report.lowered},
    }
    counts = ", ".join(f"{len(rules)} {what}" for what, rules in weakened.items() if rules)
    return f"{fail_on}; policy: {policies}{f' (rules: {counts})' if counts else ''}"


def _why_judged(report: Report) -> str:
    """Return the releases judged by default, why, and how to name others; "" if there are none."""
    if not report.releases or not report.default_engines:
        return ""
    by_reason = grouped((why, release.replace("==", " ")) for release, why in report.default_engines)
    releases = ", ".join(f"{' and '.join(names)} ({why})" for why, names in by_reason.items())
    engine = report.default_engines[0][0].partition("==")[0]
    return (
        f"judged by default for {releases}; --engine {engine} judges only for {engine}, --no-engines only by"
        " rules"
    )


def _reason(suppression: Suppression) -> str:
    limits = [suppression.where] if suppression.where else []
    limits += [f"until {suppression.until}"] if suppression.until else []
    return f"{suppression.reason} ({', '.join(limits)})" if limits else suppression.reason


def rule_url(rule: Rule) -> str:
    """Return where a rule is documented: $EAGLECTL_DOCS_URL, the repository, or else a command."""
    address = repository()
    page = os.environ.get(DOCS_VARIABLE) or (f"{address}/blob/HEAD/{DOCS}" if address else "")
    return f"{page}#{rule.id.lower()}-{rule.name.replace('.', '')}" if page else f"eaglectl rules {rule.id}"


# the most characters in the path of a key; findings name far shorter paths
MAX_PLACE = 4096
# strings (a string with a colon behind it is a key) and brackets
DECODER = json.JSONDecoder(strict=False)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}\[\]]', re.DOTALL)


class Place(Struct, frozen=True):
    """A file as given by the caller; `line` and `column` count from 1, `logical` names a tensor."""

    path: str
    line: int | None = None
    column: int | None = None
    logical: str = ""

    @property
    def uri(self) -> str:
        """The file as a URI; a relative path gives a relative URI."""
        path = quote(self.path, errors="replace")
        return f"file://{path}" if Path(self.path).is_absolute() else path


class Places:
    """Finds places in the files of one checkpoint; a file that cannot be read has no lines."""

    def __init__(self, path: str) -> None:
        self.root, self.only_file = Path(path), ""
        if os.path.isfile(path):  # noqa: PTH113, as no name is too long for it
            self.root, self.only_file = self.root.parent, self.root.name
        self.texts: dict[str, str] = {}

    def find(self, where: str) -> Place:
        """Return the place that the `where` of a match names."""
        if where.startswith("tensor:"):
            file = self.weight_map.get(where.removeprefix("tensor:")) or self.only_file
            file = file or next((name for name in self.names if name.endswith(".safetensors")), SINGLE)
            return Place(self._path(file), logical=where)
        file, _, key = where.partition(":")
        if not where:
            file = "config.json" if "config.json" in self.names else self.only_file
        elif not file.endswith(".json") or where in self.names:
            file, key = where, ""
        text = self._text(file) if key else ""
        offset = key_offset(text, key)
        if offset is None:
            return Place(self._path(file), 1 if file.endswith(".json") else None)
        before = text[:offset]
        return Place(self._path(file), before.count("\n") + 1, offset - before.rfind("\n"))

    def code(self, where: str) -> str:
        """Return the line of the key that the `where` of a match names, with its value; "" for no key."""
        file, _, key = where.partition(":")
        text = self._text(file) if key and file.endswith(".json") else ""
        offset = key_offset(text, key)
        if offset is None:
            return ""
        name, end = DECODER.raw_decode(text, offset)
        value, _ = DECODER.raw_decode(text[end:].lstrip(" \t\r\n:"))
        line = text[:offset].count("\n") + 1
        return f"{file}:{line} {shortened(f'{json.dumps(name)}: {json.dumps(value)}')}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files of the checkpoint."""
        try:
            return FolderSource(self.root).names()
        except (EaglectlError, OSError, ValueError):
            return ()

    @cached_property
    def weight_map(self) -> Mapping[str, str]:
        """The shard of each tensor, from the index; empty without one."""
        try:
            entries = json.loads(self._text(INDEX))["weight_map"].items()
            return {name: file for name, file in entries if isinstance(file, str)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _path(self, file: str) -> str:
        path = self.root / file
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return path.as_posix()

    def _text(self, file: str) -> str:
        if file not in self.texts:
            try:
                self.texts[file] = FolderSource(self.root).read(file).decode("utf-8-sig", "replace")
            except (EaglectlError, OSError, ValueError):
                self.texts[file] = ""
        return self.texts[file]


def key_offset(text: str, key: str) -> int | None:
    """Return the offset of a dotted key in a JSON object, or of its nearest parent; None without either.

    A list is "[]" in a path; of equal paths the last counts.
    """
    offsets = _key_offsets(text)
    ends = [len(key), *(end.start() for end in re.finditer(r"[.\[]", key))]
    return next((offsets[key[:end]] for end in sorted(ends, reverse=True) if key[:end] in offsets), None)


@lru_cache(maxsize=4)
def _key_offsets(text: str) -> Mapping[str, int]:
    # by path, without paths longer than MAX_PLACE
    offsets: dict[str, int] = {}
    path: list[str] = []  # the last key of each open object; no path has that of a list
    try:
        for token in TOKEN.finditer(text):
            match token[0][0]:
                case "{":
                    path.append("")
                case "[":
                    path.append("[]")
                case "}" | "]":
                    path.pop()
                case '"' if token[1]:
                    path[-1] = json.loads(token[0].removesuffix(token[1]))
                    if sum(map(len, path)) <= MAX_PLACE:
                        offsets[".".join(path)] = token.start()
    except (ValueError, IndexError):
        return {}
    return offsets


PARTS: Parts = {
    Rule: ("rule=id", "name"),
    Match: ("message", "where", "engines"),
    Finding: ("*rule", "severity", "*match", "fix", ("url", lambda finding: rule_url(finding.rule))),
    Verdict: (
        *("engine", "release", "verdict=outcome.check", "rules", "reasons", "unread"),
        "options=start_options",
    ),
    Unchecked: ("*rule", "reason", "is_required"),
    Suppressed: ("*finding", "reason=by.reason", "until=by.until"),
    Suppression: ("rule", "where", "reason", "until"),
    Report: (
        "source=path",
        "engines",
        "target",
        "target_digest",
        "verdict",
        "problem",
        "skipped",
        "policy",
        ("fail_on", lambda report: report.fail_on or "never"),
        "off",
        "lowered",
        "findings",
        "releases",
        "ways_out=smallest_changes",
        "could_not_look=unchecked",
        "suppressed",
        "unused_suppressions=unused",
        "expired_suppressions=expired",
        ("passed", lambda report: [rule.id for rule in report.passed]),
    ),
}


def validate_document(reports: Sequence[Report]) -> dict[str, Any]:
    """Return eaglectl/validate/1, in which one report stands without a list."""
    entries = [part(report, PARTS) for report in reports]
    keys = {"verdict": str(overall_verdict(reports)), "reports": entries}
    return document("eaglectl/validate/1", entries[0] if len(entries) == 1 else keys)
