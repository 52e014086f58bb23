"""config.json against the JSON Schema of its producer. jsonschema is imported only where a value does not
fit.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.formats.catalogue import detect
from eaglectl.formats.config_schema import is_within
from eaglectl.formats.format import CheckpointSummary, Format
from eaglectl.validation.rule import CannotLook, Match, rule
from eaglectl.validation.subject import Subject

# keys whose type EGL101, EGL118, EGL112 and EGL609 check
CHECKED_ELSEWHERE = ("architectures", "model_type", "torch_dtype", "dtype", "rope_theta")
JSON_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
}


@rule("EGL121", "config-schema", "warning")
def config_schema(subject: Subject) -> Iterator[Match]:
    """Every value in config.json has the type that its key has in its producer's files.

    Other releases of loaders, and transformers since 5, check types that today's engine ignores, and stop.

    Fix: correct the value; an editor that is given schemas/config-<producer>.schema.json marks it.
    """
    schema = _schema(_format(subject).schema_name)
    if _fits(schema, subject.config):
        return
    reported = _reported(subject)
    for where, message in violations(schema, subject.config):
        key = where.partition("[")[0].rpartition(".")[2]
        if key not in (*CHECKED_ELSEWHERE, *reported):
            yield Match(f"{where} does not fit: {message}", f"config.json:{where}")


def _reported(subject: Subject) -> set[str]:
    """Keys of values that reading the checkpoint reported already."""
    if subject.read_error is not None:
        return {subject.read_error.where.removeprefix("config.json:").rpartition(".")[2]}
    return {note.about for note in subject.drafter.notes if note.topic == "value-types"}


def _format(subject: Subject) -> Format:
    """The format that detection recognises, also of a checkpoint that could not be read."""
    if subject.ended_on("not-a-drafter"):
        raise CannotLook(str(subject.read_error))
    checkpoint = subject.checkpoint
    summary = CheckpointSummary(checkpoint.config, tuple(checkpoint.tensors), checkpoint.metadata)
    return detect(summary)[0]


def violations(
    schema: Mapping[str, Any], config: Mapping[str, Any], *, is_strict: bool = False
) -> Iterator[tuple[str, str]]:
    """The places in a config that do not fit its schema, as "key.key[0]", and what was expected there.

    Unless `is_strict`, absent keys are left to the rules that need them, and nulls to EGL104.
    """
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(config):
        if is_strict or (error.validator != "required" and error.instance is not None):
            yield error.json_path.removeprefix("$."), error.message[:300]


def schema_file(name: str) -> Path:
    """The path of a schema: in the installed package, or beside it in a checkout."""
    package = Path(eaglectl.__file__).parent
    places = (package / "schemas" / name, package.parent / "schemas" / name)
    return next((place for place in places if place.is_file()), places[0])


@cache
def _schema(name: str) -> Mapping[str, Any]:
    """A producer's config schema. Raises CannotLook where its file is missing."""
    file = schema_file(f"config-{name}.schema.json")
    try:
        schema: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotLook(f"{file}: {error.strerror}; reinstall eaglectl") from None
    return schema


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value fits, for the keywords that our schemas use: importing jsonschema takes longer than
    all rules.
    """
    if value is None:
        return True
    if not _has_type(schema, value) or ("enum" in schema and value not in schema["enum"]):
        return False
    if type(value) in (int, float):
        return is_within(schema, value)
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and _fit_all(schema.get("items", {}), value)
    if not isinstance(value, Mapping):
        return True
    properties = schema.get("properties", {})
    return all(_fits(properties[key], value[key]) for key in value.keys() & properties.keys())


def _fit_all(schema: Mapping[str, Any], values: Sequence[Any]) -> bool:
    return all(_fits(schema, value) for value in values)


def _has_type(schema: Mapping[str, Any], value: Any) -> bool:
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    return not types or any(JSON_TYPES[name](value) for name in types)
