"""The schemas of JSON documents, from their types in eaglectl/reports/documents/."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components

from eaglectl.reports.documents.calibrate import CalibrateDocument
from eaglectl.reports.documents.diagnose import DiagnoseDocument
from eaglectl.reports.documents.document import INLINE
from eaglectl.reports.documents.engines import EnginesDocument
from eaglectl.reports.documents.error import ErrorDocument
from eaglectl.reports.documents.init import InitDocument
from eaglectl.reports.documents.load import LoadDocument
from eaglectl.reports.documents.ready import ReadyDocument
from eaglectl.reports.documents.rules import ExplainDocument, RulesDocument
from eaglectl.reports.documents.smoke import SmokeDocument
from eaglectl.reports.documents.verify import VerifyDocument

# a schema is named as its documents; those of several forms begin with a sentence on all
DOCUMENTS: tuple[tuple[type[Struct], ...], ...] = (
    (CalibrateDocument,),
    (DiagnoseDocument,),
    (EnginesDocument,),
    (ErrorDocument,),
    (ExplainDocument,),
    (InitDocument,),
    (LoadDocument,),
    (ReadyDocument,),
    (RulesDocument,),
    (SmokeDocument,),
    (VerifyDocument,),
)
DEFINITION = "#/$defs/"
NULL = {"type": "null"}


def schema_name(kind: type[Struct]) -> str:
    """The command in the schema's id, eaglectl/COMMAND/1."""
    return str(kind.__struct_config__.tag).split("/")[1]


def document_schema(kinds: tuple[type[Struct], ...]) -> dict[str, Any]:
    """The JSON Schema of a document; of several kinds of one name, any."""
    references, parts = schema_components(kinds, schema_hook=_other, ref_template=DEFINITION + "{name}")
    for kind in kinds:
        _add_version(parts[kind.__name__])
    strict = {name: _strict(part) for name, part in parts.items()}
    parts = {name: _inline(part, strict) for name, part in strict.items()}
    schema: dict[str, Any] = {"oneOf": list(references)}
    title = kinds[0].__doc__ or ""
    if len(kinds) == 1:
        schema = parts.pop(kinds[0].__name__)
        del schema["description"]
    used = set(_references([schema, *parts.values()]))
    definitions = {name: part for name, part in parts.items() if DEFINITION + name in used}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:eaglectl:{schema_name(kinds[0])}",
        "title": title.partition("\n")[0].rstrip("."),
        **schema,
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
        case {"properties": dict(properties)}:
            keys = {key: _strict(value) for key, value in properties.items()}
            others = {key: value for key, value in schema.items() if key != "title"}
            return others | {
                "properties": keys,
                "additionalProperties": schema.get("additionalProperties", False),
            }
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
    """One type, or a list of types, for a choice of types alone; a number may be whole."""
    options = schema.get("anyOf", [])
    types = [option["type"] for option in options if option.keys() == {"type"}]
    others = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(options) == 1:
        return others | options[0]
    if options and len(types) == len(options):
        types = [kind for kind in types if kind != "integer" or "number" not in types]
        return others | {"type": types[0] if len(types) == 1 else types}
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
