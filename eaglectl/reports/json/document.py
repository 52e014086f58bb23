"""The first keys of every JSON document, and its text."""

import json
from typing import Any

import eaglectl
from eaglectl.text import COMMAND


def head(name: str) -> dict[str, Any]:
    """Return the schema id (schemas/NAME.schema.json) and the version of eaglectl that wrote the document."""
    return {"schema": f"eaglectl/{name}/1", "version": eaglectl.__version__}


def as_json(document: Any) -> str:
    """Return the text of a document: every value whole, in ASCII, with no command of a CI system in it."""
    return COMMAND.sub(r"#\\u0023", json.dumps(document, indent=2))


def trust_part(trust_remote_code: bool) -> dict[str, Any]:
    """Return the key that says that the target's own code was allowed to run; nothing where it was not."""
    return {"trust_remote_code": True} if trust_remote_code else {}
