"""What an editor and mypy know about the functions' keywords, and what a wrong keyword is answered with."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.conftest import FIXTURES

NATIVE = FIXTURES / "producers/vllm/native"
SCRIPT = """from pathlib import Path

import eaglectl

report = eaglectl.validate(Path("drafter"), engines=["vllm==0.32.0"], target="target", fail_on="warning")
reports = eaglectl.validate(["a", "b"], has_engines=False)
print(report.verdict, reports[0].findings)
plan = eaglectl.convert("drafter", "out", version=3.1, target=Path("t"), dry_run=True, aux_layers=[1, 2])
print(plan.commands, eaglectl.inspect("drafter", semantics={"norm_output": "true"}).drafter)
"""
WRONG = {
    'eaglectl.convert("drafter", engin="vllm")': 'Unexpected keyword argument "engin" for "convert"',
    'eaglectl.inspect("drafter", targt="t")': 'Unexpected keyword argument "targt"',
    'eaglectl.upload("a", "org/name", dry_run="yes")': 'expected "bool"',
    'eaglectl.validate("drafter", fail_on="all")': 'No overload variant of "validate"',
    'eaglectl.smoke("drafter", device="gpu")': "incompatible type \"Literal['gpu']\"",
}


def mypy(script: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", script]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=Path(eaglectl.__file__).parents[1]
    ).stdout


@pytest.mark.slow
def test_mypy_accepts_a_script_and_refuses_each_wrong_call(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert mypy(script) == "Success: no issues found in 1 source file\n"
    script.write_text("\n".join(["import eaglectl", *WRONG]))
    lines = mypy(script).splitlines()
    for line, words in enumerate(WRONG.values(), 2):
        assert any(f"script.py:{line}: error" in error and words in error for error in lines), lines


@pytest.mark.parametrize(
    ("function", "keyword", "answer"),
    [
        ("upload", "license", "; use licence=..."),
        ("upload", "private", "; use is_private=..."),
        ("convert", "draft_vocab", "; use size=..."),
        ("convert", "no_measure", "; use measure=None"),
        ("inspect", "assume_defaults", "; use assume=..."),
        ("inspect", "source_semantics", "; use semantics=..."),
        ("inspect", "engine", "; use engines=..."),
        ("inspect", "targt", "; use target=..."),
        ("validate", "no_engines", "; use has_engines=False"),
        ("smoke", "num_speculative_tokens", "; use k=..."),
        ("inspect", "colour", ""),
        ("inspect", "out", ""),
        ("convert", "o", "; use out=..."),
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(function: str, keyword: str, answer: str) -> None:
    given: Any = {keyword: 1}
    with pytest.raises(TypeError) as error:
        getattr(eaglectl, function)(*["a/b"] * (function == "upload"), NATIVE, **given)
    assert str(error.value) == f"{function}() got an unexpected keyword argument '{keyword}'{answer}"
