"""vLLM's V1 and V2 runners: which layers each captures, and that both draft as the reference does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eaglectl.drafter.drafter import Target
from eaglectl.engines import vllm
from eaglectl.engines.layers import capture
from tests.conftest import FIXTURES
from tests.engine import pairs, trained
from tests.engine.agreement.cases import CASES
from tests.engine.spellings import SPELLINGS

RUNNERS = {"V1": "vllm.v1.worker.cpu_model_runner", "V2": "vllm.v1.worker.cpu.model_runner"}
TRAINED = "trained pair"
PATIENCE = 1500.0


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {name: _answers(name, tmp_path_factory.mktemp(name)) for name in RUNNERS}


def _answers(runner: str, root: Path) -> Any:
    (root / "work").mkdir()
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.runner_child"]
    process = subprocess.Popen(
        [*command, str(root / "work"), str(trained.DRAFTER), str(root / "answer.json")],
        cwd=FIXTURES.parent,
        env={
            **os.environ,
            "ENGINE_RUNNER": runner,
            "ENGINE_NEW_TOKENS": str(trained.TOKENS),
            "VLLM_LOGGING_LEVEL": "ERROR",
        },
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(PATIENCE)
    finally:
        pairs.end(process)
    return json.loads((root / "answer.json").read_text())


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_runner_captures_these_layers_and_eaglectl_says_so(
    runner: str, name: str, answers: dict[str, Any]
) -> None:
    found = answers[runner][name]
    assert "error" not in found, found
    assert found["module"] == RUNNERS[runner]
    assert tuple(found["layers"]) == SPELLINGS[name][list(RUNNERS).index(runner)]


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_data_has_the_same_layers(runner: str, name: str) -> None:
    known = vllm.ENGINE.behaviour("0.32.0").runners[runner]
    read = capture(known, CASES[name].files().config, Target(depth=8, model_type="llama"))
    assert read.boundaries == SPELLINGS[name][list(RUNNERS).index(runner)]


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_trained_pair_drafts_and_answers_as_in_the_reference(
    runner: str, answers: dict[str, Any]
) -> None:
    found = answers[runner][TRAINED]
    assert "error" not in found, found
    assert found["tokens"] == found["reference_tokens"]
    for drafts, reference in zip(found["drafts"], found["reference_drafts"], strict=True):
        assert drafts[: len(reference)] == reference
    assert trained.accepted(found["drafts"], found["tokens"]) == trained.recorded()[f"vllm==0.32.0, {runner}"]


def test_both_runners_accept_the_same_of_the_trained_pair(answers: dict[str, Any]) -> None:
    one, other = answers["V1"][TRAINED], answers["V2"][TRAINED]
    assert one["drafts"] == other["drafts"] and one["tokens"] == other["tokens"]
