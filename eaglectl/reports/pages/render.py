"""A result as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from collections.abc import Sequence
from typing import Any

from eaglectl.base import Result
from eaglectl.reports.pages.frame import Page, frame


def render_page(
    *results: Result,
    names: Sequence[str] = (),
    has_tensors: bool = False,
) -> str:
    """Return the HTML page of what `inspect`, `validate`, `smoke`, `diagnose` or `diff` returned.

    Several results of `inspect`, or of `validate`, share one page. `names` are the sources of `inspect` as
    given, `has_tensors` lists their tensors. The same results give the same text. Raises TypeError for other
    values, and for results that cannot share a page.
    """
    return frame(_page(results, names, has_tensors))


def _page(results: Sequence[Any], names: Sequence[str], has_tensors: bool) -> Page:
    """Return the page; the modules of other commands are not loaded."""
    kinds = {type(result).__name__ for result in results}
    match sorted(kinds):
        case ["Inspection"] | ["FailedSource"] | ["FailedSource", "Inspection"]:
            from eaglectl.reports.pages.inspect import inspect_page

            sources = names or [result.source for result in results]
            return inspect_page(results, sources, has_tensors=has_tensors)
        case ["Report"]:
            from eaglectl.reports.pages.validate import validate_page

            return validate_page(results)
        case ["SmokeReport"] if len(results) == 1:
            from eaglectl.reports.pages.smoke import smoke_page

            return smoke_page(results[0])
        case ["Diagnosis"] if len(results) == 1:
            from eaglectl.reports.pages.diagnose import diagnosis_page

            return diagnosis_page(results[0])
        case ["Comparison"] if len(results) == 1:
            from eaglectl.reports.pages.diff import comparison_page

            return comparison_page(results[0])
    types = ", ".join(sorted(kinds)) or "nothing"
    raise TypeError(
        "a page shows what inspect or validate returned, or one value of smoke, diagnose or diff; it was"
        f" given {types}"
    )
