"""Bad drafters: a good one and a patch, which ends with its exit code and one line that names the fault."""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

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
    mask,
    offsets,
    read_safetensors,
    refusal,
    target_of,
    write_safetensors,
)
from tests.conftest import FIXTURES

LAYER = "layers.0."
ATTENTION, MLP_ = f"{LAYER}self_attn.", f"{LAYER}mlp."
FC_NORMS = {f"fc_norm.{index}.weight": floats(f"fc_norm.{index}", HIDDEN) for index in range(3)}


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


def test_the_drafter_that_is_patched_below_is_good(tmp_path: Path) -> None:
    out = converted(tmp_path)
    assert read_safetensors(out / "model.safetensors") == drafter_tensors()
    assert call("inspect", out).code == 0


# shapes of a tensor, by its name, or behind a dot its name in the layer; and words of the refusal
SHAPES: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    (
        "fc.weight",
        (16, 47),
        ("fc.weight is [16, 47]", "multiple of the target's width 16", "target_hidden_size"),
    ),
    ("fc.weight", (48,), ("fc.weight is [48]",)),
    ("fc.weight", (16, 3, 16), ("fc.weight",)),
    ("fc.weight", (), ("fc.weight is []",)),
    ("fc.weight", (16, 0), ("fc",)),
    ("fc.weight", (0, 48), ("fc.weight is [0, 48]",)),
    ("fc.weight", (17, 48), ("fc.weight is [17, 48]", "[16, 48]")),
    ("norm.weight", (), ("norm.weight is []",)),
    ("norm.weight", (0,), ("norm.weight",)),
    ("norm.weight", (8,), ("[8]",)),
    (".hidden_norm.weight", (8,), ("hidden_norm.weight is [8]", "[16]")),
    (".hidden_norm.weight", (16, 1), ("hidden_norm.weight is [16, 1]", "[16]")),
    (".self_attn.k_proj.weight", (15, 32), ("k_proj has 15 rows", "head_dim")),
    (".self_attn.v_proj.weight", (8, 32), ("v_proj.weight is [8, 32]", "[16, 32]")),
    (".self_attn.q_proj.weight", (32, 16), ("q_proj.weight is [32, 16]", "[32, 32]")),
    (".self_attn.k_proj.weight", (0, 32), ("k_proj",)),
    (".self_attn.q_proj.weight", (0, 32), ("q_proj",)),
    (".self_attn.o_proj.weight", (16, 24), ("o_proj.weight is [16, 24]", "[16, 32]")),
    (".self_attn.qkv_proj.weight", (64, 32), ("qkv_proj.weight", "q_proj.weight", "keep one")),
    (".self_attn.qkv_proj.bias", (), ("qkv_proj.bias",)),
    (".mlp.up_proj.weight", (25, 16), ("up_proj.weight is [25, 16]", "[24, 16]")),
    (".mlp.down_proj.weight", (24, 16), ("down_proj.weight is [24, 16]", "[16, 24]")),
    ("lm_head.weight", (24, 17), ("lm_head.weight is [24, 17]", "[24, 16]")),
    ("lm_head.weight", (25, 16), ("lm_head.weight is [25, 16]", "[24, 16]")),
    ("embed_tokens.weight", (64, 17), ("embed_tokens.weight is [64, 17]", "[64, 16]")),
)


Patch = tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]
NO_QKV: dict[str, Any] = {f"{ATTENTION}{x}_proj.weight": None for x in "qkv"}
CONTRADICTIONS: tuple[Patch, ...] = (
    ({"target_hidden_size": 20}, {}, ("fc.weight is [16, 48]", "20")),
    ({"num_attention_heads": 3}, {}, ("q_proj has 32 rows", "num_attention_heads = 3")),
    ({"head_dim": 128}, {}, ("4 heads of head_dim 128 = 512", "q_proj has 32 rows")),
    ({"num_attention_heads": 64}, {}, ("num_attention_heads",)),
    (
        {},
        {f"{ATTENTION}{x}_proj.weight": floats(x, 3 * HEAD_DIM, 2 * HIDDEN) for x in "kv"},
        ("4 query heads cannot share 3 key heads",),
    ),
    ({}, {"t2d": mask(vocab=VOCAB + 6)}, ("embed_tokens.weight is [64, 16]", "[70, 16]")),
    ({}, {"d2t": ("I64", (DRAFT, 1), offsets()[2])}, ("d2t is [24, 1]", "[24]")),
    ({"fc_norm": True}, FC_NORMS | {"fc_norm.1.weight": floats("n", 8)}, ("fc_norm.1.weight is [8]", "[16]")),
    ({"fc_norm": True}, FC_NORMS | {"fc_norm.3.weight": floats("n", 16)}, ("[16, 48]", "4 aux layers of")),
    ({"norm_before_fc": True}, {"input_norm.weight": floats("n", 40)}, ("input_norm.weight is [40]", "[48]")),
    ({}, {f"{ATTENTION}{x}_norm.weight": floats("n", 7) for x in "qk"}, ("q_proj",)),
    (
        {"attention_bias": True},
        {f"{ATTENTION}{x}_proj.bias": floats(x, 5) for x in "qkv"},
        ("q_proj.bias is [5]", "[32]"),
    ),
    ({}, NO_QKV | {f"{ATTENTION}qkv_proj.weight": floats("f", 63, 32)}, ("qkv_proj", "63")),
    ({}, NO_QKV | {f"{ATTENTION}qkv_proj.weight": floats("f")}, ("qkv_proj",)),
)
# flags and tensors
TWO_NORMS = dict(list(FC_NORMS.items())[:2])
FLAGS: tuple[Patch, ...] = (
    ({"fc_norm": True}, {}, ("config says fc_norm: true", "no 3 fc_norm.N.weight")),
    ({"fc_norm": ABSENT, "use_aux_norm": True}, {}, ("use_aux_norm: true",)),
    ({"fc_norm": False}, FC_NORMS, ("config says fc_norm: false", "fc_norm.N.weight")),
    ({"fc_norm": True, "target_hidden_size": 16}, TWO_NORMS, ("fc_norm", "2")),
    ({"fc_norm": True}, {"fc_norm.3.weight": floats("n", 16)} | TWO_NORMS, ("fc_norm [0, 1, 3]",)),
    ({"norm_before_fc": True}, {}, ("config says norm_before_fc: true", "no input_norm.weight")),
    ({"norm_before_fc": False}, {"input_norm.weight": floats("n", 48)}, ("norm_before_fc: false",)),
    ({"eagle_config": {"use_aux_hidden_state": False}}, {}, ("use_aux_hidden_state: false", "fc.weight")),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, {}, ("rope_parameters differs by layer",)),
    ({}, {f"{ATTENTION}q_norm.weight": floats("n", HEAD_DIM)}, ("k_norm.weight is missing",)),
    ({"attention_bias": True}, {f"{ATTENTION}q_proj.bias": floats("b", 32)}, ("k_proj.bias is missing",)),
)
# the draft vocabulary
VOCABULARIES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"d2t": offsets((*TARGETS[:-1], VOCAB))}, "read as offsets, reaches from 0 to 64 in a vocabulary of 64"),
    ({"d2t": integers(-1, *([0] * 23))}, "reaches from -1"),
    ({"d2t": offsets((*TARGETS[:-1], TARGETS[0]))}, "d2t, read as offsets, repeats a target token"),
    ({"d2t": integers(*([2**63 - 1] * 24))}, "9223372036854775807"),
    ({"d2t": floats("d", DRAFT, dtype="F32")}, "d2t is F32; whole numbers were expected"),
    ({"d2t": ("F16", (DRAFT,), bytes(2 * DRAFT))}, "d2t is F16"),
    ({"t2d": mask((*TARGETS, 61))}, "t2d marks 25 target tokens and the draft vocabulary has 24"),
    ({"t2d": mask(TARGETS[:-1])}, "t2d marks 23"),
    ({"t2d": floats("t", VOCAB, dtype="F32")}, "t2d is F32"),
    ({"t2d": mask(())}, "t2d marks 0"),
    ({"lm_head.weight": floats("l", 0, HIDDEN), "d2t": ("I64", (0,), b"")}, "0"),
)
# what is missing and what is too much
WITHOUT_EMBEDDING = {"embed_tokens.weight": None, "fc.weight": floats("fc", HIDDEN, 3 * 24)}
STRANGERS = ("extra.weight", f"{LAYER}self_attn.sinks", "layers.x.norm.weight", "fc_norm.x.weight")
CONTROLS = ("evil\nname", "evil\rname", "evil\x1b[2Jname", "evil\u2028name", "evil\u202ename", "evil\x00name")
TWICE = ("model.norm", "midlayer.hidden_norm", "layers.00.hidden_norm", "layers.٠.hidden_norm")
TWICE_OF_NORMS = ("fc_norm.01.weight", "aux_norm_low.weight")


def layer(index: int) -> dict[str, Stored]:
    """Another layer: its input is one hidden wide, and it has no hidden_norm."""
    names = {name: stored for name, stored in drafter_tensors().items() if name.startswith(LAYER)}
    del names[f"{LAYER}hidden_norm.weight"]
    other = {name.replace(LAYER, f"layers.{index}."): stored for name, stored in names.items()}
    for part, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        name = f"layers.{index}.self_attn.{part}_proj.weight"
        other[name] = floats(name, rows * HEAD_DIM, HIDDEN)
    return other


PARTS: tuple[Patch, ...] = (
    ({"num_attention_heads": ABSENT}, {}, ("config.json has no num_attention_heads",)),
    *(
        ({}, {name: None}, (f"{name} is missing",))
        for name in sorted(set(drafter_tensors()) - {"embed_tokens.weight"})
    ),
    ({"target_hidden_size": 24}, WITHOUT_EMBEDDING, ("embed_tokens", "width 24 and the drafter 16")),
    *(
        ({}, {name: floats("x", 4)}, (f"{name} has no place in an EAGLE-3 drafter", f"--drop {name}"))
        for name in (*STRANGERS, f"{LAYER}mlp.gate.weight", "")
    ),
    *(({}, {name: floats("x", 4)}, ("has no place in an EAGLE-3 drafter",)) for name in CONTROLS),
    *(({}, {f"{name}.weight": floats("other", HIDDEN)}, (f"{name}.weight",)) for name in TWICE),
    *(({"fc_norm": True}, FC_NORMS | {name: floats("other", HIDDEN)}, (name,)) for name in TWICE_OF_NORMS),
    *(({}, layer(index), (f"the file has layers [0, {index}]",)) for index in (2, 5, 99999999999999999999)),
    (
        {"num_hidden_layers": 2},
        layer(1) | {"layers.1.mlp.up_proj.weight": None},
        ("layers.1.mlp.up_proj.weight is missing",),
    ),
)
# values of the wrong type
SIZES = (
    "hidden_size intermediate_size num_hidden_layers vocab_size num_attention_heads num_key_value_heads"
    " head_dim draft_vocab_size target_hidden_size num_aux_hidden_states max_position_embeddings"
)
SWITCHES = (
    "fc_norm norm_output norm_before_fc norm_before_residual tie_word_embeddings attention_bias mlp_bias"
)
WRONG_IDS = (2, "2,4,5", [2.0, 4, 5], ["2"], [True, 2, 3], [-1, 2, 3], [None], {"a": 1}, [[2, 4, 5]])
WRONG_TYPES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(SIZES.split(), ("16", 16.0, True, 0, -1, [16], {"a": 16})),
    **dict.fromkeys(SWITCHES.split(), (1, 0, "true", [], {"a": True})),
    **dict.fromkeys(("rope_theta", "rms_norm_eps"), ("1e6", True, [1.0], {"a": 1}, -1.0)),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "quantization_config"), ("linear", 2.0, True, [1])),
    "eagle_aux_hidden_state_layer_ids": WRONG_IDS,
    "eagle_config": (True, 0, 1.5, "", "x", [], [1, 3, 4], {"draft_vocab_size": -1}),
}
# of an object's keys the last is wrong
WRONG_INSIDE = (
    ("rope_scaling", {"rope_type": "yarn", "rope_theta": "10000"}),
    ("rope_parameters", {"rope_type": "default", "rope_theta": "10000"}),
    ("rope_parameters", {"rope_type": "default", "rope_theta": [10000]}),
    ("eagle_config", {"eagle_aux_hidden_state_layer_ids": "1,3,4"}),
    ("eagle_config", {"use_aux_hidden_state": "yes"}),
    ("eagle_config", {"layer_ids": {"a": 1}}),
)
REFUSALS: tuple[Patch, ...] = (
    *(
        ({}, {f"layers.0{name}" if name[0] == "." else name: floats(name, *shape)}, words)
        for name, shape, words in SHAPES
    ),
    *CONTRADICTIONS,
    *FLAGS,
    *(({}, tensors, (words,)) for tensors, words in VOCABULARIES),
    *PARTS,
    *(({key: value}, {}, (key,)) for key, values in WRONG_TYPES.items() for value in values),
    *(
        ({key: inside, "rope_theta": theta}, {}, (next(reversed(inside)),))
        for key, inside in WRONG_INSIDE
        for theta in (ABSENT, 500000.0)
    ),
)


@pytest.mark.fast(90)
@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case[2][0])
def test_what_contradicts_itself_or_is_of_a_wrong_type_is_refused_by_its_name(
    tmp_path: Path, case: Patch
) -> None:
    config, tensors, words = case
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    before = contents(tmp_path)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert contents(tmp_path) == before
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
        ("attention_bias", True, False),
    ],
)
def test_what_the_tensors_contradict_is_corrected_and_told(
    tmp_path: Path, key: str, value: int, measured: int
) -> None:
    out = converted(tmp_path, {key: value})
    assert json.loads((out / "config.json").read_text())[key] == measured
    notes = json.loads((out / "eaglectl.json").read_text())["notes"]
    told = f"{key}: {json.dumps(value)}"
    assert any(told in note["text"] and note["level"] == "warning" for note in notes)


@pytest.mark.parametrize("name", STRANGERS)
def test_an_unknown_tensor_may_be_dropped_by_name(tmp_path: Path, name: str) -> None:
    out = converted(tmp_path, {}, {name: floats("x", 4)}, "--drop", name)
    assert read_safetensors(out / "model.safetensors") == drafter_tensors()
    left = json.loads((out / "eaglectl.json").read_text())["left"]
    assert [entry["name"] for entry in left] == [name]


# ModelOpt's with parallel_draft_step > 1
MEDUSA = {f"heads.{name}": floats(name, 4) for name in ("0.linear.weight", "0.linear.bias", "lm_head.weight")}


def test_a_module_of_strangers_is_dropped_by_its_name(tmp_path: Path) -> None:
    out = converted(tmp_path, {}, MEDUSA, "--drop", "heads.*")
    assert read_safetensors(out / "model.safetensors") == drafter_tensors()
    left = json.loads((out / "eaglectl.json").read_text())["left"]
    assert {entry["name"] for entry in left} == set(MEDUSA)


def test_a_module_of_strangers_is_one_fault_with_one_option(tmp_path: Path) -> None:
    message = refusal(1, "convert", drafter_folder(tmp_path, tensors=MEDUSA), "-o", tmp_path / "out")
    assert "heads.0.linear.weight and 2 more of this module have no place" in message
    assert message.count("--drop") == 1
    assert "--drop 'heads.*'" in message


def test_the_rest_of_a_module_is_not_dropped_with_its_first_tensor(tmp_path: Path) -> None:
    folder, first = drafter_folder(tmp_path, tensors=MEDUSA), "heads.0.linear.weight"
    message = refusal(1, "convert", folder, "-o", tmp_path / "out", "--drop", first)
    assert "heads.0.linear.bias would be lost" in message


def test_only_the_tensor_that_was_named_is_dropped(tmp_path: Path) -> None:
    two = {"one.weight": floats("x", 4), "two.weight": floats("y", 4)}
    folder = drafter_folder(tmp_path, tensors=two)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out", "--drop", "one.weight")
    assert "two.weight has no place" in message


@pytest.mark.parametrize(
    ("config", "tensors", "options", "words"),
    [
        ({"fc_norm": True, "norm_output": ABSENT}, FC_NORMS, "", "norm_output=true (EAGLE-3.1) or norm_"),
        ({}, {"t2d": mask((*TARGETS[:-1], 61))}, "", "d2t=from-t2d or --fix-reading t2d=from-d2t"),
        ({}, {}, "--source-semantics norm_output=true --source-semantics norm_output=false", "norm_output"),
    ],
    ids=["norm_output", "two tables", "two answers"],
)
def test_what_only_the_user_knows_is_asked_for(
    config: dict[str, Any], tensors: dict[str, Any], options: str, words: str, tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    assert words in refusal(2, "convert", folder, "-o", tmp_path / "out", *options.split())


WITHOUT_TABLES = {"embed_tokens.weight": None, "lm_head.weight": None, "d2t": None}
WITHOUT_FC = {"fc.weight": None, f"{LAYER}hidden_norm.weight": None}


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        *(({"vocab_size": size, "draft_vocab_size": ABSENT}, WITHOUT_TABLES) for size in (10**13, 10**30)),
        *(({"eagle_config": value}, WITHOUT_FC) for value in (4, "x", [1], True)),
    ],
    ids=lambda value: str(value)[:40] if ABSENT not in value.values() else None,
)
def test_an_odd_value_that_no_tensor_confirms_takes_no_memory_and_is_no_crash(
    config: dict[str, Any], tensors: dict[str, None], tmp_path: Path
) -> None:
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    assert is_answer(call("convert", folder, "-o", tmp_path / "out"))


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
    assert "pass --fix-reading d2t=from-t2d, since that table is intact" in message
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


@pytest.mark.parametrize(
    ("answer", "targets"), [("offset", range(1, 2 * DRAFT, 2)), ("absolute", range(1, DRAFT + 1))]
)
def test_a_d2t_of_two_meanings_is_read_as_the_user_says_and_then_known_by_its_record(
    tmp_path: Path, answer: str, targets: range
) -> None:
    d2t = {"d2t": integers(*range(1, DRAFT + 1))}
    out = converted(tmp_path, {}, d2t, "--source-semantics", f"d2t={answer}")
    assert read_safetensors(out / "model.safetensors")["d2t"] == offsets(targets)
    assert call("convert", out, "-o", tmp_path / "again").code == 0
    assert read_safetensors(tmp_path / "again/model.safetensors")["d2t"] == offsets(targets)
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
    folder = drafter_folder(tmp_path, tensors={"t2d": mask()})
    options = ("--source-semantics", "d2t=absolute")
    assert "d2t" in refusal(1, "convert", folder, "-o", tmp_path / "out", *options)


# checkpoints of other families


def test_an_adapter_without_a_config_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    write_safetensors(folder / "adapter_model.safetensors", {"x.lora_A.weight": floats("a", 2, 2)})
    outcome = call("inspect", folder)
    assert outcome.code in (1, 3)
    assert "LoRA" in outcome.err


# absorbed and packed tensors


HALVES: tuple[tuple[tuple[str, ...], str, tuple[int, ...] | None], ...] = (
    *((("w_kc", "w_vc"), dtype, (2, 16, 512)) for dtype in ("F8_E4M3", "I16", "I64", "F64", "F32", "BF16")),
    *(
        ((half,), "BF16", shape)
        for half in ("w_kc", "w_vc")
        for shape in (None, (), (0, 16, 512), (2, 0, 512), (2, 16, 0), (2, 16), (3, 16, 512))
    ),
)


@pytest.mark.fast(9)
@pytest.mark.parametrize(("halves", "dtype", "shape"), HALVES)
def test_absorbed_halves_that_do_not_fit_are_named_and_of_any_dtype_no_crash(
    halves: tuple[str, ...], dtype: str, shape: tuple[int, ...] | None, tmp_path: Path
) -> None:
    folder = shutil.copytree(FIXTURES / "producers/sglang/mla-absorbed", tmp_path / "drafter")
    tensors = read_safetensors(folder / "model.safetensors")
    for half in halves:
        del tensors[f"{ATTENTION}{half}"]
        if shape is not None:
            data = bytes(math.prod(shape) * DTYPE_BITS[dtype] // 8)
            tensors[f"{ATTENTION}{half}"] = dtype, shape, data
    write_safetensors(folder / "model.safetensors", tensors)
    outcome = call("convert", folder, "-o", tmp_path / "out", "--aux-layers", "2,4,5")
    assert is_answer(outcome)
    assert len(halves) == 2 or (outcome.code == 1 and "self_attn" in outcome.err), outcome


# the command line

NONSENSE: dict[str, tuple[str, ...]] = {
    "--to": ("2", ""),
    "--for": ("nothing",),
    "--engine": ("", "vllm>=", "exllama", "atom==1"),
    "--dtype": ("int8",),
    "--max-shard-size": ("0", "0.0001KB", "-1GB", "many", "100", "9" * 400 + "TB"),
    "--aux-layers": ("", "2,4", "2,4,4", "2,4,4,6", "4,2,5", "-1,2,3", "2,4,x", "9" * 5000),
    "--aux-convention": ("input",),
    "--source-semantics": ("rope", "rope=-3", "colour=red"),
    "--drop": ("nothing", "norm.weight", "fc.weight", "d2t", "layers.*", "*"),  # never there, or needed
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in NONSENSE.items() for value in values]
)
def test_an_option_that_makes_no_sense_is_named_with_its_value(
    tmp_path: Path, option: str, value: str
) -> None:
    message = refusal(2, "convert", drafter_folder(tmp_path), "-o", tmp_path / "out", option, value)
    assert option in message
    assert value[:50] in message or "max-shard-size" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("depth", [-1, 0, True, "8", 8.0, None, [8]])
def test_a_target_of_no_possible_depth_is_refused(tmp_path: Path, depth: Any) -> None:
    target = target_of(tmp_path / "target", num_hidden_layers=depth)
    assert "num_hidden_layers" in refusal(3, "inspect", drafter_folder(tmp_path), "--target", target)


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
            [sys.executable, "-c", code, "inspect", str(drafter_folder(tmp_path)), "-v"],
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

OTHER_KEYS = (
    "speculators_model_type transformer_layer_config speculators_config rope_parameters quantization_config"
    " layer_types sliding_window use_sliding_window target_model_type kv_lora_rank q_lora_rank dtype auto_map"
    " qk_nope_head_dim truncated_vocab_size use_aux_norm eagle_architecture_config return_hidden_post_norm"
    " num_aux_layers modal_type use_aux_hidden_state _torchspec_version intermediate_size_mlp text_config"
    " dflash_config"
)
KEYS = (*drafter_config(), *OTHER_KEYS.split())
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 10**30, 0.5, -0.0, 1e308, "", "x", "16",
    [], [1], [[1]], ["x"], [None], [0, 0, 0], [5, 4, 2],
    {}, {"a": 1}, {"eagle_aux_hidden_state_layer_ids": "x"}, {"rope_type": [1], "factor": "x"},
    {"rope_theta": "x"}, {"x": {"rope_theta": 1}}, {"verifier": {"name_or_path": 3}}, {"verifier": "x"},
    {"mrope_section": [1]}, {"type": None}, {"hidden_size": "16"},
)  # fmt: skip


@pytest.mark.fast(3)
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
