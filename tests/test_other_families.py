"""Drafters of other families are refused by name, with what they are and what serves them."""

import json
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
    read_safetensors,
    refusal,
    write_safetensors,
)

# an EAGLE-1 layer takes one state, and norms none that is fed back
EAGLE_1: dict[str, Any] = {
    "layers.0.hidden_norm.weight": None,
    "layers.0.self_attn.q_proj.weight": floats("q", 32, HIDDEN),
}
# config, tensors beside those of a good EAGLE-3, and words of the refusal
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "EDSD": ({"architectures": ["EdsdDraftModel"]}, {}, ("an EDSD drafter", "SpecForge")),
    "EDSD by its tensors": (
        {"target_layer_ids": [3, 5]},
        {"edfuse.gate_proj.weight": floats("e", 32, HIDDEN), "embnorm.weight": floats("n", HIDDEN)},
        ("an EDSD drafter", "edfuse.gate_proj.weight", "no engine"),
    ),
    "VWN": ({"architectures": ["LlamaForCausalLMVwnEagle3"]}, {}, ("a VWN drafter", "vllm-ascend")),
    "VWN by its keys": ({"vwn_m": 4, "vwn_r": 2}, {}, ("a VWN drafter", "vwn_m")),
    "VWN by its tensors": (
        {},
        {"midlayer.downward_and_forgot.weight": floats("d", 4, 4)},
        ("a VWN drafter", "midlayer.downward_and_forgot.weight"),
    ),
    "Mistral's spelling": (
        {},
        {"eagle_linear.weight": floats("l", HIDDEN, 2 * HIDDEN)},
        ("an EAGLE-1 drafter in Mistral's spelling", "vLLM and SGLang serve it"),
    ),
    "Mistral Large 3": ({"architectures": ["EagleMistralLarge3ForCausalLM"]}, {}, ("Mistral's spelling",)),
    "DSpine": ({"dspine_config": {}, "dflash_config": {}}, {}, ("a DSpine drafter", "no release")),
    "H-Spec": ({"architectures": ["HSpecDraftModel"]}, {}, ("an H-Spec drafter", "Mamba")),
    "LiLiCorr": ({"architectures": ["LiLiCorrDraftModel"]}, {}, ("a LiLiCorr drafter", "method dflash")),
    "Gumiho": ({"architectures": ["GumihoLlamaForCausalLM"]}, {}, ("a Gumiho drafter", "43544")),
    "DFlash2": ({"architectures": ["DFlash2DraftModel"]}, {}, ("a DFlash2 drafter", "SGLang (DFLASH)")),
    "Domino": (
        {"architectures": ["DominoDraftModel"], "dflash_config": {"projector_type": "domino"}},
        {},
        ("a Domino drafter", "SGLang (DFLASH) serves it"),
    ),
    "Domino by its tensors": (
        {"dflash_config": {"projector_type": "domino"}},
        {"prefix_gru.weight_ih_l0": floats("g", 4, HIDDEN)},
        ("a Domino drafter", "prefix_gru.weight_ih_l0"),
    ),
    "DTA": (
        {
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {"target_layer_ids": [1, 9], "training_mode": "vp_drafter"},
        },
        {},
        ("a DTA drafter", "dflash_config.training_mode is vp_drafter", "no release of an engine"),
    ),
    "DFlash": (
        {"architectures": ["DFlashDraftModel"], "dflash_config": {"training_mode": "dflash"}},
        {},
        ("is a DFlash drafter", "method dflash"),
    ),
    "DFly": ({"speculators_model_type": "dfly"}, {}, ("a DFly drafter", "50246")),
    "MTP of DeepSeek-V4": ({"architectures": ["DeepSeekV4MTPModel"]}, {}, ("(MTP) head of DeepSeek-V4",)),
    "MTP of Qwen3.5": ({"architectures": ["Qwen3_5ForCausalLMMTP"]}, {}, ("of Qwen3.5", "method mtp")),
    "MTP of GLM-5": ({"architectures": ["GlmMoeDsaForCausalLMNextN"]}, {}, ("of GLM-5", "NEXTN")),
    "MTP of Step-3.5": ({"architectures": ["Step3p5MTP"]}, {}, ("of Step-3.5",)),
    "MTP of Qwen3-Next by its tensors": (
        {},
        {"mtp.pre_fc_norm_hidden.weight": floats("m", HIDDEN)},
        ("(MTP) head", "mtp.pre_fc_norm_hidden.weight"),
    ),
    "MTP of MiMo by its tensors": (
        {},
        {"model.mtp_layers.0.input_proj.weight": floats("m", HIDDEN, 2 * HIDDEN)},
        ("(MTP) head", "model.mtp_layers.0"),
    ),
    "MTP of Ernie by its tensors": (
        {},
        {"model.mtp_linear_proj.0.weight": floats("m", HIDDEN, 2 * HIDDEN)},
        ("(MTP) head", "model.mtp_linear_proj"),
    ),
    "Megatron's names, of a state in several stages": (
        {},
        {"module.eagle_module.decoder.layers.0.mlp.linear_fc2.weight": floats("m", HIDDEN, 32)},
        ("Megatron's names", "export it first", "NeMo RL and ModelOpt"),
    ),
    "Megatron's names, of layers in one tensor": (
        {},
        {"eagle_module.decoder.layers.self_attention.linear_qkv.weight": floats("m", 1, 32, HIDDEN)},
        ("Megatron's names", "export it first"),
    ),
    "ModelOpt's own names, not exported": (
        {},
        {"eagle_module.fc.weight": floats("m", HIDDEN, 3 * HIDDEN)},
        ("training state of ModelOpt", "export_hf_checkpoint"),
    ),
    "ViSpec": ({"architectures": ["VispecDraftModel"]}, {}, ("a ViSpec drafter", "no engine has")),
    "ViSpec by its key": ({"vispec_num_query_tokens": 2}, {}, ("a ViSpec drafter",)),
    "ViSpec by its tensors": ({}, {"img_fc.bias": floats("i", HIDDEN)}, ("a ViSpec drafter", "img_fc.bias")),
    "MSD": ({"architectures": ["MultimodalEagleDraftModel"]}, {}, ("an MSD drafter", "only its trainer")),
    "Hydra": ({"hydra_num_heads": 4}, {}, ("a Hydra head", "no release of an engine")),
    "MLP speculator": ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, {}, ("an MLP speculator",)),
    "EAGLE-1": ({}, {**EAGLE_1, "fc.weight": floats("f", HIDDEN, 2 * HIDDEN)}, ("EAGLE-1/2", "method eagle")),
    "EAGLE-1 of a class": (
        {"architectures": ["LlamaEagleDraftModel"]},
        {**EAGLE_1, "fc.weight": floats("f", HIDDEN, 2 * HIDDEN)},
        ("EAGLE-1/2", "two inputs wide"),
    ),
    "EAGLE-1 for a wider target": (
        {"architectures": ["LlamaForCausalLMEagle"]},
        {**EAGLE_1, "fc.weight": floats("f", HIDDEN, 3 * HIDDEN)},
        ("EAGLE-1/2", "its layer takes one state"),
    ),
    "Megatron's names, of the head alone": (
        {},
        {"eagle_output_layer.weight": floats("m", 32, HIDDEN)},
        ("Megatron's names", "export_mcore_gpt_to_hf"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_another_family_is_named_with_what_serves_it(case: str, tmp_path: Path) -> None:
    config, tensors, words = CASES[case]
    folder = drafter_folder(tmp_path, config=config, tensors=tensors)
    message = refusal(1, "convert", folder, "-o", tmp_path / "out")
    assert [word for word in (*words, "EAGLE-3 and EAGLE-3.1 drafters only") if word not in message] == []
    assert refusal(1, "inspect", folder) == message


def test_a_head_without_attention_is_no_drafter_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "other", "hidden_size": 16}')
    tensors = {name: floats(name, HIDDEN, HIDDEN) for name in ("heads.0.weight", "heads.1.weight")}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert "no attention layer under any known name" in refusal(1, "inspect", tmp_path)


@pytest.mark.parametrize("names", [("params.json",), ("params.json", "consolidated.safetensors")])
def test_a_folder_in_mistrals_own_layout_is_refused_by_name(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        if name.endswith(".json"):
            (tmp_path / name).write_text('{"dim": 16}')
        else:
            write_safetensors(tmp_path / name, {"eagle_linear.weight": floats("l", HIDDEN, 2 * HIDDEN)})
    for verb in ("inspect", "convert"):
        message = refusal(1, verb, tmp_path)
        assert "in Mistral's own layout (params.json" in message and "EAGLE-1" in message
    done = call("validate", tmp_path)
    assert done.code == 1 and "Mistral's own layout" in " ".join(done.out.split())


def test_params_beside_a_config_change_nothing(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path)
    (folder / "params.json").write_text('{"dim": 16}')
    assert call("inspect", folder).code == 0


def test_a_target_in_mistrals_layout_is_not_called_a_drafter(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "params.json").write_text("{}")
    done = call("inspect", drafter_folder(tmp_path), "--target", target)
    assert done.code == 3 and "a target is known by it" in done.err


def test_no_name_is_of_two_families() -> None:
    for names in ("architectures", "keys"):
        marks = [mark for family in FAMILIES for mark in getattr(family, names)]
        assert len(marks) == len(set(marks))


def test_no_name_of_an_eagle3_drafter_is_another_familys() -> None:
    others = {name for family in FAMILIES for name in family.architectures}
    own = {name for format in FORMATS if format.layout for name in format.layout.architectures.values()}
    for path in (Path(eaglectl.__file__).parent / "engines").glob("*_releases.json"):
        own |= set(re.findall(r'"(\w*Eagle3\w*)"', path.read_text()))
    assert {"LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"} <= own
    assert not own & others


@pytest.mark.parametrize("name", drafter_tensors())
def test_no_tensor_of_an_eagle3_drafter_is_another_familys(name: str) -> None:
    patterns = [family.tensors for family in FAMILIES if family.tensors]
    assert not [p for p in patterns for prefix in ("", "model.") if re.fullmatch(p, f"{prefix}{name}")]


@pytest.mark.parametrize("keys", [{}, {"eagle_config": {"use_aux_hidden_state": False}}])
def test_an_fc_of_another_shape_is_an_fc(keys: dict[str, Any], tmp_path: Path) -> None:
    source = drafter_folder(tmp_path)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | keys))
    tensors = read_safetensors(source / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if "hidden_norm" not in name}
    tensors["fc.weight"] = "F32", [], bytes(4)
    write_safetensors(source / "model.safetensors", tensors)
    assert "no fc" not in refusal(1, "inspect", source)


def test_every_family_has_a_mark_and_a_source() -> None:
    for family in FAMILIES:
        assert family.source
        marks = (family.architectures, family.keys, family.values, family.tensors, family.speculators)
        assert any(marks)
