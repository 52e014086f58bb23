"""A random sample of the recorded cases, live: the engine does what is recorded, and validate agrees with it.

The same sample each time, so that a failure is of a change and not of the day; EAGLECTL_AGREEMENT_SEED
chooses another.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.engine import pairs
from tests.engine.agreement import judging
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.records import RECORDS_V2, Record, read

SEED = os.environ.get("EAGLECTL_AGREEMENT_SEED", "2026-11-21")
SAMPLE = sorted(random.Random(SEED).sample(sorted(CASES), 40))
RECORDED_V2 = read(RECORDS_V2)
# Triton's interpreter is slow
SAMPLE_V2 = sorted(random.Random(SEED).sample(sorted(RECORDED_V2), 6))
PATIENCE = 1500.0
RECORDED = read()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    print(f"sample of EAGLECTL_AGREEMENT_SEED={SEED}")
    return _run(tmp_path_factory.mktemp("agreement") / "answers.json", SAMPLE)


@pytest.fixture(scope="module")
def live_v2(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    answers = tmp_path_factory.mktemp("agreement-v2") / "answers.json"
    return _run(answers, SAMPLE_V2, ENGINE_RUNNER="V2", ENGINE_NEW_TOKENS="6", AGREEMENT_PATIENCE="400")


def _run(answers: Path, names: list[str], **variables: str) -> dict[str, Record]:
    command = [sys.executable, "-m", "tests.engine.agreement.runner", str(answers), *names]
    process = subprocess.Popen(
        command,
        cwd=FIXTURES.parent,
        # memory that the engine never writes holds 48.6 and not 0, so that a layer without weights does not
        # look like one that adds nothing
        env={**os.environ, "MALLOC_PERTURB_": "189", **variables},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(PATIENCE)
    finally:
        pairs.end(process)
    return read(answers)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judging.targets(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("name", SAMPLE)
def test_the_engine_does_what_is_recorded(name: str, live: dict[str, Record]) -> None:
    found, recorded = live[name], RECORDED[name]
    assert found.digest == recorded.digest
    assert found.is_served == recorded.is_served, f"{found}, recorded {recorded}, seed {SEED}"


@pytest.mark.parametrize("name", SAMPLE)
def test_validate_agrees_with_the_engine(
    name: str, live: dict[str, Record], targets: Path, tmp_path: Path
) -> None:
    found = judging.disagreement(live[name], judging.report(name, targets, tmp_path))
    assert bool(found) == (name in judging.JUSTIFIED), f"{found or judging.JUSTIFIED[name]}; seed {SEED}"


@pytest.mark.parametrize("name", SAMPLE_V2)
def test_the_v2_runner_does_what_is_recorded(name: str, live_v2: dict[str, Record]) -> None:
    found, recorded = live_v2[name], RECORDED_V2[name]
    assert found.digest == recorded.digest
    assert found.is_served == recorded.is_served, f"{found}, recorded {recorded}, seed {SEED}"
