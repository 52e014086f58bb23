"""The trained pair in the real vLLM: that it drafts, that the reference measures the same, and that faults
show.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import EaglectlError
from eaglectl.operations.converting import ConvertOptions
from eaglectl.operations.upgrading import UpgradeOptions
from eaglectl.run.report import SmokeReport
from tests.tiny import FAULTS, PROMPTS, TARGET, TINY, Fault, in_vllms_layout

sys.path.insert(0, str(TINY))
import heldout

TOKENS = 48
# what only an engine can show; the others are seen before one runs, or by the reference (tests/test_tiny.py)
SHOWN = ("a NaN in fc", "fc of zeros", "aux layers one late", "norm_output off")


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts out of library modules that the pair was never trained on, as the running interpreter has
    them.
    """
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in heldout.prompts(40, 0, 20, 300)))
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


def smoke(drafter: Path, prompts: Path, engine: str = "vllm", **given: Any) -> SmokeReport:
    options = eaglectl.SmokeOptions(run_in=engine, device="cpu", prompts=prompts, max_tokens=TOKENS, **given)
    return eaglectl.smoke(str(drafter), str(TARGET), options)


@pytest.mark.parametrize("name", ["eagle3", "eagle3.1"])
def test_a_trained_drafter_reaches_two_tokens_a_pass_and_the_reference_says_so_too(
    name: str, good: dict[str, Path], held_out: Path
) -> None:
    served, reference = smoke(good[name], held_out), smoke(good[name], held_out, "reference")
    assert served.verdict == "pass"
    assert served.is_lossless
    assert served.measured.length.value >= 2.0
    low, high = served.measured.length.low, served.measured.length.high
    assert low <= reference.measured.length.value <= high
    assert [run.tokens for run in served.run.results] == [run.tokens for run in reference.run.results]


def test_answers_end_where_those_of_the_reference_end(
    good: dict[str, Path], held_out: Path, tmp_path: Path
) -> None:
    target, prompts = tmp_path / "target", tmp_path / "prompts.jsonl"
    shutil.copytree(TARGET, target)
    prompts.write_text("".join(held_out.read_text().splitlines(keepends=True)[:4]))

    def run(engine: str, **given: Any) -> SmokeReport:
        options = eaglectl.SmokeOptions(run_in=engine, device="cpu", prompts=prompts, max_tokens=16, **given)
        return eaglectl.smoke(str(good["eagle3"]), str(target), options)

    whole = [result.tokens for result in run("reference", ignore_eos=True).run.results]
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [whole[0][6]]}))
    served, reference = run("vllm"), run("reference")
    assert [result.tokens for result in served.run.results] == [
        result.tokens for result in reference.run.results
    ]
    assert [(result.drafts, result.accepted) for result in served.run.results] == [
        (result.drafts, result.accepted) for result in reference.run.results
    ]
    assert served.is_lossless and len(served.run.results[0].tokens) <= 7
    assert [result.tokens for result in run("vllm", ignore_eos=True).run.results] == whole


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in SHOWN], ids=lambda fault: fault.name
)
def test_a_fault_that_loads_drafts_worse(fault: Fault, good: dict[str, Path], tmp_path: Path) -> None:
    broken = fault.apply(good[fault.base], tmp_path / "broken")
    try:
        report = smoke(broken, PROMPTS, against=str(good[fault.base]))
    except EaglectlError as refused:
        pytest.fail(f"vLLM loads this: {refused}")
    assert report.against is not None
    assert report.verdict == "fail" or report.against.ratio.high < 1
    assert report.is_lossless  # whatever the drafter is: only acceptance tells


def test_the_upgraded_drafter_drafts_in_vllm_as_the_gate_measured(
    good: dict[str, Path], tmp_path: Path
) -> None:
    options = eaglectl.CalibrateOptions(prompts=TINY / "calibration.jsonl", device="cpu")
    eaglectl.calibrate(str(TINY / "eagle3"), str(TARGET), tmp_path / "stats", options)
    asked = UpgradeOptions(statistics=tmp_path / "stats", has_gate=False, device="cpu")
    eaglectl.upgrade(
        str(TINY / "eagle3"), tmp_path / "upgraded", asked, conversion=ConvertOptions(target=str(TARGET))
    )
    lines = (TINY / "gate.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join(lines[:40]))
    served = smoke(tmp_path / "upgraded", tmp_path / "prompts.jsonl")
    reference = smoke(tmp_path / "upgraded", tmp_path / "prompts.jsonl", "reference")
    before = smoke(good["eagle3"], tmp_path / "prompts.jsonl", "reference")
    assert served.run.resolved["fc_norm"] and served.run.resolved["norm_output"]
    assert served.measured.length.low <= reference.measured.length.value <= served.measured.length.high
    assert served.measured.length.value >= 0.95 * before.measured.length.value
