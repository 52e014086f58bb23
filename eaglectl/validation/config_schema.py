"""config.json against the JSON Schema of its producer. The home of jsonschema, which is loaded only where something does not fit."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import eaglectl
from eaglectl.formats.catalogue import detect
from eaglectl.formats.format import Sighting
from eaglectl.validation.rule import CannotLook, Hit, rule
from eaglectl.validation.subject import Subject

# a format's name -> the schema it is read by, where that is not its own; engines' keys for files that nobody signed
SCHEMAS: Mapping[str, str] = {
    "peagle": "speculators", "vllm": "vllm-native", "sglang": "sglang-native", "sglang-mla": "sglang-native", "native": "vllm-native",
}  # fmt: skip
# keys whose kind rules of their own judge: EGL101, EGL118, EGL112, EGL609
JUDGED = ("architectures", "model_type", "torch_dtype", "dtype", "rope_theta")
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
}


@rule("EGL121", "config-schema", "warning")
def config_schema(subject: Subject) -> Iterator[Hit]:
    """Every value that config.json states is of the kind that its key has in its producer's files.

    Loaders of other releases, and transformers since 5, check kinds that today's engine does not look at, and stop.

    Fix: correct the value; an editor that is given schemas/config-<producer>.schema.json marks it.
    """
    producer = _producer(subject)
    schema = _schema(SCHEMAS.get(producer, producer))
    if _fits(schema, subject.config):
        return
    said = subject.stop.where.removeprefix("config.json:") if subject.stop is not None else ""
    for where, message in violations(schema, subject.config):
        key = where.partition("[")[0].rpartition(".")[2]
        if key not in (*JUDGED, said.rpartition(".")[2]):
            yield Hit(f"{where} does not fit: {message}", f"config.json:{where}")


def _producer(subject: Subject) -> str:
    """Whose file it is, as far as its marks say, even where reading found it at fault."""
    if subject.stop is not None and subject.stop.topic == "not-a-drafter":
        raise CannotLook(str(subject.stop))
    one = subject.checkpoint
    return detect(Sighting(one.config, tuple(one.tensors), one.metadata))[0].name


def violations(schema: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a config does not fit its schema, as "key.key[0]", and what was expected there.

    What is absent is judged by the rules that need it, and null by the one on nulls.
    """
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(config):
        if error.validator != "required" and error.instance is not None:
            yield error.json_path.removeprefix("$."), error.message[:300]


def schema_file(name: str) -> Path:
    """A schema file: in the package where it is installed, beside it in a checkout."""
    package = Path(eaglectl.__file__).parent
    places = (package / "schemas" / name, package.parent / "schemas" / name)
    return next((place for place in places if place.is_file()), places[0])


@cache
def _schema(producer: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(schema_file(f"config-{producer}.schema.json").read_text(encoding="utf-8"))
    return found


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a value fits, as jsonschema would say of the keywords that our schemas use; loading it costs more than all rules."""
    if value is None:
        return True
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(KINDS[kind](value) for kind in kinds):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if type(value) in (int, float):
        return _is_within(schema, value)
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(_fits(schema.get("items", {}), one) for one in value)
    inner = schema.get("properties", {})
    return not isinstance(value, Mapping) or all(_fits(inner[key], value[key]) for key in value if key in inner)


def _is_within(schema: Mapping[str, Any], value: float) -> bool:
    least, most, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
    return (least is None or value >= least) and (most is None or value <= most) and (above is None or value > above)
