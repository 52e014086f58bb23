"""The real pair in SGLang's own engine: it counts what the accounting of tools/real counts."""

from pathlib import Path

import pytest

import eaglectl
from tests.engine.sglang.settings import ARGUMENTS, PATIENCE
from tests.real.conftest import REAL, real_target
from tests.real.counting import EIGHT, NEW, accounted_counts, counted, few_prompts, smoke

__all__ = ["real_target"]


@pytest.mark.usefixtures("hooked")
def test_sglang_counts_what_the_accounting_counts(real_target: Path, tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    eaglectl.convert(REAL / "specforge", drafter, layout="sglang", target=str(real_target))
    settings = {"max_tokens": NEW, "k": 3, "timeout": PATIENCE, "engine_arguments": ARGUMENTS}
    report = smoke(drafter, real_target, few_prompts(tmp_path), "sglang", **settings)
    assert counted(report) == accounted_counts("specforge", real_target, 3, EIGHT, NEW)
    assert report.is_lossless
    assert list(report.run.resolved["aux_layers"]) == [2, 15, 27]
