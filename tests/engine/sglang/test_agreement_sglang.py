"""A sample of the recorded cases, live: SGLang does what is recorded.

The same sample each time, so that a failure is of a change and not of the day; EAGLECTL_AGREEMENT_SEED
chooses another, EAGLECTL_AGREEMENT_CASES=all takes every case.
"""

import os
import random
import subprocess
import sys

import pytest

from tests.conftest import FIXTURES
from tests.engine import pairs
from tests.engine.sglang.records import Record, read

SEED = os.environ.get("EAGLECTL_AGREEMENT_SEED", "2026-11-22")
COUNT = os.environ.get("EAGLECTL_AGREEMENT_CASES", "24")
RECORDED = read()
NAMES = sorted(RECORDED)
SAMPLE = NAMES if COUNT == "all" else sorted(random.Random(SEED).sample(NAMES, int(COUNT)))
PATIENCE = 120.0 + 60.0 * len(SAMPLE)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    print(f"sample of EAGLECTL_AGREEMENT_SEED={SEED}")
    root = tmp_path_factory.mktemp("agreement")
    answers = root / "answers.json"
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.sglang.runner", str(answers), *SAMPLE]
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=FIXTURES.parent, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(PATIENCE)
        finally:
            pairs.end(process)
    assert code == 0, (root / "log").read_text()[-2000:]
    return read(answers)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_engine_does_what_is_recorded(name: str, live: dict[str, Record]) -> None:
    assert live[name] == RECORDED[name]
