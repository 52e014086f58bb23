"""`python -m tests.gpu`: each part ends in rows, whatever becomes of it, in the table and the exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from tests.conftest import FIXTURES
from tests.gpu import __main__ as suite
from tests.gpu.__main__ import Part, progress, run_part

ROOT = FIXTURES.parent
HEAD = "import pytest, time\npytestmark = pytest.mark.slow\n"
PASSES = (
    "def test_it_drafts(record_property):\n    record_property('figures', {'length': 1.5, 'device': 'CPU'})\n"
)
TYPES = "def test_smoke(record_property):\n    record_property('command', 'eaglectl x')\n    assert 1 == 2\n"
SKIPS = "@pytest.mark.skip(reason='vllm is not installed')\ndef test_in_vllm():\n    pass\n"
HANGS = "def test_it_hangs():\n    time.sleep(60)\n"
BREAKS = "import no_such_module\n"


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a file of tests, with the hooks of tests/gpu, as a part; its rows."""
    (tmp_path / "conftest.py").write_text(
        "from tests.gpu.results import pytest_runtest_logreport\n__all__ = ['pytest_runtest_logreport']\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(text: str, limit: float = 50.0) -> list[dict[str, Any]]:
        file = tmp_path / "test_it.py"
        file.write_text(HEAD + text)
        words = (str(file), "-c", str(tmp_path / "pytest.ini"))
        return run_part(Part("a part", limit, words), tmp_path)

    return run


def test_a_passing_test_is_a_row_with_its_sentence_and_figures(rows: Any) -> None:
    (row,) = rows(PASSES)
    assert (row["part"], row["what"], row["result"], row["reason"]) == ("a part", "it drafts", "passed", "")
    assert row["figures"] == {"length": 1.5}  # the device stands above the table
    assert row["command"].startswith("pytest ") and row["command"].endswith("::test_it_drafts")


def test_a_failing_test_is_a_row_with_its_command_and_the_reason(rows: Any) -> None:
    (row,) = rows(TYPES)
    assert (row["result"], row["command"]) == ("failed", "eaglectl x")
    assert row["reason"].startswith("assert 1 == 2")


def test_a_skipped_test_is_a_row_with_its_reason(rows: Any) -> None:
    (row,) = rows(SKIPS)
    assert (row["result"], row["reason"]) == ("skipped", "vllm is not installed")


def test_a_part_that_does_not_end_keeps_the_rows_that_it_has(rows: Any) -> None:
    passed, stopped = rows(PASSES + HANGS, limit=4.0)
    assert passed["result"] == "passed"
    assert (stopped["result"], stopped["reason"]) == ("stopped", "did not end within 4 s")


def test_a_part_whose_file_cannot_be_read_is_broken(rows: Any) -> None:
    (row,) = rows(BREAKS)
    assert row["result"] == "broken" and row["reason"].startswith("pytest ended with code 2: ")


def test_a_part_that_chooses_no_test_is_broken(rows: Any) -> None:
    (row,) = rows("")
    assert row["result"] == "broken" and "code 5" in row["reason"]


def test_the_line_of_a_part_counts_its_results_and_has_the_reasons() -> None:
    rows = [{"result": "passed", "reason": ""}, {"result": "skipped", "reason": "no GPU"}] * 2
    line = progress(Part("engines", 1, ()), rows, 12.4)
    assert line == f"{'engines':<22}  2 passed, 2 skipped  12 s  no GPU"


ROW = {
    "part": "vllm smoke",
    "what": "smoke measures",
    "command": "eaglectl smoke x",
    "result": "failed",
    "reason": "exit 1: a | b\nand more",
    "figures": {"acceptance_length": 1.66},
    "seconds": 90.0,
}
RUN = {
    "card": "NVIDIA H200",
    "driver": "580.1",
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
    "packages": {"vllm": "0.26.0"},
    "eaglectl": "d8b71ce",
    "date": "2026-11-26",
    "rows": [ROW],
}


def test_the_table_has_the_machine_above_it() -> None:
    assert gpu.table(RUN).splitlines()[0] == (
        "NVIDIA H200, driver 580.1, Python 3.12.3, torch 2.11.0+cu130, vllm 0.26.0, eaglectl at d8b71ce,"
        " 2026-11-26:"
    )


def test_a_row_of_the_table_keeps_to_its_cells() -> None:
    assert gpu.table(RUN).splitlines()[-1] == (
        "| vllm smoke | smoke measures | `eaglectl smoke x` | failed: exit 1: a \\| b |"
        " acceptance length 1.66 | 90 |"
    )


def test_a_run_without_a_driver_or_seconds_has_neither() -> None:
    run = RUN | {"driver": None, "rows": [ROW | {"seconds": None, "command": None}]}
    assert "driver" not in gpu.table(run)
    assert gpu.table(run).splitlines()[-1] == (
        "| vllm smoke | smoke measures |  | failed: exit 1: a \\| b | acceptance length 1.66 |  |"
    )


def ended(tmp_path: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.gpu", "--out", str(tmp_path), *words]
    given = {"EAGLECTL_DEVICE": "cpu", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | given, check=False
    )


def test_a_name_of_no_part_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = ended(tmp_path, "vllm smok")
    assert (
        done.returncode == 2 and "no such part: vllm smok; there are real target, vllm ready" in done.stderr
    )


@pytest.mark.parametrize(("result", "code"), [("passed", 0), ("skipped", 0), ("failed", 1), ("stopped", 1)])
def test_the_exit_code_is_that_of_the_worst_row(
    result: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [ROW | {"result": "passed", "reason": ""}, ROW | {"result": result}]
    monkeypatch.setattr(suite, "run_part", lambda part, out: rows)
    monkeypatch.setattr(
        suite, "machine", lambda: {name: value for name, value in RUN.items() if name != "rows"}
    )
    monkeypatch.setattr(sys, "argv", ["tests.gpu", "--out", str(tmp_path), "commands"])
    with pytest.raises(SystemExit) as caught:
        suite.main()
    assert int(caught.value.code or 0) == code
    assert json.loads((tmp_path / "run.json").read_text())["rows"] == rows
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


@pytest.mark.slow
def test_an_engine_that_is_not_there_is_skipped_with_the_reason(tmp_path: Path) -> None:
    done = ended(tmp_path, "sglang smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert (row["result"], row["reason"]) == ("skipped", "sglang is not installed for this Python")


def test_every_part_names_a_file_of_tests_and_a_limit() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/gpu").glob("test_*.py")}
    parts = [part for stage in suite.STAGES for part in stage]
    assert len({part.name for part in parts}) == len(parts)
    assert {part.words[0] for part in parts} == files
    assert all(60 <= part.limit <= 600 for part in parts)


@pytest.mark.slow
def test_the_parts_run_every_test_of_the_folder_once() -> None:
    words = ("--collect-only", "-q", "-m", "slow or not slow", "tests/gpu")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, cwd=ROOT, check=False
    )
    tests = [line.partition("::") for line in done.stdout.splitlines() if "::" in line]
    assert len(tests) > 15
    for file, _, name in tests:
        parts = [part for stage in suite.STAGES for part in stage if part.words[0] == file]
        assert len([part for part in parts if is_chosen(name, *part.words[2:])]) == 1, name


def is_chosen(name: str, expression: str = "") -> bool:
    """Whether pytest's -k takes a test, for a word or "not" and a word."""
    word = expression.removeprefix("not ")
    return (word in name) is not expression.startswith("not ")
