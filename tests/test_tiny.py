"""The trained pair: that it is what it claims to be, and that smoke sees the faults that a drafter may
have.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import eaglectl  # noqa: E402
from eaglectl.errors import EaglectlError, UsageError  # noqa: E402
from eaglectl.formats.format import Answers  # noqa: E402
from eaglectl.operations.converting import ConvertOptions  # noqa: E402
from eaglectl.run.report import SmokeReport  # noqa: E402
from tests.builders import read_safetensors, write_safetensors  # noqa: E402
from tests.conftest import FIXTURES  # noqa: E402
from tests.tiny import FAULTS, PROMPTS, TARGET, TINY, Fault, in_vllms_layout, short_prompts  # noqa: E402

K, TOKENS = 3, 32


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both drafters in vLLM's layout."""
    return in_vllms_layout(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the prompts: enough for a probe, whose intervals may not hold 1."""
    return short_prompts(tmp_path_factory.mktemp("few"), 12)


def smoke(drafter: Path, **given: Any) -> SmokeReport:
    settings: dict[str, Any] = {
        "run_in": "reference",
        "device": "cpu",
        "k": K,
        "max_tokens": TOKENS,
        "prompts": PROMPTS,
        **given,
    }
    return eaglectl.smoke(str(drafter), str(TARGET), eaglectl.SmokeOptions(**settings))


def test_the_reference_accepts_as_much_as_every_engine_did(tmp_path: Path) -> None:
    from tests.engine import trained

    meant = eaglectl.convert(
        str(trained.DRAFTER), tmp_path / "d", ConvertOptions(target=str(TARGET))
    ).plan.drafter
    drafts, answers, _ = trained.in_reference(tmp_path / "d", meant)
    assert {engine: trained.accepted(drafts, answers) for engine in trained.recorded()} == trained.recorded()


def test_the_pair_is_small() -> None:
    sizes = [path.stat().st_size for path in TINY.rglob("*") if path.is_file()]
    assert sum(sizes) < 12e6
    others = [
        path for path in FIXTURES.rglob("*") if path.is_file() and FIXTURES / "real" not in path.parents
    ]
    assert sum(path.stat().st_size for path in others) < 15e6


def test_the_aux_layers_differ_in_scale_as_those_of_large_models_do() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TARGET)
    seen = []
    for line in PROMPTS.read_text().splitlines()[:16]:
        with torch.no_grad():
            states = model(
                tokenizer(json.loads(line)["prompt"], return_tensors="pt").input_ids,
                output_hidden_states=True,
            )
        seen.append(torch.stack([states.hidden_states[b][0, 1:].pow(2).mean(-1).sqrt() for b in (2, 4, 5)]))
    scales = torch.cat(seen, 1).median(1).values
    assert scales.max() / scales.min() >= 5


# seen as others are, which stay in every run: one probe up, one flag on, one comparison that is close
SLOW = ("aux layers one late", "norm_before_residual on", "norm_output off", "rope base lost", "fc of zeros")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=[pytest.mark.slow] * (fault.name in SLOW)) for fault in FAULTS],
)
def test_every_fault_is_seen(fault: Fault, good: dict[str, Path], few: Path, tmp_path: Path) -> None:
    broken = fault.apply(good[fault.base], tmp_path / "broken")
    how, _, what = fault.seen.partition(": ")
    if how == "reading":
        with pytest.raises(EaglectlError):
            smoke(broken)
        return
    if how == "dead":
        assert smoke(broken, prompts=few).verdict == "fail"
    if how == "probe":
        report = smoke(broken, probe="sensitivity", prompts=few)
        better = {
            variant.name: variant.measured.length.value for variant in report.variants if variant.is_better
        }
        assert report.verdict == "fail"
        assert better and max(better, key=lambda name: better[name]) == what
    if how == "against":
        report = smoke(broken, against=str(good[fault.base]), prompts=few)
        assert report.against is not None
        assert report.against.ratio.high < 1


@pytest.mark.parametrize("name", ["eagle3", "eagle3.1"])
@pytest.mark.parametrize("prompts", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_a_trained_drafter_is_alive_and_no_other_reading_is_better(
    name: str, prompts: str, good: dict[str, Path], few: Path
) -> None:
    report = smoke(good[name], probe="sensitivity", prompts=few if prompts == "few" else PROMPTS)
    assert report.verdict == "pass", report.failures
    assert report.is_lossless
    assert report.measured.length.low > 1.5


SMALL = 320


def test_d2t_with_absolute_ids_is_named_where_both_readings_fit(
    good: dict[str, Path], few: Path, tmp_path: Path
) -> None:
    """Only tokens with low ids are kept, so that target ids can be taken for offsets."""
    folder = tmp_path / "absolute"
    folder.mkdir()
    tensors = read_safetensors(good["eagle3"] / "model.safetensors")
    (_, (size,), data), (dtype, (_, width), head) = tensors["d2t"], tensors["lm_head.weight"]
    targets = [draft + offset for draft, offset in enumerate(struct.unpack(f"<{size}q", data))]
    kept = [draft for draft, target in enumerate(targets) if target < SMALL]
    tensors["d2t"] = ("I64", (len(kept),), struct.pack(f"<{len(kept)}q", *(targets[draft] for draft in kept)))
    tensors["lm_head.weight"] = (
        dtype,
        (len(kept), width),
        b"".join(head[2 * width * d : 2 * width * (d + 1)] for d in kept),
    )
    tensors.pop("t2d", None)
    config = json.loads((good["eagle3"] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": len(kept)}))
    write_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(UsageError, match="d2t=absolute"):
        smoke(folder)
    report = smoke(folder, probe="sensitivity", prompts=few, answers=Answers(semantics={"d2t": "offset"}))
    assert "d2t as absolute ids" in {variant.name for variant in report.variants if variant.is_better}
    assert any("--source-semantics d2t=absolute" in text for text in report.failures)
