"""Defaults of options from the nearest eaglectl.toml: its [defaults], and its engines."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.files.files import current_folder
from eaglectl.terminal import say

if TYPE_CHECKING:
    from eaglectl.judge.policy import Defaults

FILES = ("eaglectl.toml", "pyproject.toml")
# commands that read a drafter; `validate` and `upload` take the engines with the rest of the policy
READERS = ("inspect", "convert", "validate", "smoke", "calibrate", "diagnose", "diff", "upload")
WITH_ENGINES = ("inspect", "convert")
TOLD = ("--target", "--assume-defaults")


def command_defaults(
    command: str, arguments: Sequence[Any], policy: str | None = None, *, is_verbose: bool = False
) -> Mapping[str, Any]:
    """Values of a command's parameters that the command line may leave out, from the file `policy` if given.

    A target and `assume` are told on stderr, as they decide what is judged and taken for trained; the others
    where `is_verbose`.

    What lies in one of the command's `arguments` says nothing. Raises UsageError for a file that is not as it
    should be.
    """
    if command not in READERS or not (policy or _has_file(current_folder())):
        return {}
    from eaglectl.judge.policy_file import ignored_file, read_defaults

    judged = [text for one in arguments for text in ([one] if isinstance(one, str) else one or ())]
    defaults = read_defaults(policy, judged=judged)
    told = [option for option in defaults.options if is_verbose or option[0] in TOLD]
    if told:
        options = " ".join(f"{name} {value}".strip() for name, value in told)
        say(f"{defaults.origin} gives {options}, where the command line says nothing else", sys.stderr)
    if policy is None and (ignored := ignored_file(judged)):
        say(f"{ignored} is not read: it lies in a checkpoint or a download", sys.stderr)
    return _parameters(defaults, has_engines=command in WITH_ENGINES)


def _has_file(start: Path) -> bool:
    return any((folder / name).is_file() for folder in (start, *start.parents) for name in FILES)


def _parameters(defaults: "Defaults", *, has_engines: bool) -> dict[str, Any]:
    values = {
        "target": defaults.target,
        "aux_layers": defaults.aux_layers,
        "aux_convention": defaults.aux_convention,
        "semantics": list(defaults.source_semantics) or None,
        "assume": defaults.assume or None,
        "engines": (list(defaults.engines) or None) if has_engines else None,
    }
    return {name: value for name, value in values.items() if value is not None}
