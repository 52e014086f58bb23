"""Figures as bars in the cells of a table."""

from collections.abc import Iterator, Sequence

from eaglectl.acceptance.measurement import Estimate
from eaglectl.reports.acceptance import share
from eaglectl.reports.pages import svg
from eaglectl.reports.pages.markup import Content, Markup


def bar(value: Estimate, most: float = 1.0, *, mark: float | None = None) -> Markup:
    """A value as a bar of a scale from 0 to `most`, its interval as a line, and `mark` as a line across."""
    row = svg.Bar("", value.value, f"{value.value:.3g}", (value.low, value.high))
    return svg.bar(row, svg.Scale(0.0, most), reference=mark)


def position_rows(shares: Sequence[Estimate], about: str = "") -> Iterator[Sequence[Content]]:
    """Acceptance by draft position: a table's rows of name, share and bar."""
    for position, value in enumerate(shares):
        yield f"position {position}{about and f', {about}'}", share(value), bar(value)
