"""A result as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from collections.abc import Sequence

from eaglectl.base import Result
from eaglectl.reports.outlines import outline
from eaglectl.reports.pages.frame import frame


def render_page(
    *results: Result,
    names: Sequence[str] = (),
    has_tensors: bool = False,
) -> str:
    """Return the HTML page of what `inspect`, `convert`, `validate`, `smoke`, `diagnose`, `diff`, `ready`,
    `verify` or `upload` returned.

    Several results of `inspect`, or of `validate`, share one page. `names` are the sources of `inspect` as
    given, `has_tensors` lists their tensors. The same results give the same text. Raises TypeError for other
    values, and for results that cannot share a page.
    """
    return frame(outline(results, names=names, has_tensors=has_tensors))
