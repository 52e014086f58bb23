"""The page of `smoke`: the verdict, acceptance by position as bars with intervals, and the probes."""

from collections.abc import Iterator, Sequence

from eaglectl.acceptance.measurement import Estimate
from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports import acceptance as shared
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import Content, Markup, element, join, mark, pairs, remarks, section, table

TONES = {
    "pass": "good",
    "fail": "bad",
    "could-not-look": "doubt",
    "could not look": "doubt",
    "note": "plain",
    "yes": "bad",
    "no": "good",
}
# pixels: the height of a bar, the line of its interval, half the height of its ends
BAR, MIDDLE, CAP = 18, 9, 4


def smoke_page(report: SmokeReport) -> Page:
    """The page of one run."""
    lead = element("p", element("strong", shared.length(report)), class_="lead")
    return Page("smoke", report.verdict.upper(), TONES[report.verdict], report.source, lead, _body(report))


def _body(report: SmokeReport) -> Markup:
    findings = [(kind, TONES[kind], text) for kind, text in shared.reasons(report)]
    positions = table(
        "Acceptance by position", ("", "accepted", ""), _positions(report.measured.per_position), "figures"
    )
    return join(
        [
            section("Findings", remarks(findings)),
            section("Run", pairs(shared.facts(report))),
            section(
                "Acceptance",
                positions,
                _table("Acceptance", shared.acceptance(report), "figures"),
                about=shared.DEFINITION,
            ),
            _against(report),
            _variants(report),
            _drift(report),
            element("p", shared.resolved(report), class_="about"),
        ]
    )


def _against(report: SmokeReport) -> Markup | None:
    if report.against is None:
        return None
    title = f"against {report.against.source}"
    text = element("p", shared.compared(report.against))
    return section(title, text, _table(title, shared.set_ratios(report.against)))


def _variants(report: SmokeReport) -> Markup | None:
    if not report.variants:
        return None
    title = shared.VARIANTS_TITLE
    rows = ((*cells, mark(better, TONES[better])) for *cells, better in shared.variants(report))
    return section(title, table(title, shared.VARIANT_HEAD, rows, "figures"), about=shared.RATIO)


def _drift(report: SmokeReport) -> Markup | None:
    if not report.drift_conditions:
        return None
    title = shared.DRIFT_TITLE
    return section(title, _table(title, shared.drift(report)), about=shared.DRIFT_CELLS)


def _table(label: str, cells: shared.Cells, kind: str = "") -> Markup:
    head, *rows = cells
    return table(label, head, rows, kind)


def _positions(shares: Sequence[Estimate]) -> Iterator[Sequence[Content]]:
    for position, share in enumerate(shares):
        yield f"position {position}", shared.share(share), _bar(share)


def _bar(share: Estimate) -> Markup:
    """The share as a bar and its interval as a line; hidden from screen readers, which read the numbers."""
    low, high = _percent(share.low), _percent(share.high)
    return element(
        "svg",
        element("rect", class_="whole", width="100%", height=str(BAR)),
        element("rect", class_="share", width=_percent(share.value), height=str(BAR)),
        element("line", x1=low, x2=high, y1=str(MIDDLE), y2=str(MIDDLE)),
        *(element("line", x1=x, x2=x, y1=str(MIDDLE - CAP), y2=str(MIDDLE + CAP)) for x in (low, high)),
        class_="bar",
        height=str(BAR),
        width="100%",
        aria_hidden="true",
    )


def _percent(share: float) -> str:
    return f"{share:.2%}"
