"""validate and inspect agree with what SGLang and llama.cpp were recorded to do with changed drafters."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import sampled
from tests.engine.agreement.judging import contradiction, run_facts, unshown
from tests.engine.agreement.judging import targets as targets_of_cases
from tests.engine.llamacpp import cases as llamacpp_cases
from tests.engine.llamacpp import judging as llamacpp_judging
from tests.engine.llamacpp import records as llamacpp_records
from tests.engine.sglang import cases as sglang_cases
from tests.engine.sglang import judging as sglang_judging
from tests.engine.sglang import records as sglang_records

LLAMACPP, SGLANG = llamacpp_records.LLAMACPP, sglang_records.SGLANG
RECORDED: Mapping[str, Mapping[str, Any]] = {
    LLAMACPP: llamacpp_records.read(),
    SGLANG: sglang_records.read(),
}
CASES: Mapping[str, Mapping[str, Any]] = {LLAMACPP: llamacpp_cases.CASES, SGLANG: sglang_cases.CASES}
JUDGING: dict[str, ModuleType] = {LLAMACPP: llamacpp_judging, SGLANG: sglang_judging}
# of how many records one may be an exception
EXCEPTIONS = {LLAMACPP: 8, SGLANG: 10}
RUN = {engine: run_facts(*engine.split("==")) for engine in RECORDED}


def _of_each(names: Mapping[str, Iterable[str]], step: int) -> list[Any]:
    return [
        pytest.param(engine, param.values[0], marks=param.marks)
        for engine in names
        for param in sampled(names[engine], step)
    ]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return targets_of_cases(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize(("engine", "name"), _of_each(RECORDED, 5))
def test_validate_agrees_with_the_engine(engine: str, name: str, targets: Path, tmp_path: Path) -> None:
    judging = JUDGING[engine]
    found = judging.disagreement(RECORDED[engine][name], judging.report(name, targets, tmp_path))
    assert bool(found) == (name in judging.JUSTIFIED), (
        found or f"no disagreement any more: {judging.JUSTIFIED[name]}"
    )


@pytest.mark.parametrize(("engine", "name"), _of_each(CASES, 5))
def test_inspect_and_validate_say_the_same(engine: str, name: str, targets: Path, tmp_path: Path) -> None:
    case = CASES[engine][name]
    assert contradiction(case.files().write(tmp_path / "drafter"), targets / case.kind, engine) == ""


@pytest.mark.parametrize("engine", RECORDED)
def test_every_record_is_of_the_case_as_it_is(engine: str) -> None:
    records, cases = RECORDED[engine], CASES[engine]
    assert set(records) <= set(cases)
    assert {name: cases[name].files().digest() for name in records} == {
        name: record.digest for name, record in records.items()
    }


@pytest.mark.parametrize("engine", RECORDED)
def test_exceptions_are_few_and_have_a_reason(engine: str) -> None:
    justified = JUDGING[engine].JUSTIFIED
    assert set(justified) <= set(RECORDED[engine]) and all(justified.values())
    assert len(justified) < len(RECORDED[engine]) / EXCEPTIONS[engine]


@pytest.mark.parametrize(("engine", "id"), _of_each(RUN, 5))
def test_the_case_that_a_fact_names_shows_it(engine: str, id: str, targets: Path, tmp_path: Path) -> None:
    fact, name = RUN[engine][id]
    record = RECORDED[engine][name]
    found = JUDGING[engine].report(name, targets, tmp_path, [fact.rule])
    assert not unshown(fact, found, record.stopped, is_wrong=record.is_wrong)
