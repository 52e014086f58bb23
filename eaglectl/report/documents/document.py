"""What the types of JSON documents have in common, the text of a document, and the document of a result."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, Meta, Struct, convert, to_builtins

import eaglectl
from eaglectl.base import Result
from eaglectl.verdicts import CheckVerdict

# what is written as an escape: all but visible ASCII, and the second # of a command of a CI system
OTHER = re.compile(r"[^ -~\n]|(?<=#)#(?=\w*\[)")
SURROGATE = re.compile("[\ud800-\udfff]")
# the key of a part begins with it whose keys stand among those of the part that has it
INLINE = "*"

# only `validate` skips
Ended = Annotated[
    CheckVerdict,
    Meta(
        extra_json_schema={"enum": [verdict for verdict in CheckVerdict if verdict != CheckVerdict.SKIPPED]}
    ),
]
Trust = Annotated[bool, Meta(description="There where --trust-remote-code let the target's own code run.")]

# by the name of a result's class: the module below eaglectl, loaded where it is needed, and its type, or the
# function that makes a document of several results
DOCUMENTS = {
    "Comparison": "report.documents.diff.DiffDocument",
    "Conversion": "commands.convert.document.ConvertDocument",
    "Diagnosis": "report.documents.diagnose.DiagnoseDocument",
    "FailedSource": "commands.inspect.document.inspect_document",
    "Inspection": "commands.inspect.document.inspect_document",
    "LoadResult": "commands.smoke.document.LoadDocument",
    "Readiness": "commands.ready.document.ReadyDocument",
    "Report": "report.documents.validate.validate_document",
    "SmokeReport": "commands.smoke.document.SmokeDocument",
    "Statistics": "commands.calibrate.document.CalibrateDocument",
    "Upload": "commands.upload.document.UploadDocument",
    "Verification": "commands.verify.document.VerifyDocument",
}
# whose results can share a document
SHARED = ("commands.inspect.document.inspect_document", "report.documents.validate.validate_document")


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a document: its fields are the keys, each with the attribute of a result that it is of.

    Where the two names differ, `field(name=KEY)` states the key. A field with a default is absent from the
    document where the value is the default.
    """

    @classmethod
    def of(cls, record: Any, **others: Any) -> Self:
        """Return the part of a record; `others` are values that neither its attributes nor `_made` give."""
        others |= cls._made(record)
        keys = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
        values = {key: others.get(name, getattr(record, name, UNSET)) for name, key in keys}
        given = {key: value for key, value in values.items() if value is not UNSET}
        return convert(given, cls, from_attributes=True)

    @classmethod
    def _made(cls, record: Any) -> Mapping[str, Any]:
        """The values by field that are no attributes of the record."""
        return {}


class Document(Part, frozen=True, tag_field="schema"):
    """A whole document, which begins with its tag, the schema's id, and the version of eaglectl."""


def as_dict(part: Part) -> dict[str, Any]:
    """Return a document as dicts, lists, texts and numbers."""
    kind, tag = type(part), part.__struct_config__.tag
    keys: dict[str, Any] = {"schema": tag, "version": eaglectl.__version__} if tag else {}
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    optional = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for name, key in zip(names, kind.__struct_encode_fields__, strict=True):
        value = getattr(part, name)
        if key.startswith(INLINE):
            keys |= as_dict(value)
        elif name not in optional or value != optional[name]:
            keys[key] = _plain(value)
    return keys


def _plain(value: Any) -> Any:
    match value:
        case Part():
            return as_dict(value)
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return to_builtins(value, enc_hook=_other)


def _other(value: Any) -> Any:
    """A number of numpy, a text of a class of its own (torch's names of types), or a path."""
    return float(value) if isinstance(value, float) else str(os.fspath(value))


def as_json(document: Any) -> str:
    """Return the text of a document: every value whole, in ASCII, with no command of a CI system in it."""
    return OTHER.sub(_escape, json.dumps(_plain(document), indent=2, ensure_ascii=False))


def _escape(character: re.Match[str]) -> str:
    """Return the escape in JSON; strict readers refuse half a surrogate pair, which becomes its own name."""
    if SURROGATE.match(character[0]):
        return character[0].encode("unicode_escape").decode().replace("\\", r"\\")
    return json.dumps(character[0])[1:-1].replace("#", r"\u0023")


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


def render_json(*results: Result, names: Sequence[str] = (), version: int = 1) -> str:
    """Return the JSON document of what a function returned, as its command prints it.

    Several results of `inspect`, or of `validate`, share one; `names` are the sources of `inspect` as given.
    `version` 2 of these two has a list for one result too. Raises TypeError for other values, and for results
    that cannot share a document.
    """
    functions = {DOCUMENTS.get(type(result).__name__) for result in results}
    name = functions.pop() if len(functions) == 1 else None
    if name is None or (name not in SHARED and len(results) > 1):
        types = ", ".join(sorted({type(result).__name__ for result in results})) or "nothing"
        raise TypeError(
            "a JSON document is of what a function of eaglectl returned, or of several results of inspect, or"
            f" of validate; it was given {types}"
        )
    module, _, made = name.rpartition(".")
    kind: Any = getattr(import_module(f"eaglectl.{module}"), made)
    if name not in SHARED:
        return as_json(kind.of(*results))
    named = {"names": names} if module == "commands.inspect.document" and names else {}
    return as_json(kind(results, version=version, **named))
