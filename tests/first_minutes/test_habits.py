"""What users of ruff, uv and hf expect: whole lines in pipes, variables for colours and options, names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eaglectl.cli.commands import COMMANDS, OTHER_NAMES
from tests.conftest import FIXTURES

EXPORT = str(FIXTURES / "producers/specforge/gqa-ids")
NATIVE = str(FIXTURES / "producers/vllm/native")


def call(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of the command line in a pipe, with these variables."""
    environment = {name: text for name, text in os.environ.items() if not name.endswith("COLOR_FORCE")}
    environment |= {"PYTHONPATH": str(Path(FIXTURES).parent)} | variables
    command = [sys.executable, "-m", "eaglectl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_no_line_of_a_pipe_is_folded_or_ends_in_spaces() -> None:
    lines = call("validate", EXPORT, "--no-engines")[1].splitlines()
    place = next(place for place, line in enumerate(lines) if "may be boundaries or outputs" in line)
    assert len(lines[place]) > 200 and lines[place].endswith("or --target") and not lines[place + 1]
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_a_variable_asks_for_colours_in_a_pipe(variable: str) -> None:
    colours = {variable: "1", "TERM": "xterm"}
    lines = call("validate", NATIVE, "--no-engines", **colours)[1].splitlines()
    assert lines[0].startswith("\x1b[1;32mpass\x1b[0m: ")
    assert lines == [line.rstrip() for line in lines]
    assert "\x1b[1;32m" not in call("validate", NATIVE, "--no-engines", NO_COLOR="1", **colours)[1]
    assert "\x1b" not in call("validate", NATIVE, "--no-engines", **{variable: ""})[1]


def test_a_variable_sets_an_option_and_is_named() -> None:
    code, out, error = call("validate", EXPORT, EAGLECTL_NO_ENGINES="1", EAGLECTL_FAIL_ON="warning")
    assert (code, error) == (
        1,
        "options from the environment: EAGLECTL_FAIL_ON=warning EAGLECTL_NO_ENGINES=1\n",
    )
    assert out.startswith("fail: ")
    assert call("validate", EXPORT, "--fail-on", "never", EAGLECTL_FAIL_ON="warning")[0] != 1
    code, out, _ = call("inspect", NATIVE, EAGLECTL_ENGINE="vllm==0.32.0 sglang")
    assert code == 0 and out.startswith("pass: vLLM 0.32.0 and SGLang ")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"EAGLECTL_FAIL_ON": "all"}, "--fail-on all: error, warning, note or never was expected"),
        ({"EAGLECTL_HEADERS_ONLY": "maybe"}, "--headers-only maybe: True or False was expected"),
        ({"EAGLECTL_ENGINE": "vllm==x"}, "vllm==x"),
    ],
)
def test_a_wrong_variable_is_a_wrong_call(variables: dict[str, str], words: str) -> None:
    code, out, error = call("validate", NATIVE, **variables)
    assert code == 2 and out == "" and words in error


def test_a_switch_that_a_variable_turns_off_is_off() -> None:
    assert "vLLM" in call("validate", NATIVE, EAGLECTL_NO_ENGINES="0")[1]


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_path_with_a_slip_is_answered_with_the_one_beside_it(command: str, tmp_path: Path) -> None:
    right, slip = tmp_path / "my-drafter", tmp_path / "my-drafer"
    right.mkdir()
    code, out, error = call(command, slip)
    assert code == 3 and f"{slip}: no such file or folder; near it: {right}" in " ".join(
        (out + error).split()
    )
    for missing in (tmp_path / "another", tmp_path / "my-link"):
        (tmp_path / "my-link").unlink(missing_ok=True)
        (tmp_path / "my-link").symlink_to("gone")
        code, out, error = call(command, missing)
        assert code == 3 and "near it" not in out + error


@pytest.mark.parametrize("command", ["inspect", "validate", "verify"])
def test_a_variable_that_is_empty_is_not_the_current_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(NATIVE, tmp_path / "drafter")
    monkeypatch.chdir(tmp_path)
    code, out, error = call(command, "", PYTHONPATH=str(FIXTURES.parent))
    assert code == 3 and "drafter  written" not in out and "'': no such f" in out + error


@pytest.mark.parametrize("value", [" ", "\t\n"])
@pytest.mark.parametrize("name", ["EAGLECTL_ENGINE", "EAGLECTL_SELECT", "EAGLECTL_SOURCE_SEMANTICS"])
def test_a_variable_of_blanks_lists_nothing(name: str, value: str) -> None:
    code, out, _ = call("validate", NATIVE, **{name: value})
    assert (code, out) == call("validate", NATIVE)[:2]


@pytest.mark.parametrize("name", ["check", "demo", "publish", "version"])
def test_another_tools_name_is_answered_with_the_command(name: str) -> None:
    code, out, error = call(name)
    assert code == 2 and out == ""
    assert f"No such command '{name}'. Use `eaglectl {dict(OTHER_NAMES)[name]}`" in error


def test_other_names_lead_to_commands() -> None:
    assert not {name for name, _ in OTHER_NAMES} & {*COMMANDS}
    assert {text.split()[0] for _, text in OTHER_NAMES} <= {*COMMANDS, "--version"}
