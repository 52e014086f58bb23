"""The section of docs/rules.md on the numbers of trained drafters."""

from eaglectl.judge.samples import RANGES

HEAD = """## Ranges of trained drafters

Values of the six trained drafters of `fixtures/` (tiny, second, real), widened to round numbers, and the
limits of the rules. 16 rows of each matrix are read, 96 of lm_head, and 64 numbers of each block of columns;
the largest number and the check for non-finite numbers use all numbers.

| statistic | trained | reported below | reported above |
|---|---|---|---|
"""


def section() -> str:
    """The table, from the declaration that the rules use."""

    def text(limit: float | None) -> str:
        return "" if limit is None else f"{limit:.3g}"

    rows = (
        f"| {each.what} | {each.lowest:g} to {each.highest:g} | {text(each.below)} | {text(each.above)} |\n"
        for each in RANGES.values()
    )
    return HEAD + "".join(rows)
