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

from tests.builders import call, on_a_terminal
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
CLASS = {"tokenizer_class": "OwnTokenizer"}
# the files of a target that name code, and what in them
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "tokenizer": {"tokenizer_config.json": {**TOKENIZER_MAP, **CLASS}},
    "slow tokenizer": {
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}, **CLASS}
    },
    "tokenizer by config": {"config.json": TOKENIZER_MAP, "tokenizer_config.json": CLASS},
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
    folder, marker = Path(shutil.copytree(TARGET, tmp_path / "target")), tmp_path / "marker"
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    for name, changes in PLACES[place].items():
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))
    return folder, marker


def commands(tmp_path: Path, target: Path) -> dict[str, list[str]]:
    """Commands that run the target, on nine short prompts, which are enough for smoke to pass."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a prompt of number {number}\n" for number in range(9)))
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


@pytest.mark.fast(5)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("command", ["smoke", "drift", "calibrate", "convert", "convert without gate"])
@pytest.mark.parametrize("place", NEEDED)
def test_a_target_that_needs_its_own_code_is_not_looked_at(place: str, command: str, tmp_path: Path) -> None:
    target, marker = planted(tmp_path, place)
    done = call(*commands(tmp_path, target)[command])
    assert (done.code, marker.exists()) == (3, False), done
    error = done.err.splitlines()[-1]
    assert error.startswith("eaglectl: the target") and "--trust-remote-code" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.fast(2)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("command", ["smoke", "drift", "calibrate", "convert", "convert without gate"])
@pytest.mark.parametrize("place", ["model alone", "tokenizer by config"])
def test_what_transformers_has_itself_runs_without_the_code_beside_it(
    place: str, command: str, tmp_path: Path
) -> None:
    target, marker = planted(tmp_path, place)
    # 3: few prompts for the gate
    ends = {"smoke": (0,), "convert": (0, 1, 3)}.get(command, (0, 1))
    assert call(*commands(tmp_path, target)[command]).code in ends
    assert not marker.exists()


@pytest.mark.fast(1)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("smoke", "config and model"),
        ("calibrate", "tokenizer"),
        ("convert", "tokenizer"),
        pytest.param("smoke", "tokenizer", marks=pytest.mark.slow),
        pytest.param("calibrate", "config and model", marks=pytest.mark.slow),
    ],
)
def test_with_the_option_the_code_runs_and_the_output_names_it(
    command: str, place: str, tmp_path: Path
) -> None:
    target, marker = planted(tmp_path, place)
    arguments = [*commands(tmp_path, target)[command], "--trust-remote-code"]
    done = call(*arguments)
    assert done.code in ((0, 1, 3) if command == "convert" else (0,))  # few prompts for the gate
    assert marker.exists() and "--trust-remote-code" in done.out
    if command == "convert":
        return
    document = call(*arguments, "--json", *(["--force"] if command == "calibrate" else [])).document
    assert document["trust_remote_code"] is True
    schema = json.loads((FIXTURES.parent / f"schemas/{command}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.fast(2)
@pytest.mark.parametrize(("command", "trust"), [("smoke", False), ("smoke", True), ("calibrate", False)])
def test_vllm_is_given_the_choice_and_nothing_to_read(
    *, command: str, trust: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch, tmp_path)
    monkeypatch.setenv("STAND_IN", "asks for code")
    arguments = [*commands(tmp_path, TARGET)[command], "--run-in", "vllm"]
    done = call(*arguments, *["--trust-remote-code"] * trust)
    name = "given.json" if command == "calibrate" else "given.json.plain"
    given = json.loads((tmp_path / name).read_text())
    assert (done.code, given["trust_remote_code"], given["stdin"]) == (3, trust, "/dev/null")
    error = done.err.splitlines()[-1]
    assert ("--trust-remote-code" in error) is not trust
    assert ("it may run code" in error) is trust


def test_the_option_belongs_to_conversions_that_run_the_target(tmp_path: Path) -> None:
    done = call("convert", DRAFTER, "-o", tmp_path / "out", "--no-measure", "--trust-remote-code")
    assert done.code == 2 and "--trust-remote-code" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("place", ["tokenizer", "config and model"])
def test_a_process_that_is_answered_yes_runs_no_code(place: str, is_terminal: bool, tmp_path: Path) -> None:
    target, marker = planted(tmp_path, place)
    script = "import sys; from eaglectl.cli import main; sys.argv[0] = 'eaglectl'; main()"
    command = [sys.executable, "-c", script, *commands(tmp_path, target)["smoke"]]
    if is_terminal:
        code, shown = on_a_terminal(command)
    else:
        done = subprocess.run(command, input="y\n" * 100, capture_output=True, text=True, timeout=120)
        code, shown = done.returncode, done.stdout + done.stderr
    assert (code, marker.exists()) == (3, False), shown
    assert "Do you wish" not in shown and "--trust-remote-code" in shown
