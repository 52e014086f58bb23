"""The schemas of JSON documents, from their types in schemas/parts/."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components

from schemas.parts.calibrate import CalibrateDocument
from schemas.parts.convert import ConvertDocument
from schemas.parts.diagnose import DiagnoseDocument
from schemas.parts.diff import DiffDocument
from schemas.parts.document import INLINE, ErrorDocument
from schemas.parts.engines import EnginesDocument
from schemas.parts.inspect import (
    FailedPart,
    InspectDocument,
    InspectedPart,
    InspectionsDocument,
    InspectionsDocument2,
)
from schemas.parts.ready import ReadyDocument
from schemas.parts.rules import RulesDocument
from schemas.parts.smoke import LoadDocument, SmokeDocument
from schemas.parts.upload import UploadDocument
from schemas.parts.validate import ReportsDocument, ReportsDocument2, ValidateDocument
from schemas.parts.verify import VerifyDocument

# a schema is named as its documents; the first of several forms begins with a sentence on all, and parts of
# which only their names are stated come last
DOCUMENTS: tuple[tuple[type[Struct], ...], ...] = (
    (CalibrateDocument,),
    (ConvertDocument,),
    (DiagnoseDocument,),
    (DiffDocument,),
    (EnginesDocument,),
    (ErrorDocument,),
    (InspectDocument, InspectionsDocument, InspectionsDocument2, InspectedPart, FailedPart),
    (LoadDocument,),
    (ReadyDocument,),
    (RulesDocument,),
    (SmokeDocument,),
    (UploadDocument,),
    (ValidateDocument, ReportsDocument, ReportsDocument2),
    (VerifyDocument,),
)
DEFINITION = "#/$defs/"
NULL = {"type": "null"}


def schema_name(kind: type[Struct]) -> str:
    """The command in the schema's id, eaglectl/COMMAND/1."""
    return str(kind.__struct_config__.tag).split("/")[1]


def document_schema(kinds: tuple[type[Struct], ...]) -> dict[str, Any]:
    """The JSON Schema of a document; of several forms, any."""
    _, parts = schema_components(kinds, schema_hook=_other, ref_template=DEFINITION + "{name}")
    forms = [kind.__name__ for kind in kinds if kind.__struct_config__.tag]
    for name in forms:
        _add_version(parts[name])
    strict = {name: _strict(part) for name, part in parts.items()}
    parts = {name: _inline(part, strict) for name, part in strict.items()}
    schemas = [
        {key: value for key, value in parts.pop(name).items() if key != "description"} for name in forms
    ]
    used = set(_references([*schemas, *parts.values()]))
    definitions = {name: part for name, part in parts.items() if DEFINITION + name in used}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:eaglectl:{schema_name(kinds[0])}",
        "title": " ".join(str(kinds[0].__doc__).split()).rstrip("."),
        **(schemas[0] if len(schemas) == 1 else {"oneOf": schemas}),
        **({"$defs": definitions} if definitions else {}),
    }


def _other(kind: type) -> dict[str, Any]:
    """What a type is in JSON that it has no numbers, texts or lists for: a path is a text."""
    return {"type": "string"}


def _add_version(document: dict[str, Any]) -> None:
    """The version of eaglectl, which every document has after its schema's id."""
    id, *keys = document["properties"].items()
    document["properties"] = dict([id, ("version", {"type": "string"}), *keys])
    document["required"] = list(dict.fromkeys(["schema", "version", *document["required"]]))


def _strict(schema: Any) -> Any:
    """No key that is not declared, no value that a document leaves out, and plain forms of types."""
    match schema:
        case list():
            return [_strict(item) for item in schema]
        case {"properties": dict(properties), "additionalProperties": _}:
            keys = {key: _strict(value) for key, value in properties.items()}
            return {key: value for key, value in schema.items() if key != "title"} | {"properties": keys}
        case {"properties": dict(properties)}:  # of a record, which is written with all of its fields
            every = {
                key: {name: value for name, value in key_schema.items() if name != "default"}
                for key, key_schema in properties.items()
            }
            changed = {"properties": every, "required": list(every), "additionalProperties": False}
            return _strict(schema | changed)
        case dict():
            values = {key: _strict(value) for key, value in schema.items() if key != "default"}
            return _simple(_present(values, schema) if "default" in schema else values)
    return schema


def _present(values: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A key is absent where its value is the default."""
    match schema["default"]:
        case False:
            return {key: value for key, value in values.items() if key != "type"} | {"const": True}
        case None:
            return values | {"anyOf": [option for option in values["anyOf"] if option != NULL]}
    return values


def _simple(schema: dict[str, Any]) -> dict[str, Any]:
    """A list of types for a choice of types alone, and a constant for an enum of one."""
    options = schema.get("anyOf", [])
    types = [option["type"] for option in options if option.keys() == {"type"}]
    others = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(options) == 1:
        return others | options[0]
    if options and len(types) == len(options):
        return others | {"type": types}
    match schema:
        case {"enum": [value]}:
            return {key: value for key, value in schema.items() if key != "enum"} | {"const": value}
    return schema


def _inline(part: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    """Put the keys of a part that has no key of its own among the others."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key, value in part.get("properties", {}).items():
        if key.startswith(INLINE):
            inner = _inline(parts[value["$ref"].removeprefix(DEFINITION)], parts)
            properties |= inner["properties"]
            required += inner["required"]
        else:
            properties[key] = value
            required += [key] if key in part["required"] else []
    return part | {"properties": properties, "required": required} if properties else part


def _references(schema: Any) -> Iterator[str]:
    match schema:
        case {"$ref": str(reference)}:
            yield reference
    if isinstance(schema, dict | list):
        for item in schema.values() if isinstance(schema, dict) else schema:
            yield from _references(item)
