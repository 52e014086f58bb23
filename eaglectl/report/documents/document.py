"""JSON documents of results: the keys of each record, and the text.

A table of keys (`Parts`) states for each type of record what its document has of it, in order:

* `"name"`: the attribute of that name; `"key=attribute"` where the key is another one, and `attribute` may be
  a path (`"verdict=outcome.check"`), whose value is None behind a None;
* `"*attribute"`: the keys of that record, in this place;
* `("name", function)`: what the function makes of the record.

A key that ends in `?` is absent where its value is empty. A record that the table has not is written whole.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from msgspec import to_builtins

import eaglectl
from eaglectl.base import Result
from eaglectl.errors import EaglectlError

Parts = Mapping[type, Sequence[str | tuple[str, Callable[[Any], Any]]]]
# what is written as an escape: all but visible ASCII, and the second # of a command of a CI system
OTHER = re.compile(r"[^ -~\n]|(?<=#)#(?=\w*\[)")
SURROGATE = re.compile("[\ud800-\udfff]")
# by the name of a result's class: the module below eaglectl that has its document, loaded where it is needed
MODULES = {
    "Comparison": "report.differences",
    "Conversion": "commands.convert.document",
    "Diagnosis": "report.diagnosis",
    "FailedSource": "commands.inspect.document",
    "Inspection": "commands.inspect.document",
    "LoadResult": "report.documents.load",
    "Readiness": "commands.ready.report",
    "Report": "report.documents.validate",
    "SmokeReport": "commands.smoke.document",
    "Statistics": "commands.calibrate.document",
    "Upload": "commands.upload.report",
    "Verification": "commands.verify.run",
}
# whose results can share a document, and the function that makes it
SHARED = {
    "commands.inspect.document": "inspect_document",
    "report.documents.validate": "validate_document",
}


def document(tag: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document: its tag, the schema's id, the version of eaglectl, and its keys."""
    return {"schema": tag, "version": eaglectl.__version__, **keys}


def part(record: Any, parts: Parts) -> dict[str, Any]:
    """Return the keys of a record with their values as dicts, lists, texts and numbers."""
    keys: dict[str, Any] = {}
    for entry in parts[type(record)]:
        name, make = entry if isinstance(entry, tuple) else (entry, None)
        key, _, attribute = name.partition("=")
        value = make(record) if make else _at(record, (attribute or key).strip("*?"))
        if key.startswith("*"):
            keys |= part(value, parts)
        elif value or not name.endswith("?"):
            keys[key.rstrip("?")] = plain(value, parts)
    return keys


def _at(record: Any, path: str) -> Any:
    for name in path.split("."):
        record = None if record is None else getattr(record, name)
    return record


def plain(value: Any, parts: Parts) -> Any:
    """Return a value as dicts, lists, texts and numbers."""
    if type(value) in parts:
        return part(value, parts)
    match value:
        case Mapping():
            return {key: plain(item, parts) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, parts) for item in value]
    # a number of numpy, a text of a class of its own (torch's names of types), or a path
    return to_builtins(value, enc_hook=lambda other: float(other) if isinstance(other, float) else str(other))


def as_json(document: Any) -> str:
    """Return the text of a document: every value whole, in ASCII, with no command of a CI system in it."""
    return OTHER.sub(_escape, json.dumps(plain(document, {}), indent=2, ensure_ascii=False))


def _escape(character: re.Match[str]) -> str:
    """Return the escape in JSON; strict readers refuse half a surrogate pair, which becomes its own name."""
    if SURROGATE.match(character[0]):
        return character[0].encode("unicode_escape").decode().replace("\\", r"\\")
    return json.dumps(character[0])[1:-1].replace("#", r"\u0023")


def error_part(kind: str, exit_code: int, message: str) -> dict[str, Any]:
    """Return what a document says of an error."""
    return {"kind": kind, "exit_code": exit_code, "message": message}


def error_document(error: EaglectlError) -> dict[str, Any]:
    """Return what any command prints with --json when it stops."""
    return document("eaglectl/error/1", error_part(error.kind, error.exit_code, str(error)))


def render_json(*results: Result, names: Sequence[str] = (), version: int = 1) -> str:
    """Return the JSON document of what a function returned, as its command prints it.

    Several results of `inspect`, or of `validate`, share one; `names` are the sources of `inspect` as given.
    `version` 2 of these two has a list for one result too. Raises TypeError for other values, and for results
    that cannot share a document.
    """
    modules = {MODULES.get(type(result).__name__) for result in results}
    name = modules.pop() if len(modules) == 1 else None
    if name is None or (name not in SHARED and len(results) > 1):
        types = ", ".join(sorted({type(result).__name__ for result in results})) or "nothing"
        raise TypeError(
            "a JSON document is of what a function of eaglectl returned, or of several results of inspect, or"
            f" of validate; it was given {types}"
        )
    module: Any = import_module(f"eaglectl.{name}")
    if name not in SHARED:
        return as_json(document(module.TAG, part(results[0], module.PARTS)))
    named = {"names": names} if name == "commands.inspect.document" and names else {}
    return as_json(getattr(module, SHARED[name])(results, version=version, **named))
