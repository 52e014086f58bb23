"""The page of `validate`: findings by severity with the way out, and what each rule is about."""

from collections.abc import Iterable, Iterator, Sequence

from eaglectl.reports import wording
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import (
    NOTHING,
    Content,
    Markup,
    command,
    element,
    join,
    mark,
    prose,
    section,
    table,
)
from eaglectl.reports.tallies import (
    Blindness,
    asked,
    blindness,
    counted,
    plural,
    release_rows,
    rule_url,
    shared_blindness,
    suppressions,
    total,
)
from eaglectl.validation.judging import Report, merged
from eaglectl.validation.rule import SEVERITIES, Finding, Rule

TONES = {"pass": "good", "fail": "bad", "could-not-look": "doubt", "error": "bad", "warning": "doubt", "note": "plain"}


def validation_page(reports: Sequence[Report]) -> Page:
    """The page over one checkpoint or several; a rule that found something in any of them is explained once, at the end."""
    verdict, common = merged(reports), shared_blindness(reports)
    lead = element("p", element("strong", total(reports)), " ", element("span", f"({asked(reports)})", class_="quiet"), class_="lead")  # fmt: skip
    body = [_overview(reports)] if len(reports) > 1 else []
    body += [_part(number, report, common, is_alone=len(reports) == 1) for number, report in enumerate(reports)]
    body += [_blindness("could not look, in every checkpoint", common), _rules(reports)]
    subject = reports[0].path if len(reports) == 1 else ""
    return Page("validate", verdict, TONES[verdict], subject, lead, join(body))


def _overview(reports: Sequence[Report]) -> Markup:
    rows = (
        (element("a", report.path, href=f"#checkpoint-{number}"), _verdict(report), counted(report))
        for number, report in enumerate(reports)
    )
    return section("Checkpoints", table("Checkpoints", ("checkpoint", "verdict", ""), rows))


def _verdict(report: Report) -> Markup:
    return mark(report.verdict, TONES[report.verdict])


def _part(number: int, report: Report, common: Sequence[Blindness], *, is_alone: bool) -> Markup:
    title = element(
        "h2", element("span", report.path, class_="subject"), " ", _verdict(report), id=f"checkpoint-{number}"
    )
    problem = element("p", f"could not be read: {report.problem}", class_="problem") if report.problem else None
    if is_alone:
        return join([problem, *_sections(report, common, 2)])
    return element("article", title, problem, *_sections(report, common, 3))


def _sections(report: Report, common: Sequence[Blindness], level: int) -> Iterator[Markup]:
    yield section("Findings", *_findings(report, level + 1), level=level)
    served = "served as trained by"
    yield section(served, table(served, ("releases", "outcome", "why"), _releases(report)), level=level)
    yield section("smallest change that makes all pass", *map(command, report.ways_out), level=level)
    yield _blindness("could not look", [] if report.problem else [one for one in blindness(report) if one not in common], level)  # fmt: skip
    for title, rows in suppressions(report):
        yield section(title, table(title, ("rule", "reason"), rows), level=level)


def _releases(report: Report) -> Iterator[Sequence[Content]]:
    for releases, outcome, why in release_rows(report):
        yield releases, mark(outcome, TONES[outcome]), why


def _findings(report: Report, level: int) -> Iterator[Markup]:
    for severity in reversed(SEVERITIES):
        found = [one for one in report.findings if one.severity == severity]
        if found:
            yield element(f"h{level}", plural(len(found), severity))
            yield element("ul", *map(_finding, found), class_="findings")


def _finding(one: Finding) -> Markup:
    head: list[Content] = [mark(one.severity, TONES[one.severity]), " "]
    head.append(element("a", f"{one.rule.id} {one.rule.name}", href=f"#{one.rule.id.lower()}"))
    head += [" ", element("code", one.hit.where)] if one.hit.where else []
    head += [" ", element("span", wording.engines(one.hit.engines), class_="quiet")] if one.hit.engines else []
    fix = element("p", element("b", "fix:"), " ", prose(one.fix), class_="fix")
    return element("li", element("p", *head, class_="head"), element("p", one.hit.message), fix)


def _blindness(title: str, found: Sequence[Blindness], level: int = 2) -> Markup:
    rows = ((plural(len(ids), "rule"), f"{reason} ({', '.join(ids)})") for reason, ids in found)
    return section(title, table(title, ("", ""), rows), level=level)


def _rules(reports: Iterable[Report]) -> Markup:
    """What each rule with a finding is about, in the words of `eaglectl explain`."""
    met = {one.rule.id: one.rule for report in reports for one in report.findings}
    return section("Rules", *map(_rule, met.values()), about="of the findings above, as eaglectl explain has them")


def _rule(rule: Rule) -> Markup:
    url = rule_url(rule)
    # a path into the repository leads nowhere from where a page lies
    link = element("a", "its page", href=url, rel="noreferrer") if url.startswith(("https://", "http://")) else None
    why = join([element("p", prose(rule.why)), element("p", element("b", "fix:"), " ", prose(rule.fix)), command(f"eaglectl explain {rule.id}"), element("p", link) if link else NOTHING])  # fmt: skip
    head = join([element("b", f"{rule.id} {rule.name}"), " ", prose(rule.sentence)])
    # a link to what lies in closed details opens them
    return element("details", element("summary", head), element("div", why, id=rule.id.lower()))
