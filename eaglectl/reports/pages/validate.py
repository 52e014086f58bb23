"""The page of `validate`: findings by severity with their fixes, and an explanation of each rule."""

from collections.abc import Iterable, Iterator, Sequence

from eaglectl.reports.findings import (
    WORST_FIRST,
    UncheckedGroup,
    common_unchecked,
    counted,
    default_engines_line,
    first_findings,
    own_unchecked,
    policy_line,
    release_rows,
    rule_url,
    suppression_rows,
    total,
)
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import (
    Content,
    Markup,
    command,
    element,
    join,
    mark,
    name,
    prose,
    section,
    table,
)
from eaglectl.reports.pages.svg import Cell, timelines
from eaglectl.reports.wording import engine_ranges, plural
from eaglectl.validation.finding import Finding
from eaglectl.validation.judge import Report, overall_verdict
from eaglectl.validation.rule import Rule
from eaglectl.verdicts import CheckVerdict

TONES = {
    CheckVerdict.PASS: "good",
    CheckVerdict.FAIL: "bad",
    CheckVerdict.COULD_NOT_LOOK: "doubt",
    CheckVerdict.SKIPPED: "plain",
    "error": "bad",
    "warning": "doubt",
    "note": "plain",
}


def validate_page(reports: Sequence[Report]) -> Page:
    """Return the page of one checkpoint or several; rules with findings are explained at the end."""
    verdict, common = overall_verdict(reports), common_unchecked(reports)
    counts = element("strong", total(reports))
    policy = element("span", f"({policy_line(reports)})", class_="quiet")
    judged = element("span", default_engines_line(reports), class_="quiet")
    lead = element("p", counts, " ", policy, " ", judged, class_="lead")
    after = [_unchecked("could not look, in every checkpoint", common), _rules(reports)]
    if len(reports) == 1:
        body = join([_problem(reports[0]), *_sections(reports[0], common, 2), *after])
        return Page("validate", verdict, TONES[verdict], reports[0].path, lead, body)
    articles = (_article(number, report, common) for number, report in enumerate(reports))
    body = join([_overview(reports), *articles, *after])
    return Page("validate", verdict, TONES[verdict], "", lead, body)


def _overview(reports: Sequence[Report]) -> Markup:
    rows = (
        (element("a", name(report.path), href=f"#checkpoint-{number}"), _verdict(report), counted(report))
        for number, report in enumerate(reports)
    )
    return section("Checkpoints", table("Checkpoints", ("checkpoint", "verdict", ""), rows))


def _verdict(report: Report) -> Markup:
    return mark(report.verdict, TONES[report.verdict])


def _article(number: int, report: Report, common: Sequence[UncheckedGroup]) -> Markup:
    path = element("span", name(report.path), class_="subject")
    title = element("h2", path, " ", _verdict(report), id=f"checkpoint-{number}")
    return element("article", title, _problem(report), *_sections(report, common, 3))


def _problem(report: Report) -> Markup | None:
    if report.skipped:
        return element("p", f"no drafter: {report.skipped}", class_="quiet")
    if not report.problem:
        return None
    return element("p", f"could not be read: {report.problem}", class_="problem")


def _sections(report: Report, common: Sequence[UncheckedGroup], level: int) -> Iterator[Markup]:
    yield section("Findings", *_findings(report, level + 1), level=level)
    served = "served as trained by"
    yield section(
        served,
        _timeline(report),
        table(served, ("releases", "outcome", "why"), _releases(report), "reasons"),
        level=level,
    )
    changes = (element("p", prose(change)) for change in report.smallest_changes)
    yield section("smallest change that makes all pass", *changes, level=level)
    yield _unchecked("could not look", own_unchecked(report, common), level)
    for title, rows in suppression_rows(report):
        yield section(title, table(title, ("rule", "reason"), rows), level=level)


def _timeline(report: Report) -> Markup:
    """Return the releases of each engine, oldest first, as cells with their outcome and its reason."""
    rules = {finding.rule.id: finding.rule for finding in report.findings}
    engines: dict[str, list[Cell]] = {}
    for verdict in report.releases:
        reasons = [f"{rule} {rules[rule].name}" if rule in rules else rule for rule in verdict.rules]
        told = filter(None, (verdict.outcome, ", ".join(reasons), "; ".join(verdict.reasons)))
        words = ": ".join(told)
        cell = Cell(verdict.release or verdict.engine, TONES[verdict.outcome], words)
        engines.setdefault(verdict.engine, []).append(cell)
    return timelines(engines)


def _releases(report: Report) -> Iterator[Sequence[Content]]:
    for releases, outcome, reason in release_rows(report):
        yield releases, mark(outcome, TONES[outcome]), reason


def _findings(report: Report, level: int) -> Iterator[Markup]:
    for severity in WORST_FIRST:
        findings = [finding for finding in report.findings if finding.severity == severity]
        if findings:
            yield element(f"h{level}", plural(len(findings), severity))
            first, more = first_findings(findings)
            yield element("ul", *map(_finding, first), class_="findings")
            yield from (element("p", sentence, class_="about") for sentence in more)


def _finding(finding: Finding) -> Markup:
    rule, match = finding.rule, finding.match
    link = element("a", f"{rule.id} {rule.name}", href=f"#{rule.id.lower()}")
    head: list[Content] = [mark(finding.severity, TONES[finding.severity]), " ", link]
    if match.where:
        head += [" ", element("code", name(match.where))]
    if match.engines:
        head += [" ", element("span", engine_ranges(match.engines), class_="quiet")]
    fix = element("p", element("b", "fix:"), " ", prose(finding.fix), class_="fix")
    return element("li", element("p", *head, class_="head"), element("p", prose(match.message)), fix)


def _unchecked(title: str, groups: Sequence[UncheckedGroup], level: int = 2) -> Markup:
    rows = ((plural(len(ids), "rule"), f"{reason} ({', '.join(ids)})") for reason, ids in groups)
    return section(title, table(title, ("", ""), rows), level=level)


def _rules(reports: Iterable[Report]) -> Markup:
    """Return an explanation of each rule with a finding, as `eaglectl explain` has it."""
    rules = {finding.rule.id: finding.rule for report in reports for finding in report.findings}
    about = "of the findings above, as eaglectl explain has them"
    return section("Rules", *map(_rule, rules.values()), about=about)


def _rule(rule: Rule) -> Markup:
    url = rule_url(rule)
    link = None
    # a path in the repository is of no use in a page that was sent elsewhere
    if url.startswith(("https://", "http://")):
        link = element("p", element("a", "its page", href=url, rel="noreferrer"))
    explanation = join(
        [
            element("p", prose(rule.why)),
            element("p", element("b", "fix:"), " ", prose(rule.fix)),
            command(f"eaglectl explain {rule.id}"),
            link,
        ]
    )
    head = join([element("b", f"{rule.id} {rule.name}"), " ", prose(rule.summary)])
    # the id is inside the closed details because a browser opens them for a link to it
    return element("details", element("summary", head), element("div", explanation, id=rule.id.lower()))
