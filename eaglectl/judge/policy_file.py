"""Reading a policy and defaults from eaglectl.toml, or from [tool.eaglectl] of a pyproject.toml."""

import datetime
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import replace

from eaglectl.drafter.boundaries import Convention
from eaglectl.engines.registry import parse_engine
from eaglectl.errors import UsageError
from eaglectl.files.files import current_folder, read_small_file
from eaglectl.files.hub_cache import is_snapshot
from eaglectl.files.layout import is_checkpoint
from eaglectl.formats.format import Answers
from eaglectl.judge.rule import Policy, Severity, Suppression, VerifyPolicy
from eaglectl.judge.rules import find_rule, rule_ids
from eaglectl.options import TARGET, options_of

StrPath = str | os.PathLike[str]
FILES = POLICY_FILE, PYPROJECT = ("eaglectl.toml", "pyproject.toml")
# where the Hub's client notes what it downloaded into a folder
DOWNLOADED = ".cache/huggingface"
# what bounds the time of tomllib, which is quadratic in the parts of a key
MAX_POLICY, MAX_PARTS = 256 << 10, 32
PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){PART}(?:[ \t]*+\.[ \t]*+{PART}){{{MAX_PARTS}}}")
HELP = {option.name: option.option.help for option in options_of(Answers).values()}

Patterns = tuple[str, ...] | None
# no name has a null byte
Text = Annotated[str, Meta(pattern=r"^[^\0]*$")]
Layer = Annotated[int, Meta(ge=0, le=2**31)]


class AllowTable(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", omit_defaults=True):
    """Lists of patterns, as of file names, of what a checkpoint may have."""

    architectures: Annotated[Patterns, Meta(description="Its classes; others are found (EGL120).")] = None
    dtypes: Annotated[Patterns, Meta(description="Of its tensors; others are found.")] = None
    licences: Annotated[Patterns, Meta(description="In its card; others are found (EGL907).")] = None
    files: Annotated[Patterns, Meta(description="Beside those that are known.")] = None
    quantisation: Annotated[
        Patterns, Meta(description="Methods; others are found (EGL806), and all for an empty list.")
    ] = None
    base_models: Annotated[Patterns, Meta(description="In its card; others are found (EGL908).")] = None


class DefaultsTable(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What commands take where their command line says nothing."""

    target: Annotated[Text, Meta(description=f"{TARGET.help} A path begins at this file.")] = ""
    aux_layers: Annotated[
        Annotated[tuple[Layer, ...], Meta(min_length=1)] | None, Meta(description=HELP["aux_layers"])
    ] = None
    aux_convention: Annotated[Convention | None, Meta(description=HELP["aux_convention"])] = None
    source_semantics: Annotated[
        Mapping[str, Text], Meta(description="Facts about the trainer that a file cannot state.")
    ] = {}
    assume: Annotated[bool, Meta(description=HELP["assume"])] = False


class PolicyTable(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The keys of eaglectl.toml: what a folder requires of its checkpoints, and defaults of commands."""

    engines: Annotated[
        tuple[str, ...], Meta(description="What is judged for where no --engine names any.")
    ] = ()
    required: Annotated[
        tuple[str, ...],
        Meta(
            description="Rules that must have looked: without it a checkpoint does not pass. Ids, names or"
            " families."
        ),
    ] = ()
    forbidden: Annotated[
        tuple[str, ...], Meta(description="Rules whose findings are errors, whatever their severity.")
    ] = ()
    severities: Annotated[
        Mapping[str, Literal[Severity, "off"]],
        Meta(description="The severity of a rule's findings, or off: it does not run."),
    ] = {}
    fail_on: Annotated[
        Literal[Severity, "never"] | None, Meta(description="The lowest severity that fails.")
    ] = None
    allow: AllowTable = AllowTable()
    suppress: tuple[Suppression, ...] = ()
    verify: VerifyPolicy = VerifyPolicy()
    defaults: DefaultsTable = DefaultsTable()


class PolicyFile(Struct, frozen=True):
    """A file with its keys: `label` names it in messages and reports, paths in it begin at `folder`."""

    label: str
    folder: Path
    keys: PolicyTable

    @property
    def target(self) -> str:
        """The target of [defaults], a folder as seen from the current one; "" where there is none."""
        target = self.keys.defaults.target
        is_here = bool(target) and os.path.lexists(self.folder / target)
        return os.path.relpath(self.folder / target) if is_here else target


def read_policy(
    path: StrPath | None = None, start: StrPath | None = None, *, judged: Iterable[StrPath] = ()
) -> Policy:
    """The policy in the file `path`, else in the nearest file from `start` (the current folder) upwards.

    No file in or below a checkpoint, a download or one of `judged` (folders, or files in them) is taken
    unless `path` names it. The empty policy where there is no file. Raises UsageError with the file, the key
    and what was expected.
    """
    file = find_policy_file(path, start, judged)
    return Policy() if file is None else _policy(file)


def parse_policy(values: Mapping[str, Any], origin: str, folder: Path = Path()) -> Policy:
    """The policy in a TOML table; `origin` names its file in messages and reports.

    Paths in it begin at `folder`.
    """
    return _policy(_parsed(values, origin, folder))


def _parsed(values: Any, label: str, folder: Path) -> PolicyFile:
    try:
        keys = convert(values, PolicyTable, builtin_types=(datetime.date, datetime.datetime, datetime.time))
        for text in keys.engines:
            parse_engine(text)
    except (ValidationError, UsageError) as error:
        raise UsageError(f"{label}: {error}") from None
    return PolicyFile(label, folder, keys)


def _policy(file: PolicyFile) -> Policy:
    keys = file.keys
    try:
        required, forbidden = frozenset(rule_ids(keys.required)), frozenset(rule_ids(keys.forbidden))
        levels = {rule: level for key, level in keys.severities.items() for rule in rule_ids([key])}
        suppressions = tuple(
            replace(entry, rule=find_rule(entry.rule).id, reason=entry.reason.strip())
            for entry in keys.suppress
        )
    except UsageError as error:
        raise UsageError(f"{file.label}: {error}") from None
    off = frozenset(rule for rule, level in levels.items() if level == "off")
    if conflicts := sorted((required | forbidden) & off):
        raise UsageError(
            f"{file.label}: {conflicts[0]} is required or forbidden and its severity is off;"
            " decide for one of them"
        )
    return Policy(
        origin=file.label,
        engines=keys.engines,
        required=required,
        forbidden=forbidden,
        severities={rule: level for rule, level in levels.items() if level != "off"},
        off=off,
        allowed=to_builtins(keys.allow),
        suppressions=suppressions,
        fail_on=keys.fail_on,
        verify=keys.verify,
    )


def ignored_file(judged: Iterable[str] = ()) -> str | None:
    """The nearest file from the current folder upwards that is not taken because of where it lies."""
    here = current_folder()
    taken = _folders(here, judged)
    paths = (folder / name for folder in (here, *here.parents) if folder not in taken for name in FILES)
    return next((os.path.relpath(path, here) for path in paths if path.is_file()), None)


def _folders(start: Path, judged: Iterable[StrPath]) -> Sequence[Path]:
    """The folder and those around it that may hold a policy, the nearest first.

    Those in a checkpoint, in a download of the Hub's client and in what is judged may not.
    """
    folders, roots = (start, *start.parents), set[Path]()
    for source in judged:
        path = Path(os.path.realpath(source))
        roots.add(path.parent if os.path.lexists(path) and path.is_file() else path)
    foreign = 0
    for number, folder in enumerate(Path(os.path.realpath(folder)) for folder in folders):
        is_download = is_snapshot(folder) or (folder / DOWNLOADED).is_dir()
        if folder in roots or is_checkpoint(folder) or is_download:
            foreign = number + 1
    return folders[foreign:]


def find_policy_file(
    path: StrPath | None = None, start: StrPath | None = None, judged: Iterable[StrPath] = ()
) -> PolicyFile | None:
    """The file that `read_policy` takes, named as seen from `start`; None where there is none.

    Raises UsageError.
    """
    if path is None:
        here = current_folder() if start is None else Path(start)
        paths = (folder / name for folder in _folders(here, judged) for name in FILES)
        files = (_read_file(path, os.path.relpath(path, here)) for path in paths if path.is_file())
        return next(filter(None, files), None)
    path = os.fspath(path)
    if "://" in path:
        raise UsageError(
            f"--policy {path}: a policy is a file on this machine; download it and give its path"
        )
    file = _read_file(Path(path), path)
    if file is None:
        raise UsageError(f"{path} has no [tool.eaglectl]; write the policy there, or give an {POLICY_FILE}")
    return file


def _read_file(path: Path, label: str) -> PolicyFile | None:
    """A TOML file with a policy; None where a pyproject.toml has none. `label` names it in messages."""
    import tomllib  # late: most folders have no policy

    try:
        text = read_small_file(path, MAX_POLICY, "the policy", UsageError).decode()
        if LONG_KEY.search(text):
            raise UsageError(f"{label} has a key of more than {MAX_PARTS} parts")
        values: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not valid TOML: {error}") from None
    if path.name == PYPROJECT:
        tool = values.get("tool")
        values = tool.get("eaglectl") if isinstance(tool, dict) else None
    return None if values is None else _parsed(values, label, path.parent)
