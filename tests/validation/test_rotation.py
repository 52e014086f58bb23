"""Rules on a target whose residual stream is rotated: lengths and angles of rows, marks, and the record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.drafter.tensors import embedding_digest
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import rotation_file, rotation_mark
from eaglectl.judge.scanning import is_rotated
from tests.builders import (
    HIDDEN,
    VOCAB,
    Stored,
    drafter_folder,
    drafter_tensors,
    floats,
    write_record,
    write_safetensors,
)
from tests.validation.patches import Patch, check

EMBEDDING = "embed_tokens.weight"
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
RULES = {"select": ["EGL704", "EGL710", "EGL711"]}
MODELSLIM = {"optional": {"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}}}
SPINQUANT = {
    "config_groups": {
        "R1": {
            "type": "hadamard",
            "apply": [
                {"targets": ["re:.*embed_tokens$", "re:.*o_proj$"], "location": "weight_output"},
                {"targets": ["re:.*q_proj$"], "location": "weight_input", "inverse": True},
            ],
        }
    }
}
QUIP = {"config_groups": {"u": {"apply": [{"targets": ["Linear"], "location": "weight_output"}]}}}


def reversed_columns() -> Stored:
    """The drafter's embedding in another basis of the stream: its columns in the other order, bit for bit."""
    dtype, shape, data = drafter_tensors()[EMBEDDING]
    return dtype, shape, np.frombuffer(data, "<u2").reshape(shape)[:, ::-1].tobytes()


def with_embedding(stored: Stored) -> Any:
    def write(folder: Path) -> None:
        tensors = {"model." + EMBEDDING: stored, "lm_head.weight": floats("theirs", VOCAB, HIDDEN)}
        write_safetensors(folder.parent / "target/model.safetensors", tensors)

    return write


def described(value: object) -> Any:
    def write(folder: Path) -> None:
        (folder.parent / "target/quant_model_description.json").write_text(json.dumps(value))

    return write


ROTATED: dict[str, Any] = {
    "also": with_embedding(reversed_columns()),
    "target_config": TARGET,
    "given": RULES,
}
SHARED: dict[str, Any] = {"tensors": {EMBEDDING: None}, "given": RULES, "blind": ("EGL710",)}
BAD = (
    Patch("a rotated target", ("EGL710",), says="rows of the same lengths and angles", **ROTATED),
    Patch(
        "a target that ModelSlim rotated",
        ("EGL711",),
        also=described(MODELSLIM),
        target_config=TARGET,
        says="which ModelSlim writes",
        **SHARED,
    ),
    Patch(
        "a rotated target without the matrix",
        ("EGL711",),
        also=described({"is_rot_used": True}),
        target_config=TARGET,
        **SHARED,
    ),
    Patch(
        "a target that llm-compressor rotated",
        ("EGL711",),
        target_config={**TARGET, "quantization_config": {"transform_config": SPINQUANT}},
        says="SpinQuant",
        **SHARED,
    ),
)
WEIGHTS: dict[str, Any] = {"target_config": TARGET, "given": RULES}
OTHER = ("EGL704",)
GOOD = (
    Patch(
        "the target's embedding", (), also=with_embedding(drafter_tensors()[EMBEDDING]), blind=(), **WEIGHTS
    ),
    Patch("another embedding", OTHER, also=with_embedding(floats("random", VOCAB, HIDDEN)), **WEIGHTS),
    Patch("QuIP", (), target_config={**TARGET, "quantization_config": {"transform_config": QUIP}}, **SHARED),
    Patch(
        "not rotated",
        (),
        also=described({**MODELSLIM, "is_rot_used": False}),
        target_config=TARGET,
        **SHARED,
    ),
    Patch("a description that is a list", (), also=described([1]), target_config=TARGET, **SHARED),
    Patch("no target", (), given=RULES, blind=("EGL704", "EGL710", "EGL711")),
)


@pytest.mark.parametrize("patch", (*BAD, *GOOD), ids=lambda patch: patch.why)
def test_a_rotation_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


def test_the_fix_of_a_marked_target_names_its_file(tmp_path: Path) -> None:
    (finding,) = BAD[1].report(tmp_path).findings
    target = tmp_path / "target"
    assert f"--target-rotation {target}/optional/quarot.safetensors --target {target}`" in finding.fix


def test_a_drafter_without_a_head_gets_no_command_that_would_fail(tmp_path: Path) -> None:
    tensors = {"lm_head.weight": None, "d2t": None, "t2d": None}
    config = {"draft_vocab_size": VOCAB}
    patch = Patch("headless", (), config=config, tensors=tensors, **ROTATED)
    (finding,) = patch.report(tmp_path).findings
    assert "`" not in finding.fix and "--trained-target" in finding.fix


# --------------------------------------------------------------------------------- what eaglectl rotated


def recorded(tmp_path: Path, rotation: dict[str, Any], **tensors: Any) -> list[str]:
    """The messages on a drafter with this record and a rotated target; those of rules that could not look."""
    folder = drafter_folder(tmp_path, tensors=tensors)
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text(json.dumps(TARGET))
    with_embedding(reversed_columns())(folder)
    if "target_embedding" in rotation:
        from eaglectl.files.checkpoint import read_checkpoint

        digest = embedding_digest(read_checkpoint(FolderSource(tmp_path / "target")))
        rotation = {**rotation, "target_embedding": rotation["target_embedding"] or digest}
    write_record(folder, target_rotation=rotation)
    options = eaglectl.ValidateOptions(target=str(tmp_path / "target"), **RULES)
    report = eaglectl.validate(str(folder), options)
    return [one.match.message for one in report.findings] + [one.reason for one in report.unchecked]


def test_a_drafter_rotated_for_this_target_passes(tmp_path: Path) -> None:
    assert recorded(tmp_path, {"embedding": "own", "target_embedding": None}) == []


def test_a_record_of_a_rotation_is_no_evidence_of_the_embedding(tmp_path: Path) -> None:
    rotation = {"embedding": "own", "target_embedding": None}
    (reason,) = recorded(tmp_path, rotation, **{EMBEDDING: floats("random", VOCAB, HIDDEN)})
    assert "rows of neither the target's values nor their lengths and angles" in reason


def test_a_drafter_rotated_for_another_target_is_reported(tmp_path: Path) -> None:
    (message,) = recorded(tmp_path, {"embedding": "own", "target_embedding": "0" * 64})
    assert "another embedding" in message


def test_a_rotated_drafter_that_lost_its_embedding_is_reported(tmp_path: Path) -> None:
    rotation = {"embedding": "own", "target_embedding": None}
    (message,) = recorded(tmp_path, rotation, **{EMBEDDING: None})
    assert message.endswith("and the file has none")


# ---------------------------------------------------------------------------------------- the comparison

ROWS, WIDTH = 48, 64


def bfloat16(values: Any) -> Any:
    return (np.asarray(values, "<f4").view("<u4") + 0x8000 & 0xFFFF0000).view("<f4").astype(np.float64)


def drawn(seed: int, mean: float = 0.0) -> Any:
    """Rows of lengths between 0.5 and 2, as embeddings have them."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(ROWS, WIDTH)) + mean) * random.uniform(0.5, 2, (ROWS, 1))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_any_rotation_is_seen_through_the_rounding_of_bfloat16(seed: int, mean: float) -> None:
    rows = bfloat16(drawn(seed, mean))
    rotation, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(WIDTH, WIDTH)))
    assert is_rotated(rows, bfloat16(rows @ rotation))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.5))
def test_neither_another_embedding_nor_a_trained_one_is_a_rotation(seed: int, change: float) -> None:
    rows, others = drawn(seed), drawn(seed + 1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    others *= lengths / np.linalg.norm(others, axis=1, keepdims=True)
    assert not is_rotated(rows, others)  # of the same lengths, at other angles
    assert not is_rotated(rows, rows + change * others)


def test_rows_of_zeros_tell_nothing() -> None:
    rows = np.zeros((ROWS, WIDTH))
    assert not is_rotated(rows, rows)
    rows[:7, 0] = 1.0
    assert not is_rotated(rows, rows[:, ::-1])  # too few are left
    rows[:8, 0] = 1.0
    assert is_rotated(rows, rows[:, ::-1])


def test_a_longer_row_is_no_rotated_one() -> None:
    rows = drawn(1)
    assert is_rotated(rows, rows[:, ::-1])
    rows[3] *= 1.02
    assert not is_rotated(drawn(1), rows[:, ::-1])


@pytest.mark.parametrize(
    ("description", "file"),
    [
        (MODELSLIM, "optional/quarot.safetensors"),
        ({**MODELSLIM, "is_rot_used": True}, "optional/quarot.safetensors"),
        ({**MODELSLIM, "is_rot_used": False}, None),
        ({"is_rot_used": True}, None),
        ({"optional": {"quarot": {"rotation_map": {"global_rotation": 3}}}}, None),
    ],
)
def test_the_matrix_is_where_modelslim_says(description: Any, file: str | None, tmp_path: Path) -> None:
    (tmp_path / "quant_model_description.json").write_text(json.dumps(description))
    assert rotation_file(FolderSource(tmp_path)) == file


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": None},
        {"quantization_config": {"transform_config": []}},
        {"quantization_config": {"transform_config": {"config_groups": {"R1": {"apply": 3}}}}},
        {
            "quantization_config": {
                "transform_config": {"config_groups": {"R1": {"apply": [{"location": 1}]}}}
            }
        },
    ],
)
def test_a_config_of_other_values_is_no_mark(config: Any, tmp_path: Path) -> None:
    assert rotation_mark(FolderSource(tmp_path), config) == ""


def test_a_nested_config_is_looked_at(tmp_path: Path) -> None:
    config = {"text_config": {"quantization_config": {"transform_config": SPINQUANT}}}
    assert "SpinQuant" in rotation_mark(FolderSource(tmp_path), config)
