"""Tables that name commands and modules: every name exists, and every module is imported or named."""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import eaglectl
from eaglectl.cli.app import READERS, WITH_ENGINES
from eaglectl.cli.commands import COMMANDS
from eaglectl.report.documents import RESULTS
from tests.modules import tree_of
from tests.test_architecture import FILES, ROOT, imported, modules_imported

# documents of an option of a command: `smoke --load-only`
OF_OPTIONS = {"load": "smoke"}
# folders whose modules are found by their place
FOUND = ("formats/producers", "judge/rules")
PUBLIC = ROOT / "__init__.py"
# of pyproject.toml: what engines load
ENTRY_POINTS = ["eaglectl.in_engine.plugin"]
MODULES: Mapping[str, str] = eaglectl._MODULES  # type: ignore[attr-defined]


def missing(paths: Iterable[str]) -> list[str]:
    """Dotted paths below eaglectl that lead to nothing."""
    return [path for path in paths if not _exists(path)]


def _exists(path: str) -> bool:
    module, _, name = path.rpartition(".")
    try:
        return hasattr(import_module(f"eaglectl.{module}"), name)
    except ModuleNotFoundError:
        return False


def unlisted(commands: Iterable[str]) -> set[str]:
    """Commands that a table names and the command line does not have."""
    return {*commands} - {*COMMANDS}


@cache
def leads_to(path: Path) -> frozenset[Path]:
    """Files of eaglectl that a file imports, or names by a dotted path in a text, like a child's module."""
    texts = {
        node.value.removeprefix("eaglectl.")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"\w+(\.\w+)+", node.value)
    }
    names = {name for text in texts for name in (text, text.rpartition(".")[0])}
    named = {ROOT / f"{name.replace('.', '/')}.py" for name in names if path != PUBLIC}
    packages = {ROOT.joinpath(*name.split(".")[1:], "__init__.py") for name in imported(path)}
    files = {*named, *packages, *modules_imported(path), path.parent / "__init__.py"}
    return frozenset(files & {*FILES})


def unused(commands: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Modules of eaglectl to which neither the command line nor one of these commands or modules leads."""
    used: set[Path] = set()
    waiting = {path for folder in FOUND for path in (ROOT / folder).glob("*.py")} | {ROOT / "__main__.py"}
    waiting |= {ROOT / f"commands/{name}/command.py" for name in commands}
    waiting |= {ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py") for module in modules}
    while waiting:
        path = waiting.pop()
        used.add(path)
        waiting |= leads_to(path) - used
    return [path.relative_to(ROOT).as_posix() for path in FILES if path not in used]


def test_each_result_names_a_command_and_what_its_modules_have() -> None:
    paths = [path for _, *paths in RESULTS.values() for path in paths if path]
    tags = {tag.split("/")[1] for tag, *_ in RESULTS.values()}
    assert missing(paths) == []
    assert unlisted(OF_OPTIONS.get(tag, tag) for tag in tags) == set()
    assert [name for name in RESULTS if name not in dir(eaglectl)] == []


def test_tables_of_commands_name_commands() -> None:
    assert unlisted([*READERS, *WITH_ENGINES]) == set()
    folders = {path.parent.name for path in ROOT.glob("commands/*/command.py")}
    assert folders == {*COMMANDS}


def test_every_module_is_used() -> None:
    assert unused(COMMANDS, [*MODULES.values(), *ENTRY_POINTS]) == []


@pytest.mark.parametrize(
    ("name", "alone"), [("rules", []), ("engines", ["in_engine/installed.py", "judge/support.py"])]
)
def test_what_a_removed_command_leaves_is_named(name: str, alone: list[str]) -> None:
    left = [f"commands/{name}/{module}.py" for module in ("__init__", "command", "report")]
    assert unused({*COMMANDS} - {name}, [*MODULES.values(), *ENTRY_POINTS]) == left + alone


def test_a_name_that_leads_to_nothing_is_named() -> None:
    gone = ["commands.gone.document.PARTS", "report.findings.no_document"]
    assert missing([*gone, "report.findings.validate_document"]) == gone
    assert unlisted(["inspect", "gone"]) == {"gone"}
