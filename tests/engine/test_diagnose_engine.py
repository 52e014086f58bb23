"""diagnose with the real vLLM: a healthy drafter, and one that is alive in the reference alone."""

import json
from pathlib import Path

import pytest

import eaglectl
from eaglectl.run.diagnosis import Diagnosis
from tests.diagnoses import prompts_file
from tests.engine import pairs
from tests.tiny import TARGET, in_vllms_layout


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_vllms_layout(tmp_path_factory.mktemp("good"))["eagle3.1"]


def diagnose(drafter: Path, folder: Path) -> Diagnosis:
    prompts = prompts_file(folder, count=16)
    options = eaglectl.DiagnoseOptions(engine="vllm", prompts=prompts, max_tokens=16, device="cpu")
    return eaglectl.diagnose(str(drafter), str(TARGET), options)


def test_a_healthy_drafter_is_healthy_in_vllm_too(good: Path, tmp_path: Path) -> None:
    diagnosis = diagnose(good, tmp_path)
    assert (diagnosis.cause, diagnosis.ending) == ("healthy", "healthy"), diagnosis.words
    assert diagnosis.evidence.engine is not None
    assert "an engine that computes something else" in diagnosis.ruled_out


def test_a_switch_where_vllm_does_not_look_ends_in_the_engine(good: Path, tmp_path: Path) -> None:
    nested = json.loads((good / "config.json").read_text())["eagle_config"] | {"norm_output": True}
    drafter = pairs.changed(good, tmp_path / "nested", norm_output=None, eagle_config=nested)
    diagnosis = diagnose(drafter, tmp_path)
    assert (diagnosis.cause, diagnosis.ending) == ("engine-setting", "engine"), diagnosis.words
    assert "norm_output: vLLM uses False, the checkpoint means True" in diagnosis.words
    assert any("norm_output: true" in command for command in diagnosis.commands)
    engine, reference = diagnosis.evidence.engine, diagnosis.evidence.reference
    assert engine is not None and reference is not None
    assert engine.measured.length.high < reference.measured.length.value
