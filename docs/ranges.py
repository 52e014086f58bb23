"""The section of docs/rules.md on the numbers of trained drafters."""

from eaglectl.judge.samples import RANGES

HEAD = """## Ranges of trained drafters

What the six trained drafters of `fixtures/` (tiny, second, real) have, widened to round numbers, and where a
rule speaks. Of each matrix 16 rows are read, of lm_head 96, and 64 numbers of each block of columns; the
largest number and whether anything is not finite come from all numbers.

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
