"""Results for people: sections of one shape, and writers for the terminal, pages, Markdown and pictures."""

from typing import Any


def page(result: Any) -> str:
    """Return a result as one self-contained HTML page."""
    from eaglectl.reports.pages.render import render_page

    return render_page(result)
