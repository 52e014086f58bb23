"""A sample of the recorded cases, live: llama.cpp does what is recorded."""

import pytest

from tests.engine.agreement import live
from tests.engine.agreement.records import LLAMACPP_RECORDS, Record, read

RECORDED, SAMPLE = read(LLAMACPP_RECORDS), live.sample(LLAMACPP_RECORDS, 24)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return live.run(
        "llamacpp.runner", SAMPLE, tmp_path_factory.mktemp("agreement"), 600.0 + 60.0 * len(SAMPLE)
    )


@pytest.mark.parametrize("name", SAMPLE)
def test_the_engine_does_what_is_recorded(name: str, answers: dict[str, Record]) -> None:
    assert answers[name] == RECORDED[name]
