"""The page of `smoke`: the verdict, acceptance by position as bars with intervals, and the probes."""

from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports import acceptance as shared
from eaglectl.reports.pages.bars import position_rows
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import Markup, element, join, mark, pairs, remarks, section, table

TONES = {
    "pass": "good",
    "fail": "bad",
    "could-not-look": "doubt",
    "could not look": "doubt",
    "note": "plain",
    "yes": "bad",
    "no": "good",
}


def smoke_page(report: SmokeReport) -> Page:
    """The page of one run."""
    lead = element("p", element("strong", shared.length(report)), class_="lead")
    return Page("smoke", report.verdict.upper(), TONES[report.verdict], report.source, lead, _body(report))


def _body(report: SmokeReport) -> Markup:
    findings = [(kind, TONES[kind], text) for kind, text in shared.reasons(report)]
    positions = table(
        "Acceptance by position", ("", "accepted", ""), position_rows(report.measured.per_position), "figures"
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
