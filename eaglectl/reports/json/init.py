"""The JSON document of `init`."""

from typing import Any

from eaglectl.reports.json.document import head
from eaglectl.results import Start


def init_document(start: Start) -> dict[str, Any]:
    """Return eaglectl/init/1."""
    return {
        **head("init"),
        "path": str(start.path),
        "questions": list(start.questions),
        "measured": list(start.measured),
    }
