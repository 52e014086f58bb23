"""What bash, zsh and fish make of a tab: each shell itself, on a terminal, with completion installed."""

import re
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.builders import refusal
from tests.conftest import FIXTURES
from tests.first_minutes.terminal import Terminal, environment, shown

# the file that a shell begins with, and what stands above the script there
PLACES = {
    "bash": (".bashrc", ""),
    "zsh": (".zshrc", "autoload -Uz compinit; compinit\n"),
    "fish": (".config/fish/config.fish", ""),
}
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
    ("eaglectl validate x --output=sar", "--output=sarif="),
    ("eaglectl inspect ~/some", "HOME/some-drafter"),
]
MORE = [
    ("eaglectl validate x --select EGL22", "EGL220"),
    ("eaglectl smoke x --probe sen", "sensitivity"),
    ("eaglectl validate x --format sar", "sarif"),
    ("eaglectl convert x --fix-reading rot", "rotary="),
    ("eaglectl validate x --engine vllm==0.33", "vllm==0.33.0"),
    ("eaglectl convert x --source-semantics specforge=pr", "specforge=pre-879"),
    ("eaglectl rules missing-ten", "missing-tensor"),
    ("eaglectl smoke x --run-in ref", "reference"),
    ("eaglectl smoke x --help-a", "--help-all"),
    ("eaglectl rules tens", "tensor-"),  # of several
    ("eaglectl validate x --engine=sgl", "--engine=sglang"),
    ("eaglectl validate x --engine=sglang==0.5.22", "--engine=sglang==0.5.22"),
    ("eaglectl validate x --output sar", "sarif="),
    ("eaglectl validate x --fail-on w", "warning"),
    ("eaglectl inspect ~/above/in", "HOME/above/inner"),
    ("eaglectl inspect my", "my drafter"),
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
    env = environment(HOME=str(home), SHELL=f"/bin/{name}")
    code, text = shown(["eaglectl", "--show-completion"], env, home)
    assert code == 0
    place, before = PLACES[name]
    (home / place).parent.mkdir(parents=True, exist_ok=True)
    (home / place).write_text(before + text.replace("\r\n", "\n"))
    command, functions = START[name]
    with Terminal(command, env, home, 200) as terminal:
        terminal.type(f"{functions}\n")
        terminal.read("READY")
        yield terminal


def completed(terminal: Terminal, line: str) -> str:
    """The last word of a line after a tab."""
    terminal.type(f"{line}\t")
    time.sleep(0.6)  # keys that come before the shell has looked for files end its search
    # to the start of the line, and the function before it: the shell says what its words are
    terminal.type("\x01show \x05\n")
    words = re.findall(r"<<(.*?)>>", terminal.read("[END]"), re.DOTALL)
    return re.sub(r"^/\S+/home\d*/", "HOME/", words[-1]).rstrip("/")


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("line", "word"), [*COMPLETED, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in MORE)]
)
def test_a_tab_completes_a_word(shell: Terminal, line: str, word: str) -> None:
    assert completed(shell, line) == word


def test_a_shell_that_is_not_known_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    for words in ((), ("nonsense",)):
        assert refusal(2, "--show-completion", *words).endswith("`eaglectl --show-completion bash`")
