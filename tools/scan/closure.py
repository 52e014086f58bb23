"""What a drafter's outcome depends on in an engine's sources, followed from definition to definition.

tools/scan/topics.json states where to begin (`roots`), where not to go on (`cuts`, each with its reason) and
which topic a place belongs to. A place is `path`, `path: name` or `path: Class.method`, a path that ends with
/ a folder. A class of which roots name methods is followed by its methods alone. Nothing is imported or run.
"""

import ast
import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from msgspec import Struct, convert

from tools.scan.interface import Modules, bound, statements
from tools.scan.sources import Sources

TOPICS = Path(__file__).parent / "topics.json"
# a place that no topic names
OTHER = "other"
Definition = tuple[str, str]  # a file, and a name or Class.method in it


class Scope(Struct, frozen=True):
    """What is looked at in an engine: `roots`, the places of each cut by its reason, and of each topic.

    `kept` are places inside of a cut that are no part of it; of a place in both the longer decides.
    """

    roots: frozenset[str]
    kept: frozenset[str]
    cuts: Mapping[str, frozenset[str]]
    topics: Mapping[str, frozenset[str]]

    @property
    def partial(self) -> frozenset[Definition]:
        """The classes that are followed by their methods alone."""
        places = [root.partition(": ") for root in self.roots]
        return frozenset((path, name.partition(".")[0]) for path, _, name in places if "." in name)

    def is_cut(self, definition: Definition) -> bool:
        """Whether a definition is left out; what a root names never is."""
        cut = max(_depth(places, definition) for places in self.cuts.values())
        return cut > max(_depth(self.kept, definition), _depth(self.roots, definition))

    def topic(self, definition: Definition) -> str:
        """The topic of the longest place that a definition fits."""
        depths = {topic: _depth(places, definition) for topic, places in self.topics.items()}
        topic = max(depths, key=lambda name: depths[name])
        return topic if depths[topic] else OTHER


def _depth(places: Collection[str], definition: Definition) -> int:
    """The length of the longest place that a definition fits; 0 where it fits none."""
    path, name = definition
    whole = f"{path}: {name}"
    folders = [f"{folder}/" for folder in PurePosixPath(path).parents]
    fitting = (whole, whole.rpartition(".")[0] if "." in name else whole, path, *folders)
    return max((len(place) for place in fitting if place in places), default=0)


@cache
def scope(engine: str) -> Scope:
    """What is looked at in an engine."""
    return convert(json.loads(TOPICS.read_text())[engine], Scope)


def reached(sources: Sources, limits: Scope) -> Mapping[Definition, ast.AST]:
    """Every definition that the roots reach, without comments, documentation, types and log lines."""
    follower = Follower(Modules(sources), limits)
    for root in sorted(limits.roots):
        path, _, name = root.partition(": ")
        names = [name] if name else follower.names(path)
        for each in names:
            follower.follow(path, each)
    return follower.found


class Follower:
    """The definitions that were reached so far."""

    def __init__(self, modules: Modules, limits: Scope) -> None:
        self._modules, self._limits = modules, limits
        self._bound = cache(self._table)
        self.found: dict[Definition, ast.AST] = {}

    def _table(self, path: str) -> Mapping[str, list[ast.AST]]:
        """The statements of a module that define or import each name."""
        table: dict[str, list[ast.AST]] = {}
        for node in statements(self._modules.tree(path)):
            for name in bound(node):
                table.setdefault(name, []).append(node)
        return table

    def names(self, path: str) -> list[str]:
        """The names that a module defines itself."""
        imports = (ast.Import, ast.ImportFrom)
        return [
            name
            for name, nodes in self._bound(path).items()
            if not all(isinstance(n, imports) for n in nodes)
        ]

    def follow(self, path: str, name: str) -> None:
        """Add a definition and all that it refers to."""
        todo = [(path, name)]
        while todo:
            definition = todo.pop()
            if definition not in self.found and not self._limits.is_cut(definition):
                todo += self._enter(*definition)

    def _enter(self, path: str, name: str) -> list[Definition]:
        """Add one definition, and return what it refers to."""
        outer, _, member = name.partition(".")
        following: list[Definition] = []
        for node in self._bound(path).get(outer, ()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                following += self._imported(path, node, outer)
            elif isinstance(node, ast.ClassDef):
                following += self._class(path, node, member)
            else:
                self.found[path, name] = bare = stripped(node)
                following += self._references(path, bare)
        return following

    def _class(self, path: str, node: ast.ClassDef, member: str) -> list[Definition]:
        """A class: its head and each method apart; of one that is partial the methods asked for."""
        is_partial = (path, node.name) in self._limits.partial
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
        if not is_partial or (member and not any(part.name == member for part in methods)):
            head = ast.ClassDef(node.name, node.bases, node.keywords, [], node.decorator_list)
            head.body = [part for part in node.body if part not in methods] or [ast.Pass()]
            parts: list[tuple[str, ast.stmt]] = [(node.name, head)]
            parts += [(f"{node.name}.{part.name}", part) for part in methods]
            if is_partial:
                parts = []
        else:
            parts = [(f"{node.name}.{part.name}", part) for part in methods if part.name == member]
        following = []
        for name, part in parts:
            if (path, name) in self.found or (name != node.name and self._limits.is_cut((path, name))):
                continue
            self.found[path, name] = bare = stripped(part)
            following += self._references(path, bare)
        return following

    def _references(self, path: str, node: ast.AST) -> list[Definition]:
        """The definitions that a definition names: of its module, and of those that are imported."""
        local = [part for part in ast.walk(node) if isinstance(part, ast.Import | ast.ImportFrom)]
        found: list[Definition] = []
        for name, attribute in _names(node):
            for inner in (part for part in local if name in bound(part)):
                found += self._imported(path, inner, name, attribute)
            for statement in self._bound(path).get(name, ()):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    found += self._imported(path, statement, name, attribute)
                else:
                    found.append((path, name))
        return found

    def _imported(
        self, path: str, node: ast.Import | ast.ImportFrom, name: str, attribute: str = ""
    ) -> list[Definition]:
        """The definition behind an imported name, or behind an attribute of an imported module."""
        for alias in node.names:
            if (alias.asname or alias.name) != name:
                continue
            if isinstance(node, ast.Import):
                return [(file, attribute) for file in self._modules.files(path, alias.name, 0) if attribute]
            module = node.module or ""
            inside = f"{module}.{alias.name}" if module else alias.name
            files = self._modules.files(path, inside, node.level)
            if files:
                return [(file, attribute) for file in files if attribute]
            return [(file, alias.name) for file in self._modules.files(path, module, node.level)]
        return []


def _names(node: ast.AST) -> set[tuple[str, str]]:
    """The names that are used, each with the attribute taken of it."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found.add((part.value.id, part.attr))
        elif isinstance(part, ast.Name):
            found.add((part.id, ""))
    return found


class _Strip(ast.NodeTransformer):
    """Leaves out what decides nothing: documentation, types, log lines."""

    def visit(self, node: ast.AST) -> ast.AST:
        """Strip a node, and what it holds."""
        for field in ("returns", "type_comment"):
            if hasattr(node, field):
                setattr(node, field, None)
        self.generic_visit(node)
        match node:
            case ast.arg(arg=name):
                return ast.arg(name)
            case ast.AnnAssign(target=target, value=value):
                return ast.Expr(target) if value is None else ast.Assign([target], value)
        for field in ("body", "orelse", "finalbody"):
            lines = getattr(node, field, None)
            if isinstance(lines, list):
                kept = [line for line in lines if not _says_nothing(line)]
                setattr(node, field, kept or ([ast.Pass()] if field == "body" else []))
        return node


def _says_nothing(line: ast.AST) -> bool:
    """Whether a statement is documentation, a log line or `pass`."""
    match line:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in ("logger", "logging", "warnings")
    return False


def stripped(node: ast.AST) -> ast.AST:
    """The definition without what decides nothing; changes the tree."""
    return ast.fix_missing_locations(_Strip().visit(node))
