"""One self-contained HTML page of what a command found: no script, and nothing loaded from anywhere."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eaglectl.reports.findings import Failure, Inspection
from eaglectl.reports.pages.frame import Page, frame

if TYPE_CHECKING:
    from eaglectl.acceptance.report import SmokeReport
    from eaglectl.comparison.comparison import Comparison
    from eaglectl.validation.judging import Report


def render_page(
    *found: "Inspection | Failure | Report | SmokeReport | Comparison", names: Sequence[str] = (), has_tensors: bool = False
) -> str:  # fmt: skip
    """The page of what `inspect`, `validate`, `smoke` or `diff` returned; several values of `inspect` or of `validate` share one.

    `names`: the sources of `inspect` as they were given; `has_tensors` lists their tensors. The same values give the same text.
    Raises TypeError for other values, and for what does not share a page.
    """
    return frame(_page(found, names, has_tensors))


def _page(found: Sequence[Any], names: Sequence[str], has_tensors: bool) -> Page:
    """Each kind's module is loaded only where a value of that kind is there."""
    kinds = {type(one).__name__ for one in found}
    if found and kinds <= {"Inspection", "Failure"}:
        from eaglectl.reports.pages.inspection import inspection_page

        return inspection_page(found, names or [one.source for one in found], has_tensors=has_tensors)
    if found and kinds == {"Report"}:
        from eaglectl.reports.pages.validation import validation_page

        return validation_page(found)
    if len(found) == 1 and kinds == {"SmokeReport"}:
        from eaglectl.reports.pages.smoke import smoke_page

        return smoke_page(found[0])
    if len(found) == 1 and kinds == {"Comparison"}:
        from eaglectl.reports.pages.comparison import comparison_page

        return comparison_page(found[0])
    given = ", ".join(sorted(kinds)) or "nothing"
    raise TypeError(
        f"a page shows what inspect or validate returned, or one value of smoke or diff; it was given {given}"
    )
