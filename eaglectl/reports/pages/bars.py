"""Figures as bars in inline SVG; hidden from screen readers, which read the numbers beside them."""

from collections.abc import Iterator, Sequence

from eaglectl.acceptance.measurement import Estimate
from eaglectl.reports.acceptance import share
from eaglectl.reports.pages.markup import Content, Markup, element

# pixels: the height of a bar, the line of its interval, half the height of its ends
BAR, MIDDLE, CAP = 18, 9, 4


def bar(value: Estimate, most: float = 1.0, *, mark: float | None = None) -> Markup:
    """A value as a bar of a scale from 0 to `most`, its interval as a line, and `mark` as a line across."""
    low, high = (_percent(min(bound / most, 1.0)) for bound in (value.low, value.high))
    across = [] if mark is None else [_line(_percent(mark / most), 0, BAR)]
    return element(
        "svg",
        element("rect", class_="whole", width="100%", height=str(BAR)),
        element("rect", class_="share", width=_percent(min(value.value / most, 1.0)), height=str(BAR)),
        *across,
        element("line", x1=low, x2=high, y1=str(MIDDLE), y2=str(MIDDLE)),
        *(_line(x, MIDDLE - CAP, MIDDLE + CAP) for x in (low, high)),
        class_="bar",
        height=str(BAR),
        width="100%",
        aria_hidden="true",
    )


def position_rows(shares: Sequence[Estimate], about: str = "") -> Iterator[Sequence[Content]]:
    """Acceptance by draft position: a table's rows of name, share and bar."""
    for position, value in enumerate(shares):
        yield f"position {position}{about and f', {about}'}", share(value), bar(value)


def _line(x: str, top: int, bottom: int) -> Markup:
    return element("line", x1=x, x2=x, y1=str(top), y2=str(bottom))


def _percent(share: float) -> str:
    return f"{share:.2%}"
