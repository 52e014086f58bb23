"""The interface table against the installed vLLM: its sources, imports, arguments, and both runners' runs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eaglectl.engines.releases import is_within
from eaglectl.run.process import VLLM
from tests.conftest import FIXTURES
from tests.engine import pairs
from tests.engine.runners import RUNNERS, use_runner
from tests.tiny import TINY
from tools.scan.interface import Name, differences, has_names, names
from tools.scan.sources import Sources

PATIENCE = 600.0
# owners that a run without calibration has not: their sources are looked at
NOT_RUN = ("connector", "pending")


@pytest.fixture(scope="module")
def sources() -> Sources:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Sources(Path(spec.origin).parent)


def run(module: str, *arguments: str) -> Any:
    answer = Path(arguments[-1])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=FIXTURES.parent,
        env={**os.environ, **VLLM.environment},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(PATIENCE)
    finally:
        pairs.end(process)
    return json.loads(answer.read_text())


def is_expected(row: Name, release: str, *parts: str) -> bool:
    """Whether the table says that a release has a name, of the first of the parts that it knows."""
    part = next(part for part in (*parts, "") if part in row.where)
    span = row.releases[part]
    return span is not None and is_within(span, release)


def test_the_sources_have_what_the_table_says_and_lack_what_it_says_they_lack(sources: Sources) -> None:
    found = {"engine": "vllm", "interface": has_names(sources)}
    assert found["interface"]
    assert differences(found, sources.release) == []


def test_what_is_imported_and_given_is_there(sources: Sources, tmp_path: Path) -> None:
    found = run("tests.engine.interface_live", "vllm", str(tmp_path / "answer.json"))
    rows = {row.name: row for row in names("vllm")}
    assert found == {name: is_expected(rows[name], sources.release) for name in found}
    assert {row.name for row in rows.values() if row.kind == "import"} <= found.keys()


@pytest.fixture(scope="module", params=RUNNERS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        use_runner(patch, request.param)
        return request.param, run(
            "tests.engine.interface_child", str(TINY / "eagle3"), str(folder / "answer.json")
        )


def test_the_objects_of_a_run_have_what_the_table_says(answers: tuple[str, Any], sources: Sources) -> None:
    runner, found = answers
    rows = {row.name: row for row in names("vllm")}
    parts = (f"{runner} on CPUs", "on CPUs", "llama")
    assert found == {name: is_expected(rows[name], sources.release, *parts) for name in found}


def test_a_run_shows_every_attribute_but_those_of_another_runner_and_of_calibration(
    answers: tuple[str, Any],
) -> None:
    runner, found = answers
    other = "drafter." if runner == "V2" else "speculator."
    left_out = (other, *(f"{owner}." for owner in NOT_RUN))
    attributes = {row.name for row in names("vllm") if row.kind == "attribute"}
    assert attributes - found.keys() == {name for name in attributes if name.startswith(left_out)}
    assert found["runner.drafter"] is (runner == "V1")
    assert found["runner.speculator"] is (runner == "V2")
