"""The schemas of JSON documents, derived from the tables of keys (`Parts`) and the records that they are of.

The type of a key is that of the record's attribute; stated.py has what functions make, and descriptions.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, reduce
from importlib import import_module
from keyword import iskeyword
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct, field
from msgspec.json import schema_components

from eaglectl.report.documents import RESULTS, SHARED, Parts
from schemas.files import unindented
from schemas.stated import DESCRIPTIONS, FORMS, SHAPES, TITLES, TYPES, Stated

# by name: the table of keys, the forms, and objects that only a name states
DOCUMENTS: Mapping[str, tuple[str, Sequence[Stated], Sequence[type[Struct]]]] = {
    **{
        tag.split("/")[1]: (table, [name], ())
        for name, (tag, table, _) in RESULTS.items()
        if tag not in SHARED
    },
    **FORMS,
}

DEFINITION = "#/$defs/"
NULL = {"type": "null"}
# the value of a key that is absent
EMPTY: Mapping[Any, Any] = {bool: False, str: "", tuple: (), Mapping: {}}


class _Records:
    """The types of a document's records."""

    def __init__(self, parts: Parts) -> None:
        self._parts = {record.__name__: (record, entries) for record, entries in parts.items()}
        self._made: dict[Any, type[Struct]] = {}

    def struct(self, keys: Mapping[str, Any], name: str, text: str | None = None) -> type[Struct]:
        """A type of these keys; one that ends in "?" may be absent."""
        fields = []
        for key, kind in keys.items():
            default = {"default": _empty(kind)} if key.endswith("?") else {}
            key = key.removesuffix("?")
            fields.append((f"{key}_" if iskeyword(key) else key, kind, field(name=key, **default)))
        namespace = {"__doc__": text and " ".join(text.split())}
        return defstruct(name, fields, namespace=namespace, frozen=True, forbid_unknown_fields=True)

    def keys(self, stated: Stated) -> dict[str, Any]:
        """The keys of a record, by its name, or of a stated object, with their types."""
        keys: dict[str, Any] = {}
        if isinstance(stated, str):
            for entry in self._parts[stated][1]:
                keys |= self._entry(stated, entry if isinstance(entry, str) else entry[0])
        else:
            for key, kind in stated.items():
                keys |= self.keys(kind) if key == "*" else {key: self._typed(kind)}
        return keys

    def _entry(self, record: str, entry: str) -> dict[str, Any]:
        """The key that an entry of the table has, or the keys of the record that it names."""
        key, _, path = entry.removesuffix("?").partition("=")
        kind = TYPES.get(f"{record}.{key}")
        if kind is None:
            kind = _attribute(self._parts[record][0], (path or key).removeprefix("*"))
        if key.startswith("*"):
            return self.keys(kind.__name__)
        kind, about = self._typed(kind), DESCRIPTIONS.get(f"{record}.{key}")
        mark = "?" if entry.endswith("?") else ""
        return {f"{key}{mark}": Annotated[kind, Meta(description=about)] if about else kind}

    def _typed(self, kind: Any) -> Any:
        """A type with that of its keys for each record and each stated object in it."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return Annotated[self._typed(inner[0]), *inner[1:]]
        if origin is None or origin is Literal:
            return self._derived(kind)
        changed = tuple(each if each is ... else self._typed(each) for each in inner)
        return reduce(or_, changed) if _is_union(kind) else origin[changed]

    def _derived(self, kind: Any) -> Any:
        name = getattr(kind, "__name__", "")
        if kind in self._made:
            return self._made[kind]
        if kind in SHAPES:
            self._made[kind] = self.struct(self.keys(SHAPES[kind]), name)
        elif name in self._parts:
            text = str(self._parts[name][0].__doc__).split("\n\n")[0]
            self._made[kind] = self.struct(self.keys(name), name, text)
        return self._made.get(kind, kind)


def _attribute(record: Any, path: str) -> Any:
    """The type of an attribute; behind an optional one it is optional."""
    is_optional = False
    for name in path.split("."):
        if _is_union(record):
            (record,) = (kind for kind in get_args(record) if kind is not type(None))
            is_optional = True
        match getattr(record, name, None):
            case property(fget=function) | cached_property(func=function):
                record = get_type_hints(function, include_extras=True)["return"]
            case _:
                record = get_type_hints(record, include_extras=True)[name]
    return record | None if is_optional else record


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _empty(kind: Any) -> Any:
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return EMPTY.get(get_origin(kind) or kind)


def document_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a command's document; of several forms, any."""
    place, stated, named = DOCUMENTS[name]
    module, _, table = place.rpartition(".")
    records = _Records(getattr(import_module(f"eaglectl.{module}"), table) if place else {})
    head = {"schema": Literal[f"eaglectl/{name}/1"], "version": str}  # type: ignore[valid-type]
    kinds = [records.struct(head | records.keys(form), f"Form{number}") for number, form in enumerate(stated)]
    kinds += [records.struct(records.keys(SHAPES[kind]), kind.__name__) for kind in named]
    _, parts = schema_components(kinds, schema_hook=_other, ref_template=DEFINITION + "{name}")
    parts = {part: _strict(unindented(schema)) for part, schema in parts.items()}
    forms = [parts.pop(f"Form{number}") for number in range(len(stated))]
    used = set(_references([*forms, *parts.values()]))
    definitions = {part: schema for part, schema in parts.items() if DEFINITION + part in used}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:eaglectl:{name}",
        "title": f"The JSON document of {TITLES.get(name, f'eaglectl {name}')}",
        **(forms[0] if len(forms) == 1 else {"oneOf": forms}),
        **({"$defs": definitions} if definitions else {}),
    }


def _other(kind: type) -> dict[str, Any]:
    """What a type is in JSON that it has no numbers, texts or lists for: a path is a text."""
    return {"type": "string"}


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


def _references(schema: Any) -> Iterator[str]:
    match schema:
        case {"$ref": str(reference)}:
            yield reference
    if isinstance(schema, dict | list):
        for item in schema.values() if isinstance(schema, dict) else schema:
            yield from _references(item)
