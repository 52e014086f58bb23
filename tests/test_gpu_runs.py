"""What ran on a GPU: the recorded runs, and every place that says so."""

import importlib
import json
import re
from typing import Any

import pytest

from benchmarks import gpu
from eaglectl.engines.data import FOLDER
from tests.builders import call
from tests.conftest import FIXTURES

ROOT = FIXTURES.parent
RUNS = json.loads((FOLDER / "gpu_runs.json").read_text())["runs"]


def test_engines_says_what_ran_on_which_card_and_what_did_not() -> None:
    lines = re.findall(r"run on a GPU: (.*)", call("-v", "engines").out)
    assert lines[0].startswith(
        "0.26.0 on NVIDIA H200 by eaglectl d8b71ce (2026-11-26), 0 of 5 commands passed"
    )
    assert "by eaglectl 8d7ceb7 (2026-11-26), 7 of 8" in lines[0]
    assert lines[1:] == ["nothing", "nothing"]
    document = json.loads(call("engines", "vllm", "--json").out)
    assert document["engines"][0]["gpu_runs"][0]["card"] == "NVIDIA H200"


def test_the_tables_of_the_benchmarks_are_those_of_the_recorded_runs() -> None:
    text = gpu.README.read_text()
    assert gpu.section(text) == text, "run `python -m benchmarks.gpu`"
    assert all(gpu.table(run) in text for run in RUNS)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["date"])
def test_a_recorded_run_has_what_a_table_needs(run: Any) -> None:
    assert {"card", "driver", "python", "torch", "packages", "eaglectl", "date", "rows"} <= set(run)
    row_keys = {"part", "engine", "what", "command", "result", "reason", "figures", "seconds"}
    assert all(set(row) == row_keys for row in run["rows"])
    assert {row["result"] for row in run["rows"]} <= {"passed", "failed", "skipped", "stopped", "broken"}
    assert all(row["reason"] for row in run["rows"] if row["result"] != "passed")


@pytest.mark.parametrize("page", ["README.md", "docs/evidence.md"])
def test_a_page_names_the_newest_card_and_release(page: str) -> None:
    text, newest = (ROOT / page).read_text(), RUNS[-1]
    assert f"vLLM {newest['packages']['vllm']}" in text
    assert newest["card"].removeprefix("NVIDIA ") in text
    assert "README.md#on-a-gpu" in text


def test_a_row_that_a_run_writes_can_be_recorded() -> None:
    suite = importlib.import_module("tests.gpu.__main__")
    own = suite.own_row(suite.Part("vllm smoke", 1, ()), "stopped", "did not end within 1 s", 1.0)
    assert list(own) == list(RUNS[0]["rows"][0]) and own["engine"] == "vllm"
