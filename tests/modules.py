"""The modules of eaglectl as syntax trees, each parsed once in a process."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import eaglectl

ROOT = Path(eaglectl.__file__).parent


@cache
def modules() -> Mapping[str, ast.Module]:
    """Every module by its path below eaglectl/."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }
