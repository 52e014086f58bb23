"""A sample of the recorded cases, live: llama.cpp does what is recorded.

The same sample each time, so that a failure is of a change and not of the day; EAGLECTL_AGREEMENT_SEED
chooses another, EAGLECTL_AGREEMENT_CASES=all takes every case.
"""

import os
import random
import subprocess
import sys

import pytest

from tests.conftest import FIXTURES
from tests.engine.llamacpp.records import Record, read

SEED = os.environ.get("EAGLECTL_AGREEMENT_SEED", "2026-11-22")
COUNT = os.environ.get("EAGLECTL_AGREEMENT_CASES", "24")
RECORDED = read()
NAMES = sorted(RECORDED)
SAMPLE = NAMES if COUNT == "all" else sorted(random.Random(SEED).sample(NAMES, int(COUNT)))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    answers = tmp_path_factory.mktemp("agreement") / "answers.json"
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.llamacpp.runner", str(answers), *SAMPLE]
    done = subprocess.run(command, cwd=FIXTURES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return read(answers)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_engine_does_what_is_recorded(name: str, live: dict[str, Record]) -> None:
    assert live[name] == RECORDED[name]
