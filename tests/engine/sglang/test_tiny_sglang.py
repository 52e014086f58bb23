"""The trained pair in SGLang's own engine: drafts and answers equal the reference's, token for token."""

import json
import subprocess
import sys
from typing import Any

import pytest

import eaglectl
from eaglectl.operations.converting import ConvertOptions
from tests.conftest import FIXTURES
from tests.engine import trained
from tests.tiny import TARGET, TINY


@pytest.fixture(scope="module", params=["eagle3", "eagle3.1"])
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp(request.param)
    drafter = root / "drafter"
    eaglectl.convert(str(TINY / request.param), drafter, ConvertOptions(layout="sglang", target=str(TARGET)))
    found = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "tests.engine.sglang.tiny_child"),
            *map(str, (TARGET, drafter, root / "answer.json")),
        ],
        cwd=FIXTURES.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return dict(json.loads((root / "answer.json").read_text()))


def test_drafts_equal_those_of_the_reference(answer: dict[str, Any]) -> None:
    assert answer["drafts"] == answer["reference_drafts"]


def test_answers_equal_those_of_the_reference(answer: dict[str, Any]) -> None:
    assert answer["tokens"] == answer["reference_tokens"]


def test_acceptance_is_that_of_a_trained_drafter(answer: dict[str, Any]) -> None:
    assert answer["acceptance_length"] == pytest.approx(answer["reference_acceptance_length"])


@pytest.mark.parametrize("answer", ["eagle3"], indirect=True)
def test_as_much_is_accepted_as_in_the_other_engines(answer: dict[str, Any]) -> None:
    assert trained.accepted(answer["drafts"], answer["tokens"]) == trained.recorded()["sglang==0.5.23"]
