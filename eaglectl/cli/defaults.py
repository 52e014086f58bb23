"""Defaults of options from the nearest eaglectl.toml: its [defaults], and its engines."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.terminal import say

if TYPE_CHECKING:
    from eaglectl.validation.policy import Defaults

FILES = ("eaglectl.toml", "pyproject.toml")
# commands that read a drafter; `validate` and `upload` take the engines with the rest of the policy
READERS = ("inspect", "convert", "validate", "smoke", "calibrate", "diagnose", "diff", "upload")
WITH_ENGINES = ("inspect", "convert")


def command_defaults(command: str | None, *, is_quiet: bool) -> Mapping[str, Mapping[str, Any]]:
    """By command, the values of its parameters that the command line may leave out; they are told on stderr.

    Raises UsageError for a file that is not as it should be.
    """
    if command not in READERS or not _has_file(Path.cwd()):
        return {}
    from eaglectl.validation.policy_file import read_defaults

    defaults = read_defaults()
    values = _parameters(defaults, has_engines=command in WITH_ENGINES)
    if defaults.options and not is_quiet:
        options = " ".join(f"{name} {value}" for name, value in defaults.options)
        say(f"{defaults.origin} gives {options}, where the command line says nothing else", sys.stderr)
    return {command: values}


def _has_file(start: Path) -> bool:
    return any((folder / name).is_file() for folder in (start, *start.parents) for name in FILES)


def _parameters(defaults: "Defaults", *, has_engines: bool) -> dict[str, Any]:
    values = {
        "target": defaults.target,
        "aux_layers": defaults.aux_layers,
        "aux_convention": defaults.aux_convention,
        "source_semantics": list(defaults.source_semantics) or None,
        "engine": (list(defaults.engines) or None) if has_engines else None,
    }
    return {name: value for name, value in values.items() if value is not None}
