"""`convert --for llama.cpp --gguf FILE`: the file read back. tests/engine/llamacpp loads it in llama.cpp."""

import errno
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import eaglectl
from eaglectl.conversion import gguf_file
from eaglectl.conversion.gguf_file import LENGTH
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.operations.converting import ConvertOptions
from tests.builders import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LLAMA3,
    TARGETS,
    VOCAB,
    YARN,
    call,
    contents,
    drafter_folder,
    floats,
)
from tests.cases import stored_tensors
from tests.tiny import TARGET, TINY


def made(source: Path, root: Path, **options: Any) -> gguf.GGUFReader:
    """The GGUF file of `source`."""
    given = {"gguf": root / "d.gguf", **options}
    eaglectl.convert(str(source), root / "out", ConvertOptions("llama.cpp", **given))
    return gguf.GGUFReader(root / "d.gguf")


def facts(file: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in file.fields.items() if not name.startswith("GGUF.")}


def test_the_trained_pair_has_every_fact_that_llamacpp_reads(tmp_path: Path) -> None:
    found = facts(made(TINY / "eagle3", tmp_path, target=str(TARGET)))
    epsilon = found.pop("eagle3.attention.layer_norm_rms_epsilon")
    assert epsilon == pytest.approx(1e-6)
    assert found == {
        "general.architecture": "eagle3",
        "general.type": "model",
        "general.name": "out",
        "general.file_type": 32,
        "general.quantization_version": 2,
        "eagle3.target_layers": [2, 4, 5],
        "eagle3.target_hidden_size": 128,
        "eagle3.norm_before_residual": False,
        "eagle3.norm_before_fc": False,
        "eagle3.block_count": 1,
        "eagle3.context_length": 512,
        "eagle3.embedding_length": 128,
        "eagle3.feed_forward_length": 352,
        "eagle3.attention.head_count": 4,
        "eagle3.attention.head_count_kv": 2,
        "eagle3.attention.key_length": 32,
        "eagle3.attention.value_length": 32,
        "eagle3.rope.dimension_count": 32,
        "eagle3.rope.freq_base": 500000.0,
        "eagle3.vocab_size": 512,
        "tokenizer.ggml.model": "none",
    }


def test_matrices_keep_their_bytes_and_vectors_become_float32(tmp_path: Path) -> None:
    file = made(TINY / "eagle3", tmp_path, target=str(TARGET))
    tensors = {tensor.name: tensor for tensor in file.tensors}
    stored = stored_tensors(TINY / "eagle3")
    assert {name: tensor.tensor_type.name for name, tensor in tensors.items()} == {
        "d2t": "I64",
        "fc.weight": "BF16",
        "blk.0.attn_norm.weight": "F32",
        "blk.0.attn_norm_2.weight": "F32",
        "blk.0.attn_q.weight": "BF16",
        "blk.0.attn_k.weight": "BF16",
        "blk.0.attn_v.weight": "BF16",
        "blk.0.attn_output.weight": "BF16",
        "blk.0.ffn_norm.weight": "F32",
        "blk.0.ffn_gate.weight": "BF16",
        "blk.0.ffn_up.weight": "BF16",
        "blk.0.ffn_down.weight": "BF16",
        "output_norm.weight": "F32",
        "output.weight": "BF16",
    }
    assert tensors["fc.weight"].data.tobytes() == stored["fc.weight"][2]
    assert tensors["output_norm.weight"].data.tobytes()[2::4] == stored["norm.weight"][2][::2]


@pytest.mark.parametrize(("part", "heads"), [("q", HEADS), ("k", KV_HEADS)])
def test_halves_of_a_head_become_pairs_of_neighbours(part: str, heads: int, tmp_path: Path) -> None:
    file = made(drafter_folder(tmp_path), tmp_path)
    name = f"layers.0.self_attn.{part}_proj.weight"
    (found,) = (tensor for tensor in file.tensors if tensor.name == f"blk.0.attn_{part}.weight")
    stored = floats(name, heads * HEAD_DIM, 2 * HIDDEN)[2]
    before = np.frombuffer(stored, np.uint8).reshape(heads * HEAD_DIM, -1)
    for head in range(0, heads * HEAD_DIM, HEAD_DIM):
        for row in range(HEAD_DIM):
            half, place = row % 2, row // 2
            assert (found.data[head + row] == before[head + half * (HEAD_DIM // 2) + place]).all()


def test_the_map_has_the_targets_tokens(tmp_path: Path) -> None:
    file = made(drafter_folder(tmp_path), tmp_path)
    (found,) = (tensor for tensor in file.tensors if tensor.name == "d2t")
    assert found.data.tolist() == list(TARGETS)


def test_switches_and_their_norm_are_written(tmp_path: Path) -> None:
    norm = {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}
    config = {"norm_before_fc": True, "norm_before_residual": True}
    file = made(drafter_folder(tmp_path, config=config, tensors=norm), tmp_path)
    assert facts(file)["eagle3.norm_before_fc"] is True
    assert facts(file)["eagle3.norm_before_residual"] is True
    assert "enc.output_norm.weight" in {tensor.name for tensor in file.tensors}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, {}),
        ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        (YARN, {"type": "yarn", "factor": 4.0, "original_context_length": 128}),
        (
            {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
            {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 128,
                "yarn_beta_fast": 16.0,
                "yarn_beta_slow": 2.0,
            },
        ),
        (LLAMA3, {}),
    ],
)
def test_rope_scaling_is_stated(
    scaling: dict[str, Any] | None, expected: dict[str, Any], tmp_path: Path
) -> None:
    file = made(drafter_folder(tmp_path, config={"rope_scaling": scaling}), tmp_path)
    prefix = "eagle3.rope.scaling."
    found = facts(file)
    assert {key.removeprefix(prefix): found[key] for key in found if key.startswith(prefix)} == expected
    has_factors = "rope_freqs.weight" in {tensor.name for tensor in file.tensors}
    assert has_factors == (scaling is LLAMA3)


def test_llama3_factors_are_what_the_reference_divides_by(tmp_path: Path) -> None:
    import torch

    from eaglectl.drafter.drafter import Rope
    from eaglectl.reference.rope import Rotary

    file = made(drafter_folder(tmp_path, config={"rope_scaling": LLAMA3, "rope_theta": 100.0}), tmp_path)
    (found,) = (tensor for tensor in file.tensors if tensor.name == "rope_freqs.weight")
    scaled, plain = (
        Rotary(Rope(100.0, scaling, False), HEAD_DIM, is_mla=False, device=torch.device("cpu")).frequencies
        for scaling in (LLAMA3, None)
    )
    assert found.data.tolist() == pytest.approx((plain / scaled).tolist(), rel=1e-6)
    assert 1.0 in found.data and 8.0 in found.data


def test_the_commands_that_follow_name_the_file(tmp_path: Path) -> None:
    done = call(
        *("convert", TINY / "eagle3", "--target", TARGET, "--for", "llama.cpp"),
        *("-o", tmp_path / "out", "--gguf", tmp_path / "a b.gguf"),
    )
    assert done.code == 0
    assert f"wrote {tmp_path}/a b.gguf\n" in done.out
    assert f"llama-server --model TARGET.gguf --model-draft '{tmp_path}/a b.gguf' --spec-type" in done.out


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"layout": "vllm"}, UsageError, "--gguf goes with --for llama.cpp"),
        ({"version": "3.1"}, UsageError, "--gguf goes with --for llama.cpp, and EAGLE-3"),
        ({"gguf": "missing/d.gguf"}, UsageError, "missing is no folder"),
        ({"gguf": "/".join(["y" * 250] * 20)}, UsageError, "is no folder; make it"),
        ({"gguf": "drafter/d.gguf"}, UsageError, "never writes over its input: give another --gguf"),
        ({"gguf": "out/d.gguf"}, UsageError, "lie in one another"),
        ({"gguf": "there"}, UsageError, "there is there already; give another --gguf"),
        ({"gguf": "there", "force": True}, UsageError, "is no GGUF file, so --force does not replace it"),
    ],
)
def test_a_file_that_may_not_be_written_stops_before_anything_is(
    options: dict[str, Any], error: type[EaglectlError], words: str, tmp_path: Path
) -> None:
    source = drafter_folder(tmp_path)
    (tmp_path / "there").write_text("mine")
    given = {"layout": "llama.cpp", "gguf": "d.gguf", **options}
    with pytest.raises(error, match=words):
        eaglectl.convert(
            str(source), tmp_path / "out", ConvertOptions(**{**given, "gguf": tmp_path / given["gguf"]})
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter", "there"]
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_scaling": {**YARN, "attention_factor": 1.2}}, "attention_factor has no place in the file"),
        ({"rope_scaling": {**YARN, "mscale": 0.7}}, "mscale has no place in the file"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]},
            "llama.cpp 0.3.36 does not run this output as trained",
        ),
    ],
)
def test_what_llamacpp_would_run_differently_is_refused(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source = drafter_folder(tmp_path, config=config | {"eagle_config": {}})
    facts_of_target = {"model_type": "llama", "num_hidden_layers": 8}
    (tmp_path / "config.json").write_text(json.dumps(facts_of_target))
    with pytest.raises(RefusedError, match=words):
        made(source, tmp_path, target=str(tmp_path / "config.json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "drafter"]


def test_no_gguf_file_is_written_of_a_drafter_that_llamacpp_would_run_differently(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, config={"hidden_act": "gelu"})
    with pytest.raises(RefusedError, match="leave --gguf out"):
        made(source, tmp_path, force_unserved=True)
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_a_dtype_that_is_not_carried_is_refused(tmp_path: Path) -> None:
    wide = {"fc.weight": ("F64", (HIDDEN, 3 * HIDDEN), bytes(8 * 3 * HIDDEN * HIDDEN))}
    source = drafter_folder(tmp_path, tensors=wide)
    with pytest.raises(RefusedError, match=r"fc.weight is F64, which .* run llama.cpp's converter"):
        made(source, tmp_path)


def test_a_cast_to_float32_is_one_of_the_file_too(tmp_path: Path) -> None:
    file = made(drafter_folder(tmp_path), tmp_path, dtype="F32")
    assert facts(file)["general.file_type"] == 0
    assert {tensor.tensor_type.name for tensor in file.tensors} == {"F32", "I64"}


def test_without_the_package_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglectl.conversion.gguf_file.find_spec", lambda name: None)
    with pytest.raises(UnreadableError, match=r"the package gguf is not installed; .*pip install gguf"):
        made(drafter_folder(tmp_path), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
    assert importlib.util.find_spec("gguf")


def test_force_replaces_a_gguf_file(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    (tmp_path / "d.gguf").write_bytes(b"GGUF, an older one")
    assert facts(made(source, tmp_path, force=True))["eagle3.vocab_size"] == VOCAB
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.gguf", "drafter", "out"]


def test_a_dry_run_checks_the_file_and_writes_nothing(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    options = ConvertOptions("llama.cpp", gguf=tmp_path / "d.gguf", dry_run=True)
    assert eaglectl.convert(str(source), tmp_path / "out", options).gguf is None
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(UnreadableError, match=r"d.gguf: no space left; nothing was written"):
        made(drafter_folder(tmp_path), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter"]


def written(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != "drafter")


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "theta 0": ({"rope_theta": 0}, "rope_theta is 0; a number above 0"),
    "theta -1": ({"rope_theta": -1.0}, "rope_theta is -1.0; a number above 0"),
    "theta beyond float32": ({"rope_theta": 1e39}, "rope_theta is 1e\\+39"),
    "eps -1": ({"rms_norm_eps": -1}, "rms_norm_eps is -1; a number above 0"),
    "eps 0": ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    "positions": ({"max_position_embeddings": 1 << 32}, "4294967296; a whole number from 1 to 2147483647"),
    "linear": ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "rope_scaling.factor is -2"),
    "llama3": ({"rope_scaling": {**LLAMA3, "factor": 0}}, "rope_scaling.factor is 0"),
    "low": ({"rope_scaling": {**LLAMA3, "low_freq_factor": -1}}, "low_freq_factor is -1"),
    "high": ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "a number above low_freq_factor, 1.0"),
    "text": ({"rope_scaling": {**LLAMA3, "high_freq_factor": "4"}}, "high_freq_factor is '4'; a number"),
    "length": ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1 << 40}}, "1099511627776"),
    "beta": ({"rope_scaling": {**YARN, "beta_fast": [32]}}, r"beta_fast is \[32\]; a number above 0"),
    "parameters": ({"rope_parameters": {"rope_theta": -5, "rope_type": "default"}, "rope_theta": None}, "-5"),
    "no rotation": ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0; a number above 0 to 1"),
    "no part": ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0}}, "factor is 0; a"),
    "rotary_pct": ({"rotary_pct": 0.0}, "rotary_pct is 0.0; a number above 0"),
    "window": ({"sliding_window": -4}, "sliding_window is -4; a whole number from 0"),
    "half a window": ({"sliding_window": 4.5}, "sliding_window is 4.5; a whole number"),
    "eos": ({"eos_token_id": 10**12}, "eos_token_id is 1000000000000; a whole number from 0 to 2147483647"),
    "one eos": ({"eos_token_id": [2, -3]}, r"eos_token_id is \[2, -3\]; a whole number"),
    "bos": ({"bos_token_id": -7}, "bos_token_id is -7; a whole number from 0"),
    "pad": ({"pad_token_id": -2}, "pad_token_id is -2; a whole number from -1"),
    "dropout": ({"attention_dropout": 2}, "attention_dropout is 2; a number from 0 to 1"),
    "window layers": ({"max_window_layers": -1}, "max_window_layers is -1"),
    "an id": ({"eagle_aux_hidden_state_layer_ids": [2, 4, 1 << 40]}, "a list of layer numbers"),
}  # fmt: skip


@pytest.mark.parametrize("layout", ["llama.cpp", "specforge", "vllm", "speculators"])
@pytest.mark.parametrize("name", UNFIT)
def test_a_number_that_cannot_be_what_its_key_means_goes_into_no_layout(
    name: str, layout: str, tmp_path: Path
) -> None:
    config, words = UNFIT[name]
    source = drafter_folder(tmp_path, config=config)
    options = ConvertOptions(layout, gguf=tmp_path / "d.gguf" if layout == "llama.cpp" else None)
    with pytest.raises(RefusedError, match=words):
        eaglectl.convert(str(source), tmp_path / "out", options)
    assert written(tmp_path) == []
    assert call("validate", source, "--headers-only").code == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rms_norm_eps": 1e-50}, "rms_norm_eps is 1e-50, and the file states a number that float32 holds"),
        ({"rope_theta": 1e-46}, "rope_theta is 1e-46"),
        ({"rope_scaling": {**YARN, LENGTH: 64.5}}, "64.5, and the file states a whole number"),
    ],
)
def test_a_number_that_the_types_of_the_file_do_not_hold_is_refused(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=words):
        made(drafter_folder(tmp_path, config=config), tmp_path)
    assert written(tmp_path) == []


def test_a_folder_whose_name_is_not_utf8_is_named_with_escapes(tmp_path: Path) -> None:
    name = os.fsdecode(b"o\xff")
    file = tmp_path / "d.gguf"
    eaglectl.convert(str(drafter_folder(tmp_path)), tmp_path / name, ConvertOptions("llama.cpp", gguf=file))
    assert facts(gguf.GGUFReader(file))["general.name"] == "o\\udcff"


BROKEN = {
    "no place for the file": ("gguf_file._publish", OSError(errno.EIO, "Input/output error")),
    "no place for the folder": ("writing.Folder.publish", OSError(errno.EIO, "Input/output error")),
    "interrupted": ("writing.Folder.publish", KeyboardInterrupt()),
    "a short write": ("gguf_file._write_tensors", OSError("4096 requested and 0 written")),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_the_file_and_the_folder_appear_together_or_not_at_all(
    name: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, (place, error) = drafter_folder(tmp_path), BROKEN[name]
    if force:
        made(source, tmp_path)
    before = contents(tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"eaglectl.conversion.{place}", broken)
    with pytest.raises((UnreadableError, KeyboardInterrupt)) as failure:
        made(source, tmp_path, force=force, dtype="F32")
    assert "None" not in str(failure.value)
    assert contents(tmp_path) == before
    monkeypatch.undo()
    assert facts(made(source, tmp_path, force=force, dtype="F32"))["general.file_type"] == 0


def test_what_came_to_the_files_place_stays_and_no_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, write = drafter_folder(tmp_path), gguf_file._write_tensors

    def planting(*arguments: Any) -> None:
        write(*arguments)
        (tmp_path / "d.gguf").write_text("mine")

    monkeypatch.setattr(gguf_file, "_write_tensors", planting)
    with pytest.raises(UsageError, match="is there already"):
        made(source, tmp_path)
    assert written(tmp_path) == ["d.gguf"] and (tmp_path / "d.gguf").read_text() == "mine"


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_file_that_became_another_while_it_was_replaced_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    source = drafter_folder(tmp_path)
    (tmp_path / "d.gguf").write_text("mine")
    monkeypatch.setattr(gguf_file, "_check_free", lambda file, force: None)
    if not has_exchange:
        monkeypatch.setattr(gguf_file, "exchange", lambda first, second: False)
    with pytest.raises(UsageError, match="became something else meanwhile; it is back"):
        made(source, tmp_path, force=True)
    assert written(tmp_path) == ["d.gguf"] and (tmp_path / "d.gguf").read_text() == "mine"
