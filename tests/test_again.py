"""Which recorded cases a new release calls for, and how its answers are held against the records."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.again import RECORDED, cases_of, main
from tests.engine.agreement import records


def test_a_case_of_vllm_is_judged_with_its_own_target() -> None:
    names = ["llama3/none", "llama3/hidden_act gelu", "mla3/none"]
    assert list(cases_of("vllm", ["hidden-act"], names)) == ["llama3/hidden_act gelu"]


def test_a_word_that_is_no_fact_ends_with_its_name() -> None:
    with pytest.raises(SystemExit, match="sglang has no fact ids-thrice"):
        list(cases_of("sglang", ["ids-thrice"]))


def test_answers_that_differ_from_the_records_are_named(tmp_path: Path) -> None:
    known = records.read(RECORDED["sglang"].records)
    same, other = "llama31/sglang: hidden_act gelu", "llama31/sglang: rope_theta alone"
    records.write(
        tmp_path / "answers.json", {same: known[same], other: replace(known[other], verdict="raises")}
    )
    assert list(main("sglang", [str(tmp_path / "answers.json")])) == [
        f"{other}: {known[other].verdict} before, raises now"
    ]
    records.write(tmp_path / "answers.json", {same: known[same]})
    assert list(main("sglang", [str(tmp_path / "answers.json")])) == ["every answer is as recorded"]
