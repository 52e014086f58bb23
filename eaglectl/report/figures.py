"""What is drawn of a result, as values: bars, lines, rows of releases, the layers of a target."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

# what a mark on the target's layers means (CapturedSet.mark)
MARKS = {
    "good": "trained and captured",
    "bad": "captured, and not trained",
    "doubt": "captured, unknown whether trained",
    "missing": "trained, and not captured",
}
AS_TRAINED_WORDS = {"yes": "as trained", "no": "not as trained", "unknown": "unknown whether as trained"}


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


class Bar(Struct, frozen=True):
    """A value and its name, in words and drawn; None and NaN are words alone. `tone`: good, bad or doubt.

    `is_code`: the name is that of a tensor.
    """

    name: str
    value: float | None
    words: str
    interval: tuple[float, float] | None = None
    tone: str = ""
    is_code: bool = False


class Bars(Struct, frozen=True):
    """Bars on one scale. They start at `origin` (None: at the left); `reference` is a line across."""

    caption: str
    rows: Sequence[Bar]
    scale: Scale
    ticks: Sequence[tuple[float, str]] = ()
    origin: float | None = None
    reference: float | None = None


class Series(Struct, frozen=True):
    """Values of one line, one for each place on the x axis; where one is NaN the line is interrupted."""

    name: str
    values: Sequence[float]


class Panel(Struct, frozen=True):
    """Lines over `places`: `scale` is upwards, and `ticks` its labels at the left."""

    title: str
    places: Sequence[str]
    series: Sequence[Series]
    scale: Scale
    ticks: Sequence[tuple[float, str]]


class Panels(Struct, frozen=True):
    """Several pictures of the same series, under one legend."""

    panels: Sequence[Panel]


class Cell(Struct, frozen=True):
    """One of a row of equal cells: "good", "bad" or "doubt", with a name and what is told about it."""

    name: str
    tone: str
    words: str


class Timelines(Struct, frozen=True):
    """The releases of each engine, oldest first, as cells."""

    engines: Mapping[str, Sequence[Cell]]


class CapturedSet(Struct, frozen=True):
    """Boundaries that the named engines capture, and a word of AS_TRAINED_WORDS."""

    engines: tuple[str, ...]
    boundaries: tuple[int, ...]
    as_trained: str

    def mark(self, boundary: int, trained: Sequence[int]) -> str:
        """What a boundary is: "good" trained and captured, "bad" or "doubt" captured, "missing" trained."""
        if boundary in self.boundaries:
            if boundary in trained:
                return "good"
            return "bad" if trained else "doubt"
        return "missing" if boundary in trained else ""


class LayerStrip(Struct, frozen=True):
    """The boundaries 0 to `end` of the target; `end` is its depth, unless that is None or exceeded.

    `undrawn` are engines of which it is not known what they capture.
    """

    end: int
    depth: int | None
    trained: tuple[int, ...]
    captured: tuple[CapturedSet, ...]
    undrawn: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """Which engines are not drawn, or ""."""
        return f"not drawn, as the target decides: {'; '.join(self.undrawn)}" if self.undrawn else ""

    @property
    def title(self) -> str:
        """What the strip shows, and its depth."""
        depth = f"the {self.depth} layers of the target" if self.depth else "layers of the target"
        unknown = "" if self.depth else "; how many it has is not known"
        return f"{depth}: a mark at b is the hidden state that enters layer b{unknown}"

    @property
    def is_as_trained(self) -> bool:
        """Whether every engine captures what was trained."""
        return all(part.as_trained == "yes" for part in self.captured)


Figure = Bars | Panels | Timelines | LayerStrip
FIGURES: tuple[Any, ...] = (Bars, Panels, Timelines, LayerStrip)


def shares(caption: str, rows: Sequence[Bar], most: float = 1.0) -> Bars:
    """Return bars of shares, on a scale from 0 to `most` in percent."""
    scale = Scale(0, most)
    return Bars(caption, rows, scale, [(value, f"{value:.0%}") for value in scale.ticks()])


def lengths(caption: str, rows: Sequence[Bar], *, origin: float, reference: float | None = None) -> Bars:
    """Return bars from `origin` on, with their intervals and a line at `reference`, on a fitted scale."""
    ends = [end for row in rows for end in row.interval or ()]
    marked = [1.05 * reference] if reference is not None else []
    scale = fitted([*marked, *(row.value for row in rows), *ends], origin=origin)
    ticks = [(value, f"{value:g}") for value in scale.ticks()]
    return Bars(caption, rows, scale, ticks, origin, reference)
