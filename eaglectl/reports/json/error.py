"""The JSON document of an error."""

from typing import Any

from eaglectl.errors import EaglectlError
from eaglectl.reports.json.document import head


def error_document(error: EaglectlError) -> dict[str, Any]:
    """Return eaglectl/error/1."""
    return {**head("error"), "kind": error.kind, "exit_code": error.exit_code, "message": str(error)}
