"""The JSON document of `smoke --load-only`."""

from typing import Any

from eaglectl.acceptance.job import LoadResult
from eaglectl.reports.json.document import head, trust_part


def load_document(result: LoadResult) -> dict[str, Any]:
    """eaglectl/load/1; its `version` is the release of vLLM."""
    return {
        **head("load"),
        "version": result.version,
        "unfilled": list(result.unfilled),
        "resolved": dict(result.resolved),
        **trust_part(result.trust_remote_code),
    }
