"""The modules of eaglectl as syntax trees, each parsed once in a process."""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import eaglectl

ROOT = Path(eaglectl.__file__).parent


@cache
def parse(source: str) -> ast.Module:
    """The syntax tree of a source."""
    return ast.parse(source)


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> Mapping[str, ast.Module]:
    """Every module by its path below eaglectl/."""
    return {path.relative_to(ROOT).as_posix(): tree_of(path) for path in sorted(ROOT.rglob("*.py"))}


@cache
def nodes() -> Sequence[tuple[str, ast.AST]]:
    """Every node of every module, with the path of its module."""
    return [(path, node) for path, module in modules().items() for node in ast.walk(module)]
