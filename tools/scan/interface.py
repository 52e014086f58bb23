"""What eaglectl takes from an engine, and whether the sources of a release have it.

eaglectl/engines/interface.json declares each name with its place in the engine's sources, for each runner or
class of drafters that has a place of its own; tools.scan.record_interface writes the releases. A place is

    v1/worker/cpu_model_runner.py                        a module
    config/__init__.py: replace                          a name that a module defines or imports
    v1/worker/gpu_model_runner.py: GPUModelRunner.model  a member of a class, or of a class it inherits from
    entrypoints/llm.py: LLM.generate(use_tqdm)           a parameter
    v1/metrics/prometheus.py: 'vllm:num_requests'        a text
    srt/server_args.py: `class ServerArgs`               a piece of the code

A path that ends with / stands for the modules of a folder, `*` for any class, and ` | ` parts places of which
one is enough.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from eaglectl.engines.behaviour import is_since, is_within
from eaglectl.engines.data import read
from tools.scan.plan import Difference
from tools.scan.sources import Sources, strings

FILE = "interface.json"
# sources without it are too few to look at
ENTRY_POINTS = {"vllm": "entrypoints/llm.py", "sglang": "srt/entrypoints/engine.py"}
PLACE = re.compile(r"([^:]+)(?:: (?:'(.+)'|`(.+)`|([\w*]+)(?:\.(\w+))?(?:\((\w+)\))?))?", re.DOTALL)
Definition = tuple[str, ast.AST]  # the path of a module, and what it defines


class Name(Struct, frozen=True):
    """One name that eaglectl takes from an engine.

    `where` has its place for each runner or kind of drafters, "" where all have the same; `releases` the
    range of each, None where no release has it. `without` says what eaglectl does where one lacks it.
    """

    name: str
    kind: str
    where: Mapping[str, str]
    releases: Mapping[str, str | None] = {}
    without: str = ""


def names(engine: str) -> tuple[Name, ...]:
    """The names that eaglectl takes from an engine."""
    return tuple(Name(**row) for row in read(FILE)[engine]["names"])


def releases_read(engine: str) -> tuple[str, ...]:
    """The releases whose sources were read, oldest first."""
    return tuple(read(FILE)[engine]["read"])


def has_names(sources: Sources, modules: "Modules | None" = None) -> Mapping[str, list[str]] | None:
    """For each name the runners or kinds whose place holds it; None where the sources are too few."""
    if sources.read(ENTRY_POINTS[sources.package]) is None:
        return None
    modules = modules or Modules(sources)
    return {
        row.name: [part for part, place in row.where.items() if modules.hold(place)]
        for row in names(sources.package)
    }


class Modules:
    """The modules of a package, each parsed once, with the definitions in them that were looked at."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.tree = functools.cache(sources.module)
        self._has = functools.cache(lambda path: sources.read(path) is not None)
        self.visited: dict[str, set[ast.AST]] = {}

    def hold(self, place: str) -> bool:
        """Whether one of the places has what it names. Raises as `split` does."""
        return any(self._holds(part) for part in place.split(" | "))

    def _holds(self, place: str) -> bool:
        path, text, code, outer, member, parameter = split(place)
        for file in self._paths(path):
            if (tree := self.tree(file)) is None:
                continue
            if text or code:
                if (text in strings(tree)) if text else (code in ast.unparse(tree)):
                    return True
                continue
            if not outer or self._defines(file, outer, member, parameter):
                return True
        return False

    def _paths(self, path: str) -> list[str]:
        if path.endswith("/"):
            return [name for name, _ in self._sources.modules(path.removesuffix("/"))]
        return [path]

    def _defines(self, path: str, outer: str, member: str, parameter: str) -> bool:
        definitions = list(self._named(path, outer))
        if member:
            definitions = [row for row in definitions for row in self._members(*row, member, frozenset())]
        if parameter:
            return any(parameter in _parameters(node) for _, node in definitions)
        return bool(definitions)

    def _named(self, path: str, name: str) -> Iterator[Definition]:
        """What a module defines or imports under a name; under conditions too."""
        for node in statements(self.tree(path)):
            if (name == "*" and isinstance(node, ast.ClassDef)) or name in bound(node):
                self.visited.setdefault(path, set()).add(node)
                yield path, node

    def _members(self, path: str, node: ast.AST, name: str, seen: frozenset[str]) -> Iterator[Definition]:
        """A member of a class by its own body, else by those of the classes that it inherits from."""
        if not isinstance(node, ast.ClassDef) or f"{path}:{node.name}" in seen:
            return
        body = [part for part in statements(node) if name in bound(part)]
        body += [part for part in ast.walk(node) if name in own_attributes(part)]
        own = [(path, part) for part in body]
        self.visited[path] |= {part for _, part in own}
        yield from own
        for base in () if own else node.bases:
            for definition in self._classes(path, ast.unparse(base).partition("[")[0]):
                yield from self._members(*definition, name, seen | {f"{path}:{node.name}"})

    def _classes(self, path: str, name: str) -> Iterator[Definition]:
        """The classes that a module knows by a name: its own, those it imports, and other names of either."""
        for _, node in self._named(path, name):
            match node:
                case ast.ClassDef():
                    yield path, node
                case ast.ImportFrom(module=module, level=level):
                    original = next(
                        alias.name for alias in node.names if (alias.asname or alias.name) == name
                    )
                    for file in self.files(path, module or "", level):
                        yield from self._classes(file, original)
                case ast.Assign(value=ast.Name(id=other)) if other != name:
                    yield from self._classes(path, other)

    def files(self, path: str, module: str, level: int) -> list[str]:
        """The files of an imported module of the package, `level` folders above the file that imports it."""
        package = self._sources.package
        if level:
            folder = PurePosixPath(path).parents[level - 1]
        elif module.partition(".")[0] == package:
            folder, module = PurePosixPath(), module.removeprefix(package).removeprefix(".")
        else:
            return []
        stem = str(folder / module.replace(".", "/")).removeprefix("./")
        return [file for file in (f"{stem}.py", f"{stem}/__init__.py") if self._has(file)]


def split(place: str) -> tuple[str, ...]:
    """The path of a place, and its text, piece of code, name, member and parameter; "" for those it lacks.

    Raises ValueError for a place of no known form.
    """
    if not (match := PLACE.fullmatch(place)):
        raise ValueError(f"{place}: not a place in an engine's sources")
    return tuple(part or "" for part in match.groups())


def statements(tree: ast.AST | None) -> Iterator[ast.AST]:
    """The statements of a module or class, with those under conditions."""
    for node in getattr(tree, "body", ()):
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from statements(node)
            yield from statements(ast.Module(getattr(node, "orelse", []), []))
            for handler in getattr(node, "handlers", ()):
                yield from statements(handler)


def bound(node: ast.AST) -> list[str]:
    """The names that a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def own_attributes(node: ast.AST) -> list[str]:
    """The attributes of self that a statement sets."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    parts = [part for target in targets for part in getattr(target, "elts", [target])]
    return [
        part.attr
        for part in parts
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
    ]


def _parameters(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    arguments = node.args
    return [part.arg for part in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def differences(found: Mapping[str, Any], release: str) -> list[Difference]:
    """Where sources and the interface of `release` differ; a name that was not looked for is left out."""
    engine, seen = str(found["engine"]), found.get("interface") or {}
    if not is_since(releases_read(engine)[0], release):
        return []
    return [
        Difference(_title(row.name, part), expected, not expected)
        for row in names(engine)
        if row.name in seen
        for part in row.where
        if (expected := _holds(row, part, release)) != (part in seen[row.name])
    ]


def _holds(row: Name, part: str, release: str) -> bool:
    span = row.releases.get(part)
    return span is not None and is_within(span, release)


def _title(name: str, part: str) -> str:
    return f"interface: {name}" + (f" ({part})" if part else "")


def consequences(found: Mapping[str, Any], shown: Sequence[Difference]) -> Iterator[str]:
    """What a person has to look at: what is done where a name is gone, and the record of the release."""
    engine = str(found["engine"])
    rows = {_title(row.name, part): row for row in names(engine) for part in row.where}
    for difference in shown:
        if row := rows.get(difference.what):
            without = row.without or "eaglectl cannot do without it: find what the release has in its place"
            change = "is there now" if difference.found else f"is gone; {without}"
            yield f"{difference.what} {change}"
    if found.get("interface") and found["release"] not in releases_read(engine):
        yield (
            "which releases have what eaglectl takes from the engine: record them with"
            " `python -m tools.scan.record_interface SOURCES`"
        )
