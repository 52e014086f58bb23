"""validate and inspect agree with what engines were recorded to do with several hundred changed drafters."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import sampled
from tests.engine.agreement import cases as vllm_cases
from tests.engine.agreement import judging as vllm_judging
from tests.engine.agreement.bases import BASES
from tests.engine.agreement.judging import contradiction, disagreement, report, run_facts, unshown
from tests.engine.agreement.judging import targets as targets_of_cases
from tests.engine.agreement.records import (
    LLAMACPP,
    LLAMACPP_RECORDS,
    RECORDS,
    RECORDS_V2,
    SGLANG,
    SGLANG_RECORDS,
    VLLM,
    Record,
    read,
)
from tests.engine.llamacpp import cases as llamacpp_cases
from tests.engine.llamacpp import judging as llamacpp_judging
from tests.engine.logits import BOUND
from tests.engine.sglang import cases as sglang_cases
from tests.engine.sglang import judging as sglang_judging

V2 = "vLLM's V2 runner"
ENGINES = (VLLM, LLAMACPP, SGLANG)
RECORDED: Mapping[str, Mapping[str, Any]] = {
    VLLM: read(),
    V2: read(RECORDS_V2),
    LLAMACPP: read(LLAMACPP_RECORDS),
    SGLANG: read(SGLANG_RECORDS),
}
CASES: Mapping[str, Mapping[str, Any]] = {
    VLLM: vllm_cases.CASES,
    V2: vllm_cases.CASES,
    LLAMACPP: llamacpp_cases.CASES,
    SGLANG: sglang_cases.CASES,
}
JUSTIFIED = {
    VLLM: vllm_judging.JUSTIFIED,
    V2: vllm_judging.JUSTIFIED_V2,
    LLAMACPP: llamacpp_judging.JUSTIFIED,
    SGLANG: sglang_judging.JUSTIFIED,
}
# of how many records one may be an exception
EXCEPTIONS = {VLLM: 10, LLAMACPP: 7, SGLANG: 10}
RUN = {engine: run_facts(*engine.split("==")) for engine in ENGINES}


def _of_each(names: Mapping[str, Iterable[str]], engines: Iterable[str] = ENGINES) -> list[Any]:
    return [
        pytest.param(engine, param.values[0], marks=param.marks)
        for engine in engines
        for param in sampled(names[engine], 5)
    ]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return targets_of_cases(tmp_path_factory.mktemp("targets"))


@pytest.mark.fast(50)
@pytest.mark.parametrize(("engine", "name"), _of_each(RECORDED, RECORDED))
def test_validate_agrees_with_the_engine(engine: str, name: str, targets: Path, tmp_path: Path) -> None:
    release, justified = VLLM if engine == V2 else engine, JUSTIFIED[engine]
    case = CASES[engine][name]
    found = disagreement(RECORDED[engine][name], report(case, release, targets, tmp_path), case.options)
    assert bool(found) == (name in justified), found or f"no disagreement any more: {justified[name]}"


@pytest.mark.fast(20)
@pytest.mark.parametrize(("engine", "name"), _of_each(CASES))
def test_inspect_and_validate_say_the_same(engine: str, name: str, targets: Path, tmp_path: Path) -> None:
    case = CASES[engine][name]
    assert contradiction(case.files().write(tmp_path / "drafter"), targets / case.kind, engine) == ""


@pytest.mark.parametrize("engine", RECORDED)
def test_every_record_is_of_the_case_as_it_is(engine: str) -> None:
    records, cases = RECORDED[engine], CASES[engine]
    assert set(records) <= set(cases) and (engine != VLLM or set(records) == set(cases))
    assert {name: cases[name].files().digest() for name in records} == {
        name: record.digest for name, record in records.items()
    }


def test_logits_separate_what_is_served_from_what_is_not() -> None:
    """Of the records with a measured difference: nothing lies near the bound."""
    found = [record for record in RECORDED[VLLM].values() if record.difference is not None]
    served = [record.difference for record in found if record.verdict in ("as meant", "as base")]
    others = [record.difference for record in found if record.verdict == "differently"]
    assert len(served) + len(others) == len(found) and min(len(served), len(others)) >= 40
    assert max(served) < BOUND / 4 and min(others) > 100 * BOUND


def test_a_record_with_other_logits_is_not_served() -> None:
    assert Record("", "as meant", difference=BOUND / 2).is_served
    assert Record("", "as meant", difference=2 * BOUND).is_wrong


@pytest.mark.parametrize("engine", ENGINES)
def test_exceptions_are_few_and_have_a_reason(engine: str) -> None:
    justified, records = JUSTIFIED[engine], RECORDED[engine]
    assert set(justified) <= set(records) and all(justified.values())
    assert len(justified) < len(records) / EXCEPTIONS[engine]


def test_there_are_enough_cases_of_every_kind() -> None:
    assert len(CASES[VLLM]) >= 300 and {f"{base}/none" for base in BASES} <= set(RECORDED[V2])
    verdicts = Counter(record.verdict for record in RECORDED[VLLM].values())
    assert all(verdicts[kind] >= 20 for kind in ("raises", "as meant", "as base", "differently")), verdicts
    assert RECORDS.stat().st_size < 300_000


@pytest.mark.parametrize(("engine", "id"), _of_each(RUN))
def test_the_case_that_a_fact_names_shows_it(engine: str, id: str, targets: Path, tmp_path: Path) -> None:
    fact, name = RUN[engine][id]
    found = report(CASES[engine][name], engine, targets, tmp_path, [fact.rule])
    # one of vLLM's two runners shows it
    runners = (VLLM, V2) if engine == VLLM else (engine,)
    records = [RECORDED[runner][name] for runner in runners if name in RECORDED[runner]]
    assert "" in [unshown(fact, found, record) for record in records]
