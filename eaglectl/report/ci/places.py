"""Places of findings as editors and code hosts show them: file, line and column, or the name of a tensor."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from eaglectl.errors import EaglectlError
from eaglectl.files.layout import INDEX, SINGLE
from eaglectl.files.source import FolderSource


class Place(Struct, frozen=True):
    """A file as given by the caller; `line` and `column` count from 1, `logical` names a tensor."""

    path: str
    line: int | None = None
    column: int | None = None
    logical: str = ""

    @property
    def uri(self) -> str:
        """The file as a URI; a relative path gives a relative URI."""
        path = quote(self.path, errors="replace")
        return f"file://{path}" if Path(self.path).is_absolute() else path


class Places:
    """Finds places in the files of one checkpoint; a file that cannot be read has no lines."""

    def __init__(self, path: str) -> None:
        given, self.only_file = Path(path), ""
        self.root = given
        if given.is_file():
            self.root, self.only_file = given.parent, given.name
        self.texts: dict[str, str] = {}

    def find(self, where: str) -> Place:
        """Return the place that the `where` of a match names."""
        if where.startswith("tensor:"):
            file = self.weight_map.get(where.removeprefix("tensor:")) or self.only_file or self.first_weights
            return Place(self._path(file), logical=where)
        if not where:
            return self._whole()
        file, _, key = where.partition(":")
        if file.endswith(".json") and where not in self.names:
            return self._key(file, key)
        line = 1 if where.endswith(".json") else None
        return Place(self._path(where), line)

    def _whole(self) -> Place:
        if "config.json" in self.names:
            return Place(self._path("config.json"), 1)
        return Place(self._path(self.only_file))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files of the checkpoint."""
        try:
            return FolderSource(self.root).names()
        except (EaglectlError, ValueError):
            return ()

    @cached_property
    def weight_map(self) -> Mapping[str, str]:
        """The shard of each tensor, from the index; empty without one."""
        try:
            weight_map = json.loads(self._text(INDEX))["weight_map"]
            return {name: file for name, file in weight_map.items() if isinstance(file, str)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    @property
    def first_weights(self) -> str:
        """The first weight file by name; its usual name if there is none."""
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
    """Return the offset of a dotted key in a JSON object, or of its nearest parent; None without either."""
    try:
        return _offset(text, 0, key)
    except (ValueError, IndexError, RecursionError):
        return None


def _offset(text: str, start: int, key: str) -> int | None:
    offset: int | None = None
    for name, position, value in _members(text, start):
        if name == key:
            offset = position
        elif key.startswith(name) and key[len(name)] in ".[":
            offset = position
            if text[value] == "{":
                nested = _offset(text, value, key[len(name) + 1 :])
                offset = position if nested is None else nested
    return offset


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, its offset and its value's offset for each member of the object that begins at `start`."""
    decode = json.JSONDecoder().raw_decode
    position = _skip_blanks(text, start)
    position = _skip_blanks(text, position + 1) if text[position] == "{" else len(text)
    while text[position] == '"':
        name, end = decode(text, position)
        value = _skip_blanks(text, _skip_blanks(text, end) + 1)
        yield name, position, value
        _, end = decode(text, value)
        position = _skip_blanks(text, end)
        position = _skip_blanks(text, position + 1) if text[position] == "," else position


def _skip_blanks(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position
