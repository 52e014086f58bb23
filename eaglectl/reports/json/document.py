"""The first keys of every JSON document, and its text."""

import json
import re
from typing import Any

import eaglectl

# what is written as an escape: all but visible ASCII, and the second # of a command of a CI system
OTHER = re.compile(r"[^ -~\n]|(?<=#)#(?=\w*\[)")
SURROGATE = re.compile("[\ud800-\udfff]")


def head(name: str, number: int = 1) -> dict[str, Any]:
    """Return the schema id (schemas/NAME.schema.json) and the version of eaglectl that wrote the document."""
    return {"schema": f"eaglectl/{name}/{number}", "version": eaglectl.__version__}


def as_json(document: Any) -> str:
    """Return the text of a document: every value whole, in ASCII, with no command of a CI system in it."""
    return OTHER.sub(_escape, json.dumps(document, indent=2, ensure_ascii=False))


def _escape(character: re.Match[str]) -> str:
    """Return the escape in JSON; strict readers refuse half a surrogate pair, which becomes its own name."""
    if SURROGATE.match(character[0]):
        return character[0].encode("unicode_escape").decode().replace("\\", r"\\")
    return json.dumps(character[0])[1:-1].replace("#", r"\u0023")


def trust_part(trust_remote_code: bool) -> dict[str, Any]:
    """Return the key that says that the target's own code was allowed to run; nothing where it was not."""
    return {"trust_remote_code": True} if trust_remote_code else {}
