"""Limits on style beyond the linter: complexity with boolean operators, and formatter exceptions."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from radon.complexity import cc_visit
from radon.visitors import Function

from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
PACKAGE = sorted((ROOT / "eaglectl").rglob("*.py"))
FOLDERS = ("eaglectl", "tests", "docs", "schemas", "benchmarks", "fixtures")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MOST_COMPLEX = 15
# parts of a table: no call, lambda, comprehension or conditional expression
CONTAINERS = (ast.Dict, ast.List, ast.Tuple, ast.Set)
VALUES = (ast.Constant, ast.Name, ast.Attribute, ast.Starred, ast.BinOp, ast.UnaryOp)
LITERALS = (*CONTAINERS, *VALUES, ast.operator, ast.unaryop, ast.expr_context)


NAMES_OPTION = re.compile(r"pass --")


def refusals_that_name_an_option(text: str) -> list[int]:
    """Lines of `raise RefusedError(...)` with an option in the text: OptionNeededError is for those."""
    tree = ast.parse(text if "RefusedError" in text else "")
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    calls = [node.exc for node in raised if isinstance(node.exc, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func) == "RefusedError" and NAMES_OPTION.search(ast.unparse(call))
    ]


def test_a_refusal_that_an_option_answers_is_of_its_own_type() -> None:
    assert not failures(refusals_that_name_an_option, PACKAGE)


def failures(check: Callable[[str], Sequence[object]], paths: Sequence[Path]) -> dict[str, Sequence[object]]:
    """What `check` reports, by file."""
    reports = {path.relative_to(ROOT).as_posix(): check(path.read_text()) for path in paths}
    return {file: report for file, report in reports.items() if report}


def functions(block: Any) -> Iterator[Any]:
    """The functions of a block by radon: itself, methods, and those inside."""
    if isinstance(block, Function):
        yield block
    for name in ("methods", "closures", "inner_classes"):
        for inner in getattr(block, name, ()):
            yield from functions(inner)


def too_complex(source: str) -> list[str]:
    """Functions over MOST_COMPLEX by radon."""
    return sorted(
        {
            f"{function.lineno}: {function.name} has {function.complexity}"
            for block in cc_visit(source)
            for function in functions(block)
            if function.complexity > MOST_COMPLEX
        }
    )


def test_no_function_is_too_complex() -> None:
    assert failures(too_complex, PACKAGE) == {}


def not_on_tables(source: str) -> list[int]:
    """Lines with a formatter exception that does not end a module-level table of literals."""
    if "# fmt: skip" not in source:
        return []
    tables = {
        node.end_lineno
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, CONTAINERS)
        and all(isinstance(part, LITERALS) for part in ast.walk(node.value))
    }
    comments = (
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    exceptions = [comment.start[0] for comment in comments if comment.string.startswith("# fmt: skip")]
    return [line for line in exceptions if line not in tables]


def test_the_formatter_skips_tables_only_and_is_never_off_in_the_package() -> None:
    assert failures(not_on_tables, FILES) == {}
    assert [path for path in PACKAGE if "# fmt: off" in path.read_text()] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("A = {\n  1: -2,\n}  # fmt: skip\n", []),
        ("A: tuple[str, ...] = (\n  'a',\n  B.c,\n)  # fmt: skip\n", []),
        ("A = {'a': (1, *B)}  # fmt: skip\n", []),
        ("A = {1: f()}  # fmt: skip\n", [1]),
        ("A = [lambda: 1]  # fmt: skip\n", [1]),
        ("A = [a for a in b]  # fmt: skip\n", [1]),
        ("A = (1 if b else 2,)  # fmt: skip\n", [1]),
        ("A = f(1)  # fmt: skip\n", [1]),
        ("def f():\n    a = [1]  # fmt: skip\n", [2]),
        ("A = '# fmt: skip'\n", []),
    ],
)
def test_a_formatter_exception_elsewhere_is_seen(source: str, lines: list[int]) -> None:
    assert not_on_tables(source) == lines
