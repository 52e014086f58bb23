"""`python -m tests.gpu`: each part ends in rows, whatever becomes of it, in the table and the exit code."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from tests.conftest import FIXTURES
from tests.gpu import __main__ as suite
from tests.gpu.__main__ import Part, run_part

ROOT = FIXTURES.parent
HEAD = "import pytest, time\npytestmark = pytest.mark.slow\n"
PASSES = (
    "def test_it_drafts(record_property):\n    record_property('figures', {'length': 1.5, 'device': 'CPU'})\n"
)
TYPES = "def test_smoke(record_property):\n    record_property('command', 'eaglectl x')\n    assert 1 == 2\n"
HANGS = "def test_it_hangs():\n    time.sleep(60)\n"


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


@pytest.mark.slow
def test_each_test_is_a_row_and_a_part_that_does_not_end_keeps_those_that_it_has(rows: Any) -> None:
    passed, failed, stopped = rows(PASSES + TYPES + HANGS, limit=6.0)
    assert (passed["part"], passed["what"], passed["result"]) == ("a part", "it drafts", "passed")
    assert passed["figures"] == {"length": 1.5}  # the device stands above the table
    assert passed["command"].startswith("pytest ") and passed["command"].endswith("::test_it_drafts")
    assert (failed["result"], failed["command"]) == ("failed", "eaglectl x")
    assert failed["reason"].startswith("assert 1 == 2")
    assert (stopped["result"], stopped["reason"]) == ("stopped", "did not end within 6 s")


ROW = {
    "part": "vllm smoke", "what": "smoke measures", "command": "eaglectl smoke x", "result": "failed",
    "reason": "exit 1: a | b\nand more", "figures": {"acceptance_length": 1.66}, "seconds": 90.0,
}  # fmt: skip
RUN = {
    "card": "NVIDIA H200", "driver": "580.1", "python": "3.12.3", "torch": "2.11.0+cu130",
    "packages": {"vllm": "0.26.0"}, "eaglectl": "d8b71ce", "date": "2026-11-26", "rows": [ROW],
}  # fmt: skip


def test_a_row_of_the_table_keeps_to_its_cells() -> None:
    assert gpu.table(RUN).splitlines()[-1] == (
        "| vllm smoke | smoke measures | `eaglectl smoke x` | failed: exit 1: a \\| b |"
        " acceptance length 1.66 | 90 |"
    )


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
