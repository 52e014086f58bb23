"""A target's own code (`auto_map`) runs for no command, whatever stands on stdin, unless it is allowed."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from eaglectl.cli import run
from tests.builders import on_a_terminal
from tests.conftest import FIXTURES
from tests.stand_in import put_on_path
from tests.tiny import TARGET, TINY

DRAFTER = str(TINY / "eagle3")
CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
TOKENIZER_MAP = {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}}
# the files of a target that name code, and what in them
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "tokenizer": {"tokenizer_config.json": {**TOKENIZER_MAP, "tokenizer_class": "OwnTokenizer"}},
    "slow tokenizer": {
        "tokenizer_config.json": {
            "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]},
            "tokenizer_class": "OwnTokenizer",
        }
    },
    "tokenizer by config": {
        "config.json": {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}},
        "tokenizer_config.json": {"tokenizer_class": "OwnTokenizer"},
    },
    "config and model": {
        "config.json": {
            "model_type": "own",
            "architectures": ["OwnModel"],
            "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
        }
    },
    "model alone": {"config.json": {"auto_map": {"AutoModelForCausalLM": "own.OwnModel"}}},
    "kernel": {"config.json": {"attn_implementation": "someone/attention"}},
}
# without these, transformers has nothing of its own to use instead
NEEDED = ("tokenizer", "slow tokenizer", "config and model", "kernel")


def planted(tmp_path: Path, place: str) -> tuple[Path, Path]:
    """A copy of the small target with own code, and the marker that the code would write."""
    folder, marker = tmp_path / "target", tmp_path / "marker"
    shutil.copytree(TARGET, folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)), encoding="utf-8")
    for name, changes in PLACES[place].items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return folder, marker


def commands(tmp_path: Path, target: Path) -> dict[str, list[str]]:
    """Commands that run the target, on nine short prompts, which are enough for smoke to pass."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a prompt of number {number}\n" for number in range(9)), encoding="utf-8")
    more = ["--target", str(target), "--prompts", str(prompts), "--device", "cpu"]
    smoke = ["smoke", DRAFTER, *more, "--run-in", "reference", "--max-tokens", "20"]
    convert = ["convert", DRAFTER, "-o", str(tmp_path / "out"), *more, "--to", "3.1"]
    return {
        "smoke": smoke,
        "drift": [*smoke, "--probe", "drift"],
        "calibrate": ["calibrate", DRAFTER, *more, "-o", str(tmp_path / "out"), "--answer-tokens", "4"],
        "convert": convert,
        "convert without gate": [*convert, "--no-gate"],
    }


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of this test for the modules that transformers imports, and "y" on stdin."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("command", ["smoke", "calibrate", "convert", "convert without gate"])
@pytest.mark.parametrize("place", NEEDED)
def test_a_target_that_needs_its_own_code_is_not_looked_at(
    place: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, marker = planted(tmp_path, place)
    code = run(commands(tmp_path, target)[command])
    errors = capsys.readouterr().err.splitlines()
    assert (code, marker.exists()) == (3, False), errors
    assert errors[-1].startswith("eaglectl: the target") and "--trust-remote-code" in errors[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("place", ["model alone", "tokenizer by config"])
def test_what_transformers_has_itself_runs_without_the_code_beside_it(place: str, tmp_path: Path) -> None:
    target, marker = planted(tmp_path, place)
    assert run([*commands(tmp_path, target)["smoke"], "--json"]) == 0
    assert not marker.exists()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("place", ["tokenizer", "config and model"])
@pytest.mark.parametrize("command", ["smoke", "calibrate"])
def test_with_the_option_the_code_runs_and_the_output_names_it(
    command: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, marker = planted(tmp_path, place)
    arguments = [*commands(tmp_path, target)[command], "--trust-remote-code"]
    assert run(arguments) == 0
    assert marker.exists()
    assert "--trust-remote-code" in capsys.readouterr().out
    force = ["--force"] if command == "calibrate" else []
    assert run([*arguments, "--json", *force]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trust_remote_code"] is True
    schema = json.loads((FIXTURES.parent / f"schemas/{command}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.usefixtures("cache")
def test_convert_runs_the_code_with_the_option_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, marker = planted(tmp_path, "tokenizer")
    arguments = [*commands(tmp_path, target)["convert"], "--trust-remote-code"]
    assert run(arguments) in (0, 1, 3), capsys.readouterr().err  # 3: too few prompts for the gate
    assert marker.exists()
    assert "--trust-remote-code" in capsys.readouterr().out


@pytest.mark.parametrize(("command", "trust"), [("smoke", False), ("smoke", True), ("calibrate", False)])
def test_vllm_is_given_the_choice_and_nothing_to_read(
    *,
    command: str,
    trust: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_on_path(monkeypatch, tmp_path)
    monkeypatch.setenv("STAND_IN", "asks for code")
    arguments = [*commands(tmp_path, TARGET)[command], "--run-in", "vllm"]
    assert run(arguments + ["--trust-remote-code"] * trust) == 3
    name = "given.json" if command == "calibrate" else "given.json.plain"
    given = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert (given["trust_remote_code"], given["stdin"]) == (trust, "/dev/null")
    error = capsys.readouterr().err.splitlines()[-1]
    assert ("--trust-remote-code" in error) is not trust
    assert ("it may run code" in error) is trust


def test_the_option_belongs_to_conversions_that_run_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["convert", DRAFTER, "-o", out, "--no-measure", "--trust-remote-code"]) == 2
    assert "--trust-remote-code" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["tokenizer", pytest.param("config and model", marks=pytest.mark.slow)])
def test_a_terminal_that_answers_yes_runs_no_code(place: str, tmp_path: Path) -> None:
    target, marker = planted(tmp_path, place)
    script = "import sys; from eaglectl.cli import main; sys.argv[0] = 'eaglectl'; main()"
    code, shown = on_a_terminal([sys.executable, "-c", script, *commands(tmp_path, target)["smoke"]])
    assert (code, marker.exists()) == (3, False), shown
    assert "Do you wish" not in shown
    assert "--trust-remote-code" in shown


def test_the_terminal_of_these_tests_does_ask(tmp_path: Path) -> None:
    script = "import sys; assert sys.stdin.isatty(); print(input('Do you wish? '))"
    code, shown = on_a_terminal([sys.executable, "-c", script])
    assert code == 0 and "Do you wish? " in shown and shown.count("y\r\n") >= 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["smoke", "drift", "calibrate", "convert", "convert without gate"])
@pytest.mark.parametrize("place", PLACES)
def test_a_process_with_a_yes_on_stdin_runs_no_code(place: str, command: str, tmp_path: Path) -> None:
    target, marker = planted(tmp_path, place)
    script = "import sys; from eaglectl.cli import main; sys.argv[0] = 'eaglectl'; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *commands(tmp_path, target)[command]],
        input="y\n" * 100,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert not marker.exists()
    assert "Do you wish" not in done.stdout + done.stderr
    ends = (0, 1, 3) if command == "convert" else (0, 1)  # 3: too few prompts for the gate
    allowed = (3,) if place in NEEDED else ends
    assert done.returncode in allowed, done.stderr
