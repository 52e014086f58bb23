"""A sample of the recorded cases, live: vLLM does in each of its runners what is recorded.

`tests/validation/test_recorded_engines.py` holds validate to every record.
"""

import pytest

from tests.engine.agreement import live
from tests.engine.agreement.records import RECORDS, RECORDS_V2, Record, read

SEED = "2026-11-21"
RECORDED = {"V1": read(RECORDS), "V2": read(RECORDS_V2)}
# Triton's interpreter is slow
SAMPLES = {"V1": live.sample(RECORDS, 40, SEED), "V2": live.sample(RECORDS_V2, 6, SEED)}
# memory that the engine never writes holds 48.6 and not 0, so that a layer without weights does not look like
# one that adds nothing
POISON = {"MALLOC_PERTURB_": "189"}
SETTINGS = {
    "V1": POISON,
    "V2": {**POISON, "ENGINE_RUNNER": "V2", "ENGINE_NEW_TOKENS": "6", "AGREEMENT_PATIENCE": "400"},
}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    runner = request.param
    folder = tmp_path_factory.mktemp(f"agreement-{runner}")
    return live.run("agreement.runner", SAMPLES[runner], folder, 1500.0, **SETTINGS[runner])


@pytest.mark.parametrize(
    ("answers", "runner", "name"),
    [(runner, runner, name) for runner, names in SAMPLES.items() for name in names],
    indirect=["answers"],
)
def test_the_runner_does_what_is_recorded(answers: dict[str, Record], runner: str, name: str) -> None:
    found, recorded = answers[name], RECORDED[runner][name]
    assert found.digest == recorded.digest
    assert found.is_served == recorded.is_served, f"{found}, recorded {recorded}"
