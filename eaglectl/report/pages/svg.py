"""Pictures as inline SVG: bars with intervals, lines, rows of cells and of marks.

x is in percent of a picture's width and y in pixels, so that it fits every screen and its text keeps its
size. What colour tells, shape, dash or glyph tells too; every number of a picture is also text beside it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from eaglectl.report.figures import (
    AS_TRAINED_WORDS,
    MARKS,
    Bar,
    Bars,
    CapturedSet,
    Cell,
    Figure,
    LayerStrip,
    Panel,
    Panels,
    Scale,
    Series,
    Timelines,
)
from eaglectl.report.pages.markup import NOTHING, Content, Markup, element, filled, join, name

# the most bars and cells of a picture, and series of lines
MOST_BARS = 60
MOST_CELLS = 200
MOST_SERIES = 4
# pixels: heights of a bar, of the ends of its interval, of a row of labels, of lines, of layers, of a legend
BAR, CAP, LABELS, LINES, STRIP, SAMPLE = 18, 4, 16, 150, 22, 22
# labels nearer than this to each other, in percent of the width, are left out
LABEL_GAP = 16.0
# percent of the width: the widest cell, and a letter of its name on the narrowest screen
CELL, LETTER = 8.0, 1.75
# marks about their middle, in pixels; SERIES are those of lines
CHECK, CROSS = "M-4 0 L-1 3.5 L4.5 -3.5", "M-3.5 -3.5 L3.5 3.5 M-3.5 3.5 L3.5 -3.5"
DOT = "M-4 0 A4 4 0 1 1 4 0 A4 4 0 1 1 -4 0 Z"
SQUARE, TRIANGLE, DIAMOND = (
    "M-3.5 -3.5 H3.5 V3.5 H-3.5 Z",
    "M0 -4.5 L4.5 3.5 H-4.5 Z",
    "M0 -5 L5 0 L0 5 L-5 0 Z",
)
SERIES = (DOT, SQUARE, TRIANGLE, DIAMOND)
MARK_WORDS = {"trained": "trained", **MARKS}
MARK_SHAPES = {"trained": DOT, "good": DOT, "bad": CROSS, "doubt": DIAMOND, "missing": DOT}
GLYPHS = {"good": CHECK, "bad": CROSS}


# --- parts of a picture


def picture(title: str, *content: Content, height: int, about: str = "", kind: str = "") -> Markup:
    """Return an image of the full width; `title` and `about` are read out in place of it."""
    return element(
        "svg",
        element("title", title),
        element("desc", about) if about else None,
        *content,
        class_=f"picture {kind}".strip(),
        role="img",
        width="100%",
        height=str(height),
    )


def percent(x: float) -> str:
    """Return a place or a length as SVG writes it."""
    return f"{round(x, 2):g}%"


def line(x: tuple[float, float], y: tuple[float, float], kind: str = "") -> Markup:
    """Return a line between two places."""
    (x1, x2), (y1, y2) = map(percent, x), (f"{round(value, 1):g}" for value in y)
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, class_=kind or None)


def rect(x: float, width: float, y: float, height: float, kind: str, hover: str = "") -> Markup:
    """Return a rectangle; `hover` is shown where the pointer rests on it."""
    inside = element("title", hover) if hover else NOTHING
    place = {"x": percent(x), "y": f"{y:g}", "width": percent(width), "height": f"{height:g}"}
    return element("rect", inside, **place, class_=kind)


def shape(x: float, y: float, path: str, kind: str, hover: str = "") -> Markup:
    """Return a mark with its middle at a place."""
    inside = element("title", hover) if hover else NOTHING
    drawn = element("path", inside, d=path, class_=kind)
    return element("svg", drawn, x=percent(x), y=f"{round(y, 1):g}", class_="at")


def label(x: float, y: float, text: str, anchor: str = "") -> Markup:
    """Return text of one line at a place; at an edge of the picture it ends there, else it is centred."""
    if not anchor:
        anchor = "start" if x < LABEL_GAP / 3 else "end" if x > 100 - LABEL_GAP / 3 else "middle"
    return element("text", text, x=percent(x), y=f"{round(y, 1):g}", text_anchor=anchor)


def spaced(labels: Iterable[tuple[float, str]], gap: float = LABEL_GAP) -> Iterator[Markup]:
    """Yield labels in a row at their places; one that is too near to the one before is left out."""
    last = -math.inf
    for x, text in labels:
        if x - last >= gap:
            last = x
            yield label(x, LABELS - 4, text)


# --- figures


class Row(Struct, frozen=True):
    """One row of a figure: its name, the image and its height, and the image in words."""

    name: Content
    image: Markup
    height: int
    words: Content = None


class Drawn(Struct, frozen=True):
    """A figure as rows of images, with a caption, a legend, a scale below and a remark."""

    caption: str
    rows: Sequence[Row]
    legend: Sequence[tuple[str, Markup]] = ()
    axis: Markup = NOTHING
    remark: str = ""


def drawn(figure: Figure) -> Drawn:
    """Draw bars, rows of releases or the layers of a target; panels have a picture each (`panel`)."""
    match figure:
        case Bars():
            return _drawn_bars(figure)
        case Timelines():
            return _drawn_releases(figure)
        case LayerStrip():
            return _drawn_strip(figure)
    raise TypeError(f"{type(figure).__name__} has no rows")


def figure_markup(figure: Figure) -> Markup:
    """Return a figure as a page shows it: with names and words beside the images."""
    if isinstance(figure, Panels):
        return _panels(figure)
    shown = drawn(figure)
    if not shown.rows:
        return NOTHING
    rows = element("dl", *map(_row_markup, shown.rows), class_=None if shown.caption else "timeline")
    if not shown.caption:
        return rows
    below = element("div", shown.axis, class_="axis") if shown.axis else NOTHING
    caption = element("figcaption", shown.caption)
    remark = filled("p", shown.remark, class_="about")
    return element("figure", caption, legend(shown.legend), rows, below, remark, class_="bars")


def _row_markup(row: Row) -> Markup:
    words = element("dd", row.words, class_="words") if row.words is not None else NOTHING
    return element("div", element("dt", row.name), element("dd", row.image), words)


def _drawn_bars(figure: Bars) -> Drawn:
    rows = [
        Row(
            element("code", name(row.name)) if row.is_code else row.name,
            bar(row, figure.scale, origin=figure.origin, reference=figure.reference),
            BAR,
            row.words,
        )
        for row in figure.rows[:MOST_BARS]
    ]
    rest = len(figure.rows) - MOST_BARS
    remark = f"and {rest:,} more; --json lists all" if rest > 0 else ""
    below = axis(figure.scale, figure.ticks) if figure.ticks else NOTHING
    return Drawn(figure.caption, rows, (), below, remark)


def _drawn_releases(figure: Timelines) -> Drawn:
    rows = [
        Row(engine, cells(_outcomes(engine, row), row), BAR + LABELS + 4)
        for engine, row in figure.engines.items()
    ]
    return Drawn("", rows)


def _drawn_strip(strip: LayerStrip) -> Drawn:
    """The target's layers, with what was trained and what each engine captures as marks."""
    scale = Scale(0, strip.end, left=2, right=98)
    rows = [_strip_row(part, strip, scale) for part in strip.captured]
    if strip.trained:
        rows.insert(0, _strip_row(CapturedSet(("trained",), strip.trained, ""), strip, scale))
    numbers = [boundary for boundary in scale.ticks(9) if boundary == int(boundary)]
    labels = [(boundary, f"{boundary:g}") for boundary in numbers if boundary <= 0.9 * strip.end]
    below = axis(scale, [*labels, (strip.end, str(strip.end))], gap=6)
    tones = {
        part.mark(boundary, strip.trained) for part in strip.captured for boundary in range(strip.end + 1)
    }
    marks = [(MARK_WORDS[tone], _mark(50, tone)) for tone in MARK_WORDS if tone in tones]
    return Drawn(strip.title, rows, marks, below, strip.remark)


def _mark(x: float, tone: str, hover: str = "") -> Markup:
    return shape(x, STRIP / 2, MARK_SHAPES[tone], f"at-{tone}", hover)


def _strip_row(part: CapturedSet, strip: LayerStrip, scale: Scale) -> Row:
    words = ", ".join(map(str, part.boundaries))
    if part.as_trained:
        words += f" ({AS_TRAINED_WORDS[part.as_trained]})"
    parts = [
        rect(scale.at(layer), scale.at(layer + 1) - scale.at(layer), 7, 8, "layer")
        for layer in range(min(strip.end, strip.depth or strip.end))
    ]
    for boundary in sorted({*strip.trained, *part.boundaries}):
        tone = part.mark(boundary, strip.trained) if part.as_trained else "trained"
        parts.append(_mark(scale.at(boundary), tone, f"boundary {boundary}: {MARK_WORDS[tone]}"))
    names = "; ".join(part.engines)
    return Row(names, picture(f"{names}: {words}", *parts, height=STRIP), STRIP, words)


def bar(row: Bar, scale: Scale, *, origin: float | None = None, reference: float | None = None) -> Markup:
    """Return one bar with its interval as a line."""
    parts = [rect(scale.left, scale.right - scale.left, 0, BAR, "whole")]
    if row.value is not None and math.isfinite(row.value):
        start, end = scale.left if origin is None else scale.at(origin), scale.at(row.value)
        parts.append(rect(min(start, end), abs(end - start), 0, BAR, row.tone or "share"))
    if reference is not None:
        parts.append(line((scale.at(reference),) * 2, (0, BAR), "reference"))
    if row.interval and all(map(math.isfinite, row.interval)):
        parts += _interval(*map(scale.at, row.interval))
    return picture(row.words, *parts, height=BAR)


def _interval(low: float, high: float) -> list[Markup]:
    middle = BAR / 2
    ends = [line((x, x), (middle - CAP, middle + CAP), "interval") for x in (low, high)]
    return [line((low, high), (middle, middle), "interval"), *ends]


def axis(scale: Scale, ticks: Iterable[tuple[float, str]], gap: float = LABEL_GAP) -> Markup:
    """Return the labels of a scale; hidden from screen readers, which read the values."""
    labels = spaced(((scale.at(value), text) for value, text in ticks), gap)
    return element("svg", *labels, class_="picture", width="100%", height=str(LABELS), aria_hidden="true")


# --- lines


def _panels(figure: Panels) -> Markup:
    names = legend((series.name, _piece(number)) for number, series in _numbered(figure))
    panels = (element("figure", element("figcaption", panel.title), lines(panel)) for panel in figure.panels)
    return join([names, element("div", *panels, class_="panels")])


def _numbered(figure: Panels) -> Iterable[tuple[int, Series]]:
    return enumerate(figure.panels[0].series[:MOST_SERIES])


def lines(panel: Panel) -> Markup:
    """Return a picture of lines over places."""
    places, scale = panel.places, panel.scale
    across = Scale(0, max(len(places) - 1, 0), left=15, right=96)
    top, bottom = 8.0, LINES - LABELS - 8.0

    def height(value: float) -> float:
        return bottom - (bottom - top) * scale.share(value)

    parts: list[Content] = []
    for value, text in panel.ticks:
        parts += [line((across.left - 2, 100), (height(value),) * 2, "grid")]
        parts += [label(across.left - 4, height(value) + 4, text, "end")]
    for number, row in enumerate(panel.series[:MOST_SERIES]):
        points = [(across.at(place), value) for place, value in enumerate(row.values)]
        parts += [
            line((x, next_x), (height(y), height(next_y)), f"line series-{number}")
            for (x, y), (next_x, next_y) in itertools.pairwise(points)
            if math.isfinite(y) and math.isfinite(next_y)
        ]
        parts += [
            shape(x, height(y), SERIES[number], f"series-{number}", f"{row.name}, {places[place]}: {y:.3g}")
            for place, (x, y) in enumerate(points)
            if math.isfinite(y)
        ]
    parts += [label(across.at(place), LINES - 4, text, "middle") for place, text in enumerate(places)]
    return picture(panel.title, *parts, height=LINES, about=_in_words(places, panel.series))


def _in_words(places: Sequence[str], series: Sequence[Series]) -> str:
    return "; ".join(
        f"{row.name}: {', '.join(f'{value:.3g}' for value in row.values)}" for row in series[:MOST_SERIES]
    ) + (f" (from {places[0]} to {places[-1]})" if places else "")


def legend(names: Iterable[tuple[str, Markup]]) -> Markup:
    """Return names, each beside the shapes that stand for it."""
    items = (element("li", sample(shapes), " ", element("span", words)) for words, shapes in names)
    return filled("ul", *items, class_="legend")


def sample(shapes: Markup) -> Markup:
    """Return the shapes of a legend, on a ground of 36 by SAMPLE pixels."""
    return element("svg", shapes, class_="sample", width="36", height=str(SAMPLE), aria_hidden="true")


def _piece(number: int) -> Markup:
    kind = f"series-{number}"
    return join([line((0, 100), (11, 11), f"line {kind}"), shape(50, 11, SERIES[number], kind)])


# --- cells


def cells(title: str, row: Sequence[Cell]) -> Markup:
    """Return cells side by side, with the names of the first, the last and of those with another tone."""
    shown = row[-MOST_CELLS:]
    width = min(100 / max(len(shown), 1), CELL)
    parts: list[Content] = []
    for number, cell in enumerate(shown):
        parts.append(rect(number * width, width, 1, BAR, f"cell {cell.tone}", f"{cell.name}: {cell.words}"))
        parts.append(_glyph((number + 0.5) * width, cell.tone))
    names = element("svg", *_names(shown, width), class_="at", y=str(BAR + 3))
    return picture(title, *parts, names, height=BAR + LABELS + 4)


def _glyph(x: float, tone: str) -> Markup:
    if tone in GLYPHS:
        return shape(x, 1 + BAR / 2, GLYPHS[tone], "glyph")
    return element("text", "?", x=percent(x), y=str(BAR - 4), text_anchor="middle", class_="glyph")


def _names(row: Sequence[Cell], width: float) -> Iterator[Markup]:
    """Yield the names of cells that differ from the one before, where there is room, and of the last."""
    end = len(row) * width
    both = list(dict.fromkeys((row[0].name, row[-1].name))) if row else []
    if len(both) < 2 or end < sum(map(_room, both)):
        yield label(0, LABELS - 4, " - ".join(both), "start")
        return
    free, last = 0.0, end - _room(row[-1].name)
    for number, cell in enumerate(row):
        x, is_change = number * width, number == 0 or cell.tone != row[number - 1].tone
        if is_change and free <= x <= last - _room(cell.name):
            free = x + _room(cell.name)
            yield label(x, LABELS - 4, cell.name, "start")
    yield label(end, LABELS - 4, row[-1].name, "end")


def _room(text: str) -> float:
    return LETTER * (len(text) + 1)


def _outcomes(engine: str, row: Sequence[Cell]) -> str:
    counts = Counter(cell.words.partition(":")[0] for cell in row)
    return f"{engine}, {row[0].name} to {row[-1].name}: " + ", ".join(
        f"{count} {outcome}" for outcome, count in counts.items()
    )
