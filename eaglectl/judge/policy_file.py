"""Reading a policy and defaults from eaglectl.toml, or from [tool.eaglectl] of a pyproject.toml."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from eaglectl.engines.registry import parse_engine
from eaglectl.errors import UsageError
from eaglectl.files.files import current_folder, read_small_file
from eaglectl.files.hub_cache import is_snapshot
from eaglectl.files.layout import is_checkpoint
from eaglectl.judge.policy import Defaults, Policy, Suppression, VerifyPolicy
from eaglectl.judge.policy_keys import KEYS, POLICY, Key
from eaglectl.judge.rules import find_rule, find_rules

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
# of longer files no line is looked for, as each step parses the file's beginning
MAX_LINES, MAX_TEXT = 500, 32 << 10


def read_policy(
    path: StrPath | None = None, start: StrPath | None = None, *, judged: Iterable[StrPath] = ()
) -> Policy:
    """The policy in the file `path`, else in the nearest file from `start` (the current folder) upwards.

    No file in or below a checkpoint, a download or one of `judged` (folders, or files in them) is taken
    unless `path` names it. The empty policy where there is no file. Raises UsageError with the file, the key,
    its value and what was expected.
    """
    table = _table(path, start, judged)
    return Policy() if table is None else _policy(table)


def _table(path: StrPath | None, start: StrPath | None, judged: Iterable[StrPath]) -> "_Table | None":
    """The policy's table in the file `path`, else in the nearest file; None where there is none."""
    if path is None:
        return _nearest_table(None if start is None else Path(start), [os.fspath(each) for each in judged])
    path = os.fspath(path)
    if "://" in path:
        raise UsageError(
            f"--policy {path}: a policy is a file on this machine; download it and give its path"
        )
    table = _read_table(Path(path), path)
    if table is None:
        raise UsageError(f"{path} has no [tool.eaglectl]; write the policy there, or give an {POLICY_FILE}")
    return table


def read_defaults(
    path: StrPath | None = None, start: StrPath | None = None, *, judged: Iterable[StrPath] = ()
) -> Defaults:
    """The [defaults] in the file that `read_policy` takes. Raises UsageError."""
    table = _table(path, start, judged)
    return (
        Defaults()
        if table is None
        else _defaults(table.table("defaults"), table.texts("engines", parse_engine))
    )


def parse_policy(values: Mapping[str, Any], origin: str, folder: Path = Path()) -> Policy:
    """The policy in a TOML table; `origin` names its file in messages and reports.

    Paths in it begin at `folder`.
    """
    return _policy(_Table(File(origin, folder), POLICY, values))


def _policy(table: "_Table") -> Policy:
    _defaults(table.table("defaults"), ())
    severities = _severities(table.table("severities"))
    allow = table.table("allow")
    required, forbidden = (frozenset(table.rules(key, table.texts(key))) for key in ("required", "forbidden"))
    off = frozenset(rule for rule, severity in severities.items() if severity == "off")
    if conflicts := sorted((required | forbidden) & off):
        raise UsageError(
            f"{table.file.label}: {conflicts[0]} is required or forbidden and its severity is off;"
            " decide for one of them"
        )
    return Policy(
        origin=table.file.label,
        engines=table.texts("engines", parse_engine),
        required=required,
        forbidden=forbidden,
        severities={rule: severity for rule, severity in severities.items() if rule not in off},
        off=off,
        allowed={key: allow.texts(key) for key in allow.values},
        suppressions=tuple(_suppression(entry) for entry in table.tables("suppress")),
        fail_on=table.value("fail-on"),
        verify=VerifyPolicy(table.table("verify").value("require-record")),
    )


def _defaults(table: "_Table", engines: tuple[str, ...]) -> Defaults:
    layers, target = table.value("aux-layers"), table.value("target") or None
    semantics, folder = table.table("source-semantics"), table.file.folder
    if target is not None and os.path.lexists(folder / target):
        target = os.path.relpath(folder / target)
    return Defaults(
        origin=table.file.label,
        engines=engines,
        target=target,
        aux_layers=None if layers is None else ",".join(map(str, layers)),
        aux_convention=table.value("aux-convention"),
        source_semantics=tuple(f"{key}={semantics.value(key)}" for key in semantics.values),
        assume=table.value("assume"),
    )


def _severities(table: "_Table") -> Mapping[str, Any]:
    """The severity, or "off", of each rule that [severities] names; later keys win."""
    choices = {key: table.value(key) for key in table.values}
    return {rule: severity for key, severity in choices.items() for rule in table.rules(key, [key])}


def ignored_file(judged: Iterable[str] = ()) -> str | None:
    """The nearest file from the current folder upwards that is not taken because of where it lies."""
    here = current_folder()
    ignored = set(_around(here)) - set(_folders(here, judged))
    paths = (folder / name for folder in _around(here) if folder in ignored for name in FILES)
    return next((os.path.relpath(path, here) for path in paths if path.is_file()), None)


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


def _nearest_table(start: Path | None, judged: Iterable[str]) -> "_Table | None":
    """The policy's table in the nearest file, which is named as seen from `start`."""
    start = start or current_folder()
    for folder in _folders(start, judged):
        for name in FILES:
            path = folder / name
            label = os.path.relpath(path, start)
            table = _read_table(path, label) if path.is_file() else None
            if table is not None:
                return table
    return None


def _read_table(path: Path, label: str) -> "_Table | None":
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
    parts: tuple[str, ...] = ()
    if path.name == PYPROJECT:
        parts = ("tool", "eaglectl")
        tool = document.get("tool")
        table = tool.get("eaglectl") if isinstance(tool, dict) else None
    _check_bounds(table, label)
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{label}: tool.eaglectl is {table!r}; expected a table")
    return None if table is None else _Table(File(label, path.parent, text, parts), POLICY, table)


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
    for key in ("rule", "reason"):
        if not entry.value(key).strip():
            raise entry.error(key, "a text: every suppression names a rule and gives a reason")
    rule = entry.located("rule", find_rule, entry.value("rule"))
    return Suppression(rule.id, entry.value("reason").strip(), entry.value("until"), entry.value("where"))


class File(Struct, frozen=True):
    """A file of a policy: its name in messages, the folder that its paths begin at, its text, and the tables
    around the policy.
    """

    label: str
    folder: Path = Path()
    text: str = ""
    parts: tuple[str, ...] = ()

    def place(self, path: tuple[str | int, ...]) -> str:
        """Where a key stands, as FILE:LINE, or the file alone."""
        line = line_of(self.text, (*self.parts, *path))
        return f"{self.label}:{line}" if line else self.label


class _Table(Struct, frozen=True):
    """A table of the policy: its file, what it may hold, its values, and its path in the file.

    A key that is not declared, and a value of another kind, raise UsageError with the line.
    """

    file: File
    key: Key
    values: Mapping[str, Any]
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse keys that are not declared."""
        known = self.key.keys
        for key in self.values:
            if key not in known and self.key.each is None:
                raise UsageError(f"{self._place(key)} is no key of a policy; {self._hint(key)}")

    def _hint(self, key: str) -> str:
        """What an unknown key may have been meant for: one of another table, or one of a similar name."""
        others = [
            (name, table) for name, table in KEYS.items() if key in table.keys and table is not self.key
        ]
        if key in KEYS and self.path:
            return "it belongs at the top level, above the first [table]"
        if others and not self.path:
            return f"it belongs under [{others[0][0]}]"
        similar = get_close_matches(key.replace("_", "-"), self.key.keys, 1, 0.5)
        return f"did you mean {similar[0]}?" if similar else f"these are known: {', '.join(self.key.keys)}"

    def error(self, key: str, expected: str) -> UsageError:
        value = repr(self.values[key]) if key in self.values else "absent"
        return UsageError(f"{self._place(key)} is {value}; expected {expected}")

    def value(self, key: str) -> Any:
        """The value of a key; what its kind has for none where it is absent."""
        declared = self.key.keys.get(key) or self.key.each
        assert declared is not None
        if key not in self.values:
            return declared.empty
        value = self.values[key]
        if not declared.takes(value):
            raise self.error(
                key, f"tables under [[{key}]]" if declared.kind == "tables" else declared.expected
            )
        return value

    def texts(self, key: str, check: Callable[[str], object] = str) -> tuple[str, ...]:
        texts: list[str] = self.value(key)
        for item in texts:
            self.located(key, check, item)
        return tuple(texts)

    def rules(self, key: str, texts: Iterable[str]) -> list[str]:
        return [rule.id for text in texts for rule in self.located(key, find_rules, text)]

    def table(self, key: str) -> "_Table":
        return _Table(self.file, self.key.keys[key], self.value(key), (*self.path, key))

    def tables(self, key: str) -> list["_Table"]:
        declared = self.key.keys[key]
        return [
            _Table(self.file, declared, item, (*self.path, key, place))
            for place, item in enumerate(self.value(key))
        ]

    def located(self, key: str, read: Callable[[str], T], text: str) -> T:
        """What `read` makes of a text, with the key's place in the message of its UsageError."""
        try:
            return read(text)
        except UsageError as error:
            raise UsageError(f"{self._place(key)}: {error}") from None

    def _place(self, key: str) -> str:
        """The file, the line, and the key with its tables."""
        names = [f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in (*self.path, key)]
        path = (*self.path, key) if key in self.values else self.path
        return f"{self.file.place(path)}: {''.join(names)[1:]}"


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line, from 1, on which the statement begins that gives a key its value; None where none is found.

    `path` has the names of tables and keys, and the places in lists from 0. What stands before a statement is
    TOML itself, so it is the first line after the longest beginning of the file without the key.
    """
    lines = [f"{line}\n" for line in text.split("\n")]
    if len(lines) > MAX_LINES or len(text) > MAX_TEXT or not _has(text, path):
        return None
    without, with_key = 0, len(lines)
    while end := _end_between(lines, without, with_key):
        if _has("".join(lines[:end]), path):
            with_key = end
        else:
            without = end
    return next(number for number in range(without + 1, with_key + 1) if _is_statement(lines[number - 1]))


def _end_between(lines: Sequence[str], low: int, high: int) -> int | None:
    """A number of lines between two that are TOML without the rest, about the middle; None where none are."""
    middle = (low + high) // 2
    numbers = (*range(middle, low, -1), *range(middle + 1, high))
    return next((number for number in numbers if _is_toml(lines, number)), None)


def _is_statement(line: str) -> bool:
    return bool(line.strip()) and line.strip()[0] != "#"


def _is_toml(lines: Sequence[str], end: int) -> bool:
    return _parsed("".join(lines[:end])) is not None


def _has(text: str, path: Sequence[str | int]) -> bool:
    value: Any = _parsed(text)
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return value is not None


def _parsed(text: str) -> dict[str, Any] | None:
    import tomllib  # late, as above

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None
