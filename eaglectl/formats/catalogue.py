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
    """The producer of a checkpoint and the mark that identifies it; the last format accepts any."""
    marks = ((format, format.recognise(summary)) for format in FORMATS)
    return next((format, evidence) for format, evidence in marks if evidence)


def by_name(name: str) -> Format:
    """The format with this name. Raises KeyError where there is none."""
    return {format.name: format for format in FORMATS}[name]


def known_formats() -> frozenset[str]:
    """The names of all formats."""
    return frozenset(format.name for format in FORMATS)


def writable() -> tuple[str, ...]:
    """The names of the formats that are written, the surest marks first."""
    return tuple(format.name for format in FORMATS if format.layout)


def default_format() -> Format:
    """The format that is written where no layout is named."""
    return next(format for format in FORMATS if format.layout and format.layout.is_default)


def layout_for(engine: str) -> str:
    """The layout to write for one engine: the default one unless the engine reads another alone."""
    default = default_format().name
    own = [format.name for format in FORMATS if format.layout and engine in format.layout.engines]
    return own[0] if own and default not in own else default


def known_answers() -> Mapping[str, tuple[str, ...]]:
    """The --source-semantics that one producer alone has, with their values."""
    return {key: values for format in FORMATS for key, values in format.answers.items()}


def prefixes() -> tuple[str, ...]:
    """What producers put before all names of tensors."""
    return tuple(format.layout.prefix for format in FORMATS if format.layout and format.layout.prefix)


def tensor_names() -> Mapping[str, str]:
    """Every producer's own module names, and the canonical ones."""
    return {own: name for format in FORMATS for own, name in format.tensor_names.items()}


def flattened(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config without any nesting that a producer has, for who does not know the producer."""
    for flat in dict.fromkeys(format.flat for format in FORMATS):
        config = flat(config)
    return config
