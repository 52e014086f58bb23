"""Single conversions of the field: a good drafter, a patch, and what must come out."""

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl import Conversion
from eaglectl.conversion import writing
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.operations.converting import ConvertOptions
from eaglectl.progress import Progress
from eaglectl.shell import quote
from tests.builders import ABSENT, HEAD_DIM, HIDDEN, call, changed, drafter_folder, floats
from tests.cases import digests, stored_tensors, true_answers
from tests.conftest import FIXTURES
from tests.drafters import Made

NATIVE = FIXTURES / "producers/vllm/native"


def patched(folder: Path, *, source: Path = NATIVE, without: tuple[str, ...] = (), **config: Any) -> Path:
    """A copy of a fixture with config keys set (None: removed) and tensors left out."""
    tensors = {name: tensor for name, tensor in stored_tensors(source).items() if name not in without}
    return Made(changed(source, **config), tensors).write(folder)


def converted(source: Path, out: Path, layout: str = "vllm", **options: Any) -> Conversion:
    options.setdefault("answers", true_answers(source))
    return eaglectl.convert(str(source), out, ConvertOptions(layout, **options))


def target_file(folder: Path, kind: str = "llama", depth: int = 8) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "num_hidden_layers": depth}))
    return str(folder)


def test_layers_are_counted_in_the_file_and_not_believed_from_the_config(tmp_path: Path) -> None:
    done = converted(patched(tmp_path / "d", num_hidden_layers=40), tmp_path / "out")
    assert done.plan.config["num_hidden_layers"] == 1
    assert any("config says num_hidden_layers: 40" in note.text for note in done.plan.notes)


def test_a_fused_drafter_is_split_into_the_same_rows(tmp_path: Path) -> None:
    converted(FIXTURES / "producers/vllm/fused", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(NATIVE)


def test_absorbed_halves_give_the_width_of_values(tmp_path: Path) -> None:
    source = patched(tmp_path / "d", source=FIXTURES / "producers/sglang/mla-absorbed", v_head_dim=None)
    converted(source, tmp_path / "out", answers=Answers(aux_convention="output"))
    assert digests(tmp_path / "out") == digests(FIXTURES / "producers/vllm/mla")


@pytest.mark.parametrize(("heads", "is_reported"), [(2, False), (4, True)])
def test_a_head_dim_that_engines_would_get_wrong_is_reported(
    heads: int, is_reported: bool, tmp_path: Path
) -> None:
    """Without the key they take hidden_size / num_attention_heads, 8 or 4; the tensors say 8."""
    rows = heads * HEAD_DIM
    shapes = {"q_proj": (rows, 2 * HIDDEN), "o_proj": (HIDDEN, rows)}
    tensors = {f"layers.0.self_attn.{name}.weight": floats(name, *shape) for name, shape in shapes.items()}
    config = {"num_attention_heads": heads, "head_dim": ABSENT}
    drafter = eaglectl.inspect(str(drafter_folder(tmp_path, config=config, tensors=tensors))).drafter
    assert drafter.dims.head_dim == HEAD_DIM
    assert ("head-dim" in [note.topic for note in drafter.notes]) == is_reported


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("fixture", "config", "is_problem"),
    [
        ("mla", {}, True),
        ("mla", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, False),
        ("gqa", {"rope_scaling": YARN}, False),
    ],
    ids=["MLA with YaRN", "MLA without YaRN", "GQA with YaRN"],
)
def test_nemos_missing_mscale_is_a_problem_of_mla_with_yarn_alone(
    fixture: str, config: dict[str, Any], is_problem: bool, tmp_path: Path
) -> None:
    source = patched(tmp_path / "d", source=FIXTURES / "producers/automodel" / fixture, **config)
    topics = [note.topic for note in eaglectl.inspect(str(source)).drafter.notes_at("problem")]
    assert ("training-unservable" in topics) == is_problem


@pytest.mark.parametrize(
    ("nested", "is_asked"),
    [([4, 1, 3], False), ([5, 2, 4], False), ([1, 3, 4], True), ([2, 4, 5], True), ([1, 3, 5], True)],
)
def test_ids_in_eagle_config_are_of_the_same_layers_in_the_same_order(
    nested: list[int], is_asked: bool, tmp_path: Path
) -> None:
    ids = "eagle_aux_hidden_state_layer_ids"
    lists = {ids: [5, 2, 4], "eagle_config": {ids: nested, "use_aux_hidden_state": True}}
    drafter = eaglectl.inspect(str(patched(tmp_path / "d", **lists))).drafter
    assert drafter.aux.boundaries == (None if is_asked else (2, 4, 5))
    assert [note.topic for note in drafter.notes_at("question")] == ["aux-lists"] * is_asked


def test_norm_before_fc_is_written_in_eagle_config_too(tmp_path: Path) -> None:
    config = converted(FIXTURES / "producers/speculators/default", tmp_path / "out").plan.config
    assert (config["norm_before_fc"], config["eagle_config"]["norm_before_fc"]) == (True, True)


def test_shards_are_numbered_from_one(tmp_path: Path) -> None:
    converted(NATIVE, tmp_path / "out", max_shard_size=20_000)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    count = len(files)
    assert count > 1
    assert files == [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def test_absorbed_mla_halves_become_kv_b_proj(tmp_path: Path) -> None:
    answers = Answers(aux_convention="output")
    converted(FIXTURES / "producers/sglang/mla-absorbed", tmp_path / "out", answers=answers)
    assert digests(tmp_path / "out") == digests(FIXTURES / "producers/vllm/mla")


def test_fused_mla_inputs_are_split(tmp_path: Path) -> None:
    converted(FIXTURES / "producers/vllm/mla-fused", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(FIXTURES / "producers/vllm/mla")


def test_unsorted_ids_reorder_the_blocks_of_fc(tmp_path: Path) -> None:
    source = FIXTURES / "producers/speculators/eagle3.1"
    out = converted(
        patched(tmp_path / "d", source=source, eagle_aux_hidden_state_layer_ids=[5, 2, 4]), tmp_path / "out"
    )
    before, after = stored_tensors(source), stored_tensors(tmp_path / "out")
    _, (rows, columns), raw = before["fc.weight"]
    block = columns // 3 * 2
    expected = b"".join(raw[r * columns * 2 + i * block :][:block] for r in range(rows) for i in (1, 2, 0))
    assert after["fc.weight"][2] == expected
    assert [after[f"fc_norm.{i}.weight"][2] for i in range(3)] == [
        before[f"fc_norm.{i}.weight"][2] for i in (1, 2, 0)
    ]
    assert out.plan.config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


def test_modelopt_takes_states_in_layer_order_whatever_its_ids_say(tmp_path: Path) -> None:
    source = FIXTURES / "producers/modelopt/hf-ids-unsorted"
    done = converted(source, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(source)
    assert done.plan.config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 7]


def test_absolute_d2t_becomes_offsets(tmp_path: Path) -> None:
    tensors = dict(stored_tensors(NATIVE))
    dtype, (size,), raw = tensors["d2t"]
    absolute = [i + offset for i, offset in enumerate(struct.unpack(f"<{size}q", raw))]
    tensors["d2t"] = (dtype, (size,), struct.pack(f"<{size}q", *absolute))
    source = Made(changed(NATIVE), tensors).write(tmp_path / "d")
    converted(source, tmp_path / "out")
    assert digests(tmp_path / "out")["d2t"] == digests(NATIVE)["d2t"]


def test_int32_d2t_becomes_int64(tmp_path: Path) -> None:
    tensors = dict(stored_tensors(NATIVE))
    _, (size,), raw = tensors["d2t"]
    tensors["d2t"] = ("I32", (size,), struct.pack(f"<{size}i", *struct.unpack(f"<{size}q", raw)))
    converted(Made(changed(NATIVE), tensors).write(tmp_path / "d"), tmp_path / "out")
    assert digests(tmp_path / "out")["d2t"] == digests(NATIVE)["d2t"]


def test_t2d_alone_gives_d2t(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa"
    converted(patched(tmp_path / "d", source=source, without=("d2t",)), tmp_path / "out")
    assert digests(tmp_path / "out")["d2t"] == digests(source)["d2t"]


def test_a_permuted_full_vocabulary_is_put_in_order(tmp_path: Path) -> None:
    source = FIXTURES / "producers/specforge/gqa-full-vocab"
    tensors = dict(stored_tensors(source))
    size = tensors["d2t"][1][0]
    tensors["d2t"] = ("I64", (size,), struct.pack(f"<{size}q", *(size - 1 - 2 * i for i in range(size))))
    converted(Made(changed(source), tensors).write(tmp_path / "d"), tmp_path / "out")
    _, shape, raw = tensors["lm_head.weight"]
    row = len(raw) // shape[0]
    after = stored_tensors(tmp_path / "out")
    assert after["lm_head.weight"][2] == b"".join(
        raw[i * row : (i + 1) * row] for i in reversed(range(shape[0]))
    )
    assert "d2t" not in after and "t2d" not in after


def test_a_head_tied_to_its_own_embedding_is_written_out(tmp_path: Path) -> None:
    source = FIXTURES / "producers/torchspec/llama"
    converted(
        patched(tmp_path / "d", source=source, without=("lm_head.weight",), tie_word_embeddings=True),
        tmp_path / "out",
    )
    after = stored_tensors(tmp_path / "out")
    assert (
        after["lm_head.weight"]
        == after["embed_tokens.weight"]
        == stored_tensors(source)["embed_tokens.weight"]
    )


def test_a_stated_tie_beside_an_own_head_is_written_false(tmp_path: Path) -> None:
    done = converted(
        FIXTURES / "producers/angelslim/gqa", tmp_path / "out", answers=Answers(semantics={"rope": "stored"})
    )
    assert done.plan.config["tie_word_embeddings"] is False


@pytest.mark.parametrize(("answer", "base"), [("10000", 10000.0), ("stored", 500000.0)])
def test_the_trained_rope_base_is_written_as_answered(answer: str, base: float, tmp_path: Path) -> None:
    done = converted(
        FIXTURES / "producers/angelslim/gqa", tmp_path / "out", answers=Answers(semantics={"rope": answer})
    )
    assert done.plan.config["rope_theta"] == base


def test_an_absent_rope_base_is_10000_and_never_the_targets(tmp_path: Path) -> None:
    assert (
        converted(FIXTURES / "producers/eagle/safetensors", tmp_path / "out").plan.config["rope_theta"]
        == 10000.0
    )


def test_null_target_hidden_size_is_never_written(tmp_path: Path) -> None:
    assert (
        converted(FIXTURES / "producers/speculators/plain", tmp_path / "out").plan.config[
            "target_hidden_size"
        ]
        == 32
    )


def test_an_mla_head_says_deepseek_v2_and_no_head_dim(tmp_path: Path) -> None:
    config = converted(
        FIXTURES / "producers/torchspec/mla-deepseek-v3",
        tmp_path / "out",
        answers=Answers(semantics={"rope": "stored"}),
    ).plan.config
    assert (
        config["model_type"] == "deepseek_v2"
        and config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
        and "head_dim" not in config
    )


def test_qk_norms_choose_the_qwen3_class(tmp_path: Path) -> None:
    config = converted(FIXTURES / "producers/speculators/qwen3", tmp_path / "out").plan.config
    assert (config["architectures"], config["model_type"]) == (["Eagle3Qwen3ForCausalLM"], "qwen3")


@pytest.mark.parametrize(
    ("path", "layout", "word"),
    [
        ("speculators/residual", "sglang", "norm_before_residual"),
        ("speculators/qwen3", "sglang", "q/k norms"),
        ("speculators/peagle-llama", "sglang", "parallel drafting"),
        ("vllm/bias", "sglang", "attention biases"),
        ("speculators/eagle3.1", "eagle", "fc_norm"),
        ("speculators/two-layers", "eagle", "several layers"),
        ("vllm/mla", "speculators", "MLA"),
        ("speculators/eagle3.1", "modelopt", "norm_output"),
        ("modelopt/hf-fp8", "eagle", "quantised"),
    ],
)
def test_what_a_layout_cannot_say_is_refused(path: str, layout: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=word):
        converted(FIXTURES / "producers" / path, tmp_path / "out", layout)
    assert not (tmp_path / "out").exists()


def test_a_layout_without_ids_asks_for_the_target_of_layers_that_may_be_its_default(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)  # boundaries 2, 4, 5: the default of 8 layers
    with pytest.raises(UsageError, match=r"writes no layer ids, so boundaries \[2, 4, 5\] must be"):
        eaglectl.convert(source, tmp_path / "out", ConvertOptions("eagle"))
    target = target_file(tmp_path / "eight")
    assert eaglectl.convert(source, tmp_path / "out", ConvertOptions("eagle", target=target)).plan


def test_a_layout_without_ids_cannot_say_other_layers_than_the_targets_default(tmp_path: Path) -> None:
    options = ConvertOptions("eagle", target=target_file(tmp_path / "sixteen", depth=16))
    with pytest.raises(RefusedError, match="cannot express this drafter"):
        eaglectl.convert(drafter_folder(tmp_path), tmp_path / "out", options)


def test_settings_and_legal_files_are_copied_and_the_others_named_with_the_reason(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    kept = ("LICENSE", "NOTICE.html", "README.md", "generation_config.json", "tokenizer.model")
    left = {
        "modeling_eagle.py": "code is not shipped with weights",
        "optimizer.bin2": "not part of a drafter's release",
        "trainer_state.json": "how far a trainer was, which says nothing of the drafter",
    }
    for name in (*kept, *left):
        (source / name).write_text("{}")
    plan = eaglectl.convert(source, tmp_path / "out").plan
    assert plan.copied_files == kept
    assert {file.name: file.why for file in plan.left_files} == left
    assert [name for name in (*kept, *left) if (tmp_path / "out" / name).exists()] == [*kept]


def test_later_layers_have_hidden_norm_for_sglang(tmp_path: Path) -> None:
    source = FIXTURES / "producers/speculators/two-layers"
    converted(source, tmp_path / "out", "sglang")
    assert (
        digests(tmp_path / "out")["layers.1.hidden_norm.weight"]
        == digests(source)["layers.1.input_layernorm.weight"]
    )


def test_a_speculators_config_needs_the_targets_public_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--target-name"):
        converted(NATIVE, tmp_path / "out", "speculators")
    done = converted(NATIVE, tmp_path / "out", "speculators", target_name="org/target")
    assert done.plan.config["speculators_config"]["verifier"]["name_or_path"] == "org/target"


def test_four_aux_states_are_counted_where_vllm_keeps_it(tmp_path: Path) -> None:
    done = converted(FIXTURES / "producers/speculators/four-aux", tmp_path / "out")
    again = converted(tmp_path / "out", tmp_path / "back", "speculators", target_name="org/target")
    assert done.plan.config["num_aux_hidden_states"] == 4
    assert again.plan.config["transformer_layer_config"]["num_aux_hidden_states"] == 4


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("llama", [2, 4, 6]), ("deepseek_v3", [3, 5, 7]), ("kimi_k2", [3, 5, 7]), ("minimax_m3", [2, 4, 6])],
)
def test_nested_ids_follow_sglangs_rule_for_the_target(kind: str, ids: list[int], tmp_path: Path) -> None:
    done = converted(
        FIXTURES / "producers/modelopt/hf-ids", tmp_path / "out", target=target_file(tmp_path / "t", kind)
    )
    assert done.plan.config["eagle_aux_hidden_state_layer_ids"] == [3, 5, 7]
    assert done.plan.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids


def test_nested_ids_are_left_out_with_a_warning_when_the_target_decides_and_is_unknown(
    tmp_path: Path,
) -> None:
    done = converted(FIXTURES / "producers/modelopt/hf-ids", tmp_path / "out")
    assert "eagle_aux_hidden_state_layer_ids" not in done.plan.config["eagle_config"]
    assert any(note.level == "warning" and "SGLang" in note.text for note in done.plan.notes)
    with pytest.raises(UsageError, match="--target"):
        converted(FIXTURES / "producers/modelopt/hf-ids", tmp_path / "sglang", "sglang")


def test_atom_takes_nested_ids_as_boundaries(tmp_path: Path) -> None:
    done = converted(FIXTURES / "producers/modelopt/hf-ids", tmp_path / "out", engines=("atom",))
    assert done.plan.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 5, 7]


def test_ids_that_the_target_contradicts_are_asked(tmp_path: Path) -> None:
    source = patched(
        tmp_path / "d",
        source=FIXTURES / "producers/specforge/gqa-ids",
        eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    )
    with pytest.raises(UsageError, match="--aux-convention"):
        converted(source, tmp_path / "out", target=target_file(tmp_path / "t"))


def test_a_boundary_past_the_targets_depth_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="past the target's 4 layers"):
        converted(NATIVE.parent / "native", tmp_path / "out", target=target_file(tmp_path / "t", depth=4))


def test_a_target_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = Path(target_file(tmp_path / "t"))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 64})
    )
    with pytest.raises(RefusedError, match="another target"):
        converted(NATIVE, tmp_path / "out", target=str(folder))


def test_aux_layers_from_the_user_are_boundaries_unless_said(tmp_path: Path) -> None:
    source = FIXTURES / "producers/sglang/two-layers"
    given = converted(source, tmp_path / "a", answers=Answers(aux_layers=(2, 4, 5)))
    said = converted(source, tmp_path / "b", answers=Answers(aux_layers=(1, 3, 4), aux_convention="output"))
    assert (
        given.plan.config["eagle_aux_hidden_state_layer_ids"]
        == said.plan.config["eagle_aux_hidden_state_layer_ids"]
        == [2, 4, 5]
    )


def test_all_zero_biases_are_left_behind_for_sglang(tmp_path: Path) -> None:
    source = FIXTURES / "producers/vllm/bias"
    tensors = {
        name: (dtype, shape, bytes(len(data)) if name.endswith(".bias") else data)
        for name, (dtype, shape, data) in stored_tensors(source).items()
    }
    done = converted(Made(changed(source), tensors).write(tmp_path / "d"), tmp_path / "out", "sglang")
    assert not any(name.endswith(".bias") for name in digests(tmp_path / "out"))
    assert done.plan.config["attention_bias"] is False and any(
        "zeros" in left.why for left in done.plan.left_tensors
    )


def test_an_absent_o_bias_is_written_as_zeros_beside_real_ones(tmp_path: Path) -> None:
    source = patched(
        tmp_path / "d", source=FIXTURES / "producers/vllm/bias", without=("layers.0.self_attn.o_proj.bias",)
    )
    converted(source, tmp_path / "out")
    _, shape, data = stored_tensors(tmp_path / "out")["layers.0.self_attn.o_proj.bias"]
    assert (shape, data) == ((32,), bytes(64))


def test_quantised_weights_are_passed_through_with_their_config(tmp_path: Path) -> None:
    source = FIXTURES / "producers/modelopt/hf-fp8"
    done = converted(source, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(source)
    assert (
        done.plan.config["quantization_config"]
        == json.loads((source / "config.json").read_text())["quantization_config"]
    )
    assert (tmp_path / "out" / "hf_quant_config.json").exists()


def test_an_unknown_tensor_stops_until_dropped_by_name(tmp_path: Path) -> None:
    tensors = {**stored_tensors(NATIVE), "extra.weight": ("BF16", (2,), b"abcd")}
    source = Made(changed(NATIVE), tensors).write(tmp_path / "d")
    with pytest.raises(RefusedError, match=r"extra\.weight has no place"):
        converted(source, tmp_path / "out")
    done = converted(source, tmp_path / "out", drop=("extra.weight",))
    assert digests(tmp_path / "out") == digests(NATIVE)
    assert [left.name for left in done.plan.left_tensors] == ["extra.weight"]


def test_unknown_keys_are_carried_over(tmp_path: Path) -> None:
    done = converted(patched(tmp_path / "d", my_key={"a": 1}), tmp_path / "out")
    assert done.plan.config["my_key"] == {"a": 1}


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"fc_norm": True}, "fc_norm: true and the file has no"),
        ({"norm_before_fc": True}, "norm_before_fc: true and the file has no"),
        ({"num_attention_heads": 3}, "does not divide|need"),
        ({"num_attention_heads": "4"}, "positive whole number"),
        ({"hidden_size": True}, "positive whole number"),
        ({"norm_output": "yes"}, "true or false"),
        ({"rope_scaling": [1]}, "an object was expected"),
        ({"eagle_aux_hidden_state_layer_ids": ["2"]}, "layer numbers"),
        ({"target_hidden_size": 31}, "target_hidden_size"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(
    config: dict[str, Any], word: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=word):
        converted(patched(tmp_path / "d", **config), tmp_path / "out")


def test_ids_of_another_number_than_those_beside_them_are_asked(tmp_path: Path) -> None:
    source = patched(tmp_path / "d", eagle_aux_hidden_state_layer_ids=[2, 4])
    with pytest.raises(UsageError, match=r"\[2, 4\] in .* and \[1, 3, 4\] in .*; pass --aux-layers"):
        converted(source, tmp_path / "out")


def test_fc_norm_tensors_against_a_false_flag_are_refused(tmp_path: Path) -> None:
    source = patched(tmp_path / "d", source=FIXTURES / "producers/speculators/eagle3.1", fc_norm=False)
    with pytest.raises(RefusedError, match="one of them is wrong"):
        converted(source, tmp_path / "out")


def test_fc_norm_without_a_word_on_norm_output_is_asked(tmp_path: Path) -> None:
    source = patched(tmp_path / "d", source=FIXTURES / "producers/automodel/eagle3.1", norm_output=None)
    with pytest.raises(UsageError, match=r"norm_output=true .* or norm_output=false"):
        converted(source, tmp_path / "out")


def test_casting_is_done_only_when_asked_and_matches_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    before = safetensors_torch.load_file(NATIVE / "model.safetensors")
    for dtype, kind in (("F16", torch.float16), ("F32", torch.float32)):
        converted(NATIVE, tmp_path / dtype, dtype=dtype)
        after = safetensors_torch.load_file(tmp_path / dtype / "model.safetensors")
        assert all(
            torch.equal(after[name], tensor.to(kind))
            for name, tensor in before.items()
            if tensor.is_floating_point()
        )
    converted(tmp_path / "F32", tmp_path / "back", dtype="BF16")
    assert digests(tmp_path / "back") == digests(NATIVE)


def test_a_cast_that_would_overflow_is_refused(tmp_path: Path) -> None:
    tensors = dict(stored_tensors(NATIVE))
    dtype, shape, data = tensors["norm.weight"]
    tensors["norm.weight"] = (
        dtype,
        shape,
        struct.pack("<H", 0x7F00) * (len(data) // 2),
    )  # 1.7e38 in bfloat16
    source = Made(changed(NATIVE), tensors).write(tmp_path / "d")
    with pytest.raises(RefusedError, match="F16 cannot hold"):
        converted(source, tmp_path / "out", dtype="F16")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(ConvertOptions(), id="copied whole"),
        pytest.param(ConvertOptions("torchspec"), id="renamed"),
        pytest.param(ConvertOptions(dtype="F32"), id="cast"),
        pytest.param(ConvertOptions(max_shard_size=20_000), id="in shards"),
    ],
)
def test_progress_counts_every_byte_of_the_weight_files(
    options: ConvertOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "REPORTED_BLOCK", 1000)
    reports: list[Progress] = []
    eaglectl.convert(str(NATIVE), tmp_path / "out", options, on_progress=reports.append)
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert {(report.stage, report.total, report.unit) for report in reports} == {("writing", size, "bytes")}
    done = [report.done for report in reports]
    assert done == sorted(done) and done[-1] == size and len(done) > size // 20_000


def test_linked_files_are_not_counted_as_written(tmp_path: Path) -> None:
    source, out = patched(tmp_path / "source"), tmp_path / "out"
    eaglectl.convert(str(source), tmp_path / "plain")
    reports: list[Progress] = []
    options = ConvertOptions(link=True)
    eaglectl.convert(str(tmp_path / "plain"), out, options, on_progress=reports.append)
    assert (out / "model.safetensors").stat().st_nlink == 2
    assert reports == []


def test_the_plan_is_shown_before_anything_is_written(tmp_path: Path) -> None:
    folders: list[bool] = []
    eaglectl.convert(
        str(NATIVE), tmp_path / "out", on_plan=lambda plan: folders.append((tmp_path / "out").exists())
    )
    assert folders == [False]


def test_for_llamacpp_writes_ids_at_the_top_alone_and_prints_the_commands_that_follow(tmp_path: Path) -> None:
    out = tmp_path / "it's out"
    source, target = FIXTURES / "producers/vllm/native", FIXTURES / "target"
    done = call("convert", source, "--target", target, "--for", "llama.cpp", "-o", out)
    assert done.code == 0
    config = json.loads((out / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert "eagle_aux_hidden_state_layer_ids" not in config.get("eagle_config", {})
    folder, file = quote(str(out)), quote(f"{out}.gguf")
    made = f"python convert_hf_to_gguf.py {folder} --target-model-dir {target} --outfile {file}"
    served = f"--model-draft {file} --spec-type draft-eagle3 --spec-draft-n-max 3 --metrics\n"
    assert f"next:  {made} && llama-server --model TARGET.gguf {served}" in done.out


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("speculators/eagle3.1", "fc_norm"),
        ("speculators/qwen3", "q/k norms"),
        ("vllm/bias", "attention biases"),
        ("speculators/peagle-llama", "parallel drafting"),
        ("sglang/two-layers", "several layers"),
        ("modelopt/hf-four-aux", "a number of aux layers other than 3"),
        ("vllm/mla", "MLA attention"),
        ("modelopt/hf-fp8", "quantised weights"),
    ],
)
def test_for_llamacpp_refuses_what_it_cannot_serve(path: str, word: str, tmp_path: Path) -> None:
    source = FIXTURES / "producers" / path
    answers = Answers(aux_convention="output", semantics={"rope": "stored"})
    with pytest.raises(RefusedError, match=re.escape(word)):
        converted(source, tmp_path / "out", "llama.cpp", answers=answers)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("run1/checkpoint-100", "run1-eagle3"),
        ("run2/model", "run2-eagle3"),
        ("run3/source", "run3-eagle3"),
        ("run4/checkpoint-7/model", "run4-eagle3"),
        ("run5/my-model", "my-model-eagle3"),
    ],
)
def test_the_default_name_is_one_that_tells_the_drafter(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES / "tiny/eagle3", tmp_path / place)
    monkeypatch.chdir(tmp_path)
    assert call("convert", place).out.startswith(f"wrote {name};")
