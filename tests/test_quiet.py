"""What other packages warn of reaches no terminal, unless it is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.tiny import TARGET, TINY

# as a package does: a warning, a deprecation, and a log by a handler of its own
PLANTED = """
import atexit, logging, sys, warnings

def warn():
    warnings.warn("planted warning", FutureWarning)
    warnings.warn_explicit("planted deprecation", DeprecationWarning, "lib.py", 1, module="lib")
    logging.getLogger("transformers.lib").addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("transformers.lib").warning("planted log")

atexit.register(warn)
"""
NATIVE = str(FIXTURES / "producers/vllm/native")
TWICE = NATIVE, NATIVE


def err(folder: Path, *arguments: str, python: tuple[str, ...] = ()) -> str:
    """What a run of the command line in a process of its own writes to stderr."""
    (folder / "sitecustomize.py").write_text(PLANTED)
    environment = os.environ | {"PYTHONPATH": f"{folder}:{FIXTURES.parent}", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONWARNINGS", None)
    command = [sys.executable, *python, "-m", "eaglectl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("rules", "EGL201"),
        ("engines", "vllm"),
        ("inspect", NATIVE),
        ("validate", NATIVE),
        ("diff", NATIVE, NATIVE),
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_warning_of_a_package_is_shown(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert "planted warning" not in (quiet := err(tmp_path, *arguments)) and "planted dep" not in quiet


@pytest.mark.parametrize(("option", "python"), [(("-v",), ()), ((), ("-W", "default"))], ids=["-v", "-W"])
def test_it_is_shown_where_it_is_asked_for(
    option: tuple[str, ...], python: tuple[str, ...], tmp_path: Path
) -> None:
    shown = err(tmp_path, *option, "rules", "EGL201", python=python)
    assert "planted warning" in shown and "planted deprecation" in shown and "planted log" in shown


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("-v",)], ids=["quiet", "-v"])
def test_a_run_of_the_target_writes_nothing_but_its_own(option: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "prompts.txt").write_text("def a\ndef b\ndef c\ndef d\n")
    given = ("--target", str(TARGET), "--run-in", "reference", "--prompts", str(tmp_path / "prompts.txt"))
    text = err(tmp_path, *option, "smoke", str(TINY / "eagle3"), *given)
    assert ("planted log" in text) == ("planted warning" in text) == bool(option)
    assert option or text == ""
