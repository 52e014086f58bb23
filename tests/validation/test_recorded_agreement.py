"""validate agrees with what vLLM 0.32.0 was recorded to do with several hundred mutated drafters."""

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import sampled
from tests.engine.agreement import judging
from tests.engine.agreement.bases import BASES
from tests.engine.agreement.cases import CASES
from tests.engine.agreement.records import RECORDS, RECORDS_V2, VLLM, read

RECORDED = read()
RECORDED_V2 = read(RECORDS_V2)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judging.targets(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("name", sampled(CASES, 5))
def test_validate_agrees_with_the_engine(name: str, targets: Path, tmp_path: Path) -> None:
    found = judging.disagreement(RECORDED[name], judging.report(name, targets, tmp_path))
    assert bool(found) == (name in judging.JUSTIFIED), (
        found or f"no disagreement any more: {judging.JUSTIFIED[name]}"
    )


@pytest.mark.parametrize("name", sampled(CASES, 5))
def test_inspect_and_validate_say_the_same(name: str, targets: Path, tmp_path: Path) -> None:
    folder = CASES[name].files().write(tmp_path / "drafter")
    assert judging.contradiction(folder, targets / BASES[CASES[name].base].kind, VLLM) == ""


@pytest.mark.parametrize("name", sampled(RECORDED_V2, 5))
def test_validate_agrees_with_the_v2_runner(name: str, targets: Path, tmp_path: Path) -> None:
    found = judging.disagreement(RECORDED_V2[name], judging.report(name, targets, tmp_path))
    assert bool(found) == (name in judging.JUSTIFIED_V2), found or "no disagreement any more"


def test_every_record_of_v2_is_of_the_case_as_it_is() -> None:
    assert set(RECORDED_V2) <= set(CASES) and {f"{base}/none" for base in BASES} <= set(RECORDED_V2)
    assert {name: CASES[name].files().digest() for name in RECORDED_V2} == {
        name: record.digest for name, record in RECORDED_V2.items()
    }


def test_every_record_is_of_the_case_as_it_is() -> None:
    assert {name: case.files().digest() for name, case in CASES.items()} == {
        name: record.digest for name, record in RECORDED.items()
    }


def test_there_are_enough_cases_of_every_kind() -> None:
    assert len(CASES) >= 300
    verdicts = Counter(record.verdict for record in RECORDED.values())
    assert all(verdicts[kind] >= 20 for kind in ("raises", "as meant", "as base", "differently")), verdicts
    assert RECORDS.stat().st_size < 300_000


def test_exceptions_are_few_and_have_a_reason() -> None:
    assert set(judging.JUSTIFIED) <= set(CASES)
    assert all(judging.JUSTIFIED.values())
    assert len(judging.JUSTIFIED) < len(CASES) / 10


RUN = judging.run_facts("vllm", "0.32.0")


@pytest.mark.parametrize("name", sampled(RUN, 5))
def test_the_recorded_case_of_a_fact_shows_it(name: str, targets: Path, tmp_path: Path) -> None:
    fact, case = RUN[name]
    found = judging.report(case, targets, tmp_path, select=[fact.rule])
    records = [recorded[case] for recorded in (RECORDED, RECORDED_V2) if case in recorded]
    assert "" in [
        judging.unshown(fact, found, record.verdict, is_wrong=not record.is_served) for record in records
    ]
