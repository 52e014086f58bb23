"""The page of `smoke`: the verdict, acceptance by position as bars with their intervals, and all that the numbers rest on."""

from collections.abc import Iterator, Sequence

from eaglectl.acceptance.measurement import Estimate
from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports import smoke
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import Content, Markup, element, join, mark, pairs, remarks, section, table

TONES = {"pass": "good", "fail": "bad", "yes": "bad", "no": "good"}
BAR, MIDDLE, CAP = 18, 9, 4  # pixels: a bar's height, where its interval lies, half of what ends it


def smoke_page(report: SmokeReport) -> Page:
    """The page of one run."""
    lead = element("p", element("strong", smoke.length(report)), class_="lead")
    return Page("smoke", report.verdict.upper(), TONES[report.verdict], report.source, lead, _body(report))


def _body(report: SmokeReport) -> Markup:
    said = [("fail", "bad", text) for text in report.failures] + [("note", "plain", text) for text in report.notes]
    positions = table(
        "Acceptance by position", ("", "accepted", ""), _positions(report.measured.per_position), "figures"
    )
    return join(
        [
            section("Findings", remarks(said)),
            section("Run", pairs(smoke.facts(report))),
            section("Acceptance", positions, _table("Acceptance", smoke.acceptance(report), "figures"), about=smoke.DEFINITION),
            _against(report),
            section("Other readings of the file", _readings(report), about=smoke.RATIO) if report.readings else None,
            section("Drift by depth", _table("Drift by depth", smoke.drifts(report)), about=smoke.DRIFT_CELLS) if report.drifts else None,
            element("p", smoke.resolved(report), class_="about"),
        ]
    )  # fmt: skip


def _against(report: SmokeReport) -> Markup | None:
    if report.against is None:
        return None
    return section(f"against {report.against.source}", element("p", smoke.compared(report.against)))


def _readings(report: SmokeReport) -> Markup:
    rows = ((*cells, mark(better, TONES[better])) for *cells, better in smoke.readings(report))
    return table("Other readings of the file", smoke.READING_HEAD, rows, "figures")


def _table(label: str, cells: smoke.Cells, kind: str = "") -> Markup:
    head, *rows = cells
    return table(label, head, rows, kind)


def _positions(found: Sequence[Estimate]) -> Iterator[Sequence[Content]]:
    for place, one in enumerate(found):
        yield f"position {place}", smoke.share(one), _bar(one)


def _bar(found: Estimate) -> Markup:
    """The share as a bar, its interval as a line with ends; the numbers stand beside it, so readers aloud skip it."""
    low, high = _percent(found.low), _percent(found.high)
    return element(
        "svg",
        element("rect", class_="whole", width="100%", height=str(BAR)),
        element("rect", class_="share", width=_percent(found.value), height=str(BAR)),
        element("line", x1=low, x2=high, y1=str(MIDDLE), y2=str(MIDDLE)),
        *(element("line", x1=x, x2=x, y1=str(MIDDLE - CAP), y2=str(MIDDLE + CAP)) for x in (low, high)),
        class_="bar", height=str(BAR), width="100%", aria_hidden="true",
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{share:.2%}"
