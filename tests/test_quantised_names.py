"""The lists of a quantisation config are compared with each engine's own names of the drafter's modules."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import Stored, call, drafter_folder, target_of
from tests.validation.test_quantisation import INT8_LAYERS, MODULES, packed, scaled

DEPTH = 8  # of the target, after whose layers vLLM numbers the drafter's
MLP, ATTENTION = MODULES[:3], MODULES[3:]
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8"}


def verdict(parent: Path, table: Mapping[str, Any], tensors: Mapping[str, Stored | None], engine: str) -> Any:
    """The verdict on a drafter with this quantisation config and these tensors."""
    folder = drafter_folder(parent, config={"quantization_config": table}, tensors=tensors)
    target = target_of(parent / "target", num_hidden_layers=DEPTH)
    (judged,) = eaglectl.inspect(str(folder), target=str(target), engines=[engine]).requested
    return judged


@pytest.mark.parametrize(
    ("engine", "outcome", "names"),
    [
        # qkv_proj has no self_attn in its name in vLLM before 0.26.0 and in SGLang
        ("vllm==0.32.0", "as trained", ""),
        ("vllm==0.25.1", "fails", "model.layers.8.qkv_proj quantised"),
        ("sglang==0.5.23", "differs", "model.qkv_proj quantised"),
        ("sglang==0.5.14", "differs", "model.qkv_proj quantised"),
    ],
)
def test_a_name_is_that_of_the_release(engine: str, outcome: str, names: str, tmp_path: Path) -> None:
    tensors = {name: stored for module in MLP for name, stored in packed(module).items()}
    table = {**INT8_LAYERS, "ignore": ["re:.*self_attn.*", "re:.*fc", "lm_head"]}
    judged = verdict(tmp_path, table, tensors, engine)
    assert judged.outcome == outcome, judged.reasons
    assert names in "; ".join(judged.reasons)


@pytest.mark.parametrize(
    ("engine", "outcome"),
    [("vllm==0.32.0", "fails"), ("sglang==0.5.14", "as trained"), ("sglang==0.5.23", "as trained")],
)
def test_the_end_of_a_name_is_enough_for_sglang(engine: str, outcome: str, tmp_path: Path) -> None:
    tensors = {name: stored for module in MLP for name, stored in packed(module).items()}
    table = {**INT8_LAYERS, "ignore": ["model.fc", "lm_head", "qkv_proj", "self_attn.o_proj"]}
    assert verdict(tmp_path, table, tensors, engine).outcome == outcome


@pytest.mark.parametrize(
    ("ignore", "engine", "outcome", "names"),
    [
        # the drafter's own number, the target's, a glob from the beginning, and one of any beginning
        (["layers.0.self_attn*"], "vllm==0.32.0", "differs", "model.layers.8.self_attn.qkv_proj quantised"),
        (["model.layers.8.self_attn.*"], "vllm==0.32.0", "as trained", ""),
        (["self_attn*"], "vllm==0.32.0", "differs", "model.layers.8.self_attn.o_proj quantised"),
        (["self_attn"], "vllm==0.32.0", "as trained", ""),
        (["qkv_proj", "o_proj"], "sglang", "as trained", ""),
        (["self_attn"], "sglang", "differs", "model.qkv_proj quantised"),
    ],
)
def test_modelopts_names_are_parts_and_globs_in_vllm_and_globs_of_steps_in_sglang(
    ignore: list[str], engine: str, outcome: str, names: str, tmp_path: Path
) -> None:
    judged = verdict(tmp_path, {**FP8, "ignore": ["fc", "lm_head", *ignore]}, scaled(*MLP), engine)
    assert judged.outcome == outcome, judged.reasons
    assert names in "; ".join(judged.reasons)


def test_a_module_that_is_excluded_and_stored_quantised_is_named_too(tmp_path: Path) -> None:
    ignore = ["model.fc", "lm_head", "model.layers.8.mlp.down_proj"]
    table = {"quant_method": "fp8", "ignored_layers": ignore}
    judged = verdict(tmp_path, table, scaled(*MODULES), "vllm==0.32.0")
    assert judged.outcome == "fails"
    assert "builds model.layers.8.mlp.down_proj plain, unlike the file" in "; ".join(judged.reasons)


def test_without_a_target_the_numbers_of_layers_are_not_known(tmp_path: Path) -> None:
    table = {"quant_method": "fp8", "ignored_layers": ["model.fc", "model.layers.8.mlp.down_proj"]}
    folder = drafter_folder(tmp_path, config={"quantization_config": table}, tensors=scaled(*MODULES))
    (judged,) = eaglectl.inspect(str(folder), engines=["vllm==0.32.0"]).requested
    assert "EGL1089" not in judged.rules


def test_convert_writes_fc_by_its_name_in_any_list(tmp_path: Path) -> None:
    table = {"quant_method": "fp8", "modules_to_not_convert": ["fc", "lm_head"]}
    folder = drafter_folder(tmp_path, config={"quantization_config": table}, tensors=scaled(*MODULES))
    (before,) = eaglectl.inspect(str(folder), engines=["vllm==0.32.0"]).requested
    assert (before.outcome, before.rules) == ("differs", ("EGL1000",))
    assert call("convert", folder, "--for", "vllm", "-o", tmp_path / "out").code == 0
    (after,) = eaglectl.inspect(str(tmp_path / "out"), engines=["vllm==0.32.0"]).requested
    assert after.outcome == "as trained"
    lists = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert lists["modules_to_not_convert"] == ["fc", "lm_head", "model.fc"]


@pytest.mark.parametrize("bad", [3, "lm_head", {"lm_head": 1}, [None, 4], ["re:(", ["fc"]]])
def test_a_list_of_other_values_is_no_fault_of_ours(bad: Any, tmp_path: Path) -> None:
    groups = {"a": {"targets": bad}, "b": bad}
    table = {**INT8_LAYERS, "config_groups": groups, "ignore": bad, "quantization": bad}
    judged = verdict(tmp_path, table, scaled(*MODULES), "vllm==0.32.0")
    assert judged.outcome in ("fails", "differs", "unknown")
