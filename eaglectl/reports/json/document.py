"""The first keys of every JSON document."""

from typing import Any

import eaglectl


def head(name: str, number: int = 1) -> dict[str, Any]:
    """Return the schema id (schemas/NAME.schema.json) and the version of eaglectl that wrote the document."""
    return {"schema": f"eaglectl/{name}/{number}", "version": eaglectl.__version__}


def trust_part(trust_remote_code: bool) -> dict[str, Any]:
    """Return the key that says that the target's own code was allowed to run; nothing where it was not."""
    return {"trust_remote_code": True} if trust_remote_code else {}
