"""The schemas of files: each producer's config.json, eaglectl.toml, pyproject.toml, published figures."""

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from eaglectl.formats.config_keys import (
    DECODER_KEYS,
    EAGLE_CONFIG,
    IDS,
    KEYS,
    OBJECT,
    SHAPE_KEYS,
    common_keys,
)
from eaglectl.formats.format import Format, IdMeaning
from eaglectl.formats.published import PublishedFile
from eaglectl.judge.rule import PolicyTable

IDS_MEANING: Mapping[IdMeaning, str] = {
    "output": "Target layers whose outputs are the drafter's input, counted from 0 (j: the output of layer"
    " j, which vLLM calls j + 1).",
    "boundary": "Target layers before which the residual stream is taken, 0 to the target's depth (2: after"
    " the first two layers), ascending.",
    "sglang": "Target layers as SGLang reads them: it adds one to each, for DeepSeek and Kimi targets only"
    " when the first is 1.",
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def config_schema(format: Format) -> dict[str, Any]:
    """The JSON Schema of the config.json that a producer writes."""
    title = format.schema.title or format.title
    required = SHAPE_KEYS if format.schema.required is None else format.schema.required
    return {
        "$schema": DRAFT,
        "$id": f"urn:eaglectl:config:{format.schema_name}",
        "title": f"{title}: config.json",
        "description": f"config.json of an EAGLE-3 or EAGLE-3.1 drafter as {title} writes it. Keys that are"
        " not listed are allowed.",
        "type": "object",
        "properties": _properties(format),
        "required": list(dict.fromkeys(required)),
    }


def _properties(format: Format) -> dict[str, Any]:
    schema = format.schema
    decoder = DECODER_KEYS if schema.has_decoder else ()
    properties: dict[str, Any] = {**common_keys(*decoder, *schema.keys), **schema.own}
    nested = {
        name: {**EAGLE_CONFIG[name][0], "description": EAGLE_CONFIG[name][1]} for name in schema.eagle_config
    }
    if nested:
        _object(properties, "eagle_config").update(nested)
    for place in format.written_ids or format.ids:
        parent, _, key = place.key.rpartition(".")
        inner = _object(properties, parent) if parent else properties
        inner[key] = {**IDS, "description": IDS_MEANING[place.meaning]}
    return properties


def _object(properties: dict[str, Any], key: str) -> dict[str, Any]:
    """The properties of an object of the config, which is added where it is not yet there."""
    about = KEYS[key][1] if key in KEYS else "Keys of the producer's own."
    inner = properties.get(key, {**OBJECT, "description": about})
    own: dict[str, Any] = dict(inner.get("properties", {}))
    properties[key] = {**inner, "properties": own}
    return own


def unindented(schema: Any) -> Any:
    """Return a schema whose descriptions lack the indents of docstrings, which msgspec before 0.23 keeps."""
    if isinstance(schema, list):
        return [unindented(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: cleandoc(value) if key == "description" and isinstance(value, str) else unindented(value)
        for key, value in schema.items()
    }


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of eaglectl.toml."""
    return {
        "$schema": DRAFT,
        "$id": "urn:eaglectl:eaglectl.toml",
        "title": "eaglectl.toml: the policy and the defaults of a folder",
        **unindented(msgspec.json.schema(PolicyTable)),
    }


def pyproject_schema() -> dict[str, Any]:
    """The JSON Schema of a pyproject.toml whose [tool.eaglectl] has the keys of eaglectl.toml."""
    (table,), definitions = msgspec.json.schema_components([PolicyTable], ref_template="#/$defs/{name}")
    tool = {"type": "object", "properties": {"eaglectl": table}}
    return {
        "$schema": DRAFT,
        "$id": "urn:eaglectl:pyproject.toml",
        "title": "[tool.eaglectl] of pyproject.toml",
        "type": "object",
        "properties": {"tool": tool},
        "$defs": unindented(definitions),
    }


def published_schema() -> dict[str, Any]:
    """The JSON Schema of the file of published figures."""
    head = {"$schema": DRAFT, "$id": "urn:eaglectl:published", "title": "Published acceptance lengths"}
    return {**head, **unindented(msgspec.json.schema(PublishedFile))}
