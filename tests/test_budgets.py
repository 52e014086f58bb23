"""Budgets of size: statements of each package, and lines of a function. They may only go down."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import eaglectl
from tests.modules import nodes

ROOT = Path(eaglectl.__file__).parent
# statements (`ast.stmt`); "modules" are those that stand in no package
BUDGETS = {
    "api": 2594,
    "cli": 404,
    "commands": 1686,
    "conversion": 1984,
    "drafter": 775,
    "engines": 1723,
    "files": 2791,
    "formats": 2387,
    "in_engine": 432,
    "judge": 2688,
    "modules": 1537,
    "publish": 709,
    "reference": 945,
    "report": 1659,
    "run": 4482,
    "target": 334,
}
# a producer's declaration, beside the budget of its package
PRODUCERS, LARGEST_PRODUCER = "formats/producers/", 65
# a package that has fallen further below its budget has a new one
SLACK = 0.03
LONGEST = 50
# functions that are longer, until each is taken apart
LONG: set[str] = set()


@cache
def statements() -> list[tuple[str, ast.stmt]]:
    """Each statement of the package, with the name of its module."""
    return [(name, node) for name, node in nodes() if isinstance(node, ast.stmt)]


def test_each_package_keeps_its_budget_of_statements() -> None:
    names = [name for name, _ in statements() if not name.startswith(PRODUCERS)]
    sizes = Counter(name.split("/")[0] if "/" in name else "modules" for name in names)
    over = {name: size for name, size in sizes.items() if size > BUDGETS.get(name, 0)}
    assert over == {}, "statements over the budget: remove some elsewhere in the package"
    under = {name: sizes[name] for name, budget in BUDGETS.items() if sizes[name] < budget * (1 - SLACK)}
    assert under == {}, "lower these budgets to the present figures"


def test_a_producer_is_a_short_declaration() -> None:
    sizes = Counter(name for name, _ in statements() if name.startswith(PRODUCERS))
    assert {name: size for name, size in sizes.items() if size > LARGEST_PRODUCER} == {}


def test_no_function_is_too_long() -> None:
    functions = [(name, node) for name, node in statements() if isinstance(node, ast.FunctionDef)]
    long = {
        f"{name}: {node.name}"
        for name, node in functions
        if node.end_lineno and node.end_lineno - node.lineno >= LONGEST
    }
    assert long == LONG, f"functions of over {LONGEST} lines, or names to take off the list"
