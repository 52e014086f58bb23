"""What bash, zsh and fish make of a tab: each shell itself, on a terminal, with completion installed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglectl.cli.shells import PLACES, SCRIPTS
from tests.builders import call
from tests.conftest import FIXTURES
from tests.first_minutes.terminal import Terminal, environment, shown

NEXT = "it works in the next shell that is started"
START = {
    "bash": (
        ("bash", "--noprofile", "-i"),
        "show() { printf '<<%s>>' \"$@\"; echo '[E''ND]'; }; echo READ'Y'",
    ),
    "zsh": (("zsh", "-i"), "show() { printf '<<%s>>' \"$@\"; echo '[E''ND]'; }; echo READ'Y'"),
    "fish": (("fish", "-i"), "function show; printf '<<%s>>' $argv; echo '[E''ND]'; end; echo READ'Y'"),
}
# a line, and the last word that it has after a tab, as the shell hands it to a program
COMPLETED = [
    ("eaglectl insp", "inspect"),
    ("eaglectl validate x --engine vllm==0.33", "vllm==0.33.0"),
    ("eaglectl validate x --output=sar", "--output=sarif="),
    ("eaglectl convert x --source-semantics specforge=pr", "specforge=pre-879"),
    ("eaglectl inspect ~/some", "HOME/some-drafter"),
    ("eaglectl rules missing-ten", "missing-tensor"),
    ("eaglectl smoke x --run-in ref", "reference"),
]
MORE = [
    ("eaglectl smoke x --help-a", "--help-all"),
    ("eaglectl rules tens", "tensor-"),  # of several
    ("eaglectl validate x --engine=sgl", "--engine=sglang"),
    ("eaglectl validate x --engine=sglang==0.5.22", "--engine=sglang==0.5.22"),
    ("eaglectl validate x --engine 'vllm>=0.33", "vllm>=0.33.0"),
    ("eaglectl validate x --output sar", "sarif="),
    ("eaglectl validate x --fail-on w", "warning"),
    ("eaglectl inspect ~/above/in", "HOME/above/inner/"),
    ("eaglectl inspect my", "my drafter"),
]
# names that a shell would act on, each alone in a folder
NAMES = [
    "x;touch${IFS}PWNED;",
    "$(touch${IFS}PWNED)",
    "it's;touch${IFS}PWNED;'",
    "`touch PWNED`",
    'say "$(touch PWNED)"',
    "a & touch PWNED | b > c",
    "!x",
    "*?[a]{b,c}",
    "-x",
    "~x",
    "#x=y:z",
    "back\\slash",
]


@pytest.fixture(scope="module", params=START)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A shell in which completion is installed, at its first prompt."""
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here: apt-get install {name}")
    home = tmp_path_factory.mktemp("home")
    for folder in ("some-drafter", "above/inner/drafter", "my drafter"):
        shutil.copytree(FIXTURES / "tiny/eagle3", home / folder)
    for number, odd in enumerate(NAMES):
        shutil.copytree(FIXTURES / "tiny/eagle3", home / "odd" / str(number) / odd)
    env = environment(HOME=str(home), SHELL=f"/bin/{name}")
    code, text = shown(["eaglectl", "--install-completion"], env, home)
    assert (code, text) == (0, f"completion of {name} is in {home / PLACES[name][0]}; {NEXT}\n")
    command, functions = START[name]
    with Terminal(command, env, home, 200) as terminal:
        terminal.type(f"{functions}\n")
        terminal.read("READY")
        yield terminal


def completed(terminal: Terminal, line: str) -> str:
    """The last word of a line after a tab."""
    terminal.type(f"{line}\t")
    # to the start of the line, and the function before it: the shell says what its words are
    terminal.type("\x01show \x05\n")
    words = re.findall(r"<<(.*?)>>", terminal.read("[END]"), re.DOTALL)
    return re.sub(r"^/\S+/home\d*/", "HOME/", words[-1])


@pytest.mark.parametrize(("line", "word"), COMPLETED)
def test_a_tab_completes_a_word(shell: Terminal, line: str, word: str) -> None:
    assert completed(shell, line) == word


@pytest.mark.slow
@pytest.mark.parametrize(("line", "word"), MORE)
def test_a_tab_completes_more_words(shell: Terminal, line: str, word: str) -> None:
    assert completed(shell, line) == word


def completed_name(terminal: Terminal, number: int, quote: str) -> str:
    """The name that a tab completes in a folder of that name alone, in the quotes that are open."""
    return completed(terminal, f"eaglectl inspect {quote}odd/{number}/").removeprefix(f"odd/{number}/")


@pytest.mark.parametrize("number", [0, 2])
def test_a_name_that_a_shell_would_run_is_one_word(shell: Terminal, number: int) -> None:
    assert completed_name(shell, number, "") == NAMES[number]
    assert not Path(shell.folder, "PWNED").exists()


@pytest.mark.slow
@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize("number", range(len(NAMES)))
def test_any_name_is_one_word_in_any_quotes(shell: Terminal, number: int, quote: str) -> None:
    assert completed_name(shell, number, quote) == NAMES[number]
    assert not Path(shell.folder, "PWNED").exists()


@pytest.mark.parametrize("name", START)
def test_completion_is_installed_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    place, start, line = PLACES[name]
    if start:
        (tmp_path / start).write_text("alias l=ls")
    for _ in range(2):
        assert call("--install-completion", name).code == 0
    assert (tmp_path / place).read_text() == SCRIPTS[name]
    assert not start or (tmp_path / start).read_text() == f"alias l=ls\n{line.format(tmp_path / place)}\n"


def test_a_shell_that_is_not_known_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = call("--show-completion")
    assert done.code == 2 and done.err.endswith("name one: `eaglectl --show-completion bash`\n")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".zfunc").write_text("a file")
    monkeypatch.setenv("HOME", str(tmp_path))
    done = call("--install-completion", "zsh")
    assert done.code == 3 and f"{tmp_path}/.zfunc: " in done.err and "Traceback" not in done.err
