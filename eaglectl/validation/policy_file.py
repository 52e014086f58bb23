"""Reading a policy: `eaglectl.toml`, or `[tool.eaglectl]` of a pyproject.toml, from the current folder upwards or by name."""

import datetime
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from eaglectl.engines.catalogue import parse_engine
from eaglectl.errors import Usage
from eaglectl.validation.catalogue import find, named
from eaglectl.validation.policy import ALLOW_LISTS, Policy, Suppression
from eaglectl.validation.rule import SEVERITIES

OWN, SHARED = "eaglectl.toml", "pyproject.toml"
KEYS = ("engines", "required", "forbidden", "severities", "fail-on", "allow", "suppress")
SUPPRESS = ("rule", "reason", "until", "where")


def read_policy(text: str | None = None, start: Path | None = None) -> Policy:
    """The policy in the file `text`, or the nearest one from `start` (the current folder) upwards; the empty one where there is none.

    Raises Usage, which names the file, the key, what was found and what was expected.
    """
    if text is None:
        return _nearest(start or Path.cwd())
    if "://" in text:
        raise Usage(f"--policy {text}: a policy is a file on this machine; download it and give its path")
    path = Path(text)
    table = _table(path, text)
    if path.name == SHARED and table is None:
        raise Usage(f"{text} has no [tool.eaglectl]; write the policy there, or give an {OWN}")
    return parse_policy(table or {}, text)


def parse_policy(table: Mapping[str, Any], origin: str) -> Policy:
    """The policy that a TOML table states; `origin` names it in messages and reports."""
    top = _Table(origin, "", table)
    top.check(KEYS)
    severities = {key: top.sub("severities").one_of(key, (*SEVERITIES, "off")) for key in top.sub("severities").table}
    ranked = {one: severity for key, severity in severities.items() for one in top.sub("severities").rules(key, [key])}
    allow = top.sub("allow")
    allow.check(ALLOW_LISTS)
    required, forbidden = (frozenset(top.rules(key, top.texts(key))) for key in ("required", "forbidden"))
    if idle := sorted(one for one in required | forbidden if ranked.get(one) == "off"):
        raise Usage(f"{origin}: {idle[0]} is required or forbidden and its severity is off; decide for one of them")
    return Policy(
        origin=origin,
        engines=top.texts("engines", parse_engine),
        required=required,
        forbidden=forbidden,
        severities={one: severity for one, severity in ranked.items() if severity != "off"},
        off=frozenset(one for one, severity in ranked.items() if severity == "off"),
        allowed={key: allow.texts(key) for key in allow.table},
        suppressions=tuple(_suppression(one) for one in top.tables("suppress")),
        fail_on=top.one_of("fail-on", (*SEVERITIES, "never")) if "fail-on" in table else None,
    )


def _nearest(start: Path) -> Policy:
    for folder in (start, *start.parents):
        for name in (OWN, SHARED):
            path = folder / name
            if path.is_file():
                shown = os.path.relpath(path, start)
                table = _table(path, shown)
                if table is not None:
                    return parse_policy(table, shown)
    return Policy()


def _table(path: Path, shown: str) -> Mapping[str, Any] | None:
    """The policy's table in a TOML file; None where a pyproject.toml has none."""
    try:
        whole = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise Usage(f"{shown}: the policy cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Usage(f"{shown} is not valid TOML: {error}") from None
    if path.name != SHARED:
        return whole
    tool = whole.get("tool")
    found = tool.get("eaglectl") if isinstance(tool, dict) else None
    if found is not None and not isinstance(found, dict):
        raise Usage(f"{shown}: tool.eaglectl is {found!r}; expected a table")
    return found


def _suppression(one: "_Table") -> Suppression:
    one.check(SUPPRESS)
    for key in ("rule", "reason"):
        if not one.text(key).strip():
            raise one.fault(key, "a text: every suppression names a rule and says why")
    until = one.table.get("until")
    if until is not None and (not isinstance(until, datetime.date) or isinstance(until, datetime.datetime)):
        raise one.fault("until", "a date without quotes, as 2027-01-31")
    return Suppression(one.rule("rule"), one.text("reason").strip(), until, one.text("where"))


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the policy with its name, so that every fault can say where it is."""

    origin: str
    name: str
    table: Mapping[str, Any]

    def check(self, known: Iterable[str]) -> None:
        for key in self.table:
            if key not in known:
                near = get_close_matches(key.replace("_", "-"), known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"these are known: {', '.join(known)}"
                raise Usage(f"{self.origin}: {self._place(key)} is no key of a policy; {hint}")

    def fault(self, key: str, expected: str) -> Usage:
        found = repr(self.table[key]) if key in self.table else "absent"
        return Usage(f"{self.origin}: {self._place(key)} is {found}; expected {expected}")

    def text(self, key: str) -> str:
        value = self.table.get(key, "")
        if not isinstance(value, str):
            raise self.fault(key, "a text")
        return value

    def texts(self, key: str, check: Callable[[str], Any] = str) -> tuple[str, ...]:
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fault(key, "a list of texts")
        for item in value:
            self._of(key, check, item)
        return tuple(value)

    def one_of(self, key: str, known: tuple[str, ...]) -> Any:
        value = self.table.get(key)
        if value not in known:
            raise self.fault(key, f"one of {', '.join(known)}")
        return value

    def rule(self, key: str) -> str:
        return str(self._of(key, find, self.text(key)).id)

    def rules(self, key: str, texts: Iterable[str]) -> list[str]:
        return [one.id for text in texts for one in self._of(key, named, text)]

    def sub(self, key: str) -> "_Table":
        value = self.table.get(key, {})
        if not isinstance(value, dict):
            raise self.fault(key, "a table")
        return _Table(self.origin, self._place(key), value)

    def tables(self, key: str) -> list["_Table"]:
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.fault(key, f"tables under [[{key}]]")
        return [_Table(self.origin, f"{key}[{number}]", item) for number, item in enumerate(value, 1)]

    def _of(self, key: str, read: Callable[[str], Any], text: str) -> Any:
        try:
            return read(text)
        except Usage as error:
            raise Usage(f"{self.origin}: {self._place(key)}: {error}") from None

    def _place(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key
