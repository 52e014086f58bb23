"""What the types of JSON documents have in common, and the text of a document."""

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from msgspec import UNSET, Meta, Struct, convert, to_builtins

import eaglectl
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
