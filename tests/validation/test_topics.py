"""Every fault and doubt that reading meets has a rule: its topic is a rule's name, and none goes without."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import eaglectl
from eaglectl.judge.rules import rules

ROOT = Path(eaglectl.__file__).parent
ROOMS = ("checkpoint", "drafter", "formats")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).glob("*.py"))
# what is raised or said, and the place of its topic among the arguments
CALLS = {"RefusedError": 1, "UnreadableError": 1, "add_note": 3, "Note": 3, "Fault": 0}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls by which a fault is told, with the name of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CALLS:
                yield name, node


def topics(name: str, call: ast.Call) -> list[ast.expr]:
    """The expressions that a call gives for its topic."""
    found = [keyword.value for keyword in call.keywords if keyword.arg == "topic"]
    at = CALLS[name]
    return found or call.args[at : at + 1]


def literals(expression: ast.expr) -> list[str]:
    """The texts that an expression may be: a literal, or either side of a condition."""
    if isinstance(expression, ast.IfExp):
        return literals(expression.body) + literals(expression.orelse)
    return (
        [expression.value]
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str)
        else []
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_topic_is_the_name_of_a_rule(path: Path) -> None:
    known = {one.name for one in rules()}
    for name, call in calls(path):
        for topic in topics(name, call):
            for text in literals(topic):
                assert text in known | {""}, f"{path.name}:{call.lineno}"


@pytest.mark.parametrize("path", sorted((ROOT / "formats").glob("*.py")), ids=lambda path: path.name)
def test_reading_tells_no_fault_without_a_topic(path: Path) -> None:
    for name, call in calls(path):
        level = call.args[0] if name in ("add_note", "Note") and call.args else None
        if isinstance(level, ast.Constant) and level.value == "note":
            continue
        assert topics(name, call), f"{path.name}:{call.lineno}"
