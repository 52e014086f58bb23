"""The lists of a quantisation config are compared with each engine's own names of the drafter's modules."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import Stored, call, drafter_folder, drafter_tensors, floats, target_of
from tests.validation.test_quantisation import DYNAMIC, INT8_LAYERS, MODULES, packed, scaled

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
BLOCKS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.down_proj"]
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


def in_words(*modules: str, method: str = "gptq") -> dict[str, Stored | None]:
    """These modules packed in 4 bits."""
    found: dict[str, Stored | None] = {}
    for module in modules:
        _, (rows, columns), _ = drafter_tensors()[f"{module}.weight"]
        shape = (columns // 8, rows) if method == "gptq" else (columns, rows // 8)
        found |= {
            f"{module}.weight": None,
            f"{module}.qweight": ("I32", shape, bytes(columns * rows // 2)),
            f"{module}.qzeros": ("I32", (columns // 16, rows // 8), bytes(columns // 16 * rows // 2)),
            f"{module}.scales": floats(module, columns // 16, rows, dtype="F16"),
        }
    return found


ALL, PLAIN_FC = in_words(*MODULES), {"dynamic": {"-:.*fc$": {}}}


@pytest.mark.parametrize(
    ("lists", "engine", "outcome", "names"),
    [
        # vLLM lists what the file has packed, by the file's names, which are not its own (run)
        ({}, "vllm==0.32.0", "fails", "model.layers.8.mlp.down_proj plain"),
        ({}, "sglang==0.5.23", "as trained", ""),
        # as AutoGPTQ writes them; vLLM joins q, k and v
        ({"modules_in_block_to_quantize": [*BLOCKS]}, "vllm==0.32.0", "fails", "self_attn.qkv_proj plain"),
        ({"modules_in_block_to_quantize": [*BLOCKS]}, "sglang==0.5.23", "as trained", ""),
        ({"modules_in_block_to_quantize": ["qkv_proj", "o_proj", "mlp"]}, "vllm==0.32.0", "as trained", ""),
        ({"modules_in_block_to_quantize": ["proj", "fc"]}, "vllm==0.32.0", "fails", "model.fc quantised"),
        ({"modules_in_block_to_quantize": ["proj", "fc"], **PLAIN_FC}, "vllm==0.32.0", "as trained", ""),
        ({"dynamic": {"-:.*o_proj": {}}}, "sglang==0.5.23", "differs", "model.self_attn.o_proj plain"),
    ],
)
def test_gptqs_names_are_parts_of_vllms_and_expressions_of_sglang(
    lists: dict[str, Any], engine: str, outcome: str, names: str, tmp_path: Path
) -> None:
    judged = verdict(tmp_path, {**GPTQ, **lists}, ALL, engine)
    assert judged.outcome == outcome, judged.reasons
    assert names in "; ".join(judged.reasons)


@pytest.mark.parametrize(
    ("packed_modules", "names", "engine", "outcome"),
    [
        (MODULES, [], "vllm==0.32.0", "as trained"),  # the file has fc plain, so vLLM lists it itself (run)
        (MODULES, [], "sglang==0.5.23", "as trained"),
        (MLP, [], "vllm==0.32.0", "fails"),
        (MLP, ["qkv_proj", "o_proj", "fc"], "vllm==0.32.0", "as trained"),
        (MLP, ["qkv_proj", "o_proj", "fc"], "sglang==0.5.23", "as trained"),
        (MLP, ["self_attn", "fc"], "sglang==0.5.23", "differs"),  # its qkv_proj has no self_attn
        (MODULES, ["o_proj", "fc"], "sglang==0.5.23", "differs"),
        (MODULES, ["lm_head"], "vllm==0.32.0", "fails"),
    ],
)
def test_awqs_names_are_parts_of_each_engines(
    packed_modules: tuple[str, ...], names: list[str], engine: str, outcome: str, tmp_path: Path
) -> None:
    tensors = in_words(*packed_modules, method="awq")
    judged = verdict(tmp_path, {**AWQ, "modules_to_not_convert": names}, tensors, engine)
    assert judged.outcome == outcome, judged.reasons


@pytest.mark.parametrize(
    "lists",
    [
        {"dynamic": ["-:fc"]},
        {"dynamic": 3, "modules_in_block_to_quantize": "fc"},
        {"modules_to_not_convert": 3},
        {"modules_to_not_convert": [{"fc": 1}, None]},
        {"quantized_layers": {"fc": 3}},
    ],
)
@pytest.mark.parametrize("table", [GPTQ, AWQ])
def test_lists_of_other_kinds_are_no_fault_of_ours(
    table: dict[str, Any], lists: dict[str, Any], tmp_path: Path
) -> None:
    tensors = in_words(*MODULES, method=table["quant_method"])
    folder = drafter_folder(tmp_path, config={"quantization_config": {**table, **lists}}, tensors=tensors)
    assert call("inspect", folder).code in (0, 1, 3)
    assert call("convert", folder, "-o", tmp_path / "out").code in (0, 1, 2)


@pytest.mark.parametrize(("table", "packed_modules"), [(GPTQ, MODULES), (GPTQ, MLP), (AWQ, MLP)])
def test_convert_lists_what_is_packed_by_names_that_both_engines_have(
    table: dict[str, Any], packed_modules: tuple[str, ...], tmp_path: Path
) -> None:
    tensors = in_words(*packed_modules, method=table["quant_method"])
    assert verdict(tmp_path, table, tensors, "vllm==0.32.0").outcome == "fails"
    target, out = tmp_path / "target", tmp_path / "out"
    assert call("convert", tmp_path / "drafter", "--target", target, "--for", "vllm", "-o", out).code == 0
    judged = eaglectl.inspect(str(out), target=str(target), engines=["vllm==0.32.0", "sglang==0.5.23"])
    assert [verdict.outcome for verdict in judged.requested] == ["as trained", "as trained"]


def mixed(*names: str, is_beside: bool = False, **lists: Any) -> dict[str, Any]:
    """ModelOpt's config of mixed precision, for these modules."""
    layers = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {name: {"quant_algo": "FP8"} for name in names},
    }
    if is_beside:
        return {"producer": {"name": "modelopt"}, "quantization": {**layers, "exclude_modules": []}}
    return {"quant_method": "modelopt", **layers, **lists}


@pytest.mark.parametrize(
    ("table", "engine", "outcome"),
    [
        (mixed(*MLP), "vllm==0.32.0", "fails"),
        (mixed(*(f"model.layers.8.{name[9:]}" for name in MLP)), "vllm==0.32.0", "as trained"),
        (mixed("model.layers.8.mlp"), "vllm==0.32.0", "fails"),
        (mixed(*MLP, is_beside=True), "vllm==0.32.0", "fails"),
    ],
)
def test_modelopts_mixed_precision_quantises_what_it_names(
    table: dict[str, Any], engine: str, outcome: str, tmp_path: Path
) -> None:
    assert verdict(tmp_path, table, scaled(*MLP), engine).outcome == outcome


@pytest.mark.parametrize("is_beside", [False, True])
def test_convert_names_mixed_precision_for_vllm(is_beside: bool, tmp_path: Path) -> None:
    config = {"quantization_config": mixed(*MLP, is_beside=is_beside)}
    folder = drafter_folder(tmp_path, config=config, tensors=scaled(*MLP))
    target, out = target_of(tmp_path / "target", num_hidden_layers=DEPTH), tmp_path / "out"
    assert call("convert", folder, "--target", target, "--for", "vllm", "-o", out).code == 0
    (judged,) = eaglectl.inspect(str(out), target=str(target), engines=["vllm==0.32.0"]).requested
    assert judged.outcome == "as trained", judged.reasons
    table = json.loads((out / "config.json").read_text())["quantization_config"]
    layers = table.get("quantization", table)["quantized_layers"]
    assert "model.layers.8.mlp.down_proj" in layers and "layers.0.mlp.down_proj" in layers


def test_a_module_that_is_excluded_and_stored_quantised_is_named_too(tmp_path: Path) -> None:
    ignore = ["model.fc", "lm_head", "model.layers.8.mlp.down_proj"]
    table = {**DYNAMIC, "ignored_layers": ignore}
    judged = verdict(tmp_path, table, scaled(*MODULES), "vllm==0.32.0")
    assert judged.outcome == "fails"
    assert "builds model.layers.8.mlp.down_proj plain, unlike the file" in "; ".join(judged.reasons)


def test_without_a_target_the_numbers_of_layers_are_not_known(tmp_path: Path) -> None:
    table = {**DYNAMIC, "ignored_layers": ["model.fc", "model.layers.8.mlp.down_proj"]}
    folder = drafter_folder(tmp_path, config={"quantization_config": table}, tensors=scaled(*MODULES))
    (judged,) = eaglectl.inspect(str(folder), engines=["vllm==0.32.0"]).requested
    assert "EGL1089" not in judged.rules


def test_convert_writes_fc_by_its_name_in_any_list(tmp_path: Path) -> None:
    table = {**DYNAMIC, "modules_to_not_convert": ["fc", "lm_head"]}
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


@pytest.mark.parametrize("usual", [{}, {"quantization_config": None}], ids=["absent", "null"])
def test_the_earlier_name_of_the_config_is_read_and_written_by_the_usual_one(
    usual: dict[str, Any], tmp_path: Path
) -> None:
    table = {**INT8_LAYERS, "ignore": ["lm_head", "model.fc"]}
    folder = drafter_folder(tmp_path, config={"compression_config": table, **usual}, tensors=scaled(*MODULES))
    found = eaglectl.inspect(str(folder), engines=["vllm==0.32.0", "sglang==0.5.23"])
    assert [verdict.outcome for verdict in found.requested] == ["as trained", "as trained"]
    assert call("convert", folder, "--for", "vllm", "-o", tmp_path / "out").code == 0
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert "compression_config" not in written and written["quantization_config"]["config_groups"]


def test_a_config_without_quantised_weights_is_named_as_it_is_stored(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"compression_config": INT8_LAYERS})
    assert "config has a compression_config and the file has no quantised" in call("validate", folder).out
