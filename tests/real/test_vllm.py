"""The real pair in vLLM itself: it counts what the accounting counts, and says what the target says alone."""

from pathlib import Path

import pytest

from eaglectl import api
from tests.real.conftest import REAL
from tests.real.counting import NEW, accounted, few_prompts

RESOLVED = {
    "specforge": {"aux_layers": [2, 15, 27], "norm_output": False, "norm_before_fc": False},
    "speculators": {"aux_layers": [6, 18, 28], "norm_output": True, "norm_before_fc": True},
}


@pytest.mark.parametrize("name", RESOLVED)
def test_vllm_counts_what_the_accounting_counts(name: str, real_target: Path, tmp_path: Path) -> None:
    options = api.SmokeOptions(engine="vllm", prompts=few_prompts(tmp_path), max_tokens=NEW, k=3)
    report = api.smoke(str(REAL / name), str(real_target), options)
    counts = accounted(name, real_target, 3)
    measured = report.measured
    assert measured.drafts == counts.drafts
    assert [round(share.value * measured.drafts) for share in measured.per_position] == counts.accepted
    assert report.is_lossless
    assert report.run.resolved.items() >= RESOLVED[name].items()
