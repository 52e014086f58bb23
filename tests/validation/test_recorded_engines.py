"""validate and inspect agree with what engines were recorded to do with several hundred changed drafters."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eaglectl.engines.behaviour import RunnerRecord, ShownFact
from eaglectl.engines.data import FOLDER
from eaglectl.engines.registry import ENGINES as REGISTRY
from tests.conftest import sampled
from tests.engine.agreement import cases as vllm_cases
from tests.engine.agreement import judging as vllm_judging
from tests.engine.agreement.bases import BASES
from tests.engine.agreement.judging import contradiction, disagreement, report
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
    write,
)
from tests.engine.llamacpp import cases as llamacpp_cases
from tests.engine.llamacpp import judging as llamacpp_judging
from tests.engine.logits import BOUND
from tests.engine.releases import shown
from tests.engine.releases import write as releases
from tests.engine.sglang import cases as sglang_cases
from tests.engine.sglang import judging as sglang_judging


def recorded(run: releases.Run) -> RunnerRecord:
    """What the file of an engine has of a run."""
    return REGISTRY[run.engine].runs[run.release][run.runner]


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
JUSTIFIED_OTHERS = {
    "vllm": vllm_judging.JUSTIFIED_V1,
    "sglang": sglang_judging.JUSTIFIED,
    "llama.cpp": llamacpp_judging.JUSTIFIED_OTHERS,
}
# of how many records one may be an exception
EXCEPTIONS = {VLLM: 10, LLAMACPP: 7, SGLANG: 10}
RUNS = {f"{run.engine} {run.release} {run.runner}": run for run in releases.runs()}
OTHERS = {name: run.records for name, run in RUNS.items() if run.path.parent == releases.OTHERS}
SHOWN = {name: recorded(run).facts for name, run in RUNS.items()}


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


@pytest.mark.fast(40)
@pytest.mark.parametrize(("run", "name"), _of_each(OTHERS, OTHERS))
def test_validate_agrees_with_other_releases(run: str, name: str, targets: Path, tmp_path: Path) -> None:
    said = report(RUNS[run].cases[name], RUNS[run].request, targets, tmp_path)
    found = disagreement(OTHERS[run][name], said, RUNS[run].cases[name].options)
    assert not found or name in JUSTIFIED_OTHERS[RUNS[run].engine], found


@pytest.mark.parametrize("run", OTHERS)
def test_the_records_of_other_releases_are_of_the_cases_as_they_are(run: str) -> None:
    cases, digests = RUNS[run].cases, {name: record.digest for name, record in OTHERS[run].items()}
    assert digests == {name: cases[name].files().digest() for name in OTHERS[run]}


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
    """Every drafter that drafts has a measured difference, and none lies near the bound."""
    drafting = [record for record in RECORDED[VLLM].values() if record.verdict not in ("raises", "dies")]
    measured = [(record.verdict, record.difference) for record in drafting if record.difference is not None]
    served = [difference for verdict, difference in measured if verdict in ("as meant", "as base")]
    others = [difference for verdict, difference in measured if verdict == "differently"]
    assert len(served) + len(others) == len(drafting) and min(len(served), len(others)) >= 100
    assert max(served) < BOUND / 3 and min(others) > 100 * BOUND


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


def test_the_runs_of_engines_are_those_with_records() -> None:
    written = {
        f"{engine.name} {release} {runner}": record.drafters
        for engine in REGISTRY.values()
        for release, runners in engine.runs.items()
        for runner, record in runners.items()
    }
    assert written == {name: len(run.records) for name, run in RUNS.items()}


@pytest.mark.parametrize(("run", "id"), _of_each(SHOWN, RUNS))
def test_the_case_that_a_run_names_shows_the_fact(run: str, id: str, targets: Path, tmp_path: Path) -> None:
    assert releases.shown(RUNS[run], id, targets, tmp_path) == SHOWN[run][id]


def test_a_fact_is_not_shown_by_another_record_or_none(targets: Path, tmp_path: Path) -> None:
    run, name = RUNS["vllm 0.32.0 V1"], "llama3/d2t missing"
    records = dict(run.records)
    assert releases.shown(run, "d2t-missing", targets, tmp_path) == ShownFact(True, name)
    for changed in (Record(records[name].digest, "as meant"), Record(records[name].digest, "raises"), None):
        path = tmp_path / "records.json"
        others = {key: record for key, record in records.items() if key != name}
        write(path, others if changed is None else {**others, name: changed})
        assert releases.shown(replace(run, path=path), "d2t-missing", targets, tmp_path) is None


def test_every_fact_of_vllm_has_a_case_or_the_reason_why_a_run_cannot_show_it() -> None:
    facts = {fact.id for fact in REGISTRY["vllm"].facts}
    assert shown.VLLM.keys() | shown.UNSHOWN.keys() == facts and not shown.VLLM.keys() & shown.UNSHOWN.keys()
    for engine, cases in shown.SHOWN.items():
        assert cases.keys() <= {fact.id for fact in REGISTRY[engine].facts}
        assert set(cases.values()) <= set(releases.CASES[engine])


def test_of_what_a_cpu_build_can_show_nine_of_ten_sides_were_run() -> None:
    wanted = releases.wanted_sides()
    assert len(wanted & releases.shown_sides()) >= 0.9 * len(wanted), sorted(wanted - releases.shown_sides())


@pytest.mark.slow
def test_the_files_of_runs_are_what_the_records_say(targets: Path, tmp_path: Path) -> None:
    for engine, document in releases.documents(targets, tmp_path).items():
        assert (FOLDER / f"{engine}_runs.json").read_text(encoding="utf-8") == releases.text(document)
