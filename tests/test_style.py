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
from tests.modules import parse

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
    tree = parse(text if "RefusedError" in text else "")
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    calls = [node.exc for node in raised if isinstance(node.exc, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func) == "RefusedError" and NAMES_OPTION.search(ast.unparse(call))
    ]


def test_a_refusal_that_an_option_answers_is_of_its_own_type() -> None:
    assert not failures(refusals_that_name_an_option, PACKAGE)


# flags as docs/commands.md, which is generated, has them
FLAGS = frozenset(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs/commands.md").read_text()))


def words_of(node: ast.AST, texts: dict[str, str]) -> str:
    """The literal words in an expression in their order, those of the module's constants too; no commands."""

    def parts(part: ast.AST) -> Iterator[str]:
        if isinstance(part, ast.Constant | ast.Name):
            word = part.value if isinstance(part, ast.Constant) else texts.get(part.id, "")
            yield word if isinstance(word, str) else ""
        for child in ast.iter_child_nodes(part):
            yield from parts(child)

    return re.sub(r"`[^`]*`?", "", " ".join(parts(node)))


def errors_without_options(text: str) -> list[int]:
    """Lines of errors whose text names an option of a command that they do not state as theirs."""
    tree = parse(text if "Error(" in text or "check(" in text else "")
    texts = {
        node.targets[0].id: words_of(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    messages = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, keywords = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
        faults = [fault for fault in call.args if isinstance(fault, ast.Tuple) and len(fault.elts) > 1]
        if name == "check":
            messages += [fault.elts[1] for fault in faults if not isinstance(fault.elts[-1], ast.Tuple)]
        elif name in ERRORS and call.args and len(call.args) < 4 and "options" not in keywords:
            messages.append(call.args[0])
    return [
        message.lineno
        for message in messages
        if FLAGS.intersection(re.findall(r"--[a-z][a-z-]+", words_of(message, texts)))
    ]


ERRORS = {"UsageError", "OpenFactError", "RefusedError", "OptionNeededError", "UnreadableError"}


def test_an_error_states_the_options_that_its_text_names() -> None:
    assert not failures(errors_without_options, PACKAGE)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ('raise UsageError("pass --target")', 1),
        ('raise UsageError("pass --target", options=("--target",))', 0),
        ('raise UnreadableError(f"{place}; {CHECK}")', 1),
        ('check((wrong, f"{text} needs --target"))', 1),
        ('check((wrong, f"{text} needs --target", ("--target",)))', 0),
        ('raise RefusedError("run `eaglectl validate D --target T`")', 0),
        ('raise UnreadableError("start it with --no-option-of-ours")', 0),
    ],
)
def test_the_lint_of_options_finds_what_it_is_for(line: str, count: int) -> None:
    assert len(errors_without_options(f'CHECK = "see the URL of --run-in"\n{line}\n')) == count


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
        for node in parse(source).body
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


# words that say nothing of what a variable holds: rule, tensor, checkpoint or path do
UNCLEAR = re.compile("asked|each|found|given|it|kept|known|made|one|own|said|shown|stated|there|told")
# what a docstring of a function begins with; "Whether" is for what returns bool
VERBS = re.compile(
    r"("
    "Add|Answer|Append|Apply|Ask|Build|Cache|Check|Collect|Compare|Complete|Compute|Convert|"
    "Correct|Count|Decode|Describe|Diagnose|Divide|Do|Download|Draw|Encode|End|Fill|Find|"
    "Forget|Generate|Give|Hash|Inspect|Join|Judge|Keep|Kill|Let|List|Load|Look|Make|"
    "Measure|Minimise|Move|Name|Note|Open|Parse|Plan|Print|Publish|Put|Quote|Raise|Read|"
    "Record|Register|Remove|Rename|Repeat|Report|Request|Return|Rewrite|Rotate|Run|Sample|"
    "Say|Send|Set|Show|Sort|Split|Start|Stop|Store|Summarise|Take|Test|Time|Train|Try|"
    "Validate|Wait|Walk|Write|Yield"
    r")\b"
)


def is_public(name: str) -> bool:
    """Whether a name is for other modules."""
    return not name.startswith("_")


def unclear_names(source: str) -> list[str]:
    """Variables with a name in UNCLEAR, and parameters but those of public functions; no fields."""
    return sorted(f"{line}: {name}" for line, name in _bound(parse(source)) if UNCLEAR.fullmatch(name))


def _bound(node: ast.AST) -> Iterator[tuple[int, str]]:
    for inner in ast.iter_child_nodes(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                yield inner.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield inner.lineno, name
            case ast.arg(arg=name):
                yield inner.lineno, name
        if isinstance(node, ast.ClassDef) and isinstance(inner, ast.AnnAssign):
            continue
        if isinstance(inner, ast.arguments) and isinstance(node, ast.FunctionDef) and is_public(node.name):
            continue
        yield from _bound(inner)


def described_without_verb(source: str) -> list[str]:
    """Public functions and methods with a docstring that begins otherwise; properties and rules are nouns."""
    tree = parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and is_public(node.name)]
    members = [node for part in (tree, *classes) for node in part.body if isinstance(node, ast.FunctionDef)]
    return [f"{node.lineno}: {node.name}" for node in members if is_public(node.name) and _is_noun(node)]


def _is_noun(function: ast.FunctionDef) -> bool:
    if re.search(r"property|overload|\brule\(", " ".join(map(ast.unparse, function.decorator_list))):
        return False
    text = ast.get_docstring(function) or "Return"
    if text.startswith("Whether "):
        return re.search(r"bool|TypeGuard", ast.unparse(function.returns or ast.Constant(""))) is None
    return VERBS.match(text) is None


@pytest.mark.parametrize("check", [unclear_names, described_without_verb])
def test_names_and_docstrings_say_what_a_value_is(check: Callable[[str], Sequence[object]]) -> None:
    assert failures(check, PACKAGE) == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("for one in rules: pass\n", ["1: one"]),
        ("found = [each for each in rules]\n", ["1: each", "1: found"]),
        ("def f():\n    if (kept := g()): pass\n", ["2: kept"]),
        ("def _f(own): pass\n", ["1: own"]),
        ("def f(rules):\n    return min(rules, key=lambda it: it.id)\n", ["2: it"]),
        ("def f(own, *, kept=None): pass\n", []),
        ("class A(Struct):\n    kept: int = 0\n", []),
        ("for rule in rules: rule.kept = rule.own\n", []),
    ],
)
def test_an_unclear_name_is_seen(source: str, names: list[str]) -> None:
    assert unclear_names(source) == names


@pytest.mark.parametrize(
    ("source", "functions"),
    [
        ('def f():\n    "What it is."\n', ["1: f"]),
        ('class A:\n    def f(self):\n        "The value."\n', ["2: f"]),
        ('def f() -> bool | None:\n    "Whether it is."\n', []),
        ('def f() -> int:\n    "Whether it is."\n', ["1: f"]),
        ('def f():\n    "Return it."\n', []),
        ('def f():\n    "Hash, and compare."\n', []),
        ('def _f():\n    "The value."\n', []),
        ('class A:\n    @property\n    def f(self):\n        "The value."\n', []),
        ('@rule("EGL1", "error")\ndef f():\n    "A drafter has one."\n', []),
    ],
)
def test_a_docstring_without_a_verb_is_seen(source: str, functions: list[str]) -> None:
    assert described_without_verb(source) == functions
