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
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.judge.scanning import is_rotated
from tests.builders import (
    HIDDEN,
    VOCAB,
    Stored,
    drafter_folder,
    drafter_tensors,
    floats,
    target_of,
    write_record,
    write_safetensors,
)
from tests.validation.patches import Patch, aim, exact

EMBEDDING = "embed_tokens.weight"
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
RULES: dict[str, Any] = {"select": ["EGL704", "EGL710", "EGL711"]}
MODELSLIM = {"optional": {"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}}}


def transformed(*applied: object) -> dict[str, Any]:
    """The key of a config by which llm-compressor states what it applied to weights."""
    groups = {f"R{number}": {"type": "hadamard", "apply": each} for number, each in enumerate(applied)}
    return {"quantization_config": {"transform_config": {"config_groups": groups}}}


SPINQUANT = transformed(
    [
        {"targets": ["re:.*embed_tokens$", "re:.*o_proj$"], "location": "weight_output"},
        {"targets": ["re:.*q_proj$"], "location": "weight_input", "inverse": True},
    ]
)
QUIP = transformed([{"targets": ["Linear"], "location": "weight_output"}])


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


WEIGHTS: dict[str, Any] = {"target_config": TARGET, "given": RULES}
ROTATED: dict[str, Any] = {"also": with_embedding(reversed_columns()), **WEIGHTS}
SHARED: dict[str, Any] = {"tensors": {EMBEDDING: None}, "given": RULES, "blind": ("EGL710",)}
BAD = (
    Patch("a rotated target", "EGL710", says="have the lengths and angles of", **ROTATED),
    aim("ModelSlim's", "EGL711", TARGET, "which ModelSlim writes", also=described(MODELSLIM), **SHARED),
    aim("without the matrix", "EGL711", TARGET, also=described({"is_rot_used": True}), **SHARED),
    aim("by llm-compressor", "EGL711", {**TARGET, **SPINQUANT}, "SpinQuant", **SHARED),
    aim("of a nested config", "EGL711", {**TARGET, "text_config": SPINQUANT}, "SpinQuant", **SHARED),
)
GOOD = (
    Patch("target's embedding", "", also=with_embedding(drafter_tensors()[EMBEDDING]), blind=(), **WEIGHTS),
    Patch("another embedding", "EGL704", also=with_embedding(floats("random", VOCAB, HIDDEN)), **WEIGHTS),
    aim("QuIP", "", {**TARGET, **QUIP}, **SHARED),
    aim("no quantisation", "", {**TARGET, "quantization_config": None}, **SHARED),
    aim("a list", "", {**TARGET, "quantization_config": {"transform_config": []}}, **SHARED),
    aim("odd values", "", {**TARGET, **transformed(3, [{"location": 1}])}, **SHARED),
    aim("not rotated", "", TARGET, also=described({**MODELSLIM, "is_rot_used": False}), **SHARED),
    aim("a description that is a list", "", TARGET, also=described([1]), **SHARED),
    Patch("no target", "", given=RULES, blind=("EGL704", "EGL710", "EGL711")),
)

test_a_rotation_gives_exactly_its_findings = exact(BAD + GOOD)


def test_the_fix_of_a_marked_target_names_its_file(tmp_path: Path) -> None:
    (finding,) = BAD[1].report(tmp_path).findings
    target = tmp_path / "target"
    assert f"--target-rotation {target}/optional/quarot.safetensors --target {target}`" in finding.fix


HEADLESS = {"lm_head.weight": None, "d2t": None}


def test_a_drafter_without_a_head_gets_no_command_that_would_fail(tmp_path: Path) -> None:
    (finding,) = Patch("", "", {"draft_vocab_size": VOCAB}, "", HEADLESS, **ROTATED).report(tmp_path).findings
    assert "`" not in finding.fix and "--trained-target" in finding.fix


OWN = {"embedding": "own", "target_embedding": None}
RANDOM = {EMBEDDING: floats("random", VOCAB, HIDDEN)}
RECORDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rotated for this target": (OWN, {}, ""),
    "no evidence of the embedding": (OWN, RANDOM, "have neither the target's values"),
    "for another target": ({"embedding": "own", "target_embedding": "0" * 64}, {}, "another embedding"),
    "without its embedding": (OWN, {EMBEDDING: None}, "but the file has none"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_what_eaglectl_rotated_is_judged_by_its_record_and_its_embedding(name: str, tmp_path: Path) -> None:
    rotation, tensors, says = RECORDS[name]
    folder, target = drafter_folder(tmp_path, tensors=tensors), target_of(tmp_path / "target")
    with_embedding(reversed_columns())(folder)
    digest = rotation["target_embedding"] or embedding_digest(read_checkpoint(FolderSource(target)))
    write_record(folder, target_rotation={**rotation, "target_embedding": digest})
    report = eaglectl.validate(folder, target=str(target), **RULES)
    messages = [finding.match.message for finding in report.findings]
    messages += [entry.reason for entry in report.unchecked]
    assert len(messages) == bool(says) and says in "".join(messages)


# ---------------------------------------------------------------------------------------- the comparison

ROWS, WIDTH = 48, 64


def bfloat16(values: Any) -> Any:
    return (np.asarray(values, "<f4").view("<u4") + 0x8000 & 0xFFFF0000).view("<f4").astype(np.float64)


def drawn(seed: int, mean: float = 0.0) -> Any:
    """Rows of lengths between 0.5 and 2, as embeddings have them."""
    random = np.random.default_rng(seed)
    return (random.normal(size=(ROWS, WIDTH)) + mean) * random.uniform(0.5, 2, (ROWS, 1))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_any_rotation_is_seen_through_the_rounding_of_bfloat16(seed: int, mean: float) -> None:
    rows = bfloat16(drawn(seed, mean))
    rotation, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(WIDTH, WIDTH)))
    assert is_rotated(rows, bfloat16(rows @ rotation))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.5))
def test_neither_another_embedding_nor_a_trained_one_is_a_rotation(seed: int, change: float) -> None:
    rows, others = drawn(seed), drawn(seed + 1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    others *= lengths / np.linalg.norm(others, axis=1, keepdims=True)
    assert not is_rotated(rows, others)  # of the same lengths, at other angles
    assert not is_rotated(rows, rows + change * others)
