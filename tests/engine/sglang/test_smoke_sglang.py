"""smoke in SGLang's own engine: acceptance of the trained pair, what it resolved, and how it fails."""

from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.operations.converting import ConvertOptions
from eaglectl.run.installed import ask
from eaglectl.run.job import EngineJob
from eaglectl.run.process import SGLANG
from eaglectl.run.report import SmokeReport
from tests.conftest import FIXTURES
from tests.engine import pairs
from tests.tiny import PROMPTS, TARGET, TINY

# what SGLang cannot choose on a CPU without its compiled functions
ARGUMENTS = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "page_size": 1,
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.3,
}
TOKENS, NUMBER = 32, 4
PATIENCE = 900.0


# the stand-ins in every process of SGLang, by sitecustomize; eaglectl itself does not know them
HOOKED = {
    "PYTHONPATH": f"{Path(__file__).parent / 'hook'}:{FIXTURES.parent}",
    "PYTHONWARNINGS": "ignore",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**HOOKED, "EAGLECTL_TEST": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    eaglectl.convert(str(TINY / "eagle3"), folder, ConvertOptions(layout="sglang", target=str(TARGET)))
    return folder


def smoke(drafter: Path, prompts: Path, engine: str) -> SmokeReport:
    options = eaglectl.SmokeOptions(
        run_in=engine,
        device="cpu",
        prompts=prompts,
        max_tokens=TOKENS,
        timeout=PATIENCE,
        engine_arguments=ARGUMENTS if engine == "sglang" else {},
    )
    return eaglectl.smoke(str(drafter), str(TARGET), options)


def test_acceptance_is_that_of_the_reference_and_nothing_is_left_running(
    drafter: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[:NUMBER]))
    found, meant = (smoke(drafter, prompts, engine) for engine in ("sglang", "reference"))
    assert [result.tokens for result in found.run.results] == [result.tokens for result in meant.run.results]
    assert [(result.drafts, result.accepted) for result in found.run.results] == [
        (result.drafts, result.accepted) for result in meant.run.results
    ]
    assert found.measured == meant.measured
    assert (found.verdict, found.is_lossless, found.run.version) == ("pass", True, "0.5.23")
    assert found.run.arguments == ARGUMENTS
    assert found.run.resolved == {
        "class": "LlamaForCausalLMEagle3",
        "layers": 1,
        "fc_norm": False,
        "norm_output": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "fc": [128, 384],
        "d2t": True,
        "own_lm_head": True,
        "aux_layers": [2, 4, 5],
        "unfilled": [],
    }
    assert not pairs.marked(f"EAGLECTL_TEST={tmp_path}")


def test_a_drafter_that_sglang_refuses_ends_in_its_own_words(drafter: Path, tmp_path: Path) -> None:
    good = eaglectl.inspect(str(drafter), target=str(TARGET)).drafter
    bad = pairs.changed(drafter, tmp_path / "bad", hidden_act="gelu")
    job = EngineJob(bad, good, TARGET, (), device="cpu", timeout=PATIENCE, engine_arguments=ARGUMENTS)
    with pytest.raises(RefusedError, match=r"SGLang 0\.5\.23 does not run this drafter: .*gelu") as caught:
        ask(SGLANG, job, "generate", [[5, 6, 7]])
    assert "\n" not in str(caught.value)
    assert not pairs.marked(f"EAGLECTL_TEST={tmp_path}")


def test_a_run_out_of_time_is_not_a_pass_and_leaves_no_process(drafter: Path, tmp_path: Path) -> None:
    options = eaglectl.SmokeOptions(
        run_in="sglang", device="cpu", prompts=PROMPTS, timeout=1, engine_arguments=ARGUMENTS
    )
    with pytest.raises(UnreadableError, match="SGLang did not finish within --timeout 1 s"):
        eaglectl.smoke(str(drafter), str(TARGET), options)
    assert not pairs.marked(f"EAGLECTL_TEST={tmp_path}")
