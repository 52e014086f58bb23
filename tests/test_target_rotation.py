"""`convert --target-rotation`: a drafter follows a target whose residual stream is rotated.

The trained pairs of the fixtures are run with their targets rotated by a random orthogonal matrix; what is
refused, and the maths of norms and masks, is looked at on small drafters.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eaglectl
from eaglectl.api.convert import ConvertOptions
from eaglectl.drafter.floats import decode
from eaglectl.errors import RefusedError, UsageError
from tests.builders import (
    HIDDEN,
    VOCAB,
    Stored,
    call,
    drafter_folder,
    drafter_tensors,
    floats,
    read_safetensors,
    target_of,
    write_safetensors,
)
from tests.conftest import FIXTURES

EMBEDDING, OPTION = "embed_tokens.weight", "--target-rotation"
NORM = {f"fc_norm.{block}.weight": floats(f"fc_norm.{block}", HIDDEN) for block in range(3)}
INPUT_NORM = {"input_norm.weight": floats("input_norm", 3 * HIDDEN)}


def rotation(size: int = HIDDEN, seed: int = 3) -> Any:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def numbers(stored: Stored) -> Any:
    dtype, shape, data = stored
    return decode(data, dtype, "a tensor").reshape(shape)


def single(values: Any) -> Stored:
    return "F32", tuple(values.shape), np.ascontiguousarray(values, "<f4").tobytes()


def target(folder: Path, matrix: Any = None, **tensors: Stored) -> Path:
    """A target whose embedding is the good drafter's, rotated; nothing else of it is read."""
    embedding = numbers(drafter_tensors()[EMBEDDING]) @ (rotation() if matrix is None else matrix)
    return target_of(folder, {"model.embed_tokens.weight": single(embedding), **tensors})


def matrix_file(path: Path, matrix: Any, name: str = "global_rotation") -> str:
    return str(write_safetensors(path, {name: single(matrix)}))


def rotated(source: Path, out: Path, **given: Any) -> dict[str, Stored]:
    """The tensors that the conversion writes."""
    eaglectl.convert(str(source), out, ConvertOptions(**{"target_rotation": "measure", **given}))
    return read_safetensors(out / "model.safetensors")


def rms_normed(states: Any, weight: Any) -> Any:
    return states / np.sqrt(np.square(states).mean(-1, keepdims=True) + 1e-6) * weight


def projected(tensors: dict[str, Stored], states: Any) -> Any:
    """What fc makes of the states [aux, hidden], behind the norms that these tensors have."""
    if "input_norm.weight" in tensors:
        states = rms_normed(states.reshape(-1), numbers(tensors["input_norm.weight"])).reshape(states.shape)
    if "fc_norm.0.weight" in tensors:
        weights = [numbers(tensors[f"fc_norm.{block}.weight"]) for block in range(3)]
        states = np.stack([rms_normed(*pair) for pair in zip(states, weights, strict=True)])
    return numbers(tensors["fc.weight"]) @ states.reshape(-1)


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({}, {}),
        ({"fc_norm": True, "norm_output": True}, NORM),
        ({"norm_before_fc": True, "norm_output": True}, INPUT_NORM),
    ],
    ids=["EAGLE-3", "3.1", "3.1-joint"],
)
def test_fc_makes_the_same_of_rotated_states_and_all_else_stays_byte_for_byte(
    config: dict[str, Any], tensors: dict[str, Stored], tmp_path: Path
) -> None:
    source, whole = drafter_folder(tmp_path, config=config, tensors=tensors), str(target(tmp_path / "t"))
    stored = read_safetensors(source / "model.safetensors")
    after = rotated(source, tmp_path / "out", target=whole, dtype="F32")
    states = np.random.default_rng(5).normal(size=(3, HIDDEN)) * [[0.1], [3.0], [40.0]]
    before = projected(stored, states)
    assert projected(after, states @ rotation()) == pytest.approx(before, rel=1e-5, abs=1e-5)
    assert not np.allclose(projected(after, states), before, rtol=0.1)
    same = rotated(source, tmp_path / "same", target=whole)
    changed = {name for name in stored if same[name] != stored[name]}
    assert "fc.weight" in changed <= {"fc.weight", *INPUT_NORM, *NORM} and same.keys() == stored.keys()


def test_for_sglang_the_embeddings_readers_turn(tmp_path: Path) -> None:
    options = {"target": str(target(tmp_path / "t")), "layout": "sglang", "dtype": "F32"}
    after, before = rotated(drafter_folder(tmp_path), tmp_path / "out", **options), drafter_tensors()
    assert before.keys() - after.keys() == {EMBEDDING}
    row = numbers(before[EMBEDDING])[7]
    for name in ("q", "k", "v"):
        sides = []
        for tensors, state in ((before, row), (after, row @ rotation())):
            normed = rms_normed(state, numbers(tensors["layers.0.input_layernorm.weight"]))
            weight = numbers(tensors[f"layers.0.self_attn.{name}_proj.weight"])
            sides.append(weight @ np.concatenate([normed, np.ones(HIDDEN)]))
        assert sides[1] == pytest.approx(sides[0], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ["global_rotation", "rot.weight"])
def test_a_file_and_the_folder_of_a_modelslim_target_rotate_as_measuring_does(
    name: str, tmp_path: Path
) -> None:
    source, folder = drafter_folder(tmp_path), target(tmp_path / "t")
    whole = str(folder)
    measured = rotated(source, tmp_path / "a", target=whole)
    file = matrix_file(tmp_path / "q.safetensors", rotation(), name=name)
    assert rotated(source, tmp_path / "b", target=whole, target_rotation=file) == measured
    stated = json.loads((tmp_path / "b/eaglectl.json").read_text())["target_rotation"]
    assert (stated["file"], stated["tensor"], stated["embedding"]) == ("q.safetensors", name, "own")
    assert stated["residual"] < 1e-6
    (folder / "optional").mkdir()
    matrix_file(folder / "optional/quarot.safetensors", rotation())
    quarot = {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}
    (folder / "quant_model_description.json").write_text(json.dumps({"optional": {"quarot": quarot}}))
    assert rotated(source, tmp_path / "c", target=whole, target_rotation=whole) == measured


def test_an_embedding_that_is_not_there_is_rotated_back(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, tensors={EMBEDDING: None})
    file = matrix_file(tmp_path / "q.safetensors", rotation())
    given = {"target": str(target(tmp_path / "t")), "dtype": "F32", "target_rotation": file}
    done = eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(**given))
    after = read_safetensors(tmp_path / "out/model.safetensors")
    assert numbers(after[EMBEDDING]) == pytest.approx(numbers(drafter_tensors()[EMBEDDING]), abs=1e-6)
    assert any("was not compared" in note.text for note in done.plan.notes)


def test_a_conversion_of_the_output_still_knows_of_it(tmp_path: Path) -> None:
    whole = str(target(tmp_path / "t"))
    rotated(drafter_folder(tmp_path), tmp_path / "a", target=whole)
    eaglectl.convert(str(tmp_path / "a"), tmp_path / "b", ConvertOptions())
    again = eaglectl.inspect(str(tmp_path / "b")).drafter
    assert again.rotation is not None and again.rotation["embedding"] == "own"
    with pytest.raises(RefusedError, match="rotated already"):
        rotated(tmp_path / "b", tmp_path / "c", target=whole)


HEADLESS = {"lm_head.weight": None, "d2t": None, "t2d": None}
NOISE, SHARED = np.random.default_rng(1).normal(size=(HIDDEN, HIDDEN)), {"tensors": {EMBEDDING: None}}
BOTH = {"fc_norm": True, "norm_before_fc": True, "norm_output": True}


def rows_of(count: int) -> Stored:
    return single((numbers(drafter_tensors()[EMBEDDING]) @ rotation())[:count])


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (rotation(seed=4), "does not rotate the drafter's embedding"),
        (rotation().T, "not transposed"),
        (rotation() * 1.01, "is no rotation"),
        (np.full((HIDDEN, HIDDEN), np.nan), "is no rotation"),
        (rotation(HIDDEN - 1), r"must have one matrix \[16, 16\]"),
        (rotation()[:3], "must have one matrix"),
    ],
    ids=["another", "transposed", "scaled", "not finite", "too small", "not square"],
)
def test_a_wrong_matrix_is_refused(matrix: Any, words: str, tmp_path: Path) -> None:
    whole, file = str(target(tmp_path / "t")), matrix_file(tmp_path / "q.safetensors", matrix)
    with pytest.raises(RefusedError, match=words):
        rotated(drafter_folder(tmp_path), tmp_path / "out", target=whole, target_rotation=file)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize("place", ["target", "trained_target"])
def test_an_embedding_of_another_width_is_refused(place: str, is_measured: bool, tmp_path: Path) -> None:
    wide = {"model.embed_tokens.weight": floats("wide", VOCAB, HIDDEN + 8)}
    given = {"target": str(target(tmp_path / "t")), place: str(target(tmp_path / "wide", **wide))}
    if not is_measured:
        given["target_rotation"] = matrix_file(tmp_path / "q.safetensors", rotation())
    words = f"of --{place.replace('_', '-')} has width 24, and the drafter takes hidden states of width 16"
    with pytest.raises(RefusedError, match=words):
        rotated(drafter_folder(tmp_path), tmp_path / "out", **given)


@pytest.mark.parametrize(
    ("matrix", "embedding", "words"),
    [
        (NOISE, None, "no rotation maps"),
        (np.eye(HIDDEN), None, "is not rotated"),
        (None, rows_of(HIDDEN - 1), "no rotation maps"),
        (None, single(np.full((VOCAB, HIDDEN), np.nan)), "not finite"),
    ],
    ids=["no rotation", "not rotated", "too few rows", "not finite"],
)
def test_a_target_of_no_rotation_is_refused(
    matrix: Any, embedding: Stored | None, words: str, tmp_path: Path
) -> None:
    tensors = {"model.embed_tokens.weight": embedding} if embedding else {}
    whole = str(target(tmp_path / "t", matrix, **tensors))
    with pytest.raises(RefusedError, match=words):
        rotated(drafter_folder(tmp_path), tmp_path / "out", target=whole)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("drafter", "given", "words"),
    [
        ({}, {"version": "3.1"}, "leave --to 3.1 out"),
        ({}, {"has_target_head": True}, "--trained-target"),
        (SHARED, {}, "pass --trained-target"),
        ({}, {"drop": (EMBEDDING,)}, f"leave --drop {EMBEDDING} out"),
        (
            {"config": {"draft_vocab_size": VOCAB}, "tensors": HEADLESS},
            {},
            "includes the final norm; pass --trained-target",
        ),
        ({}, {"target_rotation": str(FIXTURES)}, "names no rotation"),
        ({}, {"target": None}, "pass --target with its weights"),
        ({}, {"target_rotation": None, "trained_target": "nowhere"}, "needs --target-rotation"),
        (
            {"config": BOTH, "tensors": {**NORM, **INPUT_NORM}},
            {},
            r"has input_norm \(norm_before_fc\) and fc",
        ),
    ],
)
def test_what_it_does_not_go_with_is_said(
    drafter: dict[str, Any], given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source, whole = drafter_folder(tmp_path, **drafter), str(target(tmp_path / "t"))
    with pytest.raises(RefusedError if drafter.get("config") == BOTH else UsageError, match=words):
        rotated(source, tmp_path / "out", **{"target": whole, **given})
    assert not (tmp_path / "out").exists()


pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from eaglectl.run.results import SmokeReport  # noqa: E402
from tests.rotated import random_rotation, rotate_target  # noqa: E402

PAIRS = {"tiny": 128, "second": 96}
DRAFTERS = ("tiny/eagle3", "tiny/eagle3.1", "second/eagle3", "second/mla")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixtures' targets, rotated; PAIR.safetensors has the matrix."""
    root = tmp_path_factory.mktemp("rotated")
    for pair, size in PAIRS.items():
        matrix = random_rotation(size)
        rotate_target(FIXTURES / pair / "target", root / pair, matrix)
        save_file({"global_rotation": matrix.float()}, root / f"{pair}.safetensors")
    return root


def original(name: str) -> Path:
    return FIXTURES / name.partition("/")[0] / "target"


def smoke(drafter: Path, whole: Path, name: str) -> SmokeReport:
    prompts = FIXTURES / name.partition("/")[0] / "prompts.jsonl"
    given: dict[str, Any] = {"run_in": "reference", "device": "cpu", "k": 3, "max_tokens": 16, "sample": 8}
    return eaglectl.smoke(drafter, whole, prompts=prompts, **given)


def with_own_embedding(name: str, folder: Path) -> Path:
    """The drafter in vLLM's layout, with the target's embedding as its own, as trainers copy it."""
    eaglectl.convert(str(FIXTURES / name), folder, ConvertOptions(target=str(original(name))))
    tensors = load_file(folder / "model.safetensors")
    whole = load_file(original(name) / "model.safetensors")
    save_file(tensors | {EMBEDDING: whole["model.embed_tokens.weight"]}, folder / "model.safetensors")
    (folder / "eaglectl.json").unlink()
    return folder


def assert_same_drafts(after: SmokeReport, before: SmokeReport) -> None:
    """The same rounds but for a few near ties, which rounding decides."""
    pairs = list(zip(after.run.results, before.run.results, strict=True))
    assert sum(one == other for one, other in pairs) >= len(pairs) - 1
    assert after.measured.length.value == pytest.approx(before.measured.length.value, rel=0.03)


@pytest.mark.slow  # the diagnosis below runs the same conversion
@pytest.mark.parametrize("name", DRAFTERS)
def test_measuring_restores_what_a_rotation_took(name: str, targets: Path, tmp_path: Path) -> None:
    source = with_own_embedding(name, tmp_path / "own")
    whole = targets / name.partition("/")[0]
    before = smoke(source, original(name), name)
    assert before.measured.length.value > 2
    assert smoke(source, whole, name).measured.length.value < 1.15
    rotated(source, tmp_path / "out", target=str(whole))
    assert_same_drafts(smoke(tmp_path / "out", whole, name), before)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["vllm", "sglang"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_file_restores_drafters_that_share_their_targets_embedding(
    name: str, layout: str, targets: Path, tmp_path: Path
) -> None:
    pair = name.partition("/")[0]
    whole, file = targets / pair, targets / f"{pair}.safetensors"
    before = smoke(FIXTURES / name, original(name), name)
    # SGLang does not start a drafter of fewer positions than its target
    given = {"target": str(whole), "target_rotation": str(file), "layout": layout, "force_unserved": True}
    after = rotated(FIXTURES / name, tmp_path / "out", **given)
    assert (EMBEDDING in after) == (layout == "vllm")
    assert_same_drafts(smoke(tmp_path / "out", whole, name), before)


def test_the_diagnosis_ends_in_it_and_its_command_repairs(targets: Path, tmp_path: Path) -> None:
    name, whole = "tiny/eagle3", targets / "tiny"
    source = with_own_embedding(name, tmp_path / "own")
    diagnosis = eaglectl.diagnose(str(source), str(whole), eaglectl.DiagnoseOptions(device="cpu"))
    assert (diagnosis.cause, diagnosis.ending, diagnosis.verdict) == ("rotated-target", "pair", "fail")
    (command,) = diagnosis.commands
    done = call(*shlex.split(command)[1:], "-o", tmp_path / "mended")
    assert done.code == 0, done.err
    assert smoke(tmp_path / "mended", whole, name).measured.length.value > 2
