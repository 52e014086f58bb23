"""The trained pair: smoke sees the faults that a drafter may have."""

import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.errors import EaglectlError, UsageError  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.run.results import SmokeReport  # noqa: E402
from tests.builders import changed, integers, read_safetensors  # noqa: E402
from tests.drafters import Made  # noqa: E402
from tests.tiny import FAULTS, PROMPTS, TARGET, Fault, in_vllms_layout, short_prompts  # noqa: E402


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the prompts: enough for a probe, whose intervals may not hold 1."""
    return short_prompts(tmp_path_factory.mktemp("few"), 12)


def smoke(drafter: Path, **given: Any) -> SmokeReport:
    options = {"run_in": "reference", "device": "cpu", "k": 3, "max_tokens": 32, "prompts": PROMPTS}
    return eaglectl.smoke(str(drafter), str(TARGET), eaglectl.SmokeOptions(**{**options, **given}))


def test_the_reference_accepts_as_much_as_every_engine_did(tmp_path: Path) -> None:
    from tests.engine import trained

    found = trained.total(trained.smoke(trained.DRAFTER, "reference", tmp_path))
    assert dict.fromkeys(trained.recorded(), found) == trained.recorded()


@pytest.mark.fast(1)  # of a shift of the layers, which the probe names
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_seen(fault: Fault, good: dict[str, Path], few: Path, tmp_path: Path) -> None:
    broken = fault.apply(good[fault.base], tmp_path / "broken")
    how, _, what = fault.seen.partition(": ")
    if how == "reading":
        with pytest.raises(EaglectlError):
            smoke(broken)
        return
    given = {"probe": {"probe": "sensitivity"}, "against": {"against": str(good[fault.base])}}
    report = smoke(broken, prompts=few, **given.get(how, {}))
    assert how == "against" or report.verdict == "fail"
    if how == "probe":
        better = [variant for variant in report.variants if variant.is_better]
        assert max(better, key=lambda variant: variant.measured.length.value).name == what
    if how == "against":
        assert report.against is not None and report.against.ratio.high < 1


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["eagle3", "eagle3.1"])
@pytest.mark.parametrize("prompts", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_a_trained_drafter_is_alive_and_no_other_reading_is_better(
    name: str, prompts: str, good: dict[str, Path], few: Path
) -> None:
    report = smoke(good[name], probe="sensitivity", prompts=few if prompts == "few" else PROMPTS)
    assert report.verdict == "pass", report.failures
    assert report.is_lossless
    assert report.measured.length.low > 1.5


@pytest.mark.slow  # each of its halves is fast: the question in tests/test_bad_input.py, the probe above
def test_d2t_with_absolute_ids_is_named_where_both_readings_fit(
    good: dict[str, Path], few: Path, tmp_path: Path
) -> None:
    """Only tokens with low ids are kept, so that target ids can be taken for offsets."""
    tensors = read_safetensors(good["eagle3"] / "model.safetensors")
    (_, (size,), data), (dtype, (_, width), head) = tensors["d2t"], tensors["lm_head.weight"]
    targets = [draft + offset for draft, offset in enumerate(struct.unpack(f"<{size}q", data))]
    kept = [draft for draft, target in enumerate(targets) if target < 320]
    rows = b"".join(head[2 * width * draft : 2 * width * (draft + 1)] for draft in kept)
    tensors["d2t"] = integers(*(targets[draft] for draft in kept))
    tensors["lm_head.weight"] = (dtype, (len(kept), width), rows)
    tensors.pop("t2d", None)
    config = changed(good["eagle3"], draft_vocab_size=len(kept))
    folder = Made(config, tensors).write(tmp_path / "absolute")
    with pytest.raises(UsageError, match="d2t=absolute"):
        smoke(folder)
    report = smoke(folder, probe="sensitivity", prompts=few, answers=Answers(semantics={"d2t": "offset"}))
    assert "d2t as absolute ids" in {variant.name for variant in report.variants if variant.is_better}
    assert any("--source-semantics d2t=absolute" in text for text in report.failures)
