"""A sample of the recorded cases, live: vLLM does in each of its runners what is recorded.

`tests/validation/test_recorded_engines.py` holds validate to every record.
"""

from pathlib import Path

import pytest

from tests.engine.agreement import live
from tests.engine.agreement.records import RECORDS, RECORDS_V2, read

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


@pytest.mark.parametrize("runner", SAMPLES)
def test_the_runner_does_what_is_recorded(runner: str, tmp_path: Path) -> None:
    answers = live.run("agreement.runner", SAMPLES[runner], tmp_path, 1500.0, **SETTINGS[runner])
    recorded = {name: RECORDED[runner][name] for name in SAMPLES[runner]}
    assert {name: each.digest for name, each in answers.items()} == {
        name: each.digest for name, each in recorded.items()
    }
    otherwise = {
        name: f"{answers[name]}, recorded {each}"
        for name, each in recorded.items()
        if answers[name].is_served != each.is_served
    }
    assert otherwise == {}
