"""What a new user types in the first minutes, each line on a terminal of its own."""

import re
import shlex
from pathlib import Path

import pytest

from eaglectl.cli.commands import COMMANDS
from tests.builders import call
from tests.conftest import FIXTURES
from tests.first_minutes.terminal import Terminal, environment, shown

TINY = FIXTURES / "tiny"
# what a terminal may be, and how wide
TERMINALS = {
    "80 columns": (80, {}),
    "dumb": (80, {"TERM": "dumb"}),
    "NO_COLOR": (80, {"NO_COLOR": "1"}),
    "no UTF-8": (80, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}),
}
# a line, its exit code, and what it shows
LINES = [
    ("eaglectl", 2, "Usage: eaglectl"),
    ("eaglectl -V", 0, "eaglectl 0.1.0"),
    ("eaglectl insepct my-drafter", 2, "Did you mean 'inspect'"),
    ("eaglectl inspect gone", 3, "no such file or folder"),
    ("eaglectl inspect my-drafter", 0, "EAGLE-3 drafter"),
    ("eaglectl rules EGL201", 0, "missing-tensor"),
]
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-9]|4[0-7]|9[0-7])m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my-drafter").symlink_to(TINY / "eagle3")
    return tmp_path


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "80 columns")) for name in TERMINALS]
)
@pytest.mark.parametrize(("line", "ending", "says"), LINES, ids=[line for line, _, _ in LINES])
def test_a_line_ends_as_it_should_on_every_terminal(
    line: str, ending: int, says: str, name: str, folder: Path
) -> None:
    columns, variables = TERMINALS[name]
    code, text = shown(shlex.split(line), environment(HOME=str(folder), **variables), folder, columns)
    assert (code, says in " ".join(text.split())) == (ending, True), text
    assert not re.search(r"Traceback|\\n|\\x1b", text)
    if name in ("dumb", "NO_COLOR"):  # bold and dim are no colours
        assert not COLOUR.search(text), text
    assert text.isascii() or name != "no UTF-8", text


def test_without_colour_there_is_none_and_with_colour_some(folder: Path) -> None:
    line = ["eaglectl", "validate", "my-drafter", "--no-engines"]
    assert COLOUR.search(shown(line, environment(HOME=str(folder)), folder)[1])
    assert not COLOUR.search(shown(line, environment(HOME=str(folder), NO_COLOR="1"), folder)[1])


@pytest.mark.parametrize("columns", [80, pytest.param(200, marks=pytest.mark.slow)])
def test_help_fits_the_terminal_and_breaks_no_word(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("", *COMMANDS):
        line = [*([command] if command else []), "--help"]
        monkeypatch.setenv("COLUMNS", "1000")
        # a backslash continues an example
        wide = call(*line).out.replace("\\\n", "").split()
        monkeypatch.setenv("COLUMNS", str(columns))
        done = call(*line)
        assert done.code == 0 and max(map(len, done.out.splitlines())) <= columns, command
        assert done.out.replace("\\\n", "").split() == wide, command


# two seconds of a bar that is counted, then Ctrl-C
BAR = """
import time
from eaglectl.cli import run
from eaglectl.progress import Progress
from eaglectl.terminal import OutputSettings, ProgressBar
import eaglectl.commands.rules.command as command

def rules_command(context):
    print("begun", flush=True)
    with ProgressBar(OutputSettings(), is_on=True) as bar:
        for done in range(600):
            bar(Progress("writing", done, 600, "prompts"))
            time.sleep(0.1)

command.rules_command = rules_command
rules_command.__annotations__ = {"context": __import__("typer").Context}
raise SystemExit(run(["rules"]))
"""


@pytest.mark.parametrize("name", ["80 columns", "dumb", pytest.param("no UTF-8", marks=pytest.mark.slow)])
def test_ctrl_c_takes_the_bar_away_and_says_what_is_left(name: str, folder: Path) -> None:
    columns, variables = TERMINALS[name]
    env = environment(HOME=str(folder), **variables)
    with Terminal(["python", "-c", BAR], env, folder, columns) as terminal:
        # on a dumb terminal nothing is drawn that has to be redrawn
        begun = terminal.read("begun" if name == "dumb" else "writing")
        terminal.type("\x03")
        text = terminal.read()
        assert terminal.process.wait(60) == 130, begun + text
    assert "eaglectl: interrupted; nothing was left behind" in text and "Traceback" not in text
