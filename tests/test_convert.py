"""Single conversions of the field: a good drafter, a patch, and what must come out."""

import json
import re
import shutil
import struct
from math import log
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl import Conversion
from eaglectl.api.convert import ConvertOptions
from eaglectl.conversion import writing
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import Answers
from eaglectl.progress import Progress
from eaglectl.shell import quote
from tests.builders import call, changed, drafter_folder
from tests.cases import digests, stored_tensors, true_answers
from tests.conftest import FIXTURES
from tests.drafters import Made

PRODUCERS = FIXTURES / "producers"
# yarn's factor on cos and sin of a scaling by 64
USUAL = 0.1 * log(64) + 1
NATIVE, STORED = PRODUCERS / "vllm/native", {"rope": "stored"}
IDS = "eagle_aux_hidden_state_layer_ids"


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


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("vllm/fused", "vllm/native"),  # split into the same rows
        ("modelopt/hf-ids-unsorted", ""),  # which takes states in layer order whatever its ids say
        ("modelopt/hf-fp8", ""),
    ],
)
def test_bytes_come_through_with_what_is_stated_of_them(path: str, same: str, tmp_path: Path) -> None:
    source, out = PRODUCERS / path, tmp_path / "out"
    config, quantisation = converted(source, out).plan.config, "quantization_config"
    assert digests(out) == digests(PRODUCERS / (same or path))
    assert config.get(quantisation) == json.loads((source / "config.json").read_text()).get(quantisation)
    assert (out / "hf_quant_config.json").exists() == (source / "hf_quant_config.json").exists()
    ids = config[IDS]
    assert ids == [1, 3, 7] if path.endswith("unsorted") else ids == sorted(ids)


def test_nemos_missing_mscale_is_a_problem_of_mla_with_yarn_alone(tmp_path: Path) -> None:
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    for number, (fixture, config) in enumerate([("mla", {}), ("mla", plain), ("gqa", yarn)]):
        source = patched(tmp_path / f"{number}", source=PRODUCERS / "automodel" / fixture, **config)
        topics = [note.topic for note in eaglectl.inspect(str(source)).drafter.notes_at("problem")]
        assert ("training-unservable" in topics) == (number == 0)


@pytest.mark.parametrize(
    ("nested", "is_asked"),
    [([4, 1, 3], False), ([5, 2, 4], False), ([1, 3, 4], True), ([2, 4, 5], True), ([1, 3, 5], True)],
)
def test_ids_in_eagle_config_are_of_the_same_layers_in_the_same_order(
    nested: list[int], is_asked: bool, tmp_path: Path
) -> None:
    lists = {IDS: [5, 2, 4], "eagle_config": {IDS: nested, "use_aux_hidden_state": True}}
    drafter = eaglectl.inspect(str(patched(tmp_path / "d", **lists))).drafter
    assert drafter.aux.boundaries == (None if is_asked else (2, 4, 5))
    assert [note.topic for note in drafter.notes_at("question")] == ["aux-lists"] * is_asked


def test_unsorted_ids_reorder_the_blocks_of_fc(tmp_path: Path) -> None:
    source = PRODUCERS / "speculators/eagle3.1"
    done = converted(patched(tmp_path / "d", source=source, **{IDS: [5, 2, 4]}), tmp_path / "out")
    before, after = stored_tensors(source), stored_tensors(tmp_path / "out")
    _, (rows, columns), raw = before["fc.weight"]
    block = columns // 3 * 2
    expected = b"".join(raw[r * columns * 2 + i * block :][:block] for r in range(rows) for i in (1, 2, 0))
    assert after["fc.weight"][2] == expected and done.plan.config[IDS] == [2, 4, 5]
    for new, old in enumerate((1, 2, 0)):
        assert after[f"fc_norm.{new}.weight"][2] == before[f"fc_norm.{old}.weight"][2]


def test_a_permuted_full_vocabulary_is_put_in_order(tmp_path: Path) -> None:
    source = PRODUCERS / "specforge/gqa-full-vocab"
    tensors = dict(stored_tensors(source))
    size = tensors["d2t"][1][0]
    tensors["d2t"] = ("I64", (size,), struct.pack(f"<{size}q", *(size - 1 - 2 * i for i in range(size))))
    converted(Made(changed(source), tensors).write(tmp_path / "d"), tmp_path / "out")
    _, shape, raw = tensors["lm_head.weight"]
    row = len(raw) // shape[0]
    after = stored_tensors(tmp_path / "out")
    rows = [raw[i * row : (i + 1) * row] for i in reversed(range(shape[0]))]
    assert after["lm_head.weight"][2] == b"".join(rows) and not {"d2t", "t2d"} & set(after)


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        (["full_attention"] * 8, ["full_attention"]),
        (["sliding_attention", "full_attention"], ["sliding_attention"]),
        ([], ["full_attention"]),
    ],
)
def test_layer_types_are_written_for_the_drafters_own_layers(
    types: list[str], wanted: list[str], tmp_path: Path
) -> None:
    source = patched(tmp_path / "d", layer_types=types, sliding_window=64)
    assert converted(source, tmp_path / "out").plan.config["layer_types"] == wanted


def test_a_linear_factor_is_written_with_a_point(tmp_path: Path) -> None:
    source = patched(tmp_path / "d", rope_scaling={"rope_type": "linear", "factor": 4})
    converted(source, tmp_path / "out", answers=Answers(semantics=STORED))
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert repr(written["rope_scaling"]["factor"]) == "4.0"


def test_an_original_length_at_the_top_does_not_stay_before_the_scalings_own(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    source = patched(tmp_path / "d", rope_scaling=yarn, original_max_position_embeddings=64)
    config = converted(source, tmp_path / "out", answers=Answers(semantics=STORED)).plan.config
    assert config["rope_scaling"]["original_max_position_embeddings"] == 128
    assert "original_max_position_embeddings" not in config


def test_a_head_tied_to_its_own_embedding_is_written_out(tmp_path: Path) -> None:
    source = PRODUCERS / "torchspec/llama"
    tied = patched(tmp_path / "d", source=source, without=("lm_head.weight",), tie_word_embeddings=True)
    converted(tied, tmp_path / "out")
    after, own = stored_tensors(tmp_path / "out"), stored_tensors(source)["embed_tokens.weight"]
    assert after["lm_head.weight"] == after["embed_tokens.weight"] == own


@pytest.mark.parametrize(
    ("path", "semantics", "expected"),
    [
        ("angelslim/gqa", STORED, {"tie_word_embeddings": False, "rope_theta": 500000.0}),
        ("angelslim/gqa", {"rope": "10000"}, {"rope_theta": 10000.0}),
        ("eagle/safetensors", {}, {"rope_theta": 10000.0}),  # absent, and never the target's
        ("torchspec/mla-deepseek-v3", STORED, {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}),
        ("torchspec/mla-deepseek-v3", STORED, {"model_type": "deepseek_v2", "head_dim": None}),
        ("speculators/qwen3", {}, {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}),
    ],
)
def test_the_config_states_what_the_tensors_and_answers_are(
    path: str, semantics: dict[str, str], expected: dict[str, Any], tmp_path: Path
) -> None:
    answers = {"answers": Answers(semantics=semantics)} if semantics else {}
    config = converted(PRODUCERS / path, tmp_path / "out", **answers).plan.config
    assert {key: config.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("path", "layout", "word"),
    [
        # one of each fact that a layout may lack; benchmarks/evidence/round-trips.md has every layout's
        ("speculators/residual", "sglang", "norm_before_residual"),
        ("speculators/qwen3", "sglang", "q/k norms"),
        ("speculators/peagle-llama", "sglang", "parallel drafting"),
        ("vllm/bias", "sglang", "attention biases"),
        ("speculators/eagle3.1", "eagle", "fc_norm"),
        ("speculators/two-layers", "eagle", "several layers"),
        ("speculators/eagle3.1", "modelopt", "norm_output"),
        ("modelopt/hf-four-aux", "llama.cpp", "a number of aux layers other than 3"),
        ("vllm/mla", "llama.cpp", "MLA attention"),
        ("modelopt/hf-fp8", "llama.cpp", "quantised weights"),
    ],
)
def test_what_a_layout_cannot_say_is_refused(path: str, layout: str, word: str, tmp_path: Path) -> None:
    answers = Answers(aux_convention="output", semantics=STORED)
    with pytest.raises(RefusedError, match=re.escape(word)):
        converted(PRODUCERS / path, tmp_path / "out", layout, answers=answers)
    assert not (tmp_path / "out").exists()


def test_what_a_layout_needs_of_the_target_is_asked_for(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)  # boundaries 2, 4, 5: the default of 8 layers
    with pytest.raises(UsageError, match=r"writes no layer ids, so boundaries \[2, 4, 5\] must be"):
        eaglectl.convert(source, tmp_path / "out", ConvertOptions("eagle"))
    deeper = target_file(tmp_path / "sixteen", depth=16)
    with pytest.raises(RefusedError, match="cannot express this drafter"):
        eaglectl.convert(source, tmp_path / "out", ConvertOptions("eagle", target=deeper))
    target = target_file(tmp_path / "eight")
    assert eaglectl.convert(source, tmp_path / "out", ConvertOptions("eagle", target=target)).plan
    with pytest.raises(UsageError, match="--target-name"):
        converted(NATIVE, tmp_path / "named", "speculators")
    done = converted(NATIVE, tmp_path / "named", "speculators", target_name="org/target")
    assert done.plan.config["speculators_config"]["verifier"]["name_or_path"] == "org/target"


def test_settings_and_legal_files_are_copied_and_the_others_named_with_the_reason(tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    kept = ("LICENSE", "NOTICE.html", "README.md", "generation_config.json", "tokenizer.model")
    left = {
        "modeling_eagle.py": "code is not copied with weights",
        "optimizer.bin2": "not part of a published drafter",
        "trainer_state.json": "a trainer's progress, not part of the drafter",
    }
    for name in (*kept, *left):
        (source / name).write_text("{}")
    plan = eaglectl.convert(source, tmp_path / "out").plan
    assert plan.copied_files == kept
    assert {file.name: file.why for file in plan.left_files} == left
    assert [name for name in (*kept, *left) if (tmp_path / "out" / name).exists()] == [*kept]


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("llama", [2, 4, 6]), ("deepseek_v3", [3, 5, 7]), ("kimi_k2", [3, 5, 7]), ("minimax_m3", [2, 4, 6])],
)
def test_nested_ids_follow_sglangs_rule_for_the_target(kind: str, ids: list[int], tmp_path: Path) -> None:
    target = target_file(tmp_path / "t", kind)
    done = converted(PRODUCERS / "modelopt/hf-ids", tmp_path / "out", target=target)
    assert done.plan.config[IDS] == [3, 5, 7] and done.plan.config["eagle_config"][IDS] == ids


def test_nested_ids_are_left_out_where_the_target_is_unknown_and_asked_where_it_contradicts_them(
    tmp_path: Path,
) -> None:
    source = PRODUCERS / "modelopt/hf-ids"
    done = converted(source, tmp_path / "out")
    assert IDS not in done.plan.config["eagle_config"]
    assert any(note.level == "warning" and "SGLang" in note.text for note in done.plan.notes)
    with pytest.raises(UsageError, match="--target"):
        converted(source, tmp_path / "sglang", "sglang")
    atom = converted(source, tmp_path / "atom", engines=("atom",))  # which takes them as boundaries
    assert atom.plan.config["eagle_config"][IDS] == [3, 5, 7]
    nested: dict[str, Any] = {"eagle_config": {IDS: [2, 4, 5]}}
    target, fixture = target_file(tmp_path / "t"), PRODUCERS / "specforge/gqa-ids"
    with pytest.raises(UsageError, match="--aux-convention"):
        converted(patched(tmp_path / "d", source=fixture, **nested), tmp_path / "x", target=target)


def test_aux_layers_from_the_user_are_boundaries_unless_said(tmp_path: Path) -> None:
    for layers, convention in (((2, 4, 5), None), ((1, 3, 4), "output")):
        answers, out = Answers(layers, convention), tmp_path / f"{convention}"
        assert converted(PRODUCERS / "sglang/two-layers", out, answers=answers).plan.config[IDS] == [2, 4, 5]


def test_biases_of_zeros_are_left_behind_for_sglang_and_an_absent_one_is_zeros_beside_real_ones(
    tmp_path: Path,
) -> None:
    source, bias = PRODUCERS / "vllm/bias", "layers.0.self_attn.o_proj.bias"
    tensors = {
        name: (dtype, shape, bytes(len(data)) if name.endswith(".bias") else data)
        for name, (dtype, shape, data) in stored_tensors(source).items()
    }
    done = converted(Made(changed(source), tensors).write(tmp_path / "d"), tmp_path / "out", "sglang")
    assert not any(name.endswith(".bias") for name in digests(tmp_path / "out"))
    assert done.plan.config["attention_bias"] is False
    assert any("zeros" in left.why for left in done.plan.left_tensors)
    converted(patched(tmp_path / "without", source=source, without=(bias,)), tmp_path / "whole")
    assert stored_tensors(tmp_path / "whole")[bias][1:] == ((32,), bytes(64))


def test_casting_matches_torch_and_one_that_would_overflow_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    before = safetensors_torch.load_file(NATIVE / "model.safetensors")
    for dtype, kind in (("F16", torch.float16), ("F32", torch.float32)):
        converted(NATIVE, tmp_path / dtype, dtype=dtype)
        after = safetensors_torch.load_file(tmp_path / dtype / "model.safetensors")
        floating = {name: tensor for name, tensor in before.items() if tensor.is_floating_point()}
        assert all(torch.equal(after[name], tensor.to(kind)) for name, tensor in floating.items())
    converted(tmp_path / "F32", tmp_path / "back", dtype="BF16")
    assert digests(tmp_path / "back") == digests(NATIVE)
    tensors = dict(stored_tensors(NATIVE))
    dtype, shape, data = tensors["norm.weight"]
    large = struct.pack("<H", 0x7F00) * (len(data) // 2)  # 1.7e38 in bfloat16
    source = Made(changed(NATIVE), tensors | {"norm.weight": (dtype, shape, large)}).write(tmp_path / "d")
    with pytest.raises(RefusedError, match="F16 cannot hold"):
        converted(source, tmp_path / "out", dtype="F16")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize(
    "given",
    [{}, {"layout": "torchspec"}, {"dtype": "F32"}, {"max_shard_size": 20_000}],
    ids=["copied whole", "renamed", "cast", "in shards"],
)
def test_progress_counts_every_byte_of_the_weight_files(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "REPORTED_BLOCK", 1000)
    reports: list[Progress] = []
    eaglectl.convert(str(NATIVE), tmp_path / "out", ConvertOptions(**given), on_progress=reports.append)
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert {(report.stage, report.total, report.unit) for report in reports} == {("writing", size, "bytes")}
    done = [report.done for report in reports]
    assert done == sorted(done) and done[-1] == size and len(done) > size // 20_000


def test_for_llamacpp_writes_ids_at_the_top_alone_and_prints_the_commands_that_follow(tmp_path: Path) -> None:
    out = tmp_path / "it's out"
    source, target = PRODUCERS / "vllm/native", FIXTURES / "target"
    done = call("convert", source, "--target", target, "--for", "llama.cpp", "-o", out)
    assert done.code == 0
    config = json.loads((out / "config.json").read_text())
    assert config[IDS] == [2, 4, 5]
    assert IDS not in config.get("eagle_config", {})
    folder, file = quote(str(out)), quote(f"{out}.gguf")
    made = f"python convert_hf_to_gguf.py {folder} --target-model-dir {target} --outfile {file}"
    served = f"--model-draft {file} --spec-type draft-eagle3 --spec-draft-n-max 3 --metrics\n"
    assert f"next:  {made} && llama-server --model TARGET.gguf {served}" in done.out


def test_the_default_name_is_one_that_tells_the_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, name in (("2/model", "2"), ("4/checkpoint-7/model", "4"), ("5/my-model", "my-model")):
        shutil.copytree(FIXTURES / "tiny/eagle3", tmp_path / place)
        assert call("convert", place).out.startswith(f"done: wrote {name}-eagle3;")


FACTORS = {"select": ["EGL1083", "EGL1149"], "engines": ["vllm>=0.10", "sglang>=0.5"]}


@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators"])
def test_yarns_trained_factor_is_written_where_every_release_reads_it(tmp_path: Path, layout: str) -> None:
    source, out = PRODUCERS / "torchspec/llama", tmp_path / "out"
    done = converted(source, out, layout, target_name="org/target")
    scaling = done.plan.config.get("transformer_layer_config", done.plan.config)["rope_scaling"]
    found = [finding.rule.id for finding in eaglectl.validate(source, **FACTORS).findings]
    assert found == ["EGL1083", "EGL1149"] and not eaglectl.validate(out, **FACTORS).findings
    assert {"mscale", "mscale_all_dim"}.isdisjoint(scaling)
    assert (scaling["attention_factor"], scaling["attn_factor"]) == (1.0, pytest.approx(1 / USUAL))
    assert any("attention_factor 1 and attn_factor 0.70627" in note.text for note in done.plan.notes)


def test_yarns_factor_is_written_back_as_its_trainer_reads_it(tmp_path: Path) -> None:
    source, there, back = PRODUCERS / "torchspec/llama", tmp_path / "vllm", tmp_path / "back"
    converted(source, there)
    scaling = converted(there, back, "torchspec", answers=Answers()).plan.config["rope_scaling"]
    stated = json.loads((source / "config.json").read_text())["rope_scaling"]
    assert scaling == {"rope_type": stated.pop("type"), **stated}
    assert eaglectl.diff(source, there, answers=true_answers(source)).meaning == "equal"


@pytest.mark.parametrize(
    "keys", [{}, {"mscale": 1.0, "mscale_all_dim": 0.0}, {"attention_factor": USUAL, "attn_factor": 1.0}]
)
def test_yarn_with_a_factor_that_all_releases_read_stays_as_it_is(
    tmp_path: Path, keys: dict[str, float]
) -> None:
    scaling = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 512, **keys}
    done = converted(patched(tmp_path / "d", rope_scaling=scaling), tmp_path / "out")
    assert done.plan.config["rope_scaling"] == scaling


@pytest.mark.parametrize("place", ["hf_quant_config.json", "config.json"])
@pytest.mark.parametrize("layout", ["vllm", "sglang", "modelopt"])
def test_a_quantisation_that_no_weight_has_is_left_out(layout: str, place: str, tmp_path: Path) -> None:
    folder, stated = drafter_folder(tmp_path), {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    if place == "config.json":
        config = json.loads((folder / place).read_text()) | {"quantization_config": stated}
        (folder / place).write_text(json.dumps(config))
    else:
        (folder / place).write_text(json.dumps({"quantization": stated}))
    out = tmp_path / "out"
    assert call("convert", folder, "--for", layout, "-o", out).code == 0
    assert not (out / "hf_quant_config.json").exists()
    assert "EGL801" not in call("validate", out, "--json").out.partition('"passed"')[0]
