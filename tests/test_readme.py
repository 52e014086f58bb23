"""The README shows real output: its commands are run and its blocks compared."""

import re
import shlex
from pathlib import Path

import pytest

from eaglectl.cli import run
from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
BLOCK = re.compile(r"```\n\$ eaglectl (.*?)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text())
OTHERS = BLOCK.findall((ROOT / "docs/llama-cpp.md").read_text())
RUNS_MODELS = (
    "smoke",
    "calibrate",
    "--to",
)  # their figures differ in the last digits from machine to machine
UPGRADE = ("calibrate", "--to 3.1")  # over all prompts of the trained pair


def test_the_readme_shows_the_main_commands() -> None:
    commands = ["inspect", "convert", "diff", "calibrate", "convert", "convert", "validate", "smoke"]
    assert [command.split()[0] for command, _ in BLOCKS] == commands


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that blocks write to and later blocks read."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(
            *block, id=block[0], marks=[pytest.mark.slow] * any(word in block[0] for word in UPGRADE)
        )
        for block in (*BLOCKS, *OTHERS)
    ],
)
def test_a_readme_block_is_what_the_command_prints(
    command: str, shown: str, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    if any(word in RUNS_MODELS for word in words):
        pytest.importorskip("transformers")
    run(
        [str(out / word) if word in ("OUT", "OUT.gguf", "STATS") else word for word in words]
        + ["--force"] * (words[0] == "convert" and "OUT" in words)
    )
    printed = capsys.readouterr()
    # the time left is told on machines that need more than a minute
    errors = re.sub(r"(?m)^\w+ takes about .* more\n", "", printed.err)
    output = (printed.out + errors).replace(f"{out}/", "")
    has_figures = any(word in RUNS_MODELS for word in words)
    assert timeless(output, has_figures=has_figures) == timeless(shown, has_figures=has_figures)


def timeless(text: str, *, has_figures: bool) -> list[str]:
    """The text without times; if a model ran (`has_figures`), without figures and alignment."""
    text = re.sub(r"in \d+\.\d+ s", "in 0.00 s", text)
    text = re.sub(r"\d+ passed", "# passed", text)  # rules are added
    if has_figures:
        text = re.sub(r" +", " ", re.sub(r"-?\d[\d.,+a-z]*%?", "#", text))
    return [line.rstrip() for line in text.rstrip().splitlines()]
