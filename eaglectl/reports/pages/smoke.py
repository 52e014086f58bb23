"""The page of `smoke`: the verdict, acceptance by position as bars with intervals, and the probes."""

from collections.abc import Callable, Mapping, Sequence

from eaglectl.acceptance.measurement import Estimate
from eaglectl.acceptance.probe import DriftCondition
from eaglectl.acceptance.report import SmokeReport
from eaglectl.reports import acceptance as shared
from eaglectl.reports.pages.frame import Page
from eaglectl.reports.pages.markup import Markup, element, join, mark, pairs, remarks, section, table
from eaglectl.reports.pages.svg import Bar, Scale, Series, bars, fitted, line_legend, lines
from eaglectl.verdicts import CheckVerdict

TONES: Mapping[str, str] = {
    CheckVerdict.PASS: "good",
    CheckVerdict.FAIL: "bad",
    CheckVerdict.COULD_NOT_LOOK: "doubt",
    "note": "plain",
    "yes": "bad",
    "no": "good",
}
SHARES = Scale(0, 1)
# what is drawn by depth: a title, the values of a condition, and where the scale begins
DRIFT: tuple[tuple[str, Callable[[DriftCondition], Sequence[float]], float], ...] = (
    ("accepted / drafts", lambda condition: [share.value for share in condition.measured.per_position], 0),
    ("RMS of the fed-back state, over depth 0", lambda condition: condition.state_growth, 1),
    ("attention on the first token", lambda condition: condition.attention_on_first, 0),
    ("attention on own drafts", lambda condition: condition.attention_on_own, 0),
)


def smoke_page(report: SmokeReport) -> Page:
    """The page of one run."""
    lead = element("p", element("strong", shared.length(report)), class_="lead")
    return Page("smoke", report.verdict, TONES[report.verdict], report.source, lead, _body(report))


def _body(report: SmokeReport) -> Markup:
    findings = [(kind, TONES[kind], text) for kind, text in shared.reasons(report)]
    return join(
        [
            section("Findings", remarks(findings)),
            section("Run", pairs(shared.facts(report))),
            section(
                "Acceptance",
                _positions(report.measured.per_position),
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
    least = report.against.max_regression
    rows = [
        Bar(part.name, part.ratio.value, *_in_words(part.ratio), TONES[part.outcome])
        for part in report.against.sets
    ]
    caption = f"ratio of the acceptance lengths on each set, with its interval; the dashed line is {least:g}"
    drawn = _ratios(caption, rows, least, origin=1.0)
    return section(title, text, drawn, _table(title, shared.set_ratios(report.against)))


def _variants(report: SmokeReport) -> Markup | None:
    if not report.variants:
        return None
    title = shared.VARIANTS_TITLE
    rows = ((*cells, mark(better, TONES[better])) for *cells, better in shared.variants(report))
    tones = {True: "bad", False: ""}
    ratios = [
        Bar(variant.name, variant.ratio.value, *_in_words(variant.ratio), tones[variant.is_better])
        for variant in report.variants
    ]
    drawn = _ratios(
        "ratio to the stated reading, with its interval; the dashed line is 1", ratios, 1.0, origin=0.0
    )
    return section(title, drawn, table(title, shared.VARIANT_HEAD, rows, "figures"), about=shared.RATIO)


def _drift(report: SmokeReport) -> Markup | None:
    if not report.drift_conditions:
        return None
    title = shared.DRIFT_TITLE
    names = line_legend([condition.name for condition in report.drift_conditions])
    panels = [_panel(name, report.drift_conditions, values, origin) for name, values, origin in DRIFT]
    drawn = element("div", *panels, class_="panels")
    return section(title, names, drawn, _table(title, shared.drift(report)), about=shared.DRIFT_CELLS)


def _panel(
    title: str,
    conditions: Sequence[DriftCondition],
    values: Callable[[DriftCondition], Sequence[float]],
    origin: float,
) -> Markup:
    """Return one figure of the drift probe by depth, a line for each condition."""
    series = [Series(condition.name, values(condition)) for condition in conditions]
    scale = fitted((value for row in series for value in row.values), origin=origin)
    depths = [str(depth) for depth in range(max(len(row.values) for row in series))]
    is_share = origin == 0
    ticks = [(value, f"{100 * value:g}%" if is_share else f"x{value:g}") for value in scale.ticks()]
    drawn = lines(f"{title}, by depth", depths, series, scale, ticks)
    return element("figure", element("figcaption", f"{title}, by depth"), drawn)


def _table(label: str, cells: shared.Cells, kind: str = "") -> Markup:
    head, *rows = cells
    return table(label, head, rows, kind)


def _positions(shares: Sequence[Estimate]) -> Markup:
    rows = [
        Bar(f"position {position}", share.value, shared.share(share), (share.low, share.high))
        for position, share in enumerate(shares)
    ]
    ticks = [(value, f"{value:.0%}") for value in SHARES.ticks()]
    return bars("accepted at each position of a draft, with its interval", rows, SHARES, ticks)


def _ratios(caption: str, rows: Sequence[Bar], reference: float, origin: float) -> Markup:
    """Return ratios as bars that start at `origin`, with their intervals."""
    ends = [end for row in rows for end in row.interval or ()]
    scale = fitted([1.05 * reference, *(row.value for row in rows), *ends], origin=origin)
    ticks = [(value, f"{value:g}") for value in scale.ticks()]
    return bars(caption, rows, scale, ticks, origin=origin, reference=reference)


def _in_words(ratio: Estimate) -> tuple[str, tuple[float, float]]:
    return shared.estimate(ratio), (ratio.low, ratio.high)
