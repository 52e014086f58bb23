"""Tokens a second with and without a drafter, as a section of `smoke` and `ready`."""

from collections.abc import Iterator

from eaglectl.report.section import Line, Lines, Section, Table, Tone, Words
from eaglectl.run.speed import Speed, SpeedRow, Spread

HEAD = ("at a time", "per user", "in all", "without: per user", "in all", "ratio", "length")
TITLE = "Speed"


def speed_section(speed: Speed, subject: str = "") -> Section:
    """The ratios, the break-even, which k is the fastest, and the table; `subject` is what was timed."""
    several = len(speed.by_k) > 1
    rows = [(*([str(row.k)] if several else []), *_cells(row)) for row in speed.rows]
    head = ("k", *HEAD) if several else HEAD
    about = f"tokens/s with the drafter and without; median [least, most] of {speed.repeats} repeats"
    title = f"{TITLE}, {subject}" if subject else TITLE
    return Section(title, [Lines(list(_lines(speed))), Table(head, rows)], about)


def _lines(speed: Speed) -> Iterator[Line]:
    """What the table comes to, where it was measured, and what is not in it."""
    if speed.text:
        yield Words(speed.text, "strong")
    several = len(speed.by_k) > 1
    for even in speed.break_even:
        of = f" of k={even.k}" if several else ""
        yield f"break-even{of}: {even.text}, in requests at a time"
    if speed.fastest:
        yield f"fastest: {', '.join(choice.text for choice in speed.fastest)}"
    where = f"{speed.card or speed.device}: " if speed.device != "cpu" else ""
    yield Words(f"{where}{speed.how}", "doubt" if speed.device == "cpu" else "quiet")


def _cells(row: SpeedRow) -> tuple[Line, ...]:
    ratio: Line = Words(_spread(row.ratio, "x"), _tone(row)) if row.ratio else "-"
    length = "not counted" if row.length is None else f"{row.length:.2f}"
    return (str(row.concurrency), *_rates(row.drafted, row), *_rates(row.plain, row), ratio, length)


def _rates(spread: Spread | None, row: SpeedRow) -> tuple[str, str]:
    """Tokens a second of each user, and of all."""
    if spread is None:
        return "-", "-"
    return f"{spread.median / row.concurrency:.1f}", _spread(spread)


def _spread(spread: Spread, unit: str = "") -> str:
    digits = 2 if unit else 1
    return f"{spread.median:.{digits}f}{unit} [{spread.low:.{digits}f}, {spread.high:.{digits}f}]"


def _tone(row: SpeedRow) -> Tone:
    """Good where every repeat is faster with the drafter, bad where every one is slower."""
    if row.ratio is None or row.ratio.low <= 1 <= row.ratio.high:
        return "doubt"
    return "good" if row.ratio.low > 1 else "bad"
