"""The classes in an engine's sources and what they inherit, without a syntax tree of every file."""

import ast
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from tools.scan.sources import Sources

HEAD = re.compile(r"^class\s+(\w+)\s*(?:\(([^)]*)\))?\s*:", re.MULTILINE)
# in a list of bases: modules, keywords, type parameters, comments
NO_BASE = re.compile(r"[\w.]+\.|\w+=\S+|\[[^\]]*\]|#.*")
# the states of a class whose decoder does not read what its hook sets
UNREAD = "in a place that its decoder does not read"
# the first line after a class that belongs to it no more
END = re.compile(r"^[^\s#)]", re.MULTILINE)


class ClassText(Struct, frozen=True):
    """A class as its file has it: `path` inside the package, line of its head, names of bases, body."""

    name: str
    path: str
    line: int
    bases: tuple[str, ...]
    body: str

    def place(self, folder: str) -> str:
        """The file and the line of the class, without the folder."""
        return f"{self.path.removeprefix(f'{folder}/')}:{self.line}"

    def has(self, method: str) -> bool:
        """Whether the class itself defines a method."""
        return f"def {method}(" in self.body


class Classes:
    """The classes of a package's files, found by name: in the same file, else in the first that has one."""

    def __init__(self, sources: Sources, folders: Sequence[str]) -> None:
        self._sources = sources
        self._by_path: dict[str, dict[str, ClassText]] = {}
        self._by_name: dict[str, ClassText] = {}
        self._texts: dict[str, str] = {}
        for folder in folders:
            for path, data in sources.modules(folder):
                whole = data.decode(errors="replace")
                found = {text.name: text for text in _classes(path, whole)}
                if path.endswith("__init__.py"):
                    self._texts[path] = whole
                self._by_path[path] = found
                for name, text in found.items():
                    self._by_name.setdefault(name, text)

    def find(self, name: str, path: str = "") -> ClassText | None:
        """A class, preferably of a file."""
        return self._by_path.get(path, {}).get(name) or self._by_name.get(name)

    def tree(self, text: ClassText) -> ast.ClassDef | None:
        """The syntax tree of a class, from that of its whole file; None where the file defines no such class.

        Raises UnreadableError.
        """
        module = self._sources.module(text.path)
        classes = (node for node in (module.body if module else []) if isinstance(node, ast.ClassDef))
        return next((node for node in classes if node.name == text.name), None)

    def in_file(self, path: str) -> tuple[ClassText, ...]:
        """The classes of a file."""
        return tuple(self._by_path.get(path, {}).values())

    def of_platform(self, folder: str, name: str) -> ClassText | None:
        """A class that a folder's package exports, also by an alias; NVIDIA's where platforms differ."""
        initial = self._texts.get(f"{folder}/__init__.py", "")
        alias = re.search(rf"(\w+) as {name}\b", initial)
        names = [name, *([alias[1]] if alias else [])]
        paths = [path for path in self._by_path if path.startswith(f"{folder}/")]
        for path in sorted(paths, key=lambda path: ("/nvidia/" not in path, path)):
            for each in names:
                if text := self._by_path[path].get(each):
                    return text
        return None

    def lineage(self, start: ClassText) -> tuple[ClassText, ...]:
        """A class and all that it inherits from, nearest first."""
        found: dict[tuple[str, str], ClassText] = {}
        waiting = [start]
        while waiting:
            one = waiting.pop(0)
            if (one.path, one.name) not in found:
                found[one.path, one.name] = one
                parents = (self.find(base, one.path) for base in one.bases if base != one.name)
                waiting += [parent for parent in parents if parent]
        return tuple(found.values())


def _classes(path: str, text: str) -> Iterator[ClassText]:
    for match in HEAD.finditer(text):
        end = END.search(text, match.end())
        body = text[match.end() : end.start() if end else len(text)]
        bases = tuple(re.findall(r"[A-Za-z_]\w*", NO_BASE.sub(" ", match[2] or "")))
        yield ClassText(match[1], path, text.count("\n", 0, match.start()) + 1, bases, body)
