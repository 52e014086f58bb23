"""The README shows real output: its commands are run and its blocks compared."""

import re
from pathlib import Path

import pytest

from eaglectl.cli import run
from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
BLOCKS = re.findall(r"```\n\$ eaglectl (.*?)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_shows_inspect_and_convert() -> None:
    assert [command.split()[0] for command, _ in BLOCKS] == ["inspect", "convert", "convert", "convert"]


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_readme_block_is_what_the_command_prints(
    command: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    run([str(tmp_path / "OUT") if word == "OUT" else word for word in command.split()])
    printed = capsys.readouterr()
    seen = (printed.out + printed.err).replace(f"{tmp_path}/", "")
    assert timeless(seen).rstrip() == timeless(shown).rstrip()


def timeless(text: str) -> str:
    return re.sub(r"in \d+\.\d+ s", "in 0.00 s", text)
