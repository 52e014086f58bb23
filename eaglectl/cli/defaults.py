"""Defaults of options from the nearest eaglectl.toml: its [defaults], and its engines."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eaglectl.files.files import current_folder
from eaglectl.terminal import say

if TYPE_CHECKING:
    from eaglectl.judge.policy_file import PolicyFile

FILES = ("eaglectl.toml", "pyproject.toml")
# commands that read a drafter; `validate` and `upload` take the engines with the rest of the policy
READERS = ("inspect", "convert", "validate", "smoke", "calibrate", "diagnose", "diff", "upload")
WITH_ENGINES = ("inspect", "convert")
# the options that the keys of [defaults] stand for, by parameter
OPTIONS = {
    "target": "--target",
    "aux_layers": "--aux-layers",
    "aux_convention": "--aux-convention",
    "semantics": "--source-semantics",
    "assume": "--assume-defaults",
}
ALWAYS_SHOWN = ("target", "assume")


def command_defaults(
    command: str, arguments: Sequence[Any], policy: str | None = None, *, is_verbose: bool = False
) -> Mapping[str, Any]:
    """Values of a command's parameters that the command line may leave out, from the file `policy` if given.

    A target and `assume` are told on stderr, as they decide what is judged and taken for trained; the others
    where `is_verbose`.

    What lies in one of the command's `arguments` says nothing. Raises UsageError for a file that is not as it
    should be.
    """
    here = current_folder()
    places = (folder / name for folder in (here, *here.parents) for name in FILES)
    if command not in READERS or not (policy or any(place.is_file() for place in places)):
        return {}
    from eaglectl.judge.policy_file import find_policy_file, ignored_file

    judged = [text for one in arguments for text in ([one] if isinstance(one, str) else one or ())]
    file = find_policy_file(policy, judged=judged)
    values = {} if file is None else _parameters(file, is_verbose=is_verbose)
    if policy is None and (ignored := ignored_file(judged)):
        say(f"{ignored} is not read: it lies in a checkpoint or a download", sys.stderr)
    if command not in WITH_ENGINES:
        values.pop("engines", None)
    return values


def _parameters(file: "PolicyFile", *, is_verbose: bool) -> dict[str, Any]:
    keys = file.keys.defaults
    values: dict[str, Any] = {
        "target": file.target,
        "aux_layers": ",".join(map(str, keys.aux_layers or ())),
        "aux_convention": keys.aux_convention,
        "semantics": [f"{key}={value}" for key, value in keys.source_semantics.items()],
        "assume": keys.assume,
        "engines": list(file.keys.engines),
    }
    values = {name: value for name, value in values.items() if value}
    shown = []
    for name, value in values.items():
        if name in ALWAYS_SHOWN or (is_verbose and name in OPTIONS):
            texts = value if isinstance(value, list) else [value]
            shown += [OPTIONS[name] if text is True else f"{OPTIONS[name]} {text}" for text in texts]
    if shown:
        say(f"{file.label} gives {' '.join(shown)}, where the command line says nothing else", sys.stderr)
    return values
