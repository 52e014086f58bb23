"""Pictures as inline SVG: bars with intervals, lines, rows of cells and of marks.

x is in percent of a picture's width and y in pixels, so that it fits every screen and its text keeps its
size. What colour tells, shape, dash or glyph tells too; every number of a picture is also text beside it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from eaglectl.reports.pages.markup import NOTHING, Content, Markup, element, filled, join

# the most bars and cells of a picture, and series of lines
MOST_BARS = 60
MOST_CELLS = 200
MOST_SERIES = 4
# pixels: heights of a bar, of the ends of its interval, of a row of labels, of lines
BAR, CAP, LABELS, LINES = 18, 4, 16, 150
# labels nearer than this to each other, in percent of the width, are left out
LABEL_GAP = 16.0
# percent of the width: the widest cell, and a letter of its name on the narrowest screen
CELL, LETTER = 8.0, 1.75
# marks about their middle, in pixels; MARKS are those of series
CHECK, CROSS = "M-4 0 L-1 3.5 L4.5 -3.5", "M-3.5 -3.5 L3.5 3.5 M-3.5 3.5 L3.5 -3.5"
DOT = "M-4 0 A4 4 0 1 1 4 0 A4 4 0 1 1 -4 0 Z"
SQUARE, TRIANGLE, DIAMOND = (
    "M-3.5 -3.5 H3.5 V3.5 H-3.5 Z",
    "M0 -4.5 L4.5 3.5 H-4.5 Z",
    "M0 -5 L5 0 L0 5 L-5 0 Z",
)
MARKS = (DOT, SQUARE, TRIANGLE, DIAMOND)
GLYPHS = {"good": CHECK, "bad": CROSS}


class Scale(Struct, frozen=True):
    """Values from `low` to `high`, set from `left` to `right` percent of the width."""

    low: float
    high: float
    is_log: bool = False
    left: float = 0.0
    right: float = 100.0

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1; a value outside is at the edge, and every one where low is high."""
        low, high, value = map(self._linear, (self.low, self.high, value))
        if not high > low:
            return 0.5
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def _linear(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value

    def at(self, value: float) -> float:
        """Where a value is, in percent of the width."""
        return self.left + (self.right - self.left) * self.share(value)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values on the scale, at most this many; the decades of a logarithmic one."""
        if self.is_log:
            lowest, highest = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            decades = max(1, math.ceil((highest - lowest + 1) / most))
            return [10.0**exponent for exponent in range(lowest, highest + 1, decades)]
        step = _step(self.low, self.high, most)
        if not step:
            return [self.low]
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def fitted(values: Iterable[float | None], *, origin: float = 0.0, most: int = 5) -> Scale:
    """Return a scale of round ends that holds `origin` and every finite value."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min([origin, *finite]), max([origin, *finite])
    step = _step(low, high, most - 1)
    if not step:
        return Scale(origin, origin + 1)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def fitted_log(values: Iterable[float | None]) -> Scale:
    """Return a logarithmic scale of whole decades that holds every positive finite value."""
    positive = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    if not positive:
        return Scale(0.1, 1.0, is_log=True)
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return Scale(10.0 ** (low - (low == high)), 10.0**high, is_log=True)


def _step(low: float, high: float, most: int) -> float:
    """A step of 1, 2 or 5 times a power of ten: less than `most` of them fill low to high; 0 for a point."""
    rough = (high - low) / max(most - 1, 1)
    if not rough > 1e-12:
        return 0.0
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


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


# --- bars


class Bar(Struct, frozen=True):
    """A value and its name, in words and drawn; None and NaN are words alone. `tone`: good, bad or doubt."""

    name: Content
    value: float | None
    words: str
    interval: tuple[float, float] | None = None
    tone: str = ""


def bars(
    caption: str,
    rows: Sequence[Bar],
    scale: Scale,
    ticks: Sequence[tuple[float, str]] = (),
    *,
    origin: float | None = None,
    reference: float | None = None,
) -> Markup:
    """Return bars under each other, each with its name and its value in words, and a scale below.

    A bar starts at `origin` (where it is None, at the left); `reference` is a line through all of them.
    """
    if not rows:
        return NOTHING
    items = [_bar_row(row, scale, origin, reference) for row in rows[:MOST_BARS]]
    if len(rows) > MOST_BARS:
        rest = element("p", f"and {len(rows) - MOST_BARS:,} more; --json lists all", class_="about")
    else:
        rest = NOTHING
    below = element("div", axis(scale, ticks), class_="axis") if ticks else NOTHING
    return element(
        "figure", element("figcaption", caption), element("dl", *items), below, rest, class_="bars"
    )


def _bar_row(row: Bar, scale: Scale, origin: float | None, reference: float | None) -> Markup:
    drawn = element("dd", bar(row, scale, origin=origin, reference=reference))
    return element("div", element("dt", row.name), drawn, element("dd", row.words, class_="words"))


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


class Series(Struct, frozen=True):
    """Values of one line, one for each place on the x axis; where one is NaN the line is interrupted."""

    name: str
    values: Sequence[float]


def lines(
    title: str,
    places: Sequence[str],
    series: Sequence[Series],
    scale: Scale,
    ticks: Sequence[tuple[float, str]],
) -> Markup:
    """Return a picture of lines over `places`; `scale` is upwards, and `ticks` its labels at the left."""
    across = Scale(0, max(len(places) - 1, 0), left=15, right=96)
    top, bottom = 8.0, LINES - LABELS - 8.0

    def height(value: float) -> float:
        return bottom - (bottom - top) * scale.share(value)

    parts: list[Content] = []
    for value, text in ticks:
        parts += [line((across.left - 2, 100), (height(value),) * 2, "grid")]
        parts += [label(across.left - 4, height(value) + 4, text, "end")]
    for number, row in enumerate(series[:MOST_SERIES]):
        points = [(across.at(place), value) for place, value in enumerate(row.values)]
        parts += [
            line((x, next_x), (height(y), height(next_y)), f"line series-{number}")
            for (x, y), (next_x, next_y) in itertools.pairwise(points)
            if math.isfinite(y) and math.isfinite(next_y)
        ]
        parts += [
            shape(x, height(y), MARKS[number], f"series-{number}", f"{row.name}, {places[place]}: {y:.3g}")
            for place, (x, y) in enumerate(points)
            if math.isfinite(y)
        ]
    parts += [label(across.at(place), LINES - 4, text, "middle") for place, text in enumerate(places)]
    return picture(title, *parts, height=LINES, about=_in_words(places, series))


def _in_words(places: Sequence[str], series: Sequence[Series]) -> str:
    return "; ".join(
        f"{row.name}: {', '.join(f'{value:.3g}' for value in row.values)}" for row in series[:MOST_SERIES]
    ) + (f" (from {places[0]} to {places[-1]})" if places else "")


def legend(names: Iterable[tuple[str, Markup]]) -> Markup:
    """Return names, each beside the shapes that stand for it."""
    items = (element("li", _sample(shapes), " ", element("span", name)) for name, shapes in names)
    return element("ul", *items, class_="legend")


def _sample(shapes: Markup) -> Markup:
    return element("svg", shapes, class_="sample", width="36", height="22", aria_hidden="true")


def line_legend(names: Sequence[str]) -> Markup:
    """Return the names of series beside a piece of their lines."""
    return legend((name, _piece(number)) for number, name in enumerate(names[:MOST_SERIES]))


def _piece(number: int) -> Markup:
    kind = f"series-{number}"
    return join([line((0, 100), (11, 11), f"line {kind}"), shape(50, 11, MARKS[number], kind)])


# --- cells


class Cell(Struct, frozen=True):
    """One of a row of equal cells: "good", "bad" or "doubt", with a name and what is told about it."""

    name: str
    tone: str
    words: str


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


def timelines(engines: Mapping[str, Sequence[Cell]]) -> Markup:
    """Return the releases of each engine as a row of cells under its name."""
    rows = (
        element("div", element("dt", engine), element("dd", cells(_outcomes(engine, row), row)))
        for engine, row in engines.items()
    )
    return filled("dl", *rows, class_="timeline")


def _outcomes(engine: str, row: Sequence[Cell]) -> str:
    counts = Counter(cell.words.partition(":")[0] for cell in row)
    return f"{engine}, {row[0].name} to {row[-1].name}: " + ", ".join(
        f"{count} {outcome}" for outcome, count in counts.items()
    )
