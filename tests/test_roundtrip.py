"""Conversion moves bytes: native -> vLLM -> native gives the same tensors, in files that others open."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.errors import RefusedError
from eaglectl.formats.catalogue import writable
from eaglectl.formats.format import Answers
from tests.cases import CASES, Case, digests, file_digests
from tests.conftest import FIXTURES

# strays are left behind, fused and absorbed tensors become the named ones, a lost d2t is written, a missing
# scale is folded in
CHANGED_BY_DESIGN = (
    *("eagle/bin", "vllm/fused", "vllm/mla-fused", "sglang/mla-absorbed", "sglang/aux-norm"),
    *("automodel/sidecar", "automodel/mla"),
)
# whose quantisation config has a release that norms twice, while these cases answer once
STATES_ITS_NORMS = ("modelopt/hf-fp8", "modelopt/hf-fp8-kv")


def converted(source: Path, out: Path, case: Case, layout: str = "vllm", **options: object) -> Path:
    if case.is_pickled:
        pytest.importorskip("torch")
    answers = case.answered() if source == case.folder else Answers()
    wanted = ConvertOptions(layout, target_name="example/tiny-llama", answers=answers, **options)  # type: ignore[arg-type]
    eaglectl.convert(str(source), out, wanted)
    return out


@pytest.mark.fast(8)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_the_same_input_gives_the_same_bytes_that_open_and_is_untouched(case: Case, tmp_path: Path) -> None:
    before = {} if case.is_pickled else file_digests(case.folder)  # a distributed checkpoint has folders
    one, two = (converted(case.folder, tmp_path / name, case) for name in ("one", "two"))
    assert file_digests(one) == file_digests(two)
    assert case.is_pickled or file_digests(case.folder) == before
    for path in one.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            assert set(file.keys()) and file.metadata() == {"format": "pt"}


@pytest.mark.fast(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_native_to_vllm_and_back_gives_the_same_tensors(case: Case, tmp_path: Path) -> None:
    if "rope" in case.answers:  # a layout takes no rope base that its trainer ignores
        rope = "10000,plain" if case.producer == "modelopt" else "10000"
        case = replace(case, answers={**case.answers, "rope": rope})
    vllm = converted(case.folder, tmp_path / "vllm", case)
    back = case.back or case.producer
    assert back in writable()
    given = str(FIXTURES / "target") if case.producer == "automodel" else None
    if case.path in STATES_ITS_NORMS:
        with pytest.raises(RefusedError, match="hidden_twice true for false"):
            converted(vllm, tmp_path / "native", case, back, target=given)
        return
    native = converted(vllm, tmp_path / "native", case, back, target=given)
    source = case.folder
    if case.is_pickled:  # a pickle's tensors are known once something else has written them
        source = converted(case.folder, tmp_path / "unpickled", case, back)
    before, after = digests(source), digests(native)
    if case.path in CHANGED_BY_DESIGN:
        assert digests(vllm) == digests(converted(native, tmp_path / "again", case))
    else:
        assert after == before


def test_shards_stay_shards_and_can_be_cut_anew(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.path == "vllm/sharded")
    kept = converted(case.folder, tmp_path / "kept", case)
    assert len(list(kept.glob("*.safetensors"))) == len(list(case.folder.glob("*.safetensors"))) == 3
    cut = converted(case.folder, tmp_path / "cut", case, max_shard_size=20_000)
    assert len(list(cut.glob("*.safetensors"))) > 3
    assert digests(cut) == digests(kept) == digests(case.folder)
