"""Drafters of other families are refused by name, with what they are and what serves them."""

import re
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from eaglectl.formats.catalogue import FORMATS
from eaglectl.formats.other_drafters import FAMILIES
from tests.builders import (
    HIDDEN,
    call,
    drafter_folder,
    drafter_tensors,
    floats,
    refusal,
    write_safetensors,
)

EAGLE_1: dict[str, Any] = {
    "layers.0.hidden_norm.weight": None,
    **{
        f"layers.0.self_attn.{part}_proj.weight": floats(part, rows, HIDDEN)
        for part, rows in (("q", 32), ("k", 16), ("v", 16))
    },
}
NOTHING: dict[str, Any] = dict.fromkeys(drafter_tensors())
# by a class of its config: words of the refusal
BY_CLASS: dict[str, tuple[str, ...]] = {
    "EdsdDraftModel": ("an EDSD drafter", "SpecForge"),
    "LlamaForCausalLMVwnEagle3": ("a VWN drafter", "vllm-ascend"),
    "EagleMistralLarge3ForCausalLM": ("Mistral's spelling",),
    "HSpecDraftModel": ("an H-Spec drafter", "Mamba"),
    "LiLiCorrDraftModel": ("a LiLiCorr drafter", "method dflash"),
    "GumihoLlamaForCausalLM": ("a Gumiho drafter", "43544"),
    "DFlash2DraftModel": ("a DFlash2 drafter", "SGLang (DFLASH)"),
    "DFlashQwen3ForCausalLM": ("a DFlash drafter",),
    "Gemma4Eagle3Model": ("a Gemma-4 draft head", "layer_scalar"),
    "Glm4MoeForCausalLMEagle3": ("a mixture of experts", "Glm4MoeForCausalLMEagle3"),
    "Qwen3DSparkForCausalLM": ("a DSpark drafter",),
    "DeepSeekV4MTPModel": ("(MTP) head of DeepSeek-V4",),
    "Qwen3_5ForCausalLMMTP": ("of Qwen3.5", "method mtp"),
    "GlmMoeDsaForCausalLMNextN": ("of GLM-5", "NEXTN"),
    "Step3p5MTP": ("of Step-3.5",),
    "VispecDraftModel": ("a ViSpec drafter", "no engine has"),
    "MultimodalEagleDraftModel": ("an MSD drafter", "only its trainer"),
    "MLPSpeculatorPreTrainedModel": ("an MLP speculator",),
}
# by one other key of its config
BY_KEY: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("vwn_m", 4, ("a VWN drafter", "vwn_m")),
    ("dflash_config", {"block_size": 16}, ("a DFlash drafter", "dflash_config")),
    ("dspark_config", {}, ("a DSpark drafter", "dspark_config")),
    ("vispec_num_query_tokens", 2, ("a ViSpec drafter",)),
    ("use_moe", True, ("a mixture of experts", "no engine", "use_moe")),
    (
        "eagle_aux_layer_bands",
        [[1, 2, 8], [18, 20]],
        ("mixes target layers in bands", "eagle_aux_layer_bands"),
    ),
    ("speculators_model_type", "dfly", ("a DFly drafter", "50246")),
    ("speculators_model_type", "eagle", ("an EAGLE-1/2 drafter",)),
    ("speculators_model_type", "mtp", ("(MTP)",)),
    ("speculators_model_type", "dflash", ("a DFlash drafter",)),
    ("speculators_model_type", "dspark", ("a DSpark drafter",)),
    ("speculators_model_type", "mlp", ("an MLP speculator",)),
    ("speculators_model_type", "independent", ("an independent draft model",)),
    ("speculators_model_type", "newer", ('a speculators "newer" model',)),
)
# by the name of a tensor beside those of a good EAGLE-3, which the refusal holds
BY_TENSOR: dict[str, tuple[str, ...]] = {
    "midlayer.mlp.up_proj.weight_offset": ("msModelSlim quantised", "pass the drafter as it was before"),
    "model.layers.0.self_attn.q_proj.deq_scale": ("msModelSlim quantised", "vllm-ascend and SGLang"),
    "midlayer.downward_and_forgot.weight": ("a VWN drafter",),
    "eagle_linear.weight": ("an EAGLE-1 drafter in Mistral's spelling", "vLLM and SGLang serve it"),
    "enorm.weight": ("a multi-token-prediction (MTP) head",),
    "model.layers.61.eh_proj.weight": ("(MTP) head",),
    "model.layers.61.shared_head.norm.weight": ("(MTP) head",),
    "mtp.pre_fc_norm_hidden.weight": ("(MTP) head",),
    "model.mtp_layers.0.input_proj.weight": ("(MTP) head",),
    "model.mtp_linear_proj.0.weight": ("(MTP) head",),
    "midlayer.mlp.experts.0.up_proj.weight": ("a mixture of experts",),
    "context_proj.weight": ("a DFlash drafter",),
    "0.0.linear.weight": ("a Medusa head",),
    "medusa_head.0.0.linear.weight": ("a Medusa head",),
    "midlayer.self_attn.gate_proj.weight": ("gated attention", "multiplied by a gate", "no engine"),
    "layers.0.self_attn.g_proj.weight": ("a Kimi-K3 draft head",),
    "img_fc.bias": ("a ViSpec drafter",),
    "module.eagle_module.decoder.layers.0.mlp.linear_fc2.weight": (
        *("Megatron's names", "export it first", "NeMo RL and ModelOpt"),
    ),
    "eagle_module.decoder.layers.self_attention.linear_qkv.weight": ("Megatron's names", "export it first"),
    "eagle_module.fc.weight": ("training state of ModelOpt", "export_hf_checkpoint"),
    "eagle_output_layer.weight": ("Megatron's names", "export_mcore_gpt_to_hf"),
}
Case = tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]
# by several marks together: config, tensors, words
BY_MORE: dict[str, Case] = {
    "gated attention by its queries": (
        {"attn_output_gate": True},
        {"layers.0.self_attn.q_proj.weight": floats("q", 64, 2 * HIDDEN)},
        ("gated attention", "two rows for each column", "train a drafter without attn_output_gate"),
    ),
    "gated attention that its config does not state": (
        {"num_attention_heads": 8},
        {
            "layers.0.self_attn.q_proj.weight": None,
            "midlayer.self_attn.q_proj.weight": floats("q", 64, 2 * HIDDEN),
        },
        ("gated attention", "no engine has a class"),
    ),
    "EDSD by its tensors": (
        {"target_layer_ids": [3, 5]},
        {"edfuse.gate_proj.weight": floats("e", 32, HIDDEN), "embnorm.weight": floats("n", HIDDEN)},
        ("an EDSD drafter", "edfuse.gate_proj.weight", "no engine"),
    ),
    "DSpine": ({"dspine_config": {}, "dflash_config": {}}, {}, ("a DSpine drafter", "no release")),
    "Domino by its tensors": (
        {"dflash_config": {"projector_type": "domino"}},
        {"prefix_gru.weight_ih_l0": floats("g", 4, HIDDEN)},
        ("a Domino drafter", "prefix_gru.weight_ih_l0"),
    ),
    "DTA": (
        {"architectures": ["DFlashDraftModel"], "dflash_config": {"training_mode": "vp_drafter"}},
        {},
        ("a DTA drafter", "dflash_config.training_mode is vp_drafter", "no release of an engine"),
    ),
    "DFlash by its layers": (
        {"target_layer_ids": [1, 9]},
        EAGLE_1 | {"hidden_norm.weight": floats("h", HIDDEN)},
        ("a DFlash drafter", "target_layer_ids"),
    ),
    "a Gemma-4 head by its tensors": (
        {"target_layer_ids": [1, 3, 5]},
        {"layers.0.layer_scalar": floats("s", 1)},
        ("a Gemma-4 draft head", "it has layers.0.layer_scalar"),
    ),
    "EAGLE-1": (
        {},
        EAGLE_1 | {"fc.weight": floats("f", HIDDEN, 2 * HIDDEN), "lm_head.weight": None, "d2t": None},
        ("an EAGLE-1/2 drafter", "fc.weight is [16, 32]", "method eagle"),
    ),
    "EAGLE-1 for a wider target": (
        {"architectures": ["LlamaForCausalLMEagle"]},
        {**EAGLE_1, "fc.weight": floats("f", HIDDEN, 3 * HIDDEN)},
        ("EAGLE-1/2", "its layer takes one state"),
    ),
    "LoRA": (
        {},
        NOTHING | {"base_model.model.layers.0.self_attn.q_proj.lora_A.weight": floats("a", 2, 32)},
        ("a LoRA adapter", "lora_A"),
    ),
    "a full model": (
        {"architectures": ["LlamaForCausalLM"]},
        {"fc.weight": None, **EAGLE_1},
        ("a full language model",),
    ),
    "a Medusa head by its key": (
        {"medusa_num_heads": 4},
        NOTHING | {"0.linear": floats("h", HIDDEN, HIDDEN)},
        ("a Medusa head", "medusa_num_heads"),
    ),
    "a Hydra head by its key": (
        {"hydra_num_heads": 4},
        NOTHING | {"0.linear": floats("h", HIDDEN, HIDDEN)},
        ("a Hydra head", "no release of an engine"),
    ),
    "an MLP speculator by its key": (
        {"n_predict": 3},
        NOTHING | {"head.0.weight": floats("h", 64, HIDDEN), "emb.0.weight": floats("e", 64, HIDDEN)},
        ("an MLP speculator", "n_predict"),
    ),
    "something without attention": ({}, NOTHING | {"conv1.weight": floats("q", 3, 3)}, ("not a drafter",)),
}
CASES: dict[str, Case] = {
    **{name: ({"architectures": [name]}, {}, words) for name, words in BY_CLASS.items()},
    **{f"{key}: {value}": ({key: value}, {}, words) for key, value, words in BY_KEY},
    **{name: ({}, {name: floats(name, HIDDEN)}, (*words, name)) for name, words in BY_TENSOR.items()},
    **BY_MORE,
}


@pytest.mark.fast(40)
@pytest.mark.parametrize("case", CASES)
def test_another_family_is_named_with_what_serves_it(case: str, tmp_path: Path) -> None:
    config, tensors, words = CASES[case]
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert [word for word in (*words, "EAGLE-3 and EAGLE-3.1 drafters only") if word not in message] == []
    assert not (tmp_path / "out").exists()
    assert refusal(1, "inspect", folder) == message


def test_a_folder_in_mistrals_own_layout_is_refused_by_name_and_a_target_in_it_is_no_drafter(
    tmp_path: Path,
) -> None:
    drafter, folder = drafter_folder(tmp_path), tmp_path / "mistral"
    folder.mkdir()
    (folder / "params.json").write_text('{"dim": 16}')
    for files in ({}, {"consolidated.safetensors": {"eagle_linear.weight": floats("l", HIDDEN, 2 * HIDDEN)}}):
        for name, tensors in files.items():
            write_safetensors(folder / name, tensors)
        for verb in ("inspect", "convert"):
            message = refusal(1, verb, folder)
            assert "in Mistral's own layout (params.json" in message and "EAGLE-1" in message
        done = call("validate", folder)
        assert done.code == 1 and "Mistral's own layout" in " ".join(done.out.split())
    done = call("inspect", drafter, "--target", folder)
    assert done.code == 3 and "with the target's config.json" in done.err


def test_no_name_of_an_eagle3_drafter_is_another_familys() -> None:
    others = {name for family in FAMILIES for name in family.architectures}
    own = {name for format in FORMATS if format.layout for name in format.layout.architectures.values()}
    for path in (Path(eaglectl.__file__).parent / "engines").glob("*_releases.json"):
        own |= set(re.findall(r'"(\w*Eagle3\w*)"', path.read_text()))
    assert {"LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"} <= own
    assert not own & others


@pytest.mark.parametrize("keys", [{}, {"eagle_config": {"use_aux_hidden_state": False}}])
def test_an_fc_of_another_shape_is_an_fc(keys: dict[str, Any], tmp_path: Path) -> None:
    tensors = {"layers.0.hidden_norm.weight": None, "fc.weight": floats("fc")}
    assert "no fc" not in refusal(1, "inspect", drafter_folder(tmp_path, config=keys, tensors=tensors))
