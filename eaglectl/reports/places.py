"""Where a finding lies, as editors and code hosts point at it: a file, a line and a column, or the name of a tensor."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from eaglectl.checkpoint.checkpoint import INDEX, SINGLE
from eaglectl.checkpoint.source import FolderSource
from eaglectl.errors import EaglectlError


@dataclass(frozen=True, slots=True)
class Place:
    """A file as the caller names it; `line` and `column` count from 1 where it is text, `logical` names a tensor."""

    path: str
    line: int | None = None
    column: int | None = None
    logical: str = ""

    @property
    def uri(self) -> str:
        """The file as a URI: relative where the path is."""
        scheme = "file://" if Path(self.path).is_absolute() else ""
        return scheme + quote(self.path, errors="replace")


class Places:
    """The places in one checkpoint, found again in its files; what cannot be read has no line."""

    def __init__(self, path: str) -> None:
        given = Path(path)
        self.only = given.name if given.is_file() else ""
        self.root = given.parent if self.only else given
        self.texts: dict[str, str] = {}

    def find(self, where: str) -> Place:
        """The place that a hit's `where` names."""
        if where.startswith("tensor:"):
            file = self.weight_map.get(where.removeprefix("tensor:")) or self.only or self.first_weights
            return Place(self._path(file), logical=where)
        if not where:
            return Place(self._path("config.json"), 1) if "config.json" in self.names else Place(self._path(self.only))
        if where in self.names:
            return Place(self._path(where), 1 if where.endswith(".json") else None)
        file, _, key = where.partition(":")
        return self._key(file, key) if file.endswith(".json") else Place(self._path(where))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files of the checkpoint."""
        try:
            return FolderSource(self.root).names()
        except (EaglectlError, ValueError):
            return ()

    @cached_property
    def weight_map(self) -> Mapping[str, str]:
        """Which shard holds which tensor, where there is an index."""
        try:
            found = json.loads(self._text(INDEX))["weight_map"]
            return {name: file for name, file in found.items() if isinstance(file, str)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    @property
    def first_weights(self) -> str:
        """The weight file where there is no choice."""
        return next((name for name in self.names if name.endswith(".safetensors")), SINGLE)

    def _key(self, file: str, key: str) -> Place:
        text = self._text(file)
        offset = key_offset(text, key)
        if offset is None:
            return Place(self._path(file), 1)
        before = text[:offset]
        return Place(self._path(file), before.count("\n") + 1, offset - before.rfind("\n"))

    def _path(self, file: str) -> str:
        path = self.root / file
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return path.as_posix()

    def _text(self, file: str) -> str:
        if file not in self.texts:
            try:
                self.texts[file] = FolderSource(self.root).read(file).decode("utf-8-sig", "replace")
            except (EaglectlError, ValueError):
                self.texts[file] = ""
        return self.texts[file]


def key_offset(text: str, key: str) -> int | None:
    """Where in a JSON object the key stands; dots lead into nested objects. The nearest parent where the key is not there."""
    try:
        return _offset(text, 0, key)
    except (ValueError, IndexError, RecursionError):
        return None


def _offset(text: str, start: int, key: str) -> int | None:
    found: int | None = None
    for name, position, value in _members(text, start):
        if name == key:
            found = position
        elif key.startswith(name) and key[len(name)] in ".[":
            is_object = text[value] == "{"
            deeper = _offset(text, value, key[len(name) + 1 :]) if is_object else None
            found = position if deeper is None else deeper
    return found


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Name, its offset and its value's offset, of every member of the object that begins at or after `start`."""
    decode = json.JSONDecoder().raw_decode
    position = _blank(text, start)
    position = _blank(text, position + 1) if text[position] == "{" else len(text)
    while text[position] == '"':
        name, end = decode(text, position)
        value = _blank(text, _blank(text, end) + 1)
        yield name, position, value
        _, end = decode(text, value)
        position = _blank(text, end)
        position = _blank(text, position + 1) if text[position] == "," else position


def _blank(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position
