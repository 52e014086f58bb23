"""Every fault and doubt that reading meets has a rule: its topic is a rule's name, and none goes without."""

import ast
from collections.abc import Iterator

from eaglectl.judge.rule import rules
from tests.modules import modules

ROOMS = ("files/", "drafter/", "formats/")
# what is raised or said, and the place of its topic among the arguments
CALLS = {"RefusedError": 1, "UnreadableError": 1, "add_note": 3, "Note": 3, "Fault": 0}


def calls(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls by which a fault is told, with the name of what is called."""
    for node in ast.walk(module):
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
    value = getattr(expression, "value", None)
    return [value] if isinstance(value, str) else []


def test_every_topic_is_the_name_of_a_rule() -> None:
    known = {"", *(rule.name for rule in rules())}
    told = [
        (path, call.lineno, text)
        for path, module in modules().items()
        if path.startswith(ROOMS)
        for name, call in calls(module)
        for topic in topics(name, call)
        for text in literals(topic)
    ]
    assert len(told) > 30 and [each for each in told if each[2] not in known] == []


def test_reading_tells_no_fault_without_a_topic() -> None:
    for path, module in modules().items():
        for name, call in calls(module) if path.startswith("formats/") else ():
            level = call.args[0] if name in ("add_note", "Note") and call.args else None
            is_note = isinstance(level, ast.Constant) and level.value == "note"
            assert is_note or topics(name, call), f"{path}:{call.lineno}"
