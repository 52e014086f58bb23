"""smoke on the real vLLM: what it resolves, what it leaves unfilled, and how it ends when it cannot run."""

import os
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.installed import load_only, run_installed
from eaglectl.run.job import EngineJob
from eaglectl.run.process import VLLM
from eaglectl.run.prompts import Prompt, read_prompts
from eaglectl.run.results import SmokeReport
from tests.engine import pairs

MEANT = {
    "class": "Eagle3LlamaForCausalLM", "layers": 1, "fc_norm": True, "norm_output": True,
    "norm_before_fc": False, "norm_before_residual": False, "fc": [32, 96], "own_embed_tokens": True,
    "own_lm_head": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, an EAGLE-3.1 drafter that says what the target says, and prompts."""
    return pairs.pair("speculators/eagle3.1", tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def dead(folder: Path) -> SmokeReport:
    """The fixture as it is: it has 96 tokens to say, the target 4."""
    fixture = pairs.case("speculators/eagle3.1").folder
    eaglectl.convert(fixture, folder / "dead", target=str(folder / "target"))
    return smoke(folder, folder / "dead")


def smoke(folder: Path, drafter: Path, **settings: Any) -> SmokeReport:
    prompts = folder / "prompts.jsonl"
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=prompts, max_tokens=16, **settings)
    return eaglectl.smoke(str(drafter), str(folder / "target"), options)


def job(folder: Path, drafter: Path, prompts: tuple[Prompt, ...] = (), timeout: float = 900.0) -> EngineJob:
    """A drafter for vLLM that eaglectl itself need not want to read: what it knows is the good one's."""
    good = eaglectl.inspect(str(folder / "drafter"), target=str(folder / "target")).drafter
    return EngineJob(drafter, good, folder / "target", prompts, max_tokens=16, timeout=timeout)


def test_a_random_drafter_is_dead_changes_nothing_and_is_read_as_it_means(dead: SmokeReport) -> None:
    assert (dead.verdict, dead.is_lossless) == ("fail", True)
    assert any("dead drafter" in text for text in dead.failures)
    assert dead.run.resolved == {**MEANT, "aux_layers": [2, 4, 5], "runner": "V1 (CPUModelRunner)"}
    assert dead.run.differences == ()


def test_a_tensor_that_is_not_there_is_left_unfilled(folder: Path, tmp_path: Path) -> None:
    words = ("o_proj", "fc_norm.1", "lm_head", "embed_tokens", "up_proj")
    found = load_only(job(folder, pairs.changed(folder / "drafter", tmp_path / "holes", without=words)))
    assert sorted(found.unfilled) == [
        "lm_head.weight",
        "model.fc_norm.1.weight",
        "model.layers.0.mlp.gate_up_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
    ]
    # the target's embedding takes its place; its head does not fit the draft vocabulary
    assert found.shared == ("model.embed_tokens.weight",)
    assert found.resolved == {**MEANT, "own_embed_tokens": False, "own_lm_head": False}


@pytest.mark.usefixtures("no_process_stays")
def test_four_ids_into_an_fc_of_three_end_in_one_sentence_and_leave_no_process(
    folder: Path, tmp_path: Path
) -> None:
    drafter = pairs.changed(
        folder / "drafter", tmp_path / "four", eagle_aux_hidden_state_layer_ids=[1, 2, 4, 5]
    )
    with pytest.raises(RefusedError, match="does not run this drafter") as caught:
        run_installed(VLLM, job(folder, drafter, read_prompts(folder / "prompts.jsonl"), timeout=45))
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_process_stays")
def test_a_run_out_of_time_is_not_a_pass_and_leaves_no_process(folder: Path) -> None:
    with pytest.raises(UnreadableError, match="--timeout 1 s"):
        smoke(folder, folder / "drafter", timeout=1)


def test_a_target_that_vllm_cannot_load_is_not_the_drafters_fault(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x"}')
    target = pairs.llama_target(tmp_path / "target")
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(UnreadableError, match="does not run the target"):
        smoke(tmp_path, folder / "drafter")


@pytest.mark.usefixtures("no_process_stays")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two ranks need two cores")
def test_a_target_over_two_ranks_with_arguments_of_vllm_drafts_the_same(
    folder: Path, dead: SmokeReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # one NUMA node has room for both
    given = {"block_size": 32, "enable_prefix_caching": False}
    found = smoke(folder, folder / "dead", tensor_parallel_size=2, engine_arguments=given, timeout=1800)
    assert found.run.arguments == {"tensor_parallel_size": 2, **given}
    assert found.run.resolved == dead.run.resolved
    assert pairs.counts(found) == pairs.counts(dead)
