"""The trained pair in llama.cpp: drafts and answers equal the reference's, token for token."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.engine import trained


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("tiny") / "answer.json"
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.llamacpp.tiny_child", str(out)]
    done = subprocess.run(command, cwd=FIXTURES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(out.read_text()))


def test_drafts_equal_those_of_the_reference(answer: dict[str, Any]) -> None:
    assert answer["drafts"] == answer["reference_drafts"]


def test_answers_equal_those_of_the_reference(answer: dict[str, Any]) -> None:
    assert answer["tokens"] == answer["reference_tokens"]


def test_acceptance_is_that_of_a_trained_drafter(answer: dict[str, Any]) -> None:
    assert answer["acceptance_length"] == pytest.approx(answer["reference_acceptance_length"])
    assert trained.accepted(answer["drafts"], answer["tokens"]) == trained.recorded()["llama.cpp==0.3.36"]
