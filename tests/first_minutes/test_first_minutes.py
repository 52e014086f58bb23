"""What a new user types in the first minutes, each line on a terminal of its own."""

import re
import shlex
from pathlib import Path

import pytest

from docs import blocks
from eaglectl.cli.commands import COMMANDS
from tests.builders import call
from tests.conftest import FIXTURES
from tests.first_minutes.terminal import Terminal, environment, shown

TINY = FIXTURES / "tiny"
README = (FIXTURES.parent / "README.md").read_text()
# what a terminal may be, and how wide
TERMINALS = {
    "80 columns": (80, {}),
    "40 columns": (40, {}),
    "dumb": (80, {"TERM": "dumb"}),
    "NO_COLOR": (80, {"NO_COLOR": "1"}),
    "no UTF-8": (80, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}),
}
# a line, its exit code, and what it shows
LINES = [
    ("eaglectl", 2, "Usage: eaglectl"),
    ("eaglectl --version", 0, "eaglectl 0.1.0"),
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


@pytest.mark.parametrize(("line", "ending", "says"), LINES, ids=[line for line, _, _ in LINES])
def test_a_line_ends_as_it_should_on_a_terminal(line: str, ending: int, says: str, folder: Path) -> None:
    code, text = shown(shlex.split(line), environment(HOME=str(folder)), folder)
    assert (code, says in " ".join(text.split())) == (ending, True), text
    assert "Traceback" not in text and "\\n" not in text and "\\x1b" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", TERMINALS)
@pytest.mark.parametrize(("line", "ending"), [line[:2] for line in LINES])
def test_a_line_ends_so_on_every_terminal(name: str, line: str, ending: int, folder: Path) -> None:
    columns, variables = TERMINALS[name]
    code, text = shown(shlex.split(line), environment(HOME=str(folder), **variables), folder, columns)
    assert code == ending and "Traceback" not in text, text
    if name in ("dumb", "NO_COLOR"):  # bold and dim are no colours
        assert not COLOUR.search(text), text
    if name == "no UTF-8":
        assert text.isascii(), text


def test_without_colour_there_is_none_and_with_colour_some(folder: Path) -> None:
    line = ["eaglectl", "validate", "my-drafter", "--no-engines"]
    assert COLOUR.search(shown(line, environment(HOME=str(folder)), folder)[1])
    assert not COLOUR.search(shown(line, environment(HOME=str(folder), NO_COLOR="1"), folder)[1])


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
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


def test_an_example_that_is_wrapped_is_still_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = call("validate", "--help").out.partition("Examples:")[2]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = call("validate", "--help").out.partition("Examples:")[2]
    assert narrow != wide
    assert shlex.split(narrow.replace("\\\n", ""))[:9] == shlex.split(wide)[:9]


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


@pytest.mark.parametrize("name", ["80 columns", "40 columns", "dumb", "no UTF-8"])
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


@pytest.mark.slow
def test_a_bar_counts_the_weights_of_the_target_while_it_loads(folder: Path) -> None:
    line = ["eaglectl", "smoke", "my-drafter", "--target", str(TINY / "target"), "--run-in", "reference"]
    code, text = shown([*line, "--max-tokens", "8"], environment(HOME=str(folder)), folder)
    assert code == 0
    assert "75/75" in text.partition("measuring")[0]


def test_every_line_of_the_readme_is_typed(tmp_path: Path) -> None:
    """Those that call eaglectl and print; tests/test_readme.py compares what they print in a pipe."""
    blocks.link_checkout(tmp_path)
    lines = [command for command, _ in blocks.OUTPUT.findall(README)]
    assert len(lines) == 1
    for line in lines:
        code, text = shown(["eaglectl", *shlex.split(line)], environment(HOME=str(tmp_path)), tmp_path)
        assert code == 0 and "Traceback" not in text, text
