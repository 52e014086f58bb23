"""validate and inspect agree with what llama.cpp was recorded to do with changed drafters."""

from pathlib import Path

import pytest

from tests.conftest import sampled
from tests.engine.agreement.judging import contradiction, run_facts, unshown
from tests.engine.agreement.judging import targets as targets_of_cases
from tests.engine.llamacpp import judging
from tests.engine.llamacpp.cases import CASES
from tests.engine.llamacpp.records import LLAMACPP, read

RECORDED = read()
RUN = run_facts("llama.cpp", "0.3.36")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return targets_of_cases(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("name", sampled(RECORDED, 5))
def test_validate_agrees_with_the_engine(name: str, targets: Path, tmp_path: Path) -> None:
    found = judging.disagreement(RECORDED[name], judging.report(name, targets, tmp_path))
    assert bool(found) == (name in judging.JUSTIFIED), (
        found or f"no disagreement any more: {judging.JUSTIFIED[name]}"
    )


@pytest.mark.parametrize("name", sampled(CASES, 5))
def test_inspect_and_validate_say_the_same(name: str, targets: Path, tmp_path: Path) -> None:
    folder = CASES[name].files().write(tmp_path / "drafter")
    assert contradiction(folder, targets / CASES[name].kind, LLAMACPP) == ""


def test_every_record_is_of_the_case_as_it_is() -> None:
    assert set(RECORDED) <= set(CASES)
    assert {name: CASES[name].files().digest() for name in RECORDED} == {
        name: record.digest for name, record in RECORDED.items()
    }


def test_exceptions_are_few_and_have_a_reason() -> None:
    assert set(judging.JUSTIFIED) <= set(RECORDED)
    assert all(judging.JUSTIFIED.values())
    assert len(judging.JUSTIFIED) < len(RECORDED) / 8


@pytest.mark.parametrize("name", sampled(RUN, 5))
def test_the_recorded_case_of_a_fact_shows_it(name: str, targets: Path, tmp_path: Path) -> None:
    fact, case = RUN[name]
    record = RECORDED[case]
    found = judging.report(case, targets, tmp_path, select=[fact.rule])
    assert not unshown(fact, found, record.stopped, is_wrong=not record.is_served)
