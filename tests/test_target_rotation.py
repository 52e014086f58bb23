"""`convert --target-rotation`: a drafter follows a target whose residual stream is rotated.

The trained pairs of the fixtures are run with their targets rotated by a random orthogonal matrix; what is
refused, and the maths of norms and masks, is looked at on small drafters.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eaglectl
from eaglectl.conversion.arithmetic import decode
from eaglectl.drafter.drafter import Target
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.formats.format import Answers
from eaglectl.formats.reader import read_drafter
from eaglectl.operations import converting
from eaglectl.operations.converting import ConvertOptions
from tests.builders import (
    HIDDEN,
    VOCAB,
    Stored,
    call,
    drafter_folder,
    drafter_tensors,
    floats,
    read_safetensors,
    write_safetensors,
)
from tests.conftest import FIXTURES

EMBEDDING, OPTION = "embed_tokens.weight", "--target-rotation"
CONFIG = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}
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
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    embedding = numbers(drafter_tensors()[EMBEDDING]) @ (rotation() if matrix is None else matrix)
    whole = {"model.embed_tokens.weight": single(embedding), **tensors}
    write_safetensors(folder / "model.safetensors", whole)
    return folder


def matrix_file(path: Path, *matrices: Any, name: str = "global_rotation") -> str:
    write_safetensors(path, {name + "x" * i: single(matrix) for i, matrix in enumerate(matrices)})
    return str(path)


def rotated(source: Path, out: Path, **given: Any) -> dict[str, Stored]:
    """The tensors that the conversion writes."""
    eaglectl.convert(str(source), out, ConvertOptions(**{"target_rotation": "measure", **given}))
    return read_safetensors(out / "model.safetensors")


# ---------------------------------------------------------------------------------------------- the maths


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
def test_fc_makes_the_same_of_rotated_states(
    config: dict[str, Any], tensors: dict[str, Stored], tmp_path: Path
) -> None:
    source = drafter_folder(tmp_path, config=config, tensors=tensors)
    after = rotated(source, tmp_path / "out", target=str(target(tmp_path / "t")), dtype="F32")
    states = np.random.default_rng(5).normal(size=(3, HIDDEN)) * [[0.1], [3.0], [40.0]]
    before = projected(read_safetensors(source / "model.safetensors"), states)
    assert projected(after, states @ rotation()) == pytest.approx(before, rel=1e-5, abs=1e-5)
    assert not np.allclose(projected(after, states), before, rtol=0.1)


def test_a_mask_turns_as_the_states_do(tmp_path: Path) -> None:
    mask = floats("mask", 3 * HIDDEN)
    source = drafter_folder(tmp_path, config={"mask_token_id": 3}, tensors={"mask_hidden": mask})
    after = rotated(source, tmp_path / "out", target=str(target(tmp_path / "t")), dtype="F32")
    expected = numbers(mask).reshape(3, HIDDEN) @ rotation()
    assert numbers(after["mask_hidden"]) == pytest.approx(expected.reshape(-1), abs=1e-6)


def test_all_else_stays_byte_for_byte(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    after = rotated(source, tmp_path / "out", target=str(target(tmp_path / "t")))
    before = read_safetensors(source / "model.safetensors")
    assert {name for name in before if after[name] != before[name]} == {"fc.weight"}
    assert after.keys() == before.keys()


def test_for_sglang_the_embeddings_readers_turn(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    options = {"target": str(target(tmp_path / "t")), "layout": "sglang", "dtype": "F32"}
    after, before = (
        rotated(source, tmp_path / "out", **options),
        read_safetensors(source / "model.safetensors"),
    )
    assert before.keys() - after.keys() == {EMBEDDING}
    row = numbers(drafter_tensors()[EMBEDDING])[7]
    norm = "layers.0.input_layernorm.weight"
    for name in ("q", "k", "v"):
        weight = f"layers.0.self_attn.{name}_proj.weight"
        sides = []
        for tensors, state in ((before, row), (after, row @ rotation())):
            inner = np.concatenate([rms_normed(state, numbers(tensors[norm])), np.ones(HIDDEN)])
            sides.append(numbers(tensors[weight]) @ inner)
        assert sides[1] == pytest.approx(sides[0], rel=1e-4, abs=1e-4)


# ------------------------------------------------------------------------------------- files and records


@pytest.mark.parametrize("name", ["global_rotation", "rot.weight"])
def test_a_file_rotates_as_measuring_does(name: str, tmp_path: Path) -> None:
    source, whole = drafter_folder(tmp_path), str(target(tmp_path / "t"))
    measured = rotated(source, tmp_path / "a", target=whole)
    file = matrix_file(tmp_path / "q.safetensors", rotation(), name=name)
    assert rotated(source, tmp_path / "b", target=whole, target_rotation=file) == measured
    stated = json.loads((tmp_path / "b/eaglectl.json").read_text())["target_rotation"]
    assert (stated["file"], stated["tensor"], stated["embedding"]) == ("q.safetensors", name, "own")
    assert stated["residual"] < 1e-6


def test_a_matrix_in_bfloat16_is_made_orthogonal(tmp_path: Path) -> None:
    source, whole = drafter_folder(tmp_path), str(target(tmp_path / "t"))
    coarse = (np.asarray(rotation(), "<f4").view("<u4") + 0x8000 & 0xFFFF0000).view("<f4")
    file = matrix_file(tmp_path / "q.safetensors", coarse)
    after = rotated(source, tmp_path / "out", target=whole, target_rotation=file, dtype="F32")
    sizes = [np.linalg.norm(numbers(tensors["fc.weight"]), axis=1) for tensors in (after, drafter_tensors())]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-6)


def test_the_folder_of_a_modelslim_target_names_its_file(tmp_path: Path) -> None:
    whole = target(tmp_path / "t")
    (whole / "optional").mkdir()
    matrix_file(whole / "optional/quarot.safetensors", rotation())
    description = {
        "optional": {"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}}
    }
    (whole / "quant_model_description.json").write_text(json.dumps(description))
    source = drafter_folder(tmp_path)
    given = {"target": str(whole), "target_rotation": str(whole)}
    assert rotated(source, tmp_path / "a", **given) == rotated(source, tmp_path / "b", target=str(whole))


def test_an_embedding_that_is_not_there_is_rotated_back(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path, tensors={EMBEDDING: None})
    given = {"target": str(target(tmp_path / "t")), "dtype": "F32"}
    file = matrix_file(tmp_path / "q.safetensors", rotation())
    done = eaglectl.convert(str(source), tmp_path / "out", ConvertOptions(**given, target_rotation=file))
    after = read_safetensors(tmp_path / "out/model.safetensors")
    assert numbers(after[EMBEDDING]) == pytest.approx(numbers(drafter_tensors()[EMBEDDING]), abs=1e-6)
    assert any("was not compared" in note.text for note in done.plan.notes)


def test_embedding_and_head_come_from_the_trained_target(tmp_path: Path) -> None:
    headless = {EMBEDDING: None, "lm_head.weight": None, "d2t": None, "t2d": None}
    source = drafter_folder(tmp_path, config={"draft_vocab_size": VOCAB}, tensors=headless)
    head = floats("the head", VOCAB, HIDDEN)
    trained = target(tmp_path / "trained", np.eye(HIDDEN), **{"lm_head.weight": head})
    given = {"target": str(target(tmp_path / "t")), "trained_target": str(trained)}
    after = rotated(source, tmp_path / "out", **given)
    assert after["lm_head.weight"] == head
    assert numbers(after[EMBEDDING]) == pytest.approx(numbers(drafter_tensors()[EMBEDDING]), abs=1e-6)


def test_a_conversion_of_the_output_still_knows_of_it(tmp_path: Path) -> None:
    whole = str(target(tmp_path / "t"))
    rotated(drafter_folder(tmp_path), tmp_path / "a", target=whole)
    eaglectl.convert(str(tmp_path / "a"), tmp_path / "b", ConvertOptions())
    again = read_drafter(read_checkpoint(FolderSource(tmp_path / "b")), Answers(), Target())
    assert again.rotation is not None and again.rotation["embedding"] == "own"
    with pytest.raises(RefusedError, match="rotated already"):
        rotated(tmp_path / "b", tmp_path / "c", target=whole)


def test_the_command_rotates_and_validates(tmp_path: Path) -> None:
    source, whole = drafter_folder(tmp_path), target(tmp_path / "t")
    assert call("validate", source, "--target", whole, "--select", "EGL710").code == 1
    done = call("convert", source, "-o", tmp_path / "out", OPTION, "measure", "--target", whole)
    assert done.code == 0, done.err
    assert call("validate", tmp_path / "out", "--target", whole, "--select", "EGL7").code == 0


# ------------------------------------------------------------------------------------------ what is refused


def test_the_layout_that_a_refusal_offers_is_planned_with_the_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []
    monkeypatch.setattr(converting, "serving_layout", lambda _, plan_for: planned.append(plan_for("sglang")))
    source = drafter_folder(tmp_path)
    with pytest.raises(RefusedError, match="does not run this output as trained"):
        rotated(source, tmp_path / "out", target=str(target(tmp_path / "t")), engines=("sglang",))
    assert planned[0].drafter.rotation is not None


def refused(tmp_path: Path, kind: type[Exception], words: str, **given: Any) -> None:
    source = drafter_folder(tmp_path, **given.pop("drafter", {}))
    whole = given.pop("target", None) or str(target(tmp_path / "t"))
    with pytest.raises(kind, match=words):
        rotated(source, tmp_path / "out", target=whole, **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("matrices", "words"),
    [
        ((rotation(seed=4),), "does not make the target's embedding"),
        ((rotation().T,), "not transposed"),
        ((rotation() * 1.01,), "is no rotation"),
        ((np.full((HIDDEN, HIDDEN), np.nan),), "is no rotation"),
        ((rotation(HIDDEN - 1),), r"no one matrix \[16, 16\]"),
        ((rotation()[:3],), "no one matrix"),
    ],
    ids=["another", "transposed", "scaled", "not finite", "too small", "not square"],
)
def test_a_wrong_matrix_is_refused(matrices: Any, words: str, tmp_path: Path) -> None:
    file = matrix_file(tmp_path / "q.safetensors", *matrices)
    refused(tmp_path, RefusedError, words, target_rotation=file)


@pytest.mark.parametrize("method", ["a file", "measure"])
@pytest.mark.parametrize("place", ["target", "trained_target"])
def test_an_embedding_of_another_width_is_refused(place: str, method: str, tmp_path: Path) -> None:
    wide = {"model.embed_tokens.weight": floats("wide", VOCAB, HIDDEN + 8)}
    given = {place: str(target(tmp_path / "wide", **wide))}
    if method != "measure":
        given["target_rotation"] = matrix_file(tmp_path / "q.safetensors", rotation())
    words = f"of --{place.replace('_', '-')} is 24 wide, and the drafter takes states of 16"
    refused(tmp_path, RefusedError, words, **given)


def test_two_matrices_of_other_names_are_refused(tmp_path: Path) -> None:
    file = matrix_file(tmp_path / "q.safetensors", rotation(), rotation(), name="q")
    refused(tmp_path, RefusedError, "no one matrix", target_rotation=file)


def test_an_embedding_that_no_rotation_makes_is_refused(tmp_path: Path) -> None:
    other = np.random.default_rng(1).normal(size=(HIDDEN, HIDDEN))
    refused(tmp_path, RefusedError, "no rotation makes", target=str(target(tmp_path / "t", other)))


def test_a_target_that_is_not_rotated_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, RefusedError, "it is not rotated", target=str(target(tmp_path / "t", np.eye(HIDDEN))))


def test_too_few_rows_fix_no_rotation(tmp_path: Path) -> None:
    rows = numbers(drafter_tensors()[EMBEDDING]) @ rotation()
    few = {"model.embed_tokens.weight": single(rows[: HIDDEN - 1])}
    refused(tmp_path, RefusedError, "no rotation makes", target=str(target(tmp_path / "t", **few)))


def test_as_many_rows_as_dimensions_fix_a_rotation(tmp_path: Path) -> None:
    rows = numbers(drafter_tensors()[EMBEDDING]) @ rotation()
    square = {"model.embed_tokens.weight": single(rows[:HIDDEN])}
    source, whole = drafter_folder(tmp_path), str(target(tmp_path / "t", **square))
    rotated(source, tmp_path / "out", target=whole)
    stated = json.loads((tmp_path / "out/eaglectl.json").read_text())["target_rotation"]["measured"]
    assert (stated["rows"], stated["residual"] < 1e-5) == (HIDDEN, True)


def test_an_embedding_of_nan_is_refused(tmp_path: Path) -> None:
    bad = {"model.embed_tokens.weight": single(np.full((VOCAB, HIDDEN), np.nan))}
    refused(tmp_path, RefusedError, "not finite", target=str(target(tmp_path / "t", **bad)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": "3.1"}, "leave --to 3.1 out"),
        ({"has_target_head": True}, "--trained-target"),
        ({"drafter": {"tensors": {EMBEDDING: None}}}, "pass --trained-target"),
        ({"drop": (EMBEDDING,)}, f"leave --drop {EMBEDDING} out"),
    ],
)
def test_what_it_does_not_go_with_is_said(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    refused(tmp_path, UsageError, words, **given)


def test_norms_on_both_sides_of_the_concatenation_are_refused(tmp_path: Path) -> None:
    config = {"fc_norm": True, "norm_before_fc": True, "norm_output": True}
    drafter = {"config": config, "tensors": {**NORM, **INPUT_NORM}}
    refused(tmp_path, RefusedError, r"has input_norm \(norm_before_fc\) and fc_norm", drafter=drafter)


def test_a_shared_head_is_asked_for(tmp_path: Path) -> None:
    headless = {"lm_head.weight": None, "d2t": None, "t2d": None}
    drafter = {"config": {"draft_vocab_size": VOCAB}, "tensors": headless}
    refused(tmp_path, UsageError, "has the final norm folded in; pass --trained-target", drafter=drafter)


def test_it_needs_a_target(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pass --target with its weights"):
        rotated(drafter_folder(tmp_path), tmp_path / "out")


def test_a_trained_target_alone_says_nothing(tmp_path: Path) -> None:
    options = ConvertOptions(trained_target=str(target(tmp_path / "t")))
    with pytest.raises(UsageError, match="is for --target-rotation"):
        eaglectl.convert(str(drafter_folder(tmp_path)), tmp_path / "out", options)


def test_a_folder_without_a_rotation_is_no_file(tmp_path: Path) -> None:
    refused(tmp_path, UsageError, "names no rotation", target_rotation=str(tmp_path))


# --------------------------------------------------------------------------------------- the trained pairs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from eaglectl.run.report import SmokeReport  # noqa: E402
from tests.rotated import random_rotation, rotate_target  # noqa: E402

PAIRS = {"tiny": 128, "second": 96}
DRAFTERS = ("tiny/eagle3", "tiny/eagle3.1", "second/eagle3", "second/mla")
SLOW = [pytest.param(name, marks=[pytest.mark.slow] if name != DRAFTERS[0] else []) for name in DRAFTERS]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PAIR (float32) and PAIR-bf16: the fixtures' targets, rotated; PAIR.safetensors has the matrix."""
    root = tmp_path_factory.mktemp("rotated")
    for pair, size in PAIRS.items():
        matrix, source = random_rotation(size), FIXTURES / pair / "target"
        rotate_target(source, root / pair, matrix)
        rotate_target(source, root / f"{pair}-bf16", matrix, "bfloat16")
        save_file({"global_rotation": matrix.float()}, root / f"{pair}.safetensors")
    return root


def original(name: str) -> Path:
    return FIXTURES / name.partition("/")[0] / "target"


def smoke(drafter: Path, whole: Path, name: str) -> SmokeReport:
    prompts = FIXTURES / name.partition("/")[0] / "prompts.jsonl"
    options = eaglectl.SmokeOptions(
        run_in="reference", device="cpu", k=3, max_tokens=16, prompts=prompts, sample=8
    )
    return eaglectl.smoke(str(drafter), str(whole), options)


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


@pytest.mark.parametrize("pair", PAIRS)
def test_a_rotated_target_computes_the_same(pair: str, targets: Path) -> None:
    tokens, logits = torch.arange(60).reshape(2, 30) + 3, []
    for folder in (FIXTURES / pair / "target", targets / pair):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logits.append(model(tokens).logits)
    assert (logits[0] - logits[1]).abs().max() < 1e-3


@pytest.mark.parametrize("name", SLOW)
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
    given = {"target": str(whole), "target_rotation": str(file), "layout": layout}
    after = rotated(FIXTURES / name, tmp_path / "out", **given)
    assert (EMBEDDING in after) == (layout == "vllm")
    assert_same_drafts(smoke(tmp_path / "out", whole, name), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_target_in_bfloat16_is_measured_well_enough(name: str, targets: Path, tmp_path: Path) -> None:
    whole = targets / f"{name.partition('/')[0]}-bf16"
    given = {"target": str(whole), "trained_target": str(original(name))}
    rotated(FIXTURES / name, tmp_path / "out", **given)
    stated = json.loads((tmp_path / "out/eaglectl.json").read_text())["target_rotation"]["measured"]
    assert 0.001 < stated["residual"] < 0.003
    before = smoke(FIXTURES / name, original(name), name).measured.length.value
    assert smoke(tmp_path / "out", whole, name).measured.length.value > 0.95 * before


def test_the_diagnosis_ends_in_it_and_its_command_repairs(targets: Path, tmp_path: Path) -> None:
    name, whole = "tiny/eagle3", targets / "tiny"
    source = with_own_embedding(name, tmp_path / "own")
    diagnosis = eaglectl.diagnose(str(source), str(whole), eaglectl.DiagnoseOptions(device="cpu"))
    assert (diagnosis.cause, diagnosis.ending, diagnosis.verdict) == ("rotated-target", "pair", "fail")
    (command,) = diagnosis.commands
    done = call(*shlex.split(command)[1:], "-o", tmp_path / "mended")
    assert done.code == 0, done.err
    assert smoke(tmp_path / "mended", whole, name).measured.length.value > 2


@pytest.mark.slow
def test_a_marked_target_is_diagnosed_after_a_run(targets: Path, tmp_path: Path) -> None:
    name, whole = "tiny/eagle3", tmp_path / "target"
    shutil.copytree(targets / "tiny", whole)
    (whole / "optional").mkdir()
    shutil.copy(targets / "tiny.safetensors", whole / "optional/quarot.safetensors")
    description = {
        "optional": {"quarot": {"rotation_map": {"global_rotation": "optional/quarot.safetensors"}}}
    }
    (whole / "quant_model_description.json").write_text(json.dumps(description))
    prompts = FIXTURES / "tiny/prompts.jsonl"
    options = eaglectl.DiagnoseOptions(device="cpu", prompts=prompts, sample=16, max_tokens=20)
    diagnosis = eaglectl.diagnose(str(FIXTURES / name), str(whole), options)
    assert (diagnosis.cause, diagnosis.ending) == ("marked-rotation", "pair")
    (command,) = diagnosis.commands
    done = call(*shlex.split(command)[1:], "-o", tmp_path / "mended")
    assert done.code == 0, done.err
    assert smoke(tmp_path / "mended", whole, name).measured.length.value > 2
