"""Budgets of size: statements of each package, and lines of a function. They may only go down."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import eaglectl

ROOT = Path(eaglectl.__file__).parent
# statements (`ast.stmt`); "modules" are those that stand in no package
BUDGETS = {
    "cli": 439,
    "commands": 2332,
    "comparison": 649,
    "conversion": 2291,
    "drafter": 644,
    "engines": 1373,
    "files": 3106,
    "formats": 2629,
    "judge": 3198,
    "modules": 1297,
    "operations": 1940,
    "publish": 1455,
    "reference": 1250,
    "report": 2074,
    "run": 4723,
}
# a package that has fallen further below its budget has a new one
SLACK = 0.03
LONGEST = 50
# functions that are longer, until each is taken apart
LONG: set[str] = set()


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Each node of the package, with the name of its module."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(ROOT).as_posix(), node


def test_each_package_keeps_its_budget_of_statements() -> None:
    statements = [name for name, node in nodes() if isinstance(node, ast.stmt)]
    sizes = Counter(name.split("/")[0] if "/" in name else "modules" for name in statements)
    over = {name: size for name, size in sizes.items() if size > BUDGETS.get(name, 0)}
    assert over == {}, "statements over the budget: remove some elsewhere in the package"
    under = {name: sizes[name] for name, budget in BUDGETS.items() if sizes[name] < budget * (1 - SLACK)}
    assert under == {}, "lower these budgets to the present figures"


def test_no_function_is_too_long() -> None:
    functions = [(name, node) for name, node in nodes() if isinstance(node, ast.FunctionDef)]
    long = {
        f"{name}: {node.name}"
        for name, node in functions
        if node.end_lineno and node.end_lineno - node.lineno >= LONGEST
    }
    assert long == LONG, f"functions of over {LONGEST} lines, or names to take off the list"
