"""Bad drafters: a good one and a patch, which ends with its exit code and one line that names the fault."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eaglectl
from eaglectl.drafter.drafter import Rope
from eaglectl.errors import RefusedError
from eaglectl.files.header import DTYPE_BITS
from tests.builders import (
    ABSENT,
    DRAFT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    MLP,
    TARGETS,
    VOCAB,
    Stored,
    call,
    contents,
    drafter_config,
    drafter_folder,
    drafter_tensors,
    floats,
    integers,
    is_answer,
    is_one_line,
    mask,
    offsets,
    read_safetensors,
    refusal,
    write_safetensors,
)
from tests.conftest import FIXTURES

LAYER = "layers.0."
ATTENTION, MLP_ = f"{LAYER}self_attn.", f"{LAYER}mlp."
FC_NORMS = {f"fc_norm.{index}.weight": floats(f"fc_norm.{index}", HIDDEN) for index in range(3)}


def refused(
    tmp_path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    *options: str,
) -> str:
    """The error of convert, which ends with 1, for the drafter with this patch; no file is written."""
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    before = contents(tmp_path)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out", *options)
    assert contents(tmp_path) == before
    return message


def converted(
    tmp_path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    *options: str,
) -> Path:
    """The folder that convert makes of the drafter with this patch."""
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    outcome = call("convert", folder, "-o", tmp_path / "out", *options)
    assert outcome.code == 0, outcome.err
    return tmp_path / "out"


def written_config(out: Path) -> dict[str, Any]:
    config = json.loads((out / "config.json").read_text())
    assert isinstance(config, dict)
    return config


def test_the_drafter_that_is_patched_below_is_good(tmp_path: Path) -> None:
    out = converted(tmp_path)
    assert read_safetensors(out / "model.safetensors") == drafter_tensors()
    assert call("inspect", out).code == 0


# shapes and dimensions

Patch = tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]

CONTRADICTIONS: dict[str, Patch] = {
    "fc of odd width": (
        {},
        {"fc.weight": floats("fc", HIDDEN, 3 * HIDDEN - 1)},
        ("fc.weight is [16, 47]", "multiple of the target's width 16", "target_hidden_size"),
    ),
    "fc against target_hidden_size": ({"target_hidden_size": 20}, {}, ("fc.weight is [16, 48]", "20")),
    "fc of one axis": ({}, {"fc.weight": floats("fc", 3 * HIDDEN)}, ("fc.weight is [48]",)),
    "fc of three axes": ({}, {"fc.weight": floats("fc", HIDDEN, 3, HIDDEN)}, ("fc.weight",)),
    "fc a scalar": ({}, {"fc.weight": floats("fc")}, ("fc.weight is []",)),
    "fc empty": ({}, {"fc.weight": floats("fc", HIDDEN, 0)}, ("fc",)),
    "fc without rows": ({}, {"fc.weight": floats("fc", 0, 3 * HIDDEN)}, ("fc.weight is [0, 48]",)),
    "fc of another hidden": (
        {},
        {"fc.weight": floats("fc", HIDDEN + 1, 3 * HIDDEN)},
        ("fc.weight is [17, 48]", "[16, 48]"),
    ),
    "norm a scalar": ({}, {"norm.weight": floats("n")}, ("norm.weight is []",)),
    "norm empty": ({}, {"norm.weight": floats("n", 0)}, ("norm.weight",)),
    "norm of another hidden": ({}, {"norm.weight": floats("n", 8)}, ("[8]",)),
    "a layer norm of another hidden": (
        {},
        {f"{LAYER}hidden_norm.weight": floats("n", 8)},
        ("hidden_norm.weight is [8]", "[16]"),
    ),
    "a norm of two axes": (
        {},
        {f"{LAYER}hidden_norm.weight": floats("n", HIDDEN, 1)},
        ("hidden_norm.weight is [16, 1]", "[16]"),
    ),
    "heads that do not divide": (
        {"num_attention_heads": 3},
        {},
        ("q_proj has 32 rows", "num_attention_heads = 3"),
    ),
    "a head_dim that contradicts the rows": (
        {"head_dim": 128},
        {},
        ("4 heads of head_dim 128 = 512", "q_proj has 32 rows"),
    ),
    "more heads than rows": ({"num_attention_heads": 64}, {}, ("num_attention_heads",)),
    "key rows that do not divide": (
        {},
        {f"{ATTENTION}k_proj.weight": floats("k", 15, 2 * HIDDEN)},
        ("k_proj has 15 rows", "head_dim"),
    ),
    "three key heads for four": (
        {},
        {f"{ATTENTION}{x}_proj.weight": floats(x, 3 * HEAD_DIM, 2 * HIDDEN) for x in "kv"},
        ("4 query heads cannot share 3 key heads",),
    ),
    "keys and values apart": (
        {},
        {f"{ATTENTION}v_proj.weight": floats("v", HEAD_DIM, 2 * HIDDEN)},
        ("v_proj.weight is [8, 32]", "[16, 32]"),
    ),
    "an input of one hidden": (
        {},
        {f"{ATTENTION}q_proj.weight": floats("q", HEADS * HEAD_DIM, HIDDEN)},
        ("q_proj.weight is [32, 16]", "[32, 32]"),
    ),
    "no key rows": ({}, {f"{ATTENTION}k_proj.weight": floats("k", 0, 2 * HIDDEN)}, ("k_proj",)),
    "no query rows": ({}, {f"{ATTENTION}q_proj.weight": floats("q", 0, 2 * HIDDEN)}, ("q_proj",)),
    "an output of another width": (
        {},
        {f"{ATTENTION}o_proj.weight": floats("o", HIDDEN, 24)},
        ("o_proj.weight is [16, 24]", "[16, 32]"),
    ),
    "gate and up apart": (
        {},
        {f"{MLP_}up_proj.weight": floats("u", MLP + 1, HIDDEN)},
        ("up_proj.weight is [25, 16]", "[24, 16]"),
    ),
    "down turned": (
        {},
        {f"{MLP_}down_proj.weight": floats("d", MLP, HIDDEN)},
        ("down_proj.weight is [24, 16]", "[16, 24]"),
    ),
    "a head of another hidden": (
        {},
        {"lm_head.weight": floats("l", DRAFT, HIDDEN + 1)},
        ("lm_head.weight is [24, 17]", "[24, 16]"),
    ),
    "a head of more rows than d2t": (
        {},
        {"lm_head.weight": floats("l", DRAFT + 1, HIDDEN)},
        ("d2t is [24]", "[25]"),
    ),
    "an embedding of another hidden": (
        {},
        {"embed_tokens.weight": floats("e", VOCAB, HIDDEN + 1)},
        ("embed_tokens.weight is [64, 17]", "[64, 16]"),
    ),
    "t2d and embedding apart": (
        {},
        {"t2d": mask(vocab=VOCAB + 6)},
        ("embed_tokens.weight is [64, 16]", "[70, 16]"),
    ),
    "d2t of two axes": ({}, {"d2t": ("I64", (DRAFT, 1), offsets()[2])}, ("d2t is [24, 1]", "[24]")),
    "norms of two widths": (
        {"fc_norm": True},
        FC_NORMS | {"fc_norm.1.weight": floats("n", 8)},
        ("fc_norm.1.weight is [8]", "[16]"),
    ),
    "norms against fc": (
        {"fc_norm": True},
        FC_NORMS | {"fc_norm.3.weight": floats("n", HIDDEN)},
        ("fc.weight is [16, 48]", "4 aux layers of width 16"),
    ),
    "an input norm against fc": (
        {"norm_before_fc": True},
        {"input_norm.weight": floats("n", 40)},
        ("input_norm.weight is [40]", "[48]"),
    ),
    "a q norm of another width": (
        {},
        {f"{ATTENTION}q_norm.weight": floats("n", 7), f"{ATTENTION}k_norm.weight": floats("n", 7)},
        ("q_proj",),
    ),
    "a bias of another width": (
        {"attention_bias": True},
        {f"{ATTENTION}{x}_proj.bias": floats(x, 5) for x in "qkv"},
        ("q_proj.bias is [5]", "[32]"),
    ),
    "fused rows that do not add up": (
        {},
        {f"{ATTENTION}{x}_proj.weight": None for x in "qkv"}
        | {f"{ATTENTION}qkv_proj.weight": floats("f", 63, 2 * HIDDEN)},
        ("qkv_proj", "63"),
    ),
    "fused and single": (
        {},
        {f"{ATTENTION}qkv_proj.weight": floats("f", 64, 2 * HIDDEN)},
        ("qkv_proj.weight", "q_proj.weight", "keep one"),
    ),
    "fused of no axis": (
        {},
        {f"{ATTENTION}{x}_proj.weight": None for x in "qkv"} | {f"{ATTENTION}qkv_proj.weight": floats("f")},
        ("qkv_proj",),
    ),
    "fused bias of no axis": ({}, {f"{ATTENTION}qkv_proj.bias": floats("f")}, ("qkv_proj.bias",)),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_shapes_that_contradict_each_other_are_refused(tmp_path: Path, case: str) -> None:
    config, tensors, words = CONTRADICTIONS[case]
    message = refused(tmp_path, config, tensors)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("key", "value", "measured"),
    [
        ("hidden_size", 4096, HIDDEN),
        ("intermediate_size", 99, MLP),
        ("num_hidden_layers", 40, 1),
        ("vocab_size", 1000, VOCAB),
        ("num_key_value_heads", 4, KV_HEADS),
        ("num_aux_hidden_states", 5, 3),
        ("draft_vocab_size", 99, DRAFT),
    ],
)
def test_a_number_that_the_tensors_contradict_is_corrected_and_told(
    tmp_path: Path, key: str, value: int, measured: int
) -> None:
    out = converted(tmp_path, {key: value})
    assert written_config(out)[key] == measured
    notes = json.loads((out / "eaglectl.json").read_text())["notes"]
    assert any(f"{key}: {value}" in note["text"] and note["level"] == "warning" for note in notes)


@pytest.mark.parametrize("key", ["num_attention_heads"])
def test_a_number_that_only_the_config_can_give_is_asked_for(tmp_path: Path, key: str) -> None:
    assert f"config.json has no {key}" in refused(tmp_path, {key: ABSENT})


# what is missing and what is too much


@pytest.mark.parametrize(
    "name", sorted(set(drafter_tensors()) - {"embed_tokens.weight", "d2t", "lm_head.weight", "fc.weight"})
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    assert f"{name} is missing" in refused(tmp_path, {}, {name: None})


@pytest.mark.parametrize("name", ["d2t", "lm_head.weight", "fc.weight"])
def test_a_missing_tensor_that_engines_would_make_up_is_named(tmp_path: Path, name: str) -> None:
    assert f"{name} is missing" in refused(tmp_path, {}, {name: None})


def test_a_missing_embedding_is_the_targets(tmp_path: Path) -> None:
    assert "embed_tokens.weight" not in read_safetensors(
        converted(tmp_path, {}, {"embed_tokens.weight": None}) / "model.safetensors"
    )


def test_a_missing_embedding_of_a_wide_target_is_named(tmp_path: Path) -> None:
    wide = {"embed_tokens.weight": None, "fc.weight": floats("fc", HIDDEN, 3 * 24)}
    message = refused(tmp_path, {"target_hidden_size": 24}, wide)
    assert "embed_tokens" in message
    assert "24 wide and the drafter 16" in message


STRANGERS = (
    "extra.weight",
    f"{LAYER}self_attn.sinks",
    f"{LAYER}mlp.gate.weight",
    "layers.x.norm.weight",
    "fc_norm.x.weight",
    "",
)


@pytest.mark.parametrize("name", STRANGERS)
def test_an_unknown_tensor_is_named_and_stops_the_conversion(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, {}, {name: floats("x", 4)})
    assert f"{name} has no place in an EAGLE-3 drafter" in message
    assert f"--drop {name}" in message


@pytest.mark.parametrize("name", STRANGERS[:5])
def test_an_unknown_tensor_may_be_dropped_by_name(tmp_path: Path, name: str) -> None:
    out = converted(tmp_path, {}, {name: floats("x", 4)}, "--drop", name)
    assert read_safetensors(out / "model.safetensors") == drafter_tensors()
    left = json.loads((out / "eaglectl.json").read_text())["left"]
    assert [entry["name"] for entry in left] == [name]


def test_only_the_tensor_that_was_named_is_dropped(tmp_path: Path) -> None:
    two = {"one.weight": floats("x", 4), "two.weight": floats("y", 4)}
    assert "two.weight has no place" in refused(tmp_path, {}, two, "--drop", "one.weight")


@pytest.mark.parametrize("name", ["norm.weight", "fc.weight", "d2t", "nothing.weight"])
def test_what_a_drafter_needs_or_never_had_cannot_be_dropped(tmp_path: Path, name: str) -> None:
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", "--drop", name)
    assert f"--drop {name}" in message


@pytest.mark.parametrize(
    "name",
    ["evil\nname", "evil\rname", "evil\x1b[2Jname", "evil\u2028name", "evil\u202ename", "evil\x00name"],
)
def test_a_name_with_control_characters_reaches_no_terminal(tmp_path: Path, name: str) -> None:
    folder = drafter_folder(tmp_path, tensors={name: floats("x", 4)})
    outcome = call("convert", folder, "-o", tmp_path / "out")
    assert outcome.code == 1
    assert is_one_line(outcome), outcome.err
    screen = call("inspect", folder, "--tensors")
    assert [character for character in screen.out if not character.isprintable() and character != "\n"] == []


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({}, {"model.norm.weight": floats("other", HIDDEN)}),
        ({}, {"midlayer.hidden_norm.weight": floats("other", HIDDEN)}),
        ({}, {"layers.00.hidden_norm.weight": floats("other", HIDDEN)}),
        ({}, {"layers.٠.hidden_norm.weight": floats("other", HIDDEN)}),
        ({"fc_norm": True}, FC_NORMS | {"fc_norm.01.weight": floats("other", HIDDEN)}),
        ({"fc_norm": True}, FC_NORMS | {"aux_norm_low.weight": floats("other", HIDDEN)}),
    ],
    ids=["model.", "midlayer.", "layers.00", "layers.٠", "fc_norm.01", "aux_norm_low"],
)
def test_two_tensors_of_one_meaning_are_refused(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any]
) -> None:
    message = refused(tmp_path, config, tensors)
    assert any(name in message for name in tensors)


def layer(index: int) -> dict[str, Stored]:
    """Another layer: its input is one hidden wide, and it has no hidden_norm."""
    names = {name: stored for name, stored in drafter_tensors().items() if name.startswith(LAYER)}
    del names[f"{LAYER}hidden_norm.weight"]
    other = {name.replace(LAYER, f"layers.{index}."): stored for name, stored in names.items()}
    for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        name = f"layers.{index}.self_attn.{part}_proj.weight"
        other[name] = floats(name, rows * HEAD_DIM, HIDDEN)
    return other


def test_a_second_layer_is_good(tmp_path: Path) -> None:
    assert written_config(converted(tmp_path, {"num_hidden_layers": 2}, layer(1)))["num_hidden_layers"] == 2


@pytest.mark.parametrize("index", [2, 5, 99999999999999999999])
def test_a_gap_in_the_layers_is_named(tmp_path: Path, index: int) -> None:
    assert f"the file has layers [0, {index}]" in refused(tmp_path, {}, layer(index))


def test_layers_that_begin_with_1_are_refused(tmp_path: Path) -> None:
    moved: dict[str, Stored | None] = {}
    for name, stored in drafter_tensors().items():
        if name.startswith(LAYER):
            moved |= {name: None, name.replace(LAYER, "layers.1."): stored}
    assert "[1]" in refused(tmp_path, {}, moved)


def test_a_second_layer_that_lacks_a_tensor_names_it(tmp_path: Path) -> None:
    name = "layers.1.mlp.up_proj.weight"
    tensors = {key: stored for key, stored in layer(1).items() if key != name}
    assert f"{name} is missing" in refused(tmp_path, {"num_hidden_layers": 2}, tensors)


# flags and tensors

FLAGS: dict[str, Patch] = {
    "fc_norm without tensors": (
        {"fc_norm": True},
        {},
        ("config says fc_norm: true", "no 3 fc_norm.N.weight"),
    ),
    "use_aux_norm without tensors": ({"fc_norm": ABSENT, "use_aux_norm": True}, {}, ("use_aux_norm: true",)),
    "tensors with fc_norm false": (
        {"fc_norm": False},
        FC_NORMS,
        ("config says fc_norm: false", "fc_norm.N.weight"),
    ),
    "two of three fc_norm": (
        {"fc_norm": True, "target_hidden_size": 16},
        dict(list(FC_NORMS.items())[:2]),
        ("fc_norm", "2"),
    ),
    "a gap in fc_norm": (
        {"fc_norm": True},
        {"fc_norm.3.weight": FC_NORMS["fc_norm.0.weight"]} | dict(list(FC_NORMS.items())[:2]),
        ("fc_norm [0, 1, 3]",),
    ),
    "norm_before_fc without tensor": (
        {"norm_before_fc": True},
        {},
        ("config says norm_before_fc: true", "no input_norm.weight"),
    ),
    "tensor with norm_before_fc false": (
        {"norm_before_fc": False},
        {"input_norm.weight": floats("n", 3 * HIDDEN)},
        ("config says norm_before_fc: false", "input_norm.weight"),
    ),
    "no aux states with fc": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        {},
        ("use_aux_hidden_state: false", "fc.weight"),
    ),
    "rope by layer type": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        {},
        ("rope_parameters differs by layer type",),
    ),
    "q norm alone": ({}, {f"{ATTENTION}q_norm.weight": floats("n", HEAD_DIM)}, ("k_norm.weight is missing",)),
    "a bias alone": (
        {"attention_bias": True},
        {f"{ATTENTION}q_proj.bias": floats("b", HEADS * HEAD_DIM)},
        ("k_proj.bias is missing",),
    ),
}


@pytest.mark.parametrize("case", FLAGS)
def test_a_flag_and_a_file_that_disagree_are_refused(tmp_path: Path, case: str) -> None:
    config, tensors, words = FLAGS[case]
    message = refused(tmp_path, config, tensors)
    assert [word for word in words if word not in message] == []


def test_tensors_without_a_flag_speak_for_themselves(tmp_path: Path) -> None:
    out = converted(tmp_path, {"fc_norm": ABSENT, "norm_output": True}, FC_NORMS)
    assert written_config(out)["fc_norm"] is True


def test_fc_norm_without_a_word_on_norm_output_is_asked_about(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"fc_norm": True, "norm_output": ABSENT}, tensors=FC_NORMS)
    message = refusal(2, "convert", folder, "-o", tmp_path / "out")
    assert "--source-semantics norm_output=true (EAGLE-3.1) or norm_output=false" in message


def test_attention_bias_without_biases_is_corrected_and_told(tmp_path: Path) -> None:
    out = converted(tmp_path, {"attention_bias": True})
    assert written_config(out)["attention_bias"] is False
    assert (
        "config says attention_bias: true and the file has no such bias"
        in (out / "eaglectl.json").read_text()
    )


WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "vocab_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "draft_vocab_size",
            "target_hidden_size",
            "num_aux_hidden_states",
            "max_position_embeddings",
        ),
        ("16", 16.0, True, 0, -1, [16], {"a": 16}),
    ),
    **dict.fromkeys(
        (
            "fc_norm",
            "norm_output",
            "norm_before_fc",
            "norm_before_residual",
            "tie_word_embeddings",
            "attention_bias",
            "mlp_bias",
        ),
        (1, 0, "true", [], {"a": True}),
    ),
    **dict.fromkeys(("rope_theta", "rms_norm_eps"), ("1e6", True, [1.0], {"a": 1})),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "quantization_config"), ("linear", 2.0, True, [1])),
    "eagle_aux_hidden_state_layer_ids": (
        2,
        "2,4,5",
        [2.0, 4, 5],
        ["2"],
        [True, 2, 3],
        [-1, 2, 3],
        [None],
        {"a": 1},
        [[2, 4, 5]],
    ),
    "eagle_config": (True, 0, 1.5, "", "x", [], [1, 3, 4]),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_TYPES.items() for value in values]
)
def test_a_value_of_the_wrong_type_is_named(tmp_path: Path, key: str, value: Any) -> None:
    assert key in refused(tmp_path, {key: value})


@pytest.mark.parametrize(
    ("key", "inside"),
    [
        ("rope_scaling", {"rope_type": "yarn", "rope_theta": "10000"}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": "10000"}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": [10000]}),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": "1,3,4"}),
        ("eagle_config", {"use_aux_hidden_state": "yes"}),
        ("eagle_config", {"layer_ids": {"a": 1}}),
    ],
)
@pytest.mark.parametrize("theta", [ABSENT, 500000.0])
def test_a_value_of_the_wrong_type_inside_an_object_is_named(
    tmp_path: Path, key: str, inside: dict[str, Any], theta: Any
) -> None:
    message = refused(tmp_path, {key: inside, "rope_theta": theta})
    assert next(reversed(inside)) in message


@pytest.mark.parametrize("factor", ["8", [8.0], {"a": 8}, None, True])
def test_a_rope_factor_that_is_no_number_is_no_crash(tmp_path: Path, factor: Any) -> None:
    folder = drafter_folder(tmp_path, config={"rope_scaling": {"rope_type": "yarn", "factor": factor}})
    assert is_answer(call("inspect", folder))
    assert is_answer(call("convert", folder, "-o", tmp_path / "out"))


@pytest.mark.parametrize("architectures", ["LlamaForCausalLMEagle3", 3, {}, [3], [None], [[]], [], True])
def test_odd_architectures_are_no_crash(tmp_path: Path, architectures: Any) -> None:
    folder = drafter_folder(tmp_path, config={"architectures": architectures})
    assert is_answer(call("inspect", folder))
    assert is_answer(call("convert", folder, "-o", tmp_path / "out"))


@pytest.mark.parametrize("size", [10**13, 10**30])
def test_a_huge_vocabulary_that_no_tensor_confirms_takes_no_memory(tmp_path: Path, size: int) -> None:
    bare = {"embed_tokens.weight": None, "lm_head.weight": None, "d2t": None}
    folder = drafter_folder(tmp_path, config={"vocab_size": size, "draft_vocab_size": ABSENT}, tensors=bare)
    assert is_answer(call("convert", folder, "-o", tmp_path / "out"))


# the draft vocabulary

VOCABULARIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "past the vocabulary": (
        {"d2t": offsets((*TARGETS[:-1], VOCAB))},
        ("d2t, read as offsets, reaches from 0 to 64 in a vocabulary of 64",),
    ),
    "below zero": ({"d2t": integers(-1, *([0] * 23))}, ("reaches from -1",)),
    "a token twice": (
        {"d2t": offsets((*TARGETS[:-1], TARGETS[0]))},
        ("d2t, read as offsets, repeats a target token",),
    ),
    "whole numbers at their end": ({"d2t": integers(*([2**63 - 1] * 24))}, ("d2t", "9223372036854775807")),
    "of floats": ({"d2t": floats("d", DRAFT, dtype="F32")}, ("d2t is F32; whole numbers were expected",)),
    "of unsigned numbers": ({"d2t": ("U64", (DRAFT,), offsets()[2])}, ("d2t is U64",)),
    "fewer tokens than t2d": (
        {"t2d": mask((*TARGETS, 61))},
        ("t2d marks 25 target tokens and the draft vocabulary has 24",),
    ),
    "more tokens than t2d": ({"t2d": mask(TARGETS[:-1])}, ("t2d marks 23",)),
    "t2d of floats": ({"t2d": floats("t", VOCAB, dtype="F32")}, ("t2d is F32",)),
    "t2d of nothing": ({"t2d": mask(())}, ("t2d marks 0",)),
    "no rows": ({"lm_head.weight": floats("l", 0, HIDDEN), "d2t": ("I64", (0,), b"")}, ("0",)),
}


@pytest.mark.parametrize("case", VOCABULARIES)
def test_a_draft_vocabulary_that_cannot_be_is_refused(tmp_path: Path, case: str) -> None:
    tensors, words = VOCABULARIES[case]
    message = refused(tmp_path, {}, tensors)
    assert [word for word in words if word not in message] == []


def test_two_whole_tables_that_differ_are_a_question(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors={"t2d": mask((*TARGETS[:-1], 61))})
    message = refusal(2, "convert", folder, "-o", tmp_path / "out")
    assert "pass --fix-reading d2t=from-t2d or --fix-reading t2d=from-d2t" in message


CASTS = {"BF16": ("H", 0x3F80), "F16": ("e", 1.0), "F32": ("f", 1.0), "F64": ("d", 1.0)}


def cast_mask(dtype: str, tokens: Sequence[int] = TARGETS, extra: float = 0) -> Stored:
    """t2d as a cast of the whole file leaves it, `extra` in place of the first zero."""
    code, one = CASTS[dtype]
    marks: list[float] = [one if token in tokens else 0 for token in range(VOCAB)]
    marks[marks.index(0)] = extra
    return dtype, (VOCAB,), struct.pack(f"<{VOCAB}{code}", *marks)


@pytest.mark.parametrize("dtype", CASTS)
def test_a_cast_d2t_is_made_of_a_t2d_of_zeros_and_ones(tmp_path: Path, dtype: str) -> None:
    tensors = {"d2t": floats("d", DRAFT, dtype="BF16"), "t2d": cast_mask(dtype)}
    folder = drafter_folder(tmp_path, tensors=tensors)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert "pass --fix-reading d2t=from-t2d, as that table is whole" in message
    assert call("convert", folder, "--fix-reading", "d2t=from-t2d", "-o", tmp_path / "out").code == 0
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert (written["d2t"], written["t2d"]) == (offsets(), mask())


@pytest.mark.parametrize(
    "t2d", [cast_mask("F32", extra=0.5), cast_mask("F16", extra=2.0), cast_mask("BF16", TARGETS[1:])]
)
def test_a_cast_d2t_is_made_of_no_other_t2d(tmp_path: Path, t2d: Stored) -> None:
    folder = drafter_folder(tmp_path, tensors={"d2t": floats("d", DRAFT, dtype="BF16"), "t2d": t2d})
    assert "--fix-reading" not in refusal(1, "convert", folder, "-o", tmp_path / "out")
    refusal(1, "convert", folder, "--fix-reading", "d2t=from-t2d", "-o", tmp_path / "out")


@pytest.mark.parametrize("t2d", [None, mask()])
def test_absolute_ids_are_accepted_and_written_as_offsets(tmp_path: Path, t2d: Stored | None) -> None:
    out = converted(tmp_path, {}, {"d2t": integers(*TARGETS), "t2d": t2d})
    assert read_safetensors(out / "model.safetensors")["d2t"] == offsets()


def test_whole_numbers_of_another_width_are_written_as_int64(tmp_path: Path) -> None:
    narrow = integers(*(target - draft for draft, target in enumerate(TARGETS)), dtype="I32")
    out = converted(tmp_path, {}, {"d2t": narrow})
    assert read_safetensors(out / "model.safetensors")["d2t"] == offsets()


def test_a_d2t_of_two_meanings_is_asked_about(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, tensors={"d2t": integers(*range(1, DRAFT + 1)), "t2d": None})
    message = refusal(2, "convert", folder, "-o", tmp_path / "out")
    assert "--source-semantics d2t=offset or d2t=absolute" in message


@pytest.mark.parametrize(
    ("answer", "targets"), [("offset", range(1, 2 * DRAFT, 2)), ("absolute", range(1, DRAFT + 1))]
)
def test_a_d2t_of_two_meanings_is_read_as_the_user_says(tmp_path: Path, answer: str, targets: range) -> None:
    d2t = {"d2t": integers(*range(1, DRAFT + 1))}
    out = converted(tmp_path, {}, d2t, "--source-semantics", f"d2t={answer}")
    assert read_safetensors(out / "model.safetensors")["d2t"] == offsets(targets)


def test_a_d2t_of_two_meanings_that_eaglectl_wrote_is_known_by_its_record(tmp_path: Path) -> None:
    d2t = {"d2t": integers(*range(1, DRAFT + 1))}
    out = converted(tmp_path, {}, d2t, "--source-semantics", "d2t=offset")
    assert call("convert", out, "-o", tmp_path / "again").code == 0
    assert read_safetensors(tmp_path / "again/model.safetensors")["d2t"] == d2t["d2t"]
    assert call("validate", out, "--no-engines", "--select", "EGL306").code == 0


def test_a_d2t_that_was_edited_since_is_asked_about(tmp_path: Path) -> None:
    d2t = {"d2t": integers(*range(1, DRAFT + 1))}
    out = converted(tmp_path, {}, d2t, "--source-semantics", "d2t=offset")
    weights = out / "model.safetensors"
    tensors = read_safetensors(weights)
    weights.unlink()
    write_safetensors(weights, {**tensors, "d2t": integers(*range(2, DRAFT + 2))})
    assert "d2t=offset or d2t=absolute" in refusal(2, "convert", out, "-o", tmp_path / "again")
    assert "could not look" in call("validate", out, "--no-engines", "--select", "EGL306").out


def test_the_users_word_does_not_bend_a_d2t_that_t2d_contradicts(tmp_path: Path) -> None:
    message = refused(tmp_path, {}, {"t2d": mask()}, "--source-semantics", "d2t=absolute")
    assert "d2t" in message


# checkpoints of other families

FC_OF_TWO = {"fc.weight": floats("fc", HIDDEN, 2 * HIDDEN)}
NO_HIDDEN_NORM = {f"{LAYER}hidden_norm.weight": None}
ONE_INPUT = {
    f"{ATTENTION}{x}_proj.weight": floats(x, rows * HEAD_DIM, HIDDEN)
    for x, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
}

FAMILIES: dict[str, Patch] = {
    "EAGLE-1": (
        {},
        FC_OF_TWO | NO_HIDDEN_NORM | ONE_INPUT | {"lm_head.weight": None, "d2t": None},
        ("an EAGLE-1/2 drafter", "fc.weight is [16, 32]"),
    ),
    "EAGLE-2 with model.": (
        {},
        dict.fromkeys(drafter_tensors())
        | {
            "model.fc.weight": FC_OF_TWO["fc.weight"],
            "model.layers.0.self_attn.q_proj.weight": floats("q", 32, HIDDEN),
        },
        ("an EAGLE-1/2 drafter",),
    ),
    "MTP": (
        {},
        {"enorm.weight": floats("e", HIDDEN), "hnorm.weight": floats("h", HIDDEN)},
        ("a multi-token-prediction (MTP) head", "enorm.weight"),
    ),
    "MTP of DeepSeek": (
        {},
        {"model.layers.61.eh_proj.weight": floats("e", HIDDEN, 2 * HIDDEN)},
        ("(MTP) head", "model.layers.61.eh_proj.weight"),
    ),
    "MTP's shared head": (
        {},
        {"model.layers.61.shared_head.norm.weight": floats("e", HIDDEN)},
        ("(MTP) head", "shared_head"),
    ),
    "DFlash by its config": (
        {"dflash_config": {"block_size": 16}},
        {},
        ("a DFlash drafter", "dflash_config"),
    ),
    "DFlash by its layers": (
        {"target_layer_ids": [1, 9]},
        NO_HIDDEN_NORM | ONE_INPUT | {"hidden_norm.weight": floats("h", HIDDEN)},
        ("a DFlash drafter", "target_layer_ids"),
    ),
    "DFlash by its class": ({"architectures": ["DFlashQwen3ForCausalLM"]}, {}, ("a DFlash drafter",)),
    "a Gemma-4 head by its class": (
        {"architectures": ["Gemma4Eagle3Model"], "target_layer_ids": [1, 3, 5]},
        {},
        ("a Gemma-4 draft head", "layer_scalar"),
    ),
    "a Gemma-4 head by its tensors": (
        {"target_layer_ids": [1, 3, 5]},
        {"layers.0.layer_scalar": floats("s", 1)},
        ("a Gemma-4 draft head", "it has layers.0.layer_scalar"),
    ),
    "a mixture of experts by its config": (
        {"use_moe": True},
        {},
        ("a mixture of experts", "no engine", "use_moe"),
    ),
    "a mixture of experts by its class": (
        {"architectures": ["Glm4MoeForCausalLMEagle3"]},
        {},
        ("a mixture of experts", "Glm4MoeForCausalLMEagle3"),
    ),
    "a mixture of experts by its tensors": (
        {},
        {"midlayer.mlp.experts.0.up_proj.weight": floats("e", HIDDEN, HIDDEN)},
        ("a mixture of experts", "midlayer.mlp.experts.0"),
    ),
    "bands of layers": (
        {"eagle_aux_layer_bands": [[1, 2, 8], [18, 20], [23, 26, 28]]},
        {},
        ("mixes target layers in bands", "eagle_aux_layer_bands"),
    ),
    "DFlash by its tensors": (
        {},
        {"context_proj.weight": floats("c", 4)},
        ("a DFlash drafter", "context_proj.weight"),
    ),
    "DSpark by its config": ({"dspark_config": {}}, {}, ("a DSpark drafter", "dspark_config")),
    "DSpark by its class": ({"architectures": ["Qwen3DSparkForCausalLM"]}, {}, ("a DSpark drafter",)),
    "Medusa by its config": ({"medusa_num_heads": 4}, {}, ("a Medusa head", "medusa_num_heads")),
    "Medusa by its tensors": (
        {},
        {"0.0.linear.weight": floats("m", HIDDEN, HIDDEN)},
        ("a Medusa head", "0.0.linear.weight"),
    ),
    "Medusa in a model": (
        {},
        {"medusa_head.0.0.linear.weight": floats("m", HIDDEN, HIDDEN)},
        ("a Medusa head",),
    ),
    "LoRA": (
        {},
        dict.fromkeys(drafter_tensors())
        | {"base_model.model.layers.0.self_attn.q_proj.lora_A.weight": floats("a", 2, 32)},
        ("a LoRA adapter", "lora_A"),
    ),
    "Kimi-K3": (
        {},
        {f"{ATTENTION}g_proj.weight": floats("g", 4, HIDDEN)},
        ("a Kimi-K3 draft head", "g_proj"),
    ),
    "a full model": (
        {"architectures": ["LlamaForCausalLM"]},
        {"fc.weight": None} | NO_HIDDEN_NORM | ONE_INPUT,
        ("a full language model",),
    ),
    "a full model with model.": (
        {},
        dict.fromkeys(drafter_tensors())
        | {"model.layers.0.self_attn.q_proj.weight": floats("q", 32, HIDDEN)},
        ("a full language model",),
    ),
    "something without attention": (
        {},
        dict.fromkeys(drafter_tensors()) | {"conv1.weight": floats("q", 3, 3)},
        ("not a drafter",),
    ),
    **{
        f"speculators {kind}": ({"speculators_model_type": kind}, {}, (words,))
        for kind, words in (
            ("eagle", "an EAGLE-1/2 drafter"),
            ("mtp", "(MTP)"),
            ("dflash", "a DFlash drafter"),
            ("dspark", "a DSpark drafter"),
            ("mlp", "an MLP speculator"),
            ("independent", "an independent draft model"),
            ("newer", 'a speculators "newer" model'),
        )
    },
}


@pytest.mark.parametrize("case", FAMILIES)
def test_another_family_is_refused_by_its_name(tmp_path: Path, case: str) -> None:
    config, tensors, words = FAMILIES[case]
    message = refused(tmp_path, config, tensors)
    assert [word for word in (*words, "drafter is") if word not in message] == []
    assert "EAGLE-3 and EAGLE-3.1 drafters only" in message
    assert refusal(1, "inspect", tmp_path / "drafter") == message


def test_an_adapter_without_a_config_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    write_safetensors(folder / "adapter_model.safetensors", {"x.lora_A.weight": floats("a", 2, 2)})
    outcome = call("inspect", folder)
    assert outcome.code in (1, 3)
    assert "LoRA" in outcome.err


@pytest.mark.parametrize("eagle_config", [4, "x", [1], True])
def test_an_odd_eagle_config_of_a_file_without_fc_is_no_crash(tmp_path: Path, eagle_config: Any) -> None:
    folder = drafter_folder(
        tmp_path,
        config={"eagle_config": eagle_config},
        tensors={"fc.weight": None, **NO_HIDDEN_NORM, **ONE_INPUT},
    )
    assert is_answer(call("inspect", folder))


# absorbed and packed tensors


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I16", "I64", "F64", "F32", "BF16"])
def test_absorbed_halves_of_any_dtype_are_no_crash(tmp_path: Path, dtype: str) -> None:
    source = FIXTURES / "producers/sglang/mla-absorbed"
    tensors = read_safetensors(source / "model.safetensors")
    for name, (_, shape, data) in tensors.items():
        if name.endswith(("w_kc", "w_vc")):
            tensors[name] = dtype, shape, bytes(len(data) * DTYPE_BITS[dtype] // 16)
    (tmp_path / "drafter").mkdir()
    shutil.copy(source / "config.json", tmp_path / "drafter")
    write_safetensors(tmp_path / "drafter/model.safetensors", tensors)
    assert is_answer(call("convert", tmp_path / "drafter", "-o", tmp_path / "out", "--aux-layers", "2,4,5"))


@pytest.mark.parametrize("half", ["w_kc", "w_vc"])
@pytest.mark.parametrize("shape", [None, (), (0, 16, 512), (2, 0, 512), (2, 16, 0), (2, 16), (3, 16, 512)])
def test_an_absorbed_half_that_does_not_fit_is_named(
    tmp_path: Path, half: str, shape: tuple[int, ...] | None
) -> None:
    source = FIXTURES / "producers/sglang/mla-absorbed"
    tensors = read_safetensors(source / "model.safetensors")
    name = f"{ATTENTION}{half}"
    del tensors[name]
    if shape is not None:
        tensors[name] = floats(name, *shape)
    (tmp_path / "drafter").mkdir()
    shutil.copy(source / "config.json", tmp_path / "drafter")
    write_safetensors(tmp_path / "drafter/model.safetensors", tensors)
    assert "self_attn" in refusal(1, "inspect", tmp_path / "drafter")


# the command line


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--to", "2"),
        ("--to", ""),
        ("--for", "nothing"),
        ("--engine", ""),
        ("--engine", "vllm>="),
        ("--engine", "exllama"),
        ("--engine", "atom==1"),
        ("--dtype", "int8"),
        ("--max-shard-size", "0"),
        ("--max-shard-size", "0.0001KB"),
        ("--max-shard-size", "-1GB"),
        ("--max-shard-size", "many"),
        ("--max-shard-size", "100"),
        ("--max-shard-size", "9" * 400 + "TB"),
        ("--aux-layers", ""),
        ("--aux-layers", "2,4"),
        ("--aux-layers", "2,4,4"),
        ("--aux-layers", "4,2,5"),
        ("--aux-layers", "-1,2,3"),
        ("--aux-layers", "2,4,x"),
        ("--aux-layers", "9" * 5000),
        ("--aux-convention", "input"),
        ("--source-semantics", "rope"),
        ("--source-semantics", "rope=-3"),
        ("--source-semantics", "colour=red"),
        ("--drop", "nothing"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_with_its_value(
    tmp_path: Path, option: str, value: str
) -> None:
    folder = drafter_folder(tmp_path)
    message = refusal(2, "convert", folder, "-o", tmp_path / "out", option, value)
    assert option in message
    assert value[:50] in message or "max-shard-size" in message
    assert not (tmp_path / "out").exists()


def test_two_answers_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    pair = ("--source-semantics", "norm_output=true", "--source-semantics", "norm_output=false")
    assert "norm_output" in refusal(2, "convert", folder, "-o", tmp_path / "out", *pair)


def test_a_boundary_past_the_target_is_named(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"num_hidden_layers": 4}')
    message = refusal(1, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", "--target", target)
    assert "boundary 5 is past the target's 4 layers" in message


def target_folder(tmp_path: Path, depth: Any) -> Path:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/config.json").write_text(
        json.dumps({"num_hidden_layers": depth, "model_type": "llama"})
    )
    return tmp_path / "target"


@pytest.mark.parametrize("depth", [-1, 0, True, "8", 8.0, None, [8]])
def test_a_target_of_no_possible_depth_is_refused(tmp_path: Path, depth: Any) -> None:
    target = target_folder(tmp_path, depth)
    assert "num_hidden_layers" in refusal(3, "inspect", drafter_folder(tmp_path), "--target", target)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6, 7])
def test_a_short_target_gives_no_default_layers_that_it_does_not_have(tmp_path: Path, depth: int) -> None:
    target = target_folder(tmp_path, depth)
    folder = drafter_folder(
        tmp_path, config={"eagle_aux_hidden_state_layer_ids": ABSENT, "eagle_config": ABSENT}
    )
    outcome = call("convert", folder, "-o", tmp_path / "out", "--target", target)
    assert is_answer(outcome)
    if outcome.code == 0:
        ids = written_config(tmp_path / "out").get("eagle_aux_hidden_state_layer_ids", [depth])
        assert ids == sorted(set(ids))
        assert ids[0] >= 0 and ids[-1] <= depth


@pytest.mark.parametrize(
    "arguments", [(), ("inspect",), ("nothing",), ("inspect", "--nothing"), ("convert", "x", "-o")]
)
def test_a_call_that_cannot_be_parsed_is_a_usage_error_without_a_traceback(
    arguments: tuple[str, ...],
) -> None:
    outcome = call(*arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_a_call_that_cannot_be_parsed_answers_json_with_json(tmp_path: Path) -> None:
    outcome = call("inspect", drafter_folder(tmp_path), "--json", "--nothing")
    assert outcome.code == 2
    assert outcome.document["schema"] == "eaglectl/error/1"


@pytest.mark.parametrize("producer", ["eagle/bin", "torchspec/dcp", "automodel/sidecar"])
def test_pickles_without_torch_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refusal(2, "convert", FIXTURES / "producers" / producer, "-o", tmp_path / "out")
    assert "torch" in message
    assert contents(tmp_path) == {}


def test_a_reader_that_went_away_is_no_finding(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; from eaglectl.cli import main; main()"
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code, "inspect", str(drafter_folder(tmp_path)), "--tensors"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_is_no_utf_8_is_no_crash(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, "\udcff")  # a byte of a file name that is not text
    assert is_answer(call("inspect", folder, "--json"))
    assert is_answer(call("convert", folder, "-o", tmp_path / "out"))


# anything at all: never a crash of our own

KEYS = (
    *drafter_config(),
    "speculators_model_type",
    "transformer_layer_config",
    "speculators_config",
    "rope_parameters",
    "quantization_config",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "target_model_type",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "truncated_vocab_size",
    "use_aux_norm",
    "eagle_architecture_config",
    "return_hidden_post_norm",
    "num_aux_layers",
    "modal_type",
    "use_aux_hidden_state",
    "_torchspec_version",
    "intermediate_size_mlp",
    "text_config",
    "dflash_config",
    "auto_map",
    "dtype",
)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 10**30, 0.5, -0.0, 1e308, "", "x", "16",
    [], [1], [[1]], ["x"], [None], [0, 0, 0], [5, 4, 2],
    {}, {"a": 1}, {"eagle_aux_hidden_state_layer_ids": "x"}, {"rope_type": [1], "factor": "x"},
    {"rope_theta": "x"}, {"x": {"rope_theta": 1}}, {"verifier": {"name_or_path": 3}}, {"verifier": "x"},
    {"mrope_section": [1]}, {"type": None}, {"hidden_size": "16"},
)  # fmt: skip


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", KEYS)
def test_no_odd_value_of_a_key_is_a_crash(tmp_path: Path, key: str, share: int) -> None:
    """Of every third value, begun elsewhere for each key, or of all."""
    folder = drafter_folder(tmp_path)
    for value in ODD_VALUES[KEYS.index(key) % share :: share]:
        (folder / "config.json").write_text(json.dumps(drafter_config(**{key: value})))
        for arguments in (("inspect", folder), ("convert", folder, "--dry-run")):
            outcome = call(*arguments)
            assert is_answer(outcome), f"{arguments[0]} with {key}: {value!r} gives {outcome}"


SOURCES = tuple(
    FIXTURES / "producers" / name
    for name in (
        "specforge/gqa-ids",
        "speculators/eagle3.1",
        "sglang/mla-absorbed",
        "vllm/fused",
        "vllm/mla-fused",
        "modelopt/hf-fp8",
        "modelopt/hf-ids-unsorted",
        "modelopt/hf-no-aux",
        "angelslim/gqa",
        "nebius/truncated",
        "lightseekorg/mla",
        "torchspec/mla",
    )
)
VALUES = st.sampled_from(ODD_VALUES) | st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "factor", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)
LAYOUTS = st.sampled_from(
    ["vllm", "sglang", "speculators", "eagle", "torchspec", "specforge", "modelopt", "angelslim"]
)
ANSWERS = st.sampled_from(
    [(), ("--aux-layers", "2,4,5"), ("--aux-convention", "output", "--source-semantics", "rope=10000")]
)
PLACES = (
    "",
    "eagle_config",
    "rope_scaling",
    "rope_parameters",
    "transformer_layer_config",
    "speculators_config",
)


NAMES = (
    *drafter_tensors(),
    "t2d",
    "fc.bias",
    "input_norm.weight",
    "mask_hidden",
    "aux_norm_low.weight",
    "fc_norm.0.weight",
    "fc_norm.00.weight",
    *(
        f"{ATTENTION}{part}"
        for part in (
            "qkv_proj.weight",
            "qkv_proj.bias",
            "q_proj.bias",
            "q_norm.weight",
            "k_norm.weight",
            "w_kc",
            "w_vc",
            "kv_b_proj.weight",
            "fused_qkv_a_proj.weight",
            "kv_a_proj_with_mqa.weight",
            "k_scale",
        )
    ),
    *(
        f"{MLP_}{part}"
        for part in (
            "gate_up_proj.weight",
            "gate_proj.weight_scale",
            "gate_proj.weight_packed",
            "gate_proj.bias",
        )
    ),
    "layers.00.hidden_norm.weight",
    "layers.1.hidden_norm.weight",
    "layers.3.input_layernorm.weight",
    "model.norm.weight",
    "midlayer.",
    "layers.0.",
    "",
    ".weight_scale",
    "verifier_norm.weight",
    "lm_head.weight_scale",
    "lm_head.bias",
)


class Spoilt:
    """A real drafter, and what was done to it; only that is shown where a test fails."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.config: dict[str, Any] = json.loads((source / "config.json").read_text())
        self.tensors: dict[str, Stored] = read_safetensors(source / "model.safetensors")
        self.done: list[tuple[Any, ...]] = []

    def __repr__(self) -> str:
        return f"Spoilt({self.source.name}: {self.done})"


@st.composite
def odd_configs(draw: st.DrawFn) -> Spoilt:
    """Up to three values of a config replaced, some inside its objects."""
    case = Spoilt(draw(st.sampled_from(SOURCES)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(PLACES))
        inside = case.config.get(place)
        key = draw(
            st.sampled_from(
                [*(inside if isinstance(inside, dict) else case.config), *KEYS, "factor", "rope_theta"]
            )
        )
        value = deepcopy(draw(VALUES))  # the next round may write into it
        (inside if isinstance(inside, dict) else case.config)[key] = value
        case.done.append((place, key, value))
    return case


@st.composite
def odd_tensors(draw: st.DrawFn) -> Spoilt:
    """Up to three tensors taken away, turned, given an axis, doubled under another name, or made anew."""
    case = Spoilt(draw(st.sampled_from(SOURCES)))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*case.tensors, *NAMES]))
        dtype, shape, data = case.tensors.get(name, ("BF16", (), b"\0\0"))
        match draw(st.sampled_from(["drop", "turn", "axis", "double", "new", "new"])):
            case "drop":
                case.tensors.pop(name, None)
                case.done.append((name, "drop"))
                continue
            case "turn":
                shape = shape[::-1]
            case "axis":
                shape = (1, *shape)
            case "double":
                name = draw(st.sampled_from(NAMES))
            case _:
                shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 32, 48, 64, 96, 256]), max_size=3)))
                dtype = draw(st.sampled_from(["BF16", "F32", "I64", "BOOL", "U8", "F8_E4M3", "F64", "I16"]))
                data = bytes(prod(shape) * DTYPE_BITS[dtype] // 8)
        if len(data) < 1 << 20:
            case.tensors[name] = dtype, shape, data
            case.done.append((name, dtype, shape))
    return case


def check_answers(case: Spoilt, layout: str, answers: tuple[str, ...]) -> None:
    """Inspect and convert must answer, and what convert writes inspect must read."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch, "drafter"), Path(scratch, "out")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(case.config))
        write_safetensors(folder / "model.safetensors", case.tensors)
        before = contents(folder)
        screen = call("inspect", folder, "--tensors", *answers)
        assert is_answer(screen), screen.err
        document = call("inspect", folder, "--json", *answers).document
        assert document["schema"] == f"eaglectl/{'error' if screen.code else 'inspect'}/1"
        outcome = call("convert", folder, "-o", out, "--for", layout, "--target-name", "org/name", *answers)
        assert is_answer(outcome), outcome.err
        assert contents(folder) == before
        assert {path.name for path in Path(scratch).iterdir()} == {"drafter"} | (
            {"out"} if outcome.code == 0 else set()
        )
        if outcome.code == 0:
            assert call("inspect", out, "--json").document["schema"] == "eaglectl/inspect/1"


EXAMPLES = pytest.mark.parametrize("examples", [50, pytest.param(150, marks=pytest.mark.slow)])


def check_cases(cases: st.SearchStrategy[Spoilt], examples: int) -> None:
    @given(cases, LAYOUTS, ANSWERS)
    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(case: Spoilt, layout: str, answers: tuple[str, ...]) -> None:
        check_answers(case, layout, answers)

    check()


@EXAMPLES
def test_no_config_is_a_crash(examples: int) -> None:
    check_cases(odd_configs(), examples)


@EXAMPLES
def test_no_tensor_is_a_crash(examples: int) -> None:
    check_cases(odd_tensors(), examples)


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 8.0, "mscale_all_dim": 1e308},
        {"factor": 10**400},
        {"factor": float("inf")},
        {"factor": float("nan")},
    ],
    ids=str,
)
def test_a_scale_that_is_no_number_is_refused(scaling: dict[str, float]) -> None:
    rope = Rope(10000.0, {"rope_type": "yarn", **scaling}, is_interleaved=True)
    with pytest.raises(RefusedError, match="rope_scaling"):
        assert rope.mla_factors


@pytest.mark.parametrize("key", ["rms_norm_eps", "eagle_config"])
def test_a_number_out_of_its_range_is_reported_at_its_key(key: str, tmp_path: Path) -> None:
    value = {"draft_vocab_size": -1} if key == "eagle_config" else -1.0
    notes = eaglectl.inspect(drafter_folder(tmp_path, config={key: value})).drafter.notes
    assert [(note.level, note.topic) for note in notes if note.about == key] == [("problem", "value-types")]
