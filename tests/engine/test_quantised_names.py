"""How eaglectl compares names in a quantisation config, beside vLLM's own functions."""

from typing import Any

import pytest

from eaglectl.engines.data import load
from eaglectl.engines.quantised import COMPARED

pytest.importorskip("vllm")
# torch's, of what vLLM imports
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NAMES = (
    *("model.fc", "lm_head", "model.layers.36.self_attn.qkv_proj", "model.layers.36.self_attn.o_proj"),
    *("model.layers.36.mlp.gate_up_proj", "model.layers.36.mlp.down_proj"),
)
LISTS = (
    *(["fc"], ["model.fc"], ["re:.*self_attn.*"], ["re:fc"], ["model.layers.36.self_attn.q_proj"]),
    *(["layers*"], ["*layers*"], ["self_attn"], ["self_attn*"], ["*fc*"], ["eagle_module.lm_head"]),
    *(["model.layers.36.*"], ["model.layers.36"], ["lm_head"], ["o_proj", "down_proj"]),
)


def excluded_by_vllm(method: str, patterns: list[str], name: str) -> bool:
    """What the config of the drafter itself makes of a name (get_draft_quant_config)."""
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig
    from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    from vllm.model_executor.layers.quantization.modelopt import ModelOptFp8Config
    from vllm.model_executor.layers.quantization.utils.gptq_utils import (
        get_dynamic_override,
        is_layer_gptq_quantized,
    )
    from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

    table: dict[str, Any] = {"quant_method": method, "activation_scheme": "dynamic", "quant_algo": "FP8"}
    match method:
        case "gptq":  # named to be quantised, or left out by an expression
            words = {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}
            left_out = {f"-:{text[3:]}": {} for text in patterns if text.startswith("re:")}
            gptq = AutoGPTQConfig.from_config({**table, **words, "dynamic": left_out})
            return is_layer_gptq_quantized(name, patterns) or get_dynamic_override(gptq, name) is False
        case "awq":
            return bool(is_layer_skipped(name, patterns, match_mode="substring"))
        case "fp8":
            config = Fp8Config.from_config({**table, "modules_to_not_convert": patterns})
            return bool(is_layer_skipped(name, config.ignored_layers, config.packed_modules_mapping))
        case "modelopt":
            return bool(ModelOptFp8Config.from_config({**table, "ignore": patterns}).is_layer_excluded(name))
    return bool(should_ignore_layer(name, patterns))


@pytest.mark.parametrize("method", ["compressed-tensors", "fp8", "modelopt", "gptq", "awq"])
def test_names_are_compared_as_vllm_does(method: str) -> None:
    ways = [COMPARED[way] for _, way in load("vllm")["quantised"]["compared"][method]]
    ours = {
        (*patterns, name): any(way(pattern, name) for pattern in patterns for way in ways)
        for patterns in LISTS
        for name in NAMES
    }
    theirs = {
        (*patterns, name): excluded_by_vllm(method, patterns, name) for patterns in LISTS for name in NAMES
    }
    assert ours == theirs
    assert {*ours.values()} == {True, False}


def test_mixed_precision_names_modules_as_vllm_does() -> None:
    from vllm.model_executor.layers.quantization.modelopt import ModelOptMixedPrecisionConfig

    (way,) = (COMPARED[way] for _, way in load("vllm")["quantised"]["compared"]["quantized_layers"])
    listed = [
        *NAMES,
        "model.layers.36.self_attn.q_proj",
        "model.layers.36.mlp.up_proj",
        "model.layers.36.mlp",
    ]
    for pattern in [*listed, "fc", "down_proj", "layers.36.mlp.down_proj", "model.fc.part"]:
        layers = {pattern: {"quant_algo": "FP8"}}
        table = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        config = ModelOptMixedPrecisionConfig.from_config(table)
        for name in NAMES:
            assert way(pattern, name) == (config._resolve_quant_algo(name) is not None), (pattern, name)
