"""Places of findings as editors and code hosts show them: file, line and column, or the name of a tensor."""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from eaglectl.errors import EaglectlError
from eaglectl.files.layout import INDEX, SINGLE
from eaglectl.files.source import FolderSource
from eaglectl.report.wording import shortened

# strings, those that are followed by a colon as keys, and brackets
DECODER = json.JSONDecoder(strict=False)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}\[\]]', re.DOTALL)


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
        if os.path.isfile(path):  # noqa: PTH113, as no name is too long for it
            self.root, self.only_file = given.parent, given.name
        self.texts: dict[str, str] = {}

    def find(self, where: str) -> Place:
        """Return the place that the `where` of a match names."""
        if where.startswith("tensor:"):
            file = self.weight_map.get(where.removeprefix("tensor:")) or self.only_file
            file = file or next((name for name in self.names if name.endswith(".safetensors")), SINGLE)
            return Place(self._path(file), logical=where)
        file, _, key = where.partition(":")
        if not where:
            file = "config.json" if "config.json" in self.names else self.only_file
        elif not file.endswith(".json") or where in self.names:
            file, key = where, ""
        text = self._text(file) if key else ""
        offset = key_offset(text, key)
        if offset is None:
            return Place(self._path(file), 1 if file.endswith(".json") else None)
        before = text[:offset]
        return Place(self._path(file), before.count("\n") + 1, offset - before.rfind("\n"))

    def code(self, where: str) -> str:
        """Return the line of the key that the `where` of a match names, with its value; "" for no key."""
        file, _, key = where.partition(":")
        text = self._text(file) if key and file.endswith(".json") else ""
        offset = key_offset(text, key)
        if offset is None:
            return ""
        name, end = DECODER.raw_decode(text, offset)
        value, _ = DECODER.raw_decode(text[end:].lstrip(" \t\r\n:"))
        line = text[:offset].count("\n") + 1
        return f"{file}:{line} {shortened(f'{json.dumps(name)}: {json.dumps(value)}')}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files of the checkpoint."""
        try:
            return FolderSource(self.root).names()
        except (EaglectlError, OSError, ValueError):
            return ()

    @cached_property
    def weight_map(self) -> Mapping[str, str]:
        """The shard of each tensor, from the index; empty without one."""
        try:
            weight_map = json.loads(self._text(INDEX))["weight_map"]
            return {name: file for name, file in weight_map.items() if isinstance(file, str)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _path(self, file: str) -> str:
        path = self.root / file
        if path.is_absolute() and path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return path.as_posix()

    def _text(self, file: str) -> str:
        if file not in self.texts:
            try:
                self.texts[file] = FolderSource(self.root).read(file).decode("utf-8-sig", "replace")
            except (EaglectlError, OSError, ValueError):
                self.texts[file] = ""
        return self.texts[file]


def key_offset(text: str, key: str) -> int | None:
    """Return the offset of a dotted key in a JSON object, or of its nearest parent; None without either.

    A list is "[]" in a path; of equal paths the last counts.
    """
    offsets: dict[str, int] = {}
    path: list[str] = []  # the last key of each open object; no path has that of a list
    try:
        for token in TOKEN.finditer(text):
            match token[0][0]:
                case "{":
                    path.append("")
                case "[":
                    path.append("[]")
                case "}" | "]":
                    path.pop()
                case '"' if token[1]:
                    path[-1] = json.loads(token[0].removesuffix(token[1]))
                    offsets[".".join(path)] = token.start()
    except (ValueError, IndexError):
        return None
    ends = [len(key), *(end.start() for end in re.finditer(r"[.\[]", key))]
    return next((offsets[key[:end]] for end in sorted(ends, reverse=True) if key[:end] in offsets), None)
