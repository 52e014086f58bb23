"""smoke in SGLang's own engine: acceptance of the trained pair, what it resolved, and how it fails."""

from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.installed import ask
from eaglectl.run.job import EngineJob
from eaglectl.run.process import SGLANG
from tests.engine import pairs, trained
from tests.engine.sglang.settings import ARGUMENTS, PATIENCE
from tests.tiny import PROMPTS, TARGET, TINY

pytestmark = pytest.mark.usefixtures("hooked")


@pytest.fixture
def drafter(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "drafter"
    source = TINY / getattr(request, "param", "eagle3")
    eaglectl.convert(source, folder, layout="sglang", target=str(TARGET))
    return folder


@pytest.mark.parametrize(("drafter", "is_31"), [("eagle3", False), ("eagle3.1", True)], indirect=["drafter"])
def test_acceptance_is_that_of_the_reference_and_nothing_is_left_running(
    drafter: Path, is_31: bool, tmp_path: Path
) -> None:
    found = trained.smoke(drafter, "sglang", tmp_path, timeout=PATIENCE, engine_arguments=ARGUMENTS)
    meant = trained.smoke(drafter, "reference", tmp_path)
    assert pairs.counts(found) == pairs.counts(meant) and found.measured == meant.measured
    assert (found.verdict, found.is_lossless, found.run.version) == ("pass", True, "0.5.23")
    assert is_31 or trained.total(found) == trained.recorded()["sglang==0.5.23"]
    assert found.run.arguments == ARGUMENTS
    logits = found.run.logits
    assert logits is not None and (logits.gap, logits.first_wrong) == ("", None) and logits.differences
    assert found.run.resolved == {
        "class": "LlamaForCausalLMEagle3",
        "layers": 1,
        "fc_norm": is_31,
        "norm_output": is_31,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "fc": [128, 384],
        "d2t": True,
        "own_lm_head": True,
        "aux_layers": [2, 4, 5],
        "unfilled": [],
    }


def test_a_drafter_that_sglang_refuses_ends_in_its_own_words(drafter: Path, tmp_path: Path) -> None:
    good = eaglectl.inspect(str(drafter), target=str(TARGET)).drafter
    bad = pairs.changed(drafter, tmp_path / "bad", hidden_act="gelu")
    job = EngineJob(bad, good, TARGET, (), device="cpu", timeout=PATIENCE, engine_arguments=ARGUMENTS)
    with pytest.raises(RefusedError, match=r"SGLang 0\.5\.23 does not run this drafter: .*gelu") as caught:
        ask(SGLANG, job, "generate", [[5, 6, 7]])
    assert "\n" not in str(caught.value)


def test_a_run_out_of_time_is_not_a_pass_and_leaves_no_process(drafter: Path) -> None:
    options = eaglectl.SmokeOptions(
        run_in="sglang", device="cpu", prompts=PROMPTS, timeout=1, engine_arguments=ARGUMENTS
    )
    with pytest.raises(UnreadableError, match="SGLang did not finish within --timeout 1 s"):
        eaglectl.smoke(str(drafter), str(TARGET), options)
