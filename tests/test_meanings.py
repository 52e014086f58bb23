"""Two meanings of norm_output, run: the comparison is a value, and its message gives the figures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglectl.acceptance.measurement import Estimate
from eaglectl.api.converting import opened
from eaglectl.api.meanings import MeaningComparison, compare_meanings
from eaglectl.api.measuring import PairMeasurement
from eaglectl.checkpoint.opening import open_folder
from eaglectl.drafter.drafter import Target
from eaglectl.formats.format import Answers
from tests.conftest import FIXTURES


def comparison(ratio: Estimate) -> MeaningComparison:
    sides: dict[str, Any] = {
        name: SimpleNamespace(length=Estimate(value, 0.0, 9.0))
        for name, value in (("before", 2.0), ("after", 3.0))
    }
    row: Any = SimpleNamespace(k=7, ratio=ratio, **sides)
    return MeaningComparison("a question", ("key=old", "key=new"), row)


FIGURES = (
    "a question. Run both ways here, its acceptance length at k=7 is 2.00 with key=old and 3.00 with key=new"
)


@pytest.mark.parametrize(
    ("ratio", "end"),
    [
        (Estimate(1.5, 1.2, 1.9), " (ratio 1.50 [1.20, 1.90]): key=new fits what it learned"),
        (Estimate(0.7, 0.5, 0.9), " (ratio 0.70 [0.50, 0.90]): key=old fits what it learned"),
        (Estimate(1.1, 0.9, 1.3), ", which does not tell them apart: ask whoever trained it"),
        (Estimate(1.1, 1.0, 1.3), ", which does not tell them apart: ask whoever trained it"),
    ],
)
def test_the_message_names_the_meaning_whose_interval_leaves_out_one(ratio: Estimate, end: str) -> None:
    assert comparison(ratio).message == FIGURES + end


@pytest.mark.parametrize("path", ["vllm/native", "modelopt/hf-fp8", "specforge/norm-output-false"])
def test_without_that_one_question_nothing_is_run(path: str, tmp_path: Path) -> None:
    with opened(open_folder(str(FIXTURES / "producers" / path))) as files:
        pair = PairMeasurement(files, Target(), tmp_path / "no target", ())
        assert compare_meanings(pair, Answers()) is None
