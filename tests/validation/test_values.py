"""Rules on the numbers in the weights: bad cases, each with exactly its findings."""

import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import Checkpoint, read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.judge import scanning
from eaglectl.judge.samples import Sample
from tests.builders import (
    DRAFT,
    HIDDEN,
    TARGETS,
    VOCAB,
    Stored,
    drafter_folder,
    drafter_tensors,
    floats,
    offsets,
    write_safetensors,
)
from tests.validation.patches import Patch, aim, exact, only, store

# a NaN, an infinity and the largest finite number of each type, as they lie in a file
WORDS: dict[str, tuple[bytes, bytes, bytes]] = {
    "BF16": (b"\xc0\x7f", b"\x80\xff", b"\x7f\xff"),
    "F16": (b"\x01\x7c", b"\x00\xfc", b"\xff\x7b"),
    "F32": (b"\x01\x00\x80\xff", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f"),
    "F64": (b"\0" * 6 + b"\xf8\x7f", b"\0" * 6 + b"\xf0\xff", b"\xff" * 6 + b"\xef\x7f"),
    "F8_E4M3": (b"\xff", b"\x7f", b"\xfe"),  # no infinity: both are NaN
    "F8_E5M2": (b"\x7d", b"\xfc", b"\x7b"),
    "F8_E4M3FNUZ": (b"\x80", b"\x80", b"\xff"),
    "F8_E5M2FNUZ": (b"\x80", b"\x80", b"\xff"),
}
LARGEST = {
    "BF16": 3.3895313892515355e38, "F16": 65504.0, "F32": 3.4028234663852886e38, "F64": sys.float_info.max,
    "F8_E4M3": 448.0, "F8_E5M2": 57344.0, "F8_E4M3FNUZ": 240.0, "F8_E5M2FNUZ": 57344.0,
}  # fmt: skip
NORMS = {
    name: ("BF16", shape, b"\x80\x3f" * shape[0])
    for name, (_, shape, _) in drafter_tensors().items()
    if "norm" in name
}
FC, NORM, HEAD, EMBEDDING = "fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight"
GATE = "layers.0.mlp.gate_proj.weight"


def poisoned(name: str, word: bytes, place: int = 5, stored: Stored | None = None) -> dict[str, Stored]:
    """A tensor of the good drafter with one number replaced."""
    dtype, shape, data = stored or drafter_tensors()[name]
    size = len(word)
    return {name: (dtype, shape, data[: place * size] + word + data[(place + 1) * size :])}


def bf16(*values: float) -> bytes:
    """Numbers cut to bfloat16."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def filled(name: str, value: float) -> dict[str, Stored]:
    dtype, shape, data = drafter_tensors()[name]
    return {name: (dtype, shape, bf16(value) * (len(data) // 2))}


def cut_by_offsets() -> dict[str, Stored]:
    """lm_head as TorchSpec's pruning cuts it: row i is the target's row d2t[i]."""
    return {HEAD: head_of([target - draft for draft, target in enumerate(TARGETS)])}


def head_of(rows: list[int]) -> Stored:
    _, _, data = floats("the target's head", VOCAB, HIDDEN)
    size = 2 * HIDDEN
    return "BF16", (DRAFT, HIDDEN), b"".join(data[row * size : (row + 1) * size] for row in rows)


TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_hidden_layers": 8,
}


def with_target_weights(embedding: Stored) -> Callable[[Path], object]:
    """Gives the target beside a drafter this embedding and a head of its own."""
    stored = {"model." + EMBEDDING: embedding, HEAD: floats("the target's head", VOCAB, HIDDEN)}
    return lambda folder: write_safetensors(folder.parent / "target/model.safetensors", stored)


VALUES = ("EGL205", "EGL206", "EGL208", "EGL214", "EGL215", "EGL704", "EGL705")
ROWS = only("EGL704", "EGL705")
OURS = drafter_tensors()[EMBEDDING]
# the drafter's embedding, whose numbers were rounded to it
WIDE = "F32", OURS[1], b"".join(b"\x31\x07" + OURS[2][i : i + 2] for i in range(0, len(OURS[2]), 2))
RANDOM = floats("random", VOCAB, HIDDEN)
ONE_ROW = poisoned(EMBEDDING, bf16(0.75), 40 * HIDDEN)
OTHER_ROW = f"checked rows differ from the target's model.{EMBEDDING}, such as row 40"
UNREAD: dict[str, Any] = {"says": "the target's weights cannot be read", "blind": ("EGL704", "EGL705")}
F16 = floats("n", HIDDEN, dtype="F16")
ZERO_BIASES = {
    f"layers.0.self_attn.{kind}_proj.bias": ("BF16", (size,), bytes(2 * size))
    for kind, size in (("q", 32), ("k", 16), ("v", 16))
}
BESIDE: dict[str, Any] = {"also": with_target_weights(OURS), "target_config": TARGET}
BAD = (
    store("a NaN", "EGL205", poisoned(FC, WORDS["BF16"][0]), "768 numbers, the first at [0, 5]"),
    store("an infinity", "EGL205", poisoned(GATE, WORDS["BF16"][1], 17), "the first at [1, 1]"),
    store("a float16 NaN", "EGL205 EGL210", poisoned(NORM, WORDS["F16"][0], stored=F16), "the first at [5]"),
    store("all NaN", "EGL205", {HEAD: ("BF16", (DRAFT, HIDDEN), b"\xc0\x7f" * DRAFT * HIDDEN)}, "384 of 384"),
    store("two tensors with a NaN", "EGL205 EGL205", poisoned(FC, b"\xc0\x7f") | poisoned(NORM, b"\xc0\x7f")),
    store("a NaN in an embedding", "EGL205", poisoned(EMBEDDING, b"\xc0\xff")),
    store("zeros", "EGL206", filled(FC, 0.0), "all 0"),
    store("zeros of both signs", "EGL206", {FC: ("BF16", (16, 48), b"\0\0\0\x80" * 384)}),
    store("one number", "EGL206", filled(HEAD, 0.5), "all 0.5"),
    store("a norm of zeros", "EGL206", NORMS | filled(NORM, 0.0)),
    store("a norm of zeros beside narrow ones", "EGL206", {NORM: ("BF16", (HIDDEN,), bytes(2 * HIDDEN))}),
    store("a norm of one number", "", filled(NORM, 0.5)),
    store("norms of ones", "", NORMS),
    store("a head cut by offsets", "EGL208", cut_by_offsets(), "where d2t repeats its offset"),
    store("a number beyond float16", "EGL214", poisoned(FC, bf16(-70000.0)), "largest number is 65504"),
    store("the largest number of float16", "", poisoned(FC, bf16(65280.0))),
    store("random embedding", "EGL704", {EMBEDDING: RANDOM}, "64 of 64 checked rows", **BESIDE),
    store("one row that differs", "EGL704", ONE_ROW, f"1 of 64 {OTHER_ROW}", **BESIDE),
    store("the target's first rows", "EGL705", {HEAD: head_of(list(range(DRAFT)))}, "rows i", **BESIDE),
    store("a head of the target's rows", "", {HEAD: head_of(list(TARGETS))}, **BESIDE),
    store("d2t of other ids", "", {"d2t": offsets([2 * i for i in range(DRAFT)])}, **BESIDE),
    store("a head without an embedding", "", {EMBEDDING: None}, **BESIDE),
    store("a head cut by offsets, beside the target", "EGL208", cut_by_offsets(), **BESIDE),
    store("the target's embedding and another head", "", {}, **BESIDE),
    aim("the target's embedding in float32", "", TARGET, also=with_target_weights(WIDE), given=ROWS),
    aim("no weights of the target", "", TARGET, given=ROWS, **UNREAD),
    store("a number whose square overflows", "EGL215", poisoned(FC, bf16(-2e20)), "1.99e+20, whose square"),
    Patch("biases of zeros", "", {"attention_bias": True}, tensors=ZERO_BIASES, given=only(*VALUES)),
)
test_bad_numbers_give_exactly_their_findings = exact(BAD)


@pytest.mark.fast(10)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("place", [0, 7, 4095, 4096, 9999])
def test_every_type_is_scanned_in_every_block(
    dtype: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "BLOCK_SIZE", 4096)
    names, one = ("nan", "infinity", "largest"), b"\x01" * len(WORDS[dtype][0])
    texts = [one * place + word + one * (9999 - place) for word in WORDS[dtype]]
    stored = {name: (dtype, (10000,), text) for name, text in zip(names, texts, strict=True)}
    found = scanned(tmp_path, stored)
    assert found["largest"] == scanning.Summary(LARGEST[dtype], 0, -1, None)
    for name in ("nan", "infinity"):
        assert (found[name].bad, found[name].first, found[name].constant) == (1, place, None)


def stored_in(folder: Path, tensors: Mapping[str, Stored]) -> Checkpoint:
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text("{}")
    return read_checkpoint(FolderSource(folder))


def scanned(folder: Path, tensors: Mapping[str, Stored], jobs: int = scanning.THREADS) -> Any:
    """What one pass says of tensors."""
    table = tuple(stored_in(folder, tensors).tensors.values())
    return scanning.scan(FolderSource(folder), table, jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_tensor_that_several_threads_read_is_judged_as_a_whole(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan, one = b"\xc0\x7f", b"\x80\x3f"
    tensors = {
        "bad": ("BF16", (40,), 17 * one + nan + 20 * one + 2 * nan),
        "constant": ("BF16", (40,), 40 * one),
        "steps": ("BF16", (40,), 8 * one + 32 * b"\x00\x40"),
        "zeros": ("BF16", (40,), bytes(80)),
        "last": ("F32", (9,), struct.pack("<9f", *range(8), -9.0)),
        "twice": ("BF16", (12,), nan + 8 * one + nan + 2 * one),
        "none": ("BF16", (0, 4), b""),
        "scalar": ("BF16", (), one),
    }
    whole = scanned(tmp_path, tensors)
    assert whole["bad"] == scanning.Summary(float("inf"), 3, 17, None)
    assert [whole[name].constant for name in ("constant", "steps", "zeros")] == [1.0, None, 0.0]
    assert whole["last"].largest == 9.0 and (whole["twice"].bad, whole["twice"].first) == (2, 0)
    assert whole["none"] == scanning.Summary(0.0, 0, -1, None) and whole["scalar"].constant == 1.0
    monkeypatch.setattr(scanning, "PIECE_SIZE", 16)
    monkeypatch.setattr(scanning, "BLOCK_SIZE", 8)
    assert scanned(tmp_path, tensors, jobs) == whole


def test_a_file_that_is_cut_after_its_header_was_read_is_unreadable(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    source = FolderSource(folder)
    tensors = tuple(read_checkpoint(source).tensors.values())
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UnreadableError, match="truncated or being written"):
        scanning.scan(source, tensors)


def test_the_weights_are_read_once(tmp_path: Path) -> None:
    reported: list[int] = []
    folder = drafter_folder(tmp_path)
    eaglectl.validate(str(folder), on_progress=lambda progress: reported.append(progress.done))
    total = sum(len(data) for name, (_, _, data) in drafter_tensors().items() if name != "d2t")
    assert reported[-1] == total and sorted(set(reported)) == reported


def test_headers_alone_look_at_no_numbers(tmp_path: Path) -> None:
    report = eaglectl.validate(drafter_folder(tmp_path), headers_only=True)
    assert {entry.rule.id for entry in report.unchecked} >= {*VALUES}


EIGHT_BITS = (
    ("F8_E4M3", 0x38, 1.0), ("F8_E4M3", 0x01, 2**-9), ("F8_E4M3", 0xB8, -1.0), ("F8_E5M2", 0x3C, 1.0),
    ("F8_E5M2", 0x01, 2**-16), ("F8_E4M3FNUZ", 0x40, 1.0), ("F8_E5M2FNUZ", 0x40, 1.0),
)  # fmt: skip


@pytest.mark.parametrize(("dtype", "word", "value"), EIGHT_BITS)
def test_words_of_eight_bits_are_the_numbers_of_their_type(dtype: str, word: int, value: float) -> None:
    assert scanning.as_floats(dtype, bytes([word])).tolist() == [value]


@pytest.mark.parametrize("scale", [1, 1.5])
def test_a_spread_is_taken_from_all_over_a_large_tensor(
    scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "SAMPLE", 6400)
    values = np.random.default_rng(0).normal(0, 0.02, (200, 100))
    values[100:] *= scale
    weights = stored_in(tmp_path, {"x": ("F32", (200, 100), values.astype("<f4").tobytes())})
    sample = {"fc.weight": ("x", Sample(1, 0, 0, 0.02, (0.02,), 0.1))}
    found = scanning.untrained_matrices(weights, sample, 0.02)
    assert found == ({"fc.weight": ("x", "normal, deviation 0.02")} if scale == 1 else {})
