"""Tables of pages in Markdown, and the rows that tools/real recorded of the real pair."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

REAL = Path(__file__).resolve().parents[1] / "fixtures/real"


def recorded(name: str) -> list[dict[str, Any]]:
    """The rows of a file of fixtures/real; none where it was not recorded."""
    path = REAL / name
    return json.loads(path.read_text()) if path.exists() else []


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table under its head, with a line end."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:], ""])
