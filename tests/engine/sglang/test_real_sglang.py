"""The real pair in SGLang's own engine: it counts what the accounting of tools/real counts."""

from pathlib import Path

import pytest

import eaglectl
from eaglectl.operations.converting import ConvertOptions
from tests.engine.sglang.test_smoke_sglang import ARGUMENTS, PATIENCE, environment
from tests.real.conftest import REAL, real_target
from tests.real.counting import NEW, accounted, few_prompts

__all__ = ["environment", "real_target"]


@pytest.mark.usefixtures("environment")
def test_sglang_counts_what_the_accounting_counts(real_target: Path, tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    eaglectl.convert(
        str(REAL / "specforge"), drafter, ConvertOptions(layout="sglang", target=str(real_target))
    )
    options = eaglectl.SmokeOptions(
        run_in="sglang",
        device="cpu",
        prompts=few_prompts(tmp_path),
        max_tokens=NEW,
        k=3,
        timeout=PATIENCE,
        engine_arguments=ARGUMENTS,
    )
    report = eaglectl.smoke(str(drafter), str(real_target), options)
    counts, measured = accounted("specforge", real_target, 3), report.measured
    assert measured.drafts == counts.drafts
    assert [round(share.value * measured.drafts) for share in measured.per_position] == counts.accepted
    assert report.is_lossless
    assert list(report.run.resolved["aux_layers"]) == [2, 15, 27]
