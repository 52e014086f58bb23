"""A command is a folder and an entry of the table: without both the others work as before."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_the_others_work_and_are_listed(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES.parent / "eaglectl", tmp_path / "eaglectl")
    for name in REMOVED:
        shutil.rmtree(tmp_path / "eaglectl/commands" / name)
    table = tmp_path / "eaglectl/cli/commands.py"
    table.write_text(without_entries(table.read_text(), REMOVED))

    def run(*arguments: str | Path) -> tuple[int, str]:
        command = [sys.executable, "-m", "eaglectl", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    code, text = run("--help")
    listed = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert code == 0 and listed & {*COMMANDS} == {*COMMANDS} - {*REMOVED}
    code, text = run("validate", FIXTURES / "tiny/eagle3", "--target", FIXTURES / "tiny/target")
    assert code in (0, 1) and "rules" in text, text
    code, text = run(REMOVED[0], FIXTURES / "tiny/eagle3")
    assert code == 2 and f"No such command '{REMOVED[0]}'" in text
