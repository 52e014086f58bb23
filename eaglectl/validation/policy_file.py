"""Reading a policy and defaults from eaglectl.toml, or from [tool.eaglectl] of a pyproject.toml."""

import datetime
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from eaglectl.checkpoint.files import current_folder, read_small_file
from eaglectl.checkpoint.hub_cache import is_snapshot
from eaglectl.checkpoint.layout import is_checkpoint
from eaglectl.engines.registry import parse_engine
from eaglectl.errors import UsageError
from eaglectl.validation.catalogue import find_rule, find_rules
from eaglectl.validation.policy import ALLOW_LISTS, Defaults, Policy, Suppression, VerifyPolicy
from eaglectl.validation.rule import SEVERITIES

T = TypeVar("T")
StrPath = str | os.PathLike[str]
POLICY_FILE, PYPROJECT = "eaglectl.toml", "pyproject.toml"
FILES = (POLICY_FILE, PYPROJECT)
# where the Hub's client notes what it downloaded into a folder
DOWNLOADED = ".cache/huggingface"
# what bounds the time of tomllib, which is quadratic in the parts of a key, and of all that reads the values
MAX_POLICY = 256 << 10
MAX_PARTS, MAX_DEPTH, MAX_ENTRIES, MAX_BITS = 32, 16, 5_000, 64
PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){PART}(?:[ \t]*+\.[ \t]*+{PART}){{{MAX_PARTS}}}")
KEYS = (
    "engines",
    "required",
    "forbidden",
    "severities",
    "fail-on",
    "allow",
    "suppress",
    "verify",
    "defaults",
)
CONVENTIONS = ("boundary", "output")
DEFAULT_KEYS = ("target", "aux-layers", "aux-convention", "source-semantics", "assume")
SIGNERS = ("public-key", "certificate-chain", "identity", "identity-provider")
VERIFY_KEYS = ("require-signature", "require-record", *SIGNERS)
SUPPRESSION_KEYS = ("rule", "reason", "until", "where")


def read_policy(
    path: StrPath | None = None, start: StrPath | None = None, *, judged: Iterable[StrPath] = ()
) -> Policy:
    """The policy in the file `path`, else in the nearest file from `start` (the current folder) upwards.

    No file in or below a checkpoint, a download or one of `judged` (folders, or files in them) is taken
    unless `path` names it. The empty policy where there is no file. Raises UsageError with the file, the key,
    its value and what was expected.
    """
    if path is None:
        nearest = _nearest_table(None if start is None else Path(start), [os.fspath(path) for path in judged])
        return Policy() if nearest is None else parse_policy(*nearest)
    path = os.fspath(path)
    if "://" in path:
        raise UsageError(
            f"--policy {path}: a policy is a file on this machine; download it and give its path"
        )
    table = _read_table(Path(path), path)
    if table is None:
        raise UsageError(f"{path} has no [tool.eaglectl]; write the policy there, or give an {POLICY_FILE}")
    return parse_policy(table, path, Path(path).parent)


def read_defaults(start: Path | None = None, *, judged: Iterable[str] = ()) -> Defaults:
    """The [defaults] in the file that `read_policy` takes without a path. Raises UsageError."""
    nearest = _nearest_table(start, judged)
    if nearest is None:
        return Defaults()
    values, label, folder = nearest
    table = _Table(label, "", values)
    return _defaults(table.table("defaults"), table.texts("engines", parse_engine), folder)


def parse_policy(values: Mapping[str, Any], origin: str, folder: Path = Path()) -> Policy:
    """The policy in a TOML table; `origin` names its file in messages and reports.

    Paths in it begin at `folder`.
    """
    table = _Table(origin, "", values)
    table.check_keys(KEYS)
    _defaults(table.table("defaults"), (), folder)
    severities = _severities(table.table("severities"))
    allow = table.table("allow")
    allow.check_keys(ALLOW_LISTS)
    required, forbidden = (frozenset(table.rules(key, table.texts(key))) for key in ("required", "forbidden"))
    off = frozenset(rule for rule, severity in severities.items() if severity == "off")
    if conflicts := sorted((required | forbidden) & off):
        raise UsageError(
            f"{origin}: {conflicts[0]} is required or forbidden and its severity is off;"
            " decide for one of them"
        )
    return Policy(
        origin=origin,
        engines=table.texts("engines", parse_engine),
        required=required,
        forbidden=forbidden,
        severities={rule: severity for rule, severity in severities.items() if rule not in off},
        off=off,
        allowed={key: allow.texts(key) for key in allow.values},
        suppressions=tuple(_suppression(entry) for entry in table.tables("suppress")),
        fail_on=table.choice("fail-on", (*SEVERITIES, "never")) if "fail-on" in values else None,
        verify=_verify(table.table("verify"), folder),
    )


def _defaults(table: "_Table", engines: tuple[str, ...], folder: Path) -> Defaults:
    table.check_keys(DEFAULT_KEYS)
    layers, target = table.values.get("aux-layers"), table.text("target") or None
    if layers is not None and (
        not isinstance(layers, list)
        or not layers
        or not all(type(layer) is int and layer >= 0 for layer in layers)
    ):
        raise table.error("aux-layers", "whole numbers, as [2, 16, 29]")
    semantics = table.table("source-semantics")
    if target is not None and os.path.lexists(folder / target):
        target = os.path.relpath(folder / target)
    is_stated = "aux-convention" in table.values
    return Defaults(
        origin=table.origin,
        engines=engines,
        target=target,
        aux_layers=None if layers is None else ",".join(map(str, layers)),
        aux_convention=table.choice("aux-convention", CONVENTIONS) if is_stated else None,
        source_semantics=tuple(f"{key}={semantics.text(key)}" for key in semantics.values),
        assume=table.flag("assume"),
    )


def _verify(table: "_Table", folder: Path) -> VerifyPolicy:
    table.check_keys(VERIFY_KEYS)
    if empty := [name for name in SIGNERS if table.values.get(name) == ""]:
        raise table.error(empty[0], "a text, or no such key")
    signers = {name: table.text(name) or None for name in SIGNERS}
    key, chain, identity, provider = signers.values()
    if ways := [name for name in ("public-key", "certificate-chain") if signers[name]]:
        if len([*filter(None, signers.values())]) > 1:
            raise table.error(ways[0], "no other signer beside it: both say who signed")
    elif bool(identity) != bool(provider):
        missing = "identity-provider" if identity else "identity"
        raise table.error(missing, "a text: identity and identity-provider belong together")
    return VerifyPolicy(
        require_signature=table.flag("require-signature"),
        require_record=table.flag("require-record"),
        public_key=key and str(folder / key),
        identity=identity,
        identity_provider=provider,
        certificate_chain=chain and str(folder / chain),
    )


def _severities(table: "_Table") -> Mapping[str, Any]:
    """The severity, or "off", of each rule that [severities] names; later keys win."""
    choices = {key: table.choice(key, (*SEVERITIES, "off")) for key in table.values}
    return {rule: severity for key, severity in choices.items() for rule in table.rules(key, [key])}


def ignored_file(judged: Iterable[str] = ()) -> str | None:
    """The nearest file from the current folder upwards that is not taken because of where it lies."""
    here = current_folder()
    ignored = set(_around(here)) - set(_folders(here, judged))
    paths = (folder / name for folder in _around(here) if folder in ignored for name in FILES)
    return next((os.path.relpath(path, here) for path in paths if path.is_file()), None)


def may_hold_policy(folder: Path, judged: Iterable[str] = ()) -> bool:
    """Whether a file in `folder` is ever taken without being named."""
    return folder in _folders(folder, judged)


def _around(start: Path) -> tuple[Path, ...]:
    return (start, *start.parents)


def _folders(start: Path, judged: Iterable[str]) -> tuple[Path, ...]:
    """The folder and those around it that may hold a policy, the nearest first."""
    folders, roots = _around(start), {_root(text) for text in judged}
    real = [Path(os.path.realpath(folder)) for folder in folders]
    foreign = [number for number, folder in enumerate(real) if folder in roots or _is_foreign(folder)]
    return folders[foreign[-1] + 1 :] if foreign else folders


def _root(text: str) -> Path:
    """The folder that a source names, or that its file is in."""
    path = Path(os.path.realpath(text))
    return path.parent if os.path.lexists(path) and path.is_file() else path


def _is_foreign(folder: Path) -> bool:
    """Whether a folder, without links in its path, is a checkpoint's or a download of the Hub's client."""
    return is_checkpoint(folder) or is_snapshot(folder) or (folder / DOWNLOADED).is_dir()


def _nearest_table(start: Path | None, judged: Iterable[str]) -> tuple[Mapping[str, Any], str, Path] | None:
    """The policy's table in the nearest file, the file as seen from `start`, and its folder."""
    start = start or current_folder()
    for folder in _folders(start, judged):
        for name in FILES:
            path = folder / name
            label = os.path.relpath(path, start)
            table = _read_table(path, label) if path.is_file() else None
            if table is not None:
                return table, label, folder
    return None


def _read_table(path: Path, label: str) -> Mapping[str, Any] | None:
    """The policy's table in a TOML file; None where a pyproject.toml has none. `label` names it in
    messages.
    """
    import tomllib  # late: most folders have no policy

    try:
        text = read_small_file(path, MAX_POLICY, "the policy", UsageError).decode()
        if LONG_KEY.search(text):
            raise UsageError(f"{label} has a key of more than {MAX_PARTS} parts")
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not valid TOML: {error}") from None
    table: Any = document
    if path.name == PYPROJECT:
        tool = document.get("tool")
        table = tool.get("eaglectl") if isinstance(tool, dict) else None
    _check_bounds(table, label)
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{label}: tool.eaglectl is {table!r}; expected a table")
    return table


def _check_bounds(value: Any, label: str) -> None:
    """Raise UsageError for more than any policy has, so that all values can be read, compared and printed."""
    level, entries = [value], 0
    for _ in range(MAX_DEPTH):
        entries += len(level)
        if entries > MAX_ENTRIES:
            raise UsageError(f"{label} has more than {MAX_ENTRIES} entries, the most that is read")
        if any(type(item) is int and item.bit_length() > MAX_BITS for item in level):
            raise UsageError(f"{label} has an integer of more than {MAX_BITS} bits")
        nested = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    if level:
        raise UsageError(f"{label} has tables or lists more than {MAX_DEPTH} deep")


def _suppression(entry: "_Table") -> Suppression:
    entry.check_keys(SUPPRESSION_KEYS)
    for key in ("rule", "reason"):
        if not entry.text(key).strip():
            raise entry.error(key, "a text: every suppression names a rule and gives a reason")
    until = entry.values.get("until")
    if until is not None and (not isinstance(until, datetime.date) or isinstance(until, datetime.datetime)):
        raise entry.error("until", "a date without quotes, as 2027-01-31")
    rule = entry.located("rule", find_rule, entry.text("rule"))
    return Suppression(rule.id, entry.text("reason").strip(), until, entry.text("where"))


class _Table(Struct, frozen=True):
    """A table of the policy with its file and name, for messages. Reading a value of another type raises
    UsageError.
    """

    origin: str
    name: str
    values: Mapping[str, Any]

    def check_keys(self, known: Iterable[str]) -> None:
        for key in self.values:
            if key not in known:
                similar = get_close_matches(key.replace("_", "-"), known, 1, 0.5)
                hint = f"did you mean {similar[0]}?" if similar else f"these are known: {', '.join(known)}"
                raise UsageError(f"{self.origin}: {self._place(key)} is no key of a policy; {hint}")

    def error(self, key: str, expected: str) -> UsageError:
        value = repr(self.values[key]) if key in self.values else "absent"
        return UsageError(f"{self.origin}: {self._place(key)} is {value}; expected {expected}")

    def text(self, key: str) -> str:
        value = self.values.get(key, "")
        if not isinstance(value, str) or "\0" in value:  # which no name has
            raise self.error(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def texts(self, key: str, check: Callable[[str], object] = str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "a list of texts")
        for item in value:
            self.located(key, check, item)
        return tuple(value)

    def choice(self, key: str, choices: tuple[str, ...]) -> Any:
        value = self.values.get(key)
        if value not in choices:
            raise self.error(key, f"one of {', '.join(choices)}")
        return value

    def rules(self, key: str, texts: Iterable[str]) -> list[str]:
        return [rule.id for text in texts for rule in self.located(key, find_rules, text)]

    def table(self, key: str) -> "_Table":
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "a table")
        return _Table(self.origin, self._place(key), value)

    def tables(self, key: str) -> list["_Table"]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, f"tables under [[{key}]]")
        return [_Table(self.origin, f"{key}[{number}]", item) for number, item in enumerate(value, 1)]

    def located(self, key: str, read: Callable[[str], T], text: str) -> T:
        """What `read` makes of a text, with the key's place in the message of its UsageError."""
        try:
            return read(text)
        except UsageError as error:
            raise UsageError(f"{self.origin}: {self._place(key)}: {error}") from None

    def _place(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key
