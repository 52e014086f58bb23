"""Reading a policy and defaults from eaglectl.toml, or from [tool.eaglectl] of a pyproject.toml."""

import datetime
import os
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from eaglectl.checkpoint.files import MIB, read_small_file
from eaglectl.engines.catalogue import parse_engine
from eaglectl.errors import UsageError
from eaglectl.validation.catalogue import find_rule, find_rules
from eaglectl.validation.policy import ALLOW_LISTS, Defaults, Policy, Suppression, VerifyPolicy
from eaglectl.validation.rule import SEVERITIES

T = TypeVar("T")
POLICY_FILE, PYPROJECT = "eaglectl.toml", "pyproject.toml"
MAX_POLICY = MIB
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
DEFAULT_KEYS = ("target", "aux-layers", "aux-convention", "source-semantics")
SIGNERS = ("public-key", "certificate-chain", "identity", "identity-provider")
VERIFY_KEYS = ("require-signature", "require-record", *SIGNERS)
SUPPRESSION_KEYS = ("rule", "reason", "until", "where")


def read_policy(path: str | None = None, start: Path | None = None) -> Policy:
    """The policy in the file `path`, else in the nearest file from `start` (the current folder) upwards.

    The empty policy where there is no file. Raises UsageError with the file, the key, its value and what was
    expected.
    """
    if path is None:
        return _nearest(start or Path.cwd())
    if "://" in path:
        raise UsageError(
            f"--policy {path}: a policy is a file on this machine; download it and give its path"
        )
    table = _read_table(Path(path), path)
    if table is None:
        raise UsageError(f"{path} has no [tool.eaglectl]; write the policy there, or give an {POLICY_FILE}")
    return parse_policy(table, path, Path(path).parent)


def read_defaults(start: Path | None = None) -> Defaults:
    """The [defaults] in the nearest file from `start` (the current folder) upwards. Raises UsageError."""
    found = _nearest_table(start or Path.cwd())
    if found is None:
        return Defaults()
    values, label, folder = found
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
    if target is not None and (folder / target).exists():
        target = os.path.relpath(folder / target)
    is_stated = "aux-convention" in table.values
    return Defaults(
        origin=table.origin,
        engines=engines,
        target=target,
        aux_layers=None if layers is None else ",".join(map(str, layers)),
        aux_convention=table.choice("aux-convention", CONVENTIONS) if is_stated else None,
        source_semantics=tuple(f"{key}={semantics.text(key)}" for key in semantics.values),
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


def _nearest(start: Path) -> Policy:
    found = _nearest_table(start)
    return Policy() if found is None else parse_policy(*found)


def _nearest_table(start: Path) -> tuple[Mapping[str, Any], str, Path] | None:
    """The policy's table in the nearest file, the file as seen from `start`, and its folder."""
    for folder in (start, *start.parents):
        for name in (POLICY_FILE, PYPROJECT):
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
        document = tomllib.loads(read_small_file(path, MAX_POLICY, "the policy", UsageError).decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not valid TOML: {error}") from None
    if path.name != PYPROJECT:
        return document
    tool = document.get("tool")
    table = tool.get("eaglectl") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{label}: tool.eaglectl is {table!r}; expected a table")
    return table


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
        if not isinstance(value, str):
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
