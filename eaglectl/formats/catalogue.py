"""All formats: every declaration in formats/producers/, in the order in which they are tried."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from eaglectl.formats import producers
from eaglectl.formats.format import CheckpointSummary, Format

# every declaration in formats/producers/, in the order in which they are tried
FORMATS: tuple[Format, ...] = tuple(
    sorted(
        (
            value
            for module in iter_modules(producers.__path__, f"{producers.__name__}.")
            for value in vars(import_module(module.name)).values()
            if isinstance(value, Format)
        ),
        key=lambda format: (format.priority, format.name),
    )
)


def detect(summary: CheckpointSummary) -> tuple[Format, str]:
    """Return the producer of a checkpoint and the mark that identifies it; the last format accepts any."""
    marks = ((format, format.recognise(summary)) for format in FORMATS)
    return next((format, evidence) for format, evidence in marks if evidence)


def by_name(name: str) -> Format:
    """Return the format with this name. Raises KeyError if there is none."""
    return {format.name: format for format in FORMATS}[name]


def known_formats() -> frozenset[str]:
    """Return the names of all formats."""
    return frozenset(format.name for format in FORMATS)


def writable() -> tuple[str, ...]:
    """Return the names of the formats that can be written, those with the surest marks first."""
    return tuple(format.name for format in FORMATS if format.layout)


def default_format() -> Format:
    """Return the format that is written if no layout is named."""
    return next(format for format in FORMATS if format.layout and format.layout.is_default)


def layout_for(engine: str) -> str:
    """Return the layout to write for one engine: the default, unless the engine reads only another."""
    default = default_format().name
    readable = [format.name for format in FORMATS if format.layout and engine in format.layout.engines]
    return readable[0] if readable and default not in readable else default


def known_answers() -> Mapping[str, tuple[str, ...]]:
    """Return the --source-semantics of single producers, with their values."""
    return {key: values for format in FORMATS for key, values in format.answers.items()}


def prefixes() -> tuple[str, ...]:
    """Return the prefixes that producers put before all tensor names."""
    return tuple(format.layout.prefix for format in FORMATS if format.layout and format.layout.prefix)


def tensor_names() -> Mapping[str, str]:
    """Return the module names of every producer, each with the canonical name."""
    return {producer_name: name for format in FORMATS for producer_name, name in format.tensor_names.items()}


def flattened(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config without the nesting of any producer, for callers that do not know the producer."""
    for flat in dict.fromkeys(format.flat for format in FORMATS):
        config = flat(config)
    return config
