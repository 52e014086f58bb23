"""The real drafters as their trainers wrote them: read, and counted as another accounting counts."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import eaglectl
from tests.real.conftest import REAL
from tests.real.counting import NEW, accounted, counted, few_prompts, smoke

LIMIT = 20_000_000  # bytes of a drafter
NAMES = ("specforge", "speculators")


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_is_small_and_has_no_embedding(name: str) -> None:
    from safetensors import safe_open

    weights = REAL / name / "model.safetensors"
    assert weights.stat().st_size <= LIMIT
    with safe_open(weights, "pt") as file:
        names = set(file.keys())
        dtypes = {str(file.get_tensor(key).dtype) for key in names}
    assert not any("embed" in key for key in names)
    assert "torch.float32" not in dtypes and "torch.bfloat16" in dtypes


def test_specforges_names_no_layers_and_is_read_by_its_default() -> None:
    assert eaglectl.inspect(str(REAL / "specforge")).drafter.aux.boundaries is None
    seen = eaglectl.inspect(str(REAL / "specforge"), target=str(REAL / "target")).drafter
    assert seen.aux.boundaries == (2, 15, 27)
    assert (seen.norms.norm_output, seen.norms.norm_before_fc, seen.norms.fc_norm) == (False, False, False)


def test_speculators_is_read_with_its_layers_and_switches() -> None:
    seen = eaglectl.inspect(str(REAL / "speculators")).drafter
    assert seen.aux.boundaries == (6, 18, 28)
    norms = seen.norms
    assert (norms.norm_output, norms.norm_before_fc, norms.norm_before_residual) == (True, True, True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), [("specforge", 3), ("speculators", 5)])
def test_smoke_counts_what_the_accounting_counts(
    name: str, k: int, real_target: Path, tmp_path: Path
) -> None:
    report = smoke(REAL / name, real_target, few_prompts(tmp_path), "reference", max_tokens=NEW, k=k)
    counts = accounted(name, real_target, k)
    assert counted(report) == [counts.drafts, *counts.accepted]
    assert report.measured.length.value == pytest.approx(counts.length, rel=1e-9)
    assert report.is_lossless
