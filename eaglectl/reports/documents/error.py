"""The JSON document of an error."""

from collections.abc import Mapping
from typing import Any, Literal

from eaglectl.reports.documents.document import Part


class ErrorPart(Part, frozen=True):
    """An error."""

    kind: Literal["refused", "usage", "unreadable", "fault"]
    exit_code: Literal[1, 2, 3, 70]
    message: str


class ErrorDocument(ErrorPart, frozen=True, tag_field="schema", tag="eaglectl/error/1"):
    """What any command prints with --json when it stops."""

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        return {"message": str(record)}
