"""GGUF files of drafters, by `inspect` and `diff`: built by hand, by the package gguf, and by `convert`."""

import json
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import eaglectl
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError
from eaglectl.files.gguf import read_gguf
from eaglectl.files.source import FolderSource
from eaglectl.operations.converting import ConvertOptions
from eaglectl.verdicts import DiffVerdict, TensorState
from tests.builders import (
    ABSENT,
    HEAD_DIM,
    HIDDEN,
    LLAMA3,
    TARGETS,
    YARN,
    call,
    drafter_folder,
    floats,
    gguf_bytes,
    gguf_facts,
    gguf_tensors,
    integers,
)
from tests.tiny import TARGET, TINY


def written(root: Path, data: bytes | None = None, **changes: Any) -> Path:
    """A GGUF file: `data`, or a whole drafter with these facts changed."""
    path = root / "d.gguf"
    path.write_bytes(gguf_bytes(gguf_facts(**changes), gguf_tensors()) if data is None else data)
    return path


def converted(source: Path, root: Path, **options: Any) -> Path:
    """The GGUF file that `convert` writes."""
    given = ConvertOptions("llama.cpp", gguf=root / "d.gguf", **options)
    eaglectl.convert(str(source), root / "out", given)
    return root / "d.gguf"


def differing(comparison: Any) -> dict[str, str]:
    """Facts and tensors that differ, by name."""
    facts = {fact.name: str(fact.state) for fact in comparison.facts if fact.state != "equal"}
    return facts | {pair.name: str(pair.state) for pair in comparison.tensors if pair.differs}


def test_inspect_says_what_llamacpp_reads(tmp_path: Path) -> None:
    drafter = eaglectl.inspect(written(tmp_path, norm_before_residual=True)).drafter
    assert (drafter.producer, drafter.kind, drafter.version) == ("llama.cpp", "eagle3", "3")
    assert drafter.aux.boundaries == (2, 4, 5)
    assert drafter.norms.norm_before_residual and not drafter.norms.norm_before_fc
    assert drafter.norms.norm_output is False
    assert (drafter.dims.vocab, drafter.dims.draft_vocab, drafter.dims.head_dim) == (64, 24, 8)
    assert (drafter.rope.theta, drafter.rope.scaling) == (500000.0, None)
    assert drafter.settings["rms_norm_eps"] == 1e-6
    assert not drafter.notes_at("problem") and not drafter.notes_at("question")


def test_no_engine_is_judged_on_a_gguf_file_and_no_conversion_offered(tmp_path: Path) -> None:
    done = call("inspect", written(tmp_path))
    assert done.code == 0
    assert "boundaries 2, 4, 5" in done.out
    assert "Served as stored" not in done.out and "eaglectl convert" not in done.out
    assert "llama.cpp would read this of the file" in done.out
    document = json.loads(call("inspect", written(tmp_path), "--json").out)
    assert (document["engines"], document["next"]) == ([], "")
    with pytest.raises(UsageError, match="--engine judges a checkpoint's folder"):
        eaglectl.inspect(written(tmp_path), engines=("vllm",))


def test_a_page_shows_a_gguf_file(tmp_path: Path) -> None:
    assert call("inspect", written(tmp_path), "--page", tmp_path / "p.html").code == 0
    assert "llama.cpp&#x27;s layout" in (tmp_path / "p.html").read_text().replace("&#39;", "&#x27;")


@pytest.mark.parametrize("version", [2, 3])
def test_a_drafter_and_its_gguf_file_are_equal(version: int, tmp_path: Path) -> None:
    file = written(tmp_path, gguf_bytes(gguf_facts(), gguf_tensors(), version=version))
    compared = eaglectl.diff(drafter_folder(tmp_path), file)
    assert differing(compared) == {}
    assert compared.verdict == DiffVerdict.EQUAL
    assert {pair.state for pair in compared.tensors} == {TensorState.EQUAL}


def test_what_convert_writes_of_the_trained_pair_is_equal_to_it(tmp_path: Path) -> None:
    file = converted(TINY / "eagle3", tmp_path, target=str(TARGET))
    assert call("diff", TINY / "eagle3", file, "--target", TARGET).code == 0


@pytest.mark.parametrize("size", [9.999999747378752e-06, 1e-05, 1.00000001e-05])
def test_a_number_is_compared_in_the_precision_of_the_file(size: float, tmp_path: Path) -> None:
    """SpecForge writes epsilon as float32 has it, and the file states no more than that."""
    source = drafter_folder(tmp_path, config={"rms_norm_eps": size})
    assert differing(eaglectl.diff(source, converted(source, tmp_path))) == {}
    assert eaglectl.inspect(tmp_path / "d.gguf").drafter.settings["rms_norm_eps"] == 1e-05


def test_a_number_beyond_float32_is_a_difference(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, config={"rope_theta": 1e300})
    assert differing(eaglectl.diff(source, written(tmp_path))) == {"rope_theta": "differs"}


@pytest.mark.parametrize("scaling", [LLAMA3, YARN, {"rope_type": "linear", "factor": 4.0}])
def test_a_rope_scaling_is_equal_to_what_the_file_states_of_it(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    source = drafter_folder(tmp_path, config={"rope_scaling": scaling, "rope_theta": 100.0})
    file = converted(source, tmp_path)
    assert differing(eaglectl.diff(source, file)) == {}
    other = drafter_folder(
        tmp_path / "other", config={"rope_scaling": {**scaling, "factor": 5.0}, "rope_theta": 100.0}
    )
    assert differing(eaglectl.diff(other, file)) == {"rope_scaling": "differs"}


def test_factors_of_a_file_stand_for_no_scaling_but_llama3(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": ("F32", (4,), struct.pack("<4f", 1, 2, 4, 8))}
    file = written(tmp_path, gguf_bytes(gguf_facts(), {**gguf_tensors(), **factors}))
    scaling = eaglectl.inspect(file).drafter.rope.scaling
    assert scaling == {"rope_type": "factors", "factors": [1.0, 2.0, 4.0, 8.0]}
    assert "frequencies divided by 1 to 8" in call("inspect", file).out
    for stated in (None, YARN):
        source = drafter_folder(tmp_path / str(stated is None), config={"rope_scaling": stated})
        assert differing(eaglectl.diff(source, file)) == {"rope_scaling": "differs"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target_layers": [1, 3, 4]}, "boundaries"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"rope.freq_base": 10000.0}, "rope_theta"),
        ({"attention.layer_norm_rms_epsilon": 1e-5}, "rms_norm_eps"),
        ({"context_length": 4096}, "max_position_embeddings"),
    ],
)
def test_another_fact_is_a_difference(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    compared = eaglectl.diff(drafter_folder(tmp_path), written(tmp_path, **changes))
    assert differing(compared) == {expected: "differs"}


def test_other_numbers_are_a_difference(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    dtype, shape, raw = tensors["output_norm.weight"]
    tensors["output_norm.weight"] = dtype, shape, raw[:-1] + bytes([raw[-1] ^ 0x80])
    compared = eaglectl.diff(drafter_folder(tmp_path), written(tmp_path, gguf_bytes(gguf_facts(), tensors)))
    assert differing(compared) == {"norm.weight": "dtype"}


def test_rows_of_a_head_that_were_not_moved_are_a_difference(tmp_path: Path) -> None:
    """The mistake of a script that renames tensors and no more."""
    shape = gguf_tensors()["blk.0.attn_q.weight"][1]
    tensors = gguf_tensors() | {"blk.0.attn_q.weight": floats("layers.0.self_attn.q_proj.weight", *shape)}
    compared = eaglectl.diff(drafter_folder(tmp_path), written(tmp_path, gguf_bytes(gguf_facts(), tensors)))
    assert differing(compared) == {"layers.0.self_attn.q_proj.weight": "bytes"}


def test_a_map_of_offsets_is_a_difference(tmp_path: Path) -> None:
    """llama.cpp takes d2t for tokens, also where the numbers fit as offsets."""
    tensors = gguf_tensors() | {"d2t": integers(*range(24))}
    file = written(tmp_path, gguf_bytes(gguf_facts(), tensors))
    assert differing(eaglectl.diff(drafter_folder(tmp_path), file))["draft_tokens"] == "differs"
    tensors["d2t"] = integers(*[0] * 24)
    file = written(tmp_path, gguf_bytes(gguf_facts(), tensors))
    fact = eaglectl.diff(drafter_folder(tmp_path / "again"), file).facts[-1]
    assert (fact.name, str(fact.state)) == ("draft_tokens", "differs")
    assert "llama.cpp reads token ids" in fact.why


def test_tokens_in_any_order_are_the_same_vocabulary(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    dtype, shape, raw = tensors["output.weight"]
    width = len(raw) // shape[0]
    rows = [raw[at : at + width] for at in range(0, len(raw), width)]
    tensors["output.weight"] = dtype, shape, b"".join(reversed(rows))
    tensors["d2t"] = integers(*reversed(TARGETS))
    file = written(tmp_path, gguf_bytes(gguf_facts(), tensors))
    assert differing(eaglectl.diff(drafter_folder(tmp_path), file)) == {}


def test_half_precision_is_told_apart(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    tensors["fc.weight"] = ("F16", *tensors["fc.weight"][1:])
    compared = eaglectl.diff(drafter_folder(tmp_path), written(tmp_path, gguf_bytes(gguf_facts(), tensors)))
    assert differing(compared) == {"fc.weight": "dtype"}


def test_a_file_by_the_package_gguf_with_a_tokenizer_is_read(tmp_path: Path) -> None:
    """As llama.cpp's converter writes one: keys of other types, texts by the thousand."""
    writer = gguf.GGUFWriter(tmp_path / "d.gguf", "eagle3")
    for key, value in gguf_facts().items():
        if key.startswith("eagle3.") and isinstance(value, list):
            writer.add_array(key, value)
        elif key.startswith("eagle3.") and isinstance(value, bool):
            writer.add_bool(key, value)
        elif key.startswith("eagle3.") and isinstance(value, float):
            writer.add_float32(key, value)
        elif key.startswith("eagle3."):
            writer.add_uint32(key, value)
    writer.add_token_list([f"token {number}" for number in range(5000)])
    writer.add_token_scores([0.5] * 5000)
    for name, (dtype, shape, raw) in gguf_tensors().items():
        if dtype == "BF16":
            rows = np.frombuffer(raw, np.uint8).reshape(shape[0], -1)
            writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            kind = {"F32": np.float32, "I64": np.int64}[dtype]
            writer.add_tensor(name, np.frombuffer(raw, kind).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert eaglectl.diff(drafter_folder(tmp_path), tmp_path / "d.gguf").verdict == DiffVerdict.EQUAL


def by_the_package(writer: gguf.GGUFWriter, path: Path) -> tuple[Any, Any]:
    """Facts and tensors of a file that the package gguf wrote."""
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(FolderSource(path.parent, path.name), path.name)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("UINT8", 255),
        ("INT8", -128),
        ("UINT16", 65_535),
        ("INT16", -32_768),
        ("UINT32", 2**32 - 1),
        ("INT32", -(2**31)),
        ("UINT64", 2**64 - 1),
        ("INT64", -(2**63)),
        ("FLOAT32", 0.1),
        ("FLOAT64", 0.1),
        ("BOOL", True),
        ("STRING", "é"),
    ],
)
def test_a_fact_of_each_type_is_read(kind: str, value: object, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(None, "eagle3")
    writer.add_key_value("k", value, gguf.GGUFValueType[kind])
    found = by_the_package(writer, tmp_path / "d.gguf")[0]["k"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("size", [64, 65])
def test_a_list_is_read_up_to_64_entries(size: int, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(None, "eagle3")
    writer.add_array("k", list(range(size)))
    facts, _ = by_the_package(writer, tmp_path / "d.gguf")
    assert facts.get("k") == (list(range(64)) if size == 64 else None)


@pytest.mark.parametrize(
    ("dtype", "form"),
    [
        ("F64", "<f8"),
        ("F32", "<f4"),
        ("F16", "<f2"),
        ("I64", "<i8"),
        ("I32", "<i4"),
        ("I16", "<i2"),
        ("I8", "i1"),
    ],
)
def test_a_tensor_of_each_type_is_read(dtype: str, form: str, tmp_path: Path) -> None:
    writer, values = gguf.GGUFWriter(None, "eagle3"), np.arange(6, dtype=form).reshape(2, 3)
    writer.add_tensor("t", values)
    _, tensors = by_the_package(writer, tmp_path / "d.gguf")
    found = tensors["t"]
    assert (found.dtype, found.shape) == (dtype, (2, 3))
    assert (tmp_path / "d.gguf").read_bytes()[found.start : found.stop] == values.tobytes()


def test_a_key_that_nothing_reads_is_asked_about(tmp_path: Path) -> None:
    inspection = eaglectl.inspect(written(tmp_path, **{"rope.dimension_count": HEAD_DIM // 2}))
    assert [note.about for note in inspection.drafter.notes_at("question")] == ["rope_dimension_count"]


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="vocab_size"):
        eaglectl.inspect(written(tmp_path, gguf_bytes(gguf_facts(vocab_size=ABSENT), _without_embedding())))


def _without_embedding() -> dict[str, Any]:
    return {name: tensor for name, tensor in gguf_tensors().items() if name != "token_embd.weight"}


def test_a_file_of_another_model_is_no_drafter(tmp_path: Path) -> None:
    facts = gguf_facts() | {"general.architecture": "llama"}
    done = call("inspect", written(tmp_path, gguf_bytes(facts, gguf_tensors())))
    assert done.code == 1
    assert "a GGUF file of architecture 'llama'; a drafter has 'eagle3'" in done.err


@pytest.mark.parametrize("command", ["validate", "convert", "ready"])
def test_other_commands_refuse_the_file_in_words(command: str, tmp_path: Path) -> None:
    words = ("--target", TARGET) if command == "ready" else ()
    done = call(command, written(tmp_path), *words)
    assert done.code in (2, 3)
    assert "is a GGUF file, which inspect and diff alone read" in done.out + done.err


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


GOOD = gguf_bytes(gguf_facts(), gguf_tensors())
FIRST_KEY = 24
FIRST_TENSOR = GOOD.index(b"\x03\0\0\0\0\0\0\0d2t")


def lists(count: int, kind: int) -> bytes:
    """A file that says it has a list of so many values."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    return head + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, kind, count)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes; a GGUF file has at least 24"),
    "magic": (b"GGML" + GOOD[4:], "does not begin with GGUF"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer"),
    "version 1": (changed(GOOD, 4, "<I", 1), "GGUF version 1; 2 and 3 are read"),
    "big-endian": (changed(GOOD, 4, ">I", 3), "GGUF version 50331648"),
    "tensors": (changed(GOOD, 8, "<Q", 1 << 60), "1152921504606846976 tensors"),
    "facts": (changed(GOOD, 16, "<Q", 1 << 60), "1152921504606846976 facts"),
    "more facts": (changed(GOOD, 16, "<Q", 999), "d.gguf: "),
    "key": (changed(GOOD, FIRST_KEY, "<Q", 1 << 63), "the file is truncated"),
    "kind": (changed(GOOD, GOOD.index(b"general.architecture") + 20, "<I", 77), "is of type 77"),
    "utf-8": (GOOD.replace(b"general.name", b"general.nam\xff"), "is not UTF-8"),
    "list of texts": (lists(1 << 62, 8), "the file is truncated"),
    "list of numbers": (lists(1 << 62, 5), "the file is truncated"),
    "list of lists": (lists(2, 9), "is of type 9, which GGUF has not there"),
    "axes": (changed(GOOD, FIRST_TENSOR + 11, "<I", 5), "d2t has 5 axes; 1 to 4 are possible"),
    "no axes": (changed(GOOD, FIRST_TENSOR + 11, "<I", 0), "d2t has 0 axes"),
    "a size": (changed(GOOD, FIRST_TENSOR + 15, "<Q", 1 << 63), "the file is truncated or damaged"),
    "quantised": (changed(GOOD, FIRST_TENSOR + 23, "<I", 8), "d2t is of ggml type 8, a quantisation"),
    "offset": (changed(GOOD, FIRST_TENSOR + 27, "<Q", 1 << 63), "the file is truncated or damaged"),
    "unaligned": (changed(GOOD, FIRST_TENSOR + 27, "<Q", 8), "by 32; the file is truncated or damaged"),
    "overlapping": (changed(GOOD, FIRST_TENSOR + 27, "<Q", 256), "overlap; the file is damaged"),
    "truncated": (GOOD[:-1], "the file is truncated or damaged"),
    "alignment": (
        gguf_bytes({**gguf_facts(), "general.alignment": 24}, gguf_tensors()),
        "general.alignment is 24; a power of two was expected",
    ),
    "factors": (
        gguf_bytes(gguf_facts(), {**gguf_tensors(), "rope_freqs.weight": integers(1, 2)}),
        r"rope_freqs.weight is I64 \[2\]; a row of F32 was expected",
    ),
    "no tensors": (gguf_bytes(gguf_facts(), {}), "holds no tensors"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_words_and_soon(name: str, tmp_path: Path) -> None:
    data, words = BAD[name]
    began = time.monotonic()
    with pytest.raises(UnreadableError, match=words):
        eaglectl.inspect(written(tmp_path, data))
    assert time.monotonic() - began < 2


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for size in range(0, len(GOOD), 97):
        with pytest.raises(EaglectlError):
            eaglectl.inspect(written(tmp_path, GOOD[:size]))


@pytest.mark.parametrize(
    ("name", "other"),
    [(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"), (b"eagle3.target_layers", b"general.architecture")],
)
def test_a_name_twice_is_refused(name: bytes, other: bytes, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=f"'{other.decode()}' is there twice"):
        eaglectl.inspect(written(tmp_path, GOOD.replace(name, other)))


def test_a_header_without_end_is_read_no_further_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglectl.files.gguf.MAX_HEADER", 2048)
    facts = {**gguf_facts(), "general.note": "x" * 4096}
    with pytest.raises(UnreadableError, match="at most 2048 are read"):
        eaglectl.inspect(written(tmp_path, gguf_bytes(facts, gguf_tensors())))


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors() | {"blk.0.attn_q.weight": floats("q", 32, HIDDEN)}
    with pytest.raises(RefusedError, match=r"blk.0.attn_q.weight is \[32, 16\]"):
        eaglectl.inspect(written(tmp_path, gguf_bytes(gguf_facts(), tensors)))
