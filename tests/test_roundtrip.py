"""Conversion moves bytes: native -> vLLM -> native gives the same tensors, in files that others open."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

import eaglectl
from eaglectl.errors import RefusedError
from eaglectl.formats.catalogue import writable
from eaglectl.formats.format import Answers
from eaglectl.formats.names import canonical_name
from eaglectl.operations.converting import ConvertOptions
from tests.cases import CASES, Case, digests, file_digests

# strays are left behind, fused and absorbed tensors become the named ones, a lost d2t is written, a missing
# scale is folded in
CHANGED_BY_DESIGN = (
    "eagle/bin",
    "vllm/fused",
    "vllm/mla-fused",
    "sglang/mla-absorbed",
    "sglang/aux-norm",
    "automodel/sidecar",
    "automodel/mla",
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_native_to_vllm_and_back_gives_the_same_tensors(case: Case, tmp_path: Path) -> None:
    if "rope" in case.answers:  # a layout takes no rope base that its trainer ignores
        rope = "10000,plain" if case.producer == "modelopt" else "10000"
        case = replace(case, answers={**case.answers, "rope": rope})
    vllm = converted(case.folder, tmp_path / "vllm", case)
    back = case.back or case.producer
    assert back in writable()
    target = tmp_path / "config.json"
    target.write_text('{"num_hidden_layers": 8, "model_type": "llama"}')
    given = str(target) if case.producer == "automodel" else None
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


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_every_moved_tensor_keeps_its_digest(case: Case, tmp_path: Path) -> None:
    before, after = digests(case.folder), digests(converted(case.folder, tmp_path / "out", case))
    by_name = {canonical_name(name): digest for name, digest in before.items()}
    provenance = json.loads((tmp_path / "out" / "eaglectl.json").read_text())
    computed = {step["name"] for step in provenance["tensors"] if step["action"] == "computed"}
    for name, digest in after.items():
        if name in by_name and name not in computed:
            assert digest == by_name[name], name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_the_same_input_gives_the_same_bytes(case: Case, tmp_path: Path) -> None:
    one, two = (converted(case.folder, tmp_path / name, case) for name in ("one", "two"))
    assert file_digests(one) == file_digests(two)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_every_output_opens_with_safetensors(case: Case, tmp_path: Path) -> None:
    out = converted(case.folder, tmp_path / "out", case)
    for path in out.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            assert set(file.keys()) and file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.path)
def test_the_output_is_read_back_as_the_same_drafter(case: Case, tmp_path: Path) -> None:
    found = eaglectl.inspect(str(converted(case.folder, tmp_path / "out", case)), engines=["vllm"])
    drafter = found.drafter
    assert (drafter.producer, drafter.version, drafter.dims.attention, drafter.dims.layers) == (
        "vllm",
        case.version,
        case.attention,
        case.layers,
    )
    assert drafter.aux.boundaries == case.boundaries and drafter.dims.aux == case.aux
    assert drafter.notes_at("problem") == () and drafter.notes_at("question") == ()
    assert found.requested[0].outcome == "as trained", found.requested[0].reasons


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_the_source_is_untouched(case: Case, tmp_path: Path) -> None:
    before = file_digests(case.folder)
    converted(case.folder, tmp_path / "out", case)
    assert file_digests(case.folder) == before


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_modes_are_what_the_umask_gives(mask: int, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.path == "vllm/sharded")
    old = os.umask(mask)
    try:
        out = converted(case.folder, tmp_path / "out", case)
    finally:
        os.umask(old)
    assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~mask
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o666 & ~mask}


def test_shards_stay_shards_and_can_be_cut_anew(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.path == "vllm/sharded")
    kept = converted(case.folder, tmp_path / "kept", case)
    assert len(list(kept.glob("*.safetensors"))) == len(list(case.folder.glob("*.safetensors"))) == 3
    cut = converted(case.folder, tmp_path / "cut", case, max_shard_size=20_000)
    assert len(list(cut.glob("*.safetensors"))) > 3
    assert digests(cut) == digests(kept) == digests(case.folder)


def test_linking_shares_the_file_when_nothing_is_renamed(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.path == "vllm/native")
    source = converted(case.folder, tmp_path / "source", case)
    linked = converted(source, tmp_path / "linked", case, link=True)
    copied = converted(source, tmp_path / "copied", case)
    assert (source / "model.safetensors").samefile(linked / "model.safetensors")
    assert not (source / "model.safetensors").samefile(copied / "model.safetensors")
    assert digests(linked) == digests(copied)


def test_the_default_of_a_given_target_is_written_out(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(
        '{"num_hidden_layers": 8, "model_type": "llama", "hidden_size": 32, "vocab_size": 256}'
    )
    case = next(case for case in CASES if case.path == "specforge/gqa")
    done = eaglectl.convert(
        str(case.folder), tmp_path / "out", ConvertOptions(target=str(tmp_path / "target"))
    )
    assert done.plan.config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert done.plan.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
