"""Drafts at a temperature above 0 in the real vLLM: its setting, and what CPU builds make of it."""

from pathlib import Path
from typing import get_args

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.operations.converting import ConvertOptions
from eaglectl.run.vllm.child import sampled_drafting
from tests.tiny import PROMPTS, TARGET, TINY


def test_the_release_has_the_setting_that_is_asked_for() -> None:
    from vllm.config.speculative import DraftSampleMethod, SpeculativeConfig

    assert get_args(DraftSampleMethod) == ("greedy", "probabilistic")
    assert sampled_drafting() == "probabilistic"
    assert SpeculativeConfig.__dataclass_fields__["draft_sample_method"].default == "greedy"


def test_the_cpu_build_is_not_measured_at_a_temperature(tmp_path: Path) -> None:
    # 0.32.0 spreads the temperature into a copy: 1.00 tokens a round, and 2.22 once it is mended
    eaglectl.convert(str(TINY / "eagle3"), tmp_path / "drafter", ConvertOptions(target=str(TARGET)))
    options = eaglectl.SmokeOptions(run_in="vllm", prompts=PROMPTS, sample=4, max_tokens=8, temperature=0.7)
    with pytest.raises(UnreadableError, match="CPU build loses the temperature where it judges drafts"):
        eaglectl.smoke(str(tmp_path / "drafter"), str(TARGET), options)
