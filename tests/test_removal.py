"""A command is a folder and an entry of the table: without both the others work as before."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eaglectl.cli.commands import COMMANDS
from tests.conftest import FIXTURES

REMOVED = ("verify", "engines", "rules")


def without_entries(table: str, names: tuple[str, ...]) -> str:
    """The source of the table of commands without the entries of `names`."""
    (entries,) = (node for node in ast.walk(ast.parse(table)) if isinstance(node, ast.Dict))
    lines = table.splitlines(keepends=True)
    for key, value in zip(entries.keys, entries.values, strict=True):
        if isinstance(key, ast.Constant) and key.value in names and value.end_lineno:
            for line in range(key.lineno - 1, value.end_lineno):
                lines[line] = ""
    return "".join(lines)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package in which three commands were removed."""
    root = tmp_path_factory.mktemp("removal")
    shutil.copytree(FIXTURES.parent / "eaglectl", root / "eaglectl")
    for name in REMOVED:
        shutil.rmtree(root / "eaglectl/commands" / name)
    table = root / "eaglectl/cli/commands.py"
    table.write_text(without_entries(table.read_text(), REMOVED))
    return root


def run(tree: Path, *arguments: str | Path) -> tuple[int, str]:
    """The exit code and the output of a command of the copy."""
    command = [sys.executable, "-m", "eaglectl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree)
    return done.returncode, done.stdout + done.stderr


def test_help_lists_the_others(tree: Path) -> None:
    code, text = run(tree, "--help")
    listed = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert code == 0 and listed & {*COMMANDS} == {*COMMANDS} - {*REMOVED}


def test_inspect_and_validate_work(tree: Path) -> None:
    drafter = FIXTURES / "tiny/eagle3"
    code, text = run(tree, "inspect", drafter)
    assert code == 0 and "EAGLE-3" in text
    code, text = run(tree, "validate", drafter, "--target", FIXTURES / "tiny/target")
    assert code in (0, 1) and "rules" in text, text


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_command_is_unknown(tree: Path, name: str) -> None:
    code, text = run(tree, name, FIXTURES / "tiny/eagle3")
    assert code == 2 and f"No such command '{name}'" in text
