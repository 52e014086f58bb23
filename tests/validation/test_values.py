"""Rules on the numbers in the weights: every bad case is a good drafter, a patch, and exactly the findings
it must give.
"""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eaglectl
from eaglectl.errors import UnreadableError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.judge import scanning
from eaglectl.progress import OnProgress
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
from tests.cases import CASES, Case
from tests.validation.patches import Patch, check

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
    "BF16": 3.3895313892515355e38,
    "F16": 65504.0,
    "F32": 3.4028234663852886e38,
    "F64": sys.float_info.max,
    "F8_E4M3": 448.0,
    "F8_E5M2": 57344.0,
    "F8_E4M3FNUZ": 240.0,
    "F8_E5M2FNUZ": 57344.0,
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


def drawn(*parts: str, deviation: float = 0.02, is_uniform: bool = False) -> dict[str, Stored]:
    """The good drafter with the tensors of some parts as frameworks first fill them."""
    dice, found = random.Random(3), {}
    for name, (dtype, shape, _) in drafter_tensors().items():
        if not name.startswith(parts) or name == HEAD:
            continue
        if len(shape) == 1:
            found[name] = (dtype, shape, bf16(1.0) * shape[0])
        elif name != EMBEDDING:
            bound = shape[1] ** -0.5
            numbers = (
                dice.uniform(-bound, bound) if is_uniform else dice.gauss(0, deviation)
                for _ in range(shape[0] * shape[1])
            )
            found[name] = (dtype, shape, bf16(*numbers))
    return found


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


def target_tensors() -> dict[str, Stored]:
    """A target with the good drafter's embedding and a head of its own."""
    head = floats("the target's head", VOCAB, HIDDEN)
    return {"model." + EMBEDDING: drafter_tensors()[EMBEDDING], HEAD: head}


def with_target_weights(folder: Path) -> None:
    """Write the target's weights beside its config."""
    write_safetensors(folder.parent / "target/model.safetensors", target_tensors())


EVERYTHING = ("fc", "norm", "layers.0")
BAD = (
    Patch(
        "a NaN",
        ("EGL205",),
        tensors=poisoned(FC, WORDS["BF16"][0]),
        says="1 of 768 numbers, the first at [0, 5]",
    ),
    Patch(
        "an infinity", ("EGL205",), tensors=poisoned(GATE, WORDS["BF16"][1], 17), says="the first at [1, 1]"
    ),
    Patch(
        "a float16 NaN",
        ("EGL205", "EGL210"),
        tensors=poisoned(NORM, WORDS["F16"][0], stored=floats("n", HIDDEN, dtype="F16")),
        says="the first at [5]",
    ),
    Patch(
        "a head of NaN",
        ("EGL205",),
        tensors={HEAD: ("BF16", (DRAFT, HIDDEN), b"\xc0\x7f" * DRAFT * HIDDEN)},
        says="384 of 384 numbers",
    ),
    Patch(
        "two tensors with a NaN",
        ("EGL205", "EGL205"),
        tensors=poisoned(FC, b"\xc0\x7f") | poisoned(NORM, b"\xc0\x7f"),
    ),
    Patch("a NaN in an embedding", ("EGL205",), tensors=poisoned(EMBEDDING, b"\xc0\xff")),
    Patch("zeros", ("EGL206",), tensors=filled(FC, 0.0), says="all 0"),
    Patch(
        "zeros of both signs",
        ("EGL206",),
        tensors={FC: ("BF16", (HIDDEN, 3 * HIDDEN), b"\0\0\0\x80" * (HIDDEN * 3 * HIDDEN // 2))},
    ),
    Patch("one number", ("EGL206",), tensors=filled(HEAD, 0.5), says="all 0.5"),
    Patch("a norm of zeros", ("EGL206",), tensors=filled(NORM, 0.0)),
    Patch("a norm of one number", (), tensors=filled(NORM, 0.5)),
    Patch(
        "norms of ones",
        (),
        tensors={name: stored for name, stored in drawn(*EVERYTHING).items() if len(stored[1]) == 1},
    ),
    Patch("untrained", ("EGL207",), tensors=drawn(*EVERYTHING), says="nothing was trained"),
    Patch(
        "untrained, of torch's own spread",
        ("EGL207",),
        tensors=drawn(*EVERYTHING, is_uniform=True),
        says="uniform within 1/sqrt(48)",
    ),
    Patch(
        "untrained, by the config's spread",
        ("EGL207",),
        config={"initializer_range": 0.05},
        tensors=drawn(*EVERYTHING, deviation=0.05),
        says="deviation 0.05",
    ),
    Patch("drawn by another spread", (), config={"initializer_range": 0.05}, tensors=drawn(*EVERYTHING)),
    Patch("an untrained layer", ("EGL207",), tensors=drawn("layers.0"), says="layer 0 looks untrained"),
    Patch("an untrained fc", ("EGL207",), tensors=drawn("fc", "norm"), says="fc looks untrained"),
    Patch(
        "drawn matrices beside a trained norm",
        (),
        tensors=drawn("fc", "norm")
        | poisoned(NORM, bf16(1.0078125), stored=("BF16", (HIDDEN,), bf16(1.0) * HIDDEN)),
    ),
    Patch(
        "a drawn layer with one trained matrix",
        (),
        tensors={name: stored for name, stored in drawn("layers.0").items() if name != GATE},
    ),
    Patch(
        "a head cut by offsets", ("EGL208",), tensors=cut_by_offsets(), says="where d2t repeats its offset"
    ),
    Patch(
        "a number beyond float16",
        ("EGL214",),
        tensors=poisoned(FC, bf16(-70000.0)),
        says="float16 ends at 65504",
    ),
    Patch("the largest number of float16", (), tensors=poisoned(FC, bf16(65280.0))),
    Patch(
        "an embedding of random numbers",
        ("EGL704",),
        tensors={EMBEDDING: floats("random", VOCAB, HIDDEN)},
        also=with_target_weights,
        target_config=TARGET,
        says="64 of 64 rows",
    ),
    Patch(
        "a head of the target's first rows",
        ("EGL705",),
        tensors={HEAD: head_of(list(range(DRAFT)))},
        also=with_target_weights,
        target_config=TARGET,
        says="the target's rows i",
    ),
    Patch(
        "a number whose square overflows",
        ("EGL215",),
        tensors=poisoned(FC, bf16(-2e20)),
        says="1.99e+20, whose square",
    ),
)
VALUES = {"EGL205", "EGL206", "EGL207", "EGL208", "EGL214", "EGL215", "EGL704", "EGL705"}


@pytest.mark.parametrize("patch", BAD, ids=lambda patch: patch.why)
def test_bad_numbers_give_exactly_their_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_a_bias_of_zeros_is_no_fault(tmp_path: Path) -> None:
    biases = {
        f"layers.0.self_attn.{kind}_proj.bias": ("BF16", (size,), bytes(2 * size))
        for kind, size in (("q", 32), ("k", 16), ("v", 16))
    }
    check(Patch("zeros", (), {"attention_bias": True}, biases, given={"select": sorted(VALUES)}), tmp_path)


def target_folder(parent: Path, **tensors: Stored) -> Path:
    """A target with weights, of the good drafter's width and vocabulary."""
    folder = parent / "the-target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TARGET))
    renamed = {name.replace("__", "."): stored for name, stored in tensors.items()}
    write_safetensors(folder / "model.safetensors", target_tensors() | renamed)
    return folder


def against(target: Path, folder: Path, *select: str, **given: Any) -> list[tuple[str, str]]:
    """What rules say of a drafter beside its target: (id, message), and (id, reason) of those that could
    not look.
    """
    report = eaglectl.validate(
        str(folder),
        eaglectl.ValidateOptions(target=str(target), select=select or ("EGL704", "EGL705"), **given),
    )
    return [(one.rule.id, one.match.message) for one in report.findings] + [
        (one.rule.id, one.reason) for one in report.unchecked
    ]


def test_the_targets_embedding_and_another_head_are_no_fault(tmp_path: Path) -> None:
    assert against(target_folder(tmp_path), drafter_folder(tmp_path)) == []


def test_an_embedding_of_its_own_is_said(tmp_path: Path) -> None:
    own = drafter_folder(tmp_path, tensors={EMBEDDING: floats("random", VOCAB, HIDDEN)})
    ((rule, message),) = against(target_folder(tmp_path), own)
    assert rule == "EGL704" and "64 of 64 rows looked at differ" in message


def test_one_row_that_differs_is_said(tmp_path: Path) -> None:
    own = drafter_folder(tmp_path, tensors=poisoned(EMBEDDING, bf16(0.75), 40 * HIDDEN))
    ((rule, message),) = against(target_folder(tmp_path), own)
    assert rule == "EGL704" and "1 of 64" in message and "row 40" in message


def test_an_embedding_rounded_to_another_type_is_the_same(tmp_path: Path) -> None:
    _, shape, data = drafter_tensors()[EMBEDDING]
    wide = b"".join(b"\x31\x07" + data[i : i + 2] for i in range(0, len(data), 2))
    target = target_folder(tmp_path, **{"model." + EMBEDDING: ("F32", shape, wide)})
    assert against(target, drafter_folder(tmp_path)) == []


def test_without_the_targets_weights_nobody_looked(tmp_path: Path) -> None:
    target = target_folder(tmp_path)
    (target / "model.safetensors").unlink()
    found = against(target, drafter_folder(tmp_path))
    assert [rule for rule, _ in found] == ["EGL704", "EGL705"]
    assert all("the target's weights cannot be read" in reason for _, reason in found)


def test_a_head_without_an_embedding_needs_no_targets_one(tmp_path: Path) -> None:
    assert (
        against(
            target_folder(tmp_path), drafter_folder(tmp_path, tensors={EMBEDDING: None}), "EGL704", "EGL705"
        )
        == []
    )


def test_a_head_of_the_targets_rows_is_no_fault(tmp_path: Path) -> None:
    own = drafter_folder(tmp_path, tensors={HEAD: head_of(list(TARGETS))})
    assert against(target_folder(tmp_path), own, "EGL705") == []


def test_a_head_of_the_first_rows_is_not_what_d2t_says(tmp_path: Path) -> None:
    own = drafter_folder(tmp_path, tensors={HEAD: head_of(list(range(DRAFT)))})
    ((rule, message),) = against(target_folder(tmp_path), own, "EGL2", "EGL705")
    assert rule == "EGL705" and "like the target's rows i (by 1.00)" in message


def test_a_head_cut_by_offsets_is_one_finding(tmp_path: Path) -> None:
    own = drafter_folder(tmp_path, tensors=cut_by_offsets())
    assert [rule for rule, _ in against(target_folder(tmp_path), own, "EGL2", "EGL705")] == ["EGL208"]


def test_d2t_of_ids_is_no_fault_of_the_head(tmp_path: Path) -> None:
    own = drafter_folder(tmp_path, tensors={"d2t": offsets([2 * i for i in range(DRAFT)])})
    assert "EGL705" not in [rule for rule, _ in against(target_folder(tmp_path), own)]


def test_the_pruned_fixture_is_found() -> None:
    folder = next(case.folder for case in CASES if case.path == "torchspec/llama").parent / "pruned"
    report = eaglectl.validate(str(folder), eaglectl.ValidateOptions(select=sorted(VALUES)))
    assert [one.rule.id for one in report.findings] == ["EGL208"]


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_pickled], ids=lambda case: case.path)
def test_producers_numbers_are_sound(case: Case) -> None:
    report = eaglectl.validate(
        str(case.folder), eaglectl.ValidateOptions(select=sorted(VALUES), answers=case.answered())
    )
    assert report.findings == ()
    assert {one.rule.id for one in report.unchecked} <= {"EGL704", "EGL705"}


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("place", [0, 7, 4095, 4096, 9999])
def test_every_type_is_scanned_in_every_block(
    dtype: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "BLOCK_SIZE", 4096)
    nan, infinity, largest = WORDS[dtype]
    size = len(nan)
    zero = b"\x01" * size
    plain = zero * place + largest + zero * (9999 - place)
    found = scanned(
        tmp_path,
        plain=(dtype, (10000,), plain),
        nan=(dtype, (10000,), plain.replace(largest, nan)),
        infinity=(dtype, (10000,), plain.replace(largest, infinity)),
    )
    assert found["plain"] == scanning.Summary(LARGEST[dtype], 0, -1, None)
    for name in ("nan", "infinity"):
        assert (found[name].bad, found[name].first, found[name].constant) == (1, place, None)


def scanned(folder: Path, on_progress: OnProgress | None = None, **tensors: Stored) -> Any:
    """What one pass says of tensors."""
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text("{}")
    source = FolderSource(folder)
    return scanning.scan(source, tuple(read_checkpoint(source).tensors.values()), on_progress)


def test_bytes_are_counted_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "BLOCK_SIZE", 1024)
    reported: list[tuple[int, int | None]] = []
    scanned(
        tmp_path,
        lambda progress: reported.append((progress.done, progress.total)),
        one=floats("a", 600),
        ids=offsets(),
        two=floats("b", 5, dtype="F32"),
    )
    assert reported == [(1024, 1220), (1200, 1220), (1220, 1220)]


def test_the_first_bad_number_stays_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "BLOCK_SIZE", 8)
    nan, zero = b"\xc0\x7f", bytes(2)
    found = scanned(tmp_path, norm=("BF16", (12,), nan + 8 * zero + nan + 2 * zero))
    assert (found["norm"].bad, found["norm"].first) == (2, 0)


@pytest.mark.parametrize(
    ("span", "read"),
    [
        pytest.param(60, [(12, 72)], id="near each other"),
        pytest.param(59, [(48, 60), (12, 24), (60, 72)], id="far apart"),
    ],
)
def test_rows_are_read_at_once_where_they_are_near_each_other(
    span: int, read: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "SPAN_SIZE", span)
    rows = [[float(8 * row + column) for column in range(3)] for row in range(6)]
    scanned(tmp_path, table=("F32", (6, 3), b"".join(struct.pack("<3f", *row) for row in rows)))
    checkpoint, ranges = read_checkpoint(FolderSource(tmp_path)), []

    def noted(name: str, start: int, stop: int) -> bytes:
        ranges.append((start, stop))
        return checkpoint.read(name, start, stop)

    seen: Any = SimpleNamespace(tensors=checkpoint.tensors, read=noted)
    found = scanning.read_rows(seen, "table", (4, 1, 5))
    assert (found.tolist(), ranges) == ([rows[4], rows[1], rows[5]], read)


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
    }
    whole = scanned(tmp_path, **tensors)
    assert whole["bad"] == scanning.Summary(float("inf"), 3, 17, None)
    assert [whole[name].constant for name in ("constant", "steps", "zeros")] == [1.0, None, 0.0]
    assert whole["last"].largest == 9.0
    monkeypatch.setattr(scanning, "PIECE_SIZE", 16)
    monkeypatch.setattr(scanning, "BLOCK_SIZE", 8)
    source = FolderSource(tmp_path)
    table = tuple(read_checkpoint(source).tensors.values())
    assert scanning.scan(source, table, jobs=jobs) == whole


def test_no_numbers_are_no_fault(tmp_path: Path) -> None:
    found = scanned(tmp_path, none=("BF16", (0, 4), b""), one=("BF16", (), b"\x80\x3f"))
    assert found["none"] == scanning.Summary(0.0, 0, -1, None)
    assert found["one"].constant == 1.0


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


def test_headers_alone_load_no_numpy(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    code = (
        "import eaglectl, sys; "
        f"r = eaglectl.validate({str(folder)!r}, eaglectl.ValidateOptions(headers_only=True)); "
        "print('numpy' in sys.modules, *(one.rule.id for one in r.unchecked))"
    )
    loaded, *blind = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == "False" and set(blind) >= VALUES


EIGHT_BITS = (
    ("F8_E4M3", 0x38, 1.0),
    ("F8_E4M3", 0x01, 2**-9),
    ("F8_E4M3", 0xB8, -1.0),
    ("F8_E5M2", 0x3C, 1.0),
    ("F8_E5M2", 0x01, 2**-16),
    ("F8_E4M3FNUZ", 0x40, 1.0),
    ("F8_E5M2FNUZ", 0x40, 1.0),
)


@pytest.mark.parametrize(("dtype", "word", "value"), EIGHT_BITS)
def test_words_of_eight_bits_are_the_numbers_of_their_type(dtype: str, word: int, value: float) -> None:
    assert scanning.as_floats(dtype, bytes([word])).tolist() == [value]


def test_a_spread_is_taken_from_all_over_a_large_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "SAMPLE", 64)
    write_safetensors(
        tmp_path / "model.safetensors", {"x": ("BF16", (100, 10), bf16(*[-1.0] * 500, *[1.0] * 500))}
    )
    (tmp_path / "config.json").write_text("{}")
    found = scanning.spread(read_checkpoint(FolderSource(tmp_path)), "x")
    assert (found.count, found.mean, found.deviation, found.kurtosis) == (64, 0.0, 1.0, 1.0)
