"""What inspect says of a target that was quantised or adapted after training."""

import json
from pathlib import Path

import pytest

import eaglectl
from eaglectl.errors import RefusedError
from eaglectl.formats.reader import METHODS, read_target
from eaglectl.target import open_target
from tests.builders import HIDDEN, VOCAB, drafter_folder

TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": HIDDEN, "vocab_size": VOCAB}


@pytest.mark.parametrize(
    ("stated", "words", "known"),
    [
        ({"quant_method": "fp8"}, "(fp8)", "kept acceptance, 2.67 to 2.77"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "", "kept acceptance"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "(modelopt NVFP4)", "5.21 with Llama-3.1-8B"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "", "5.21 with Llama"),
        ({"quant_method": "awq", "bits": 4}, "(awq)", "5.25 with Llama-3.1-8B"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "", "5.25 with Llama"),
        ({"quant_method": "gptq", "bits": 4}, "(gptq)", "no length is published"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "", "no length is published"),
        ({"quant_method": "mxfp4"}, "(mxfp4)", "gpt-oss is released in it"),
        ({"quant_method": "bitsandbytes"}, "(bitsandbytes)", "nothing is published"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "", "nothing is published"),
        ({"quant_method": "torchao"}, "(torchao)", "nothing is published"),
        ({"bits": 4}, "(of no name)", "nothing is published"),
        ({"quant_method": 8}, "(of no name)", "nothing is published"),
    ],
)
def test_the_method_is_named_with_what_is_known_of_it(
    stated: dict[str, object], words: str, known: str
) -> None:
    (change,) = read_target({**TARGET, "quantization_config": stated}, None).changes
    assert words in change and known in change and "vllm-ascend 7038" in change


def test_each_method_is_found_by_its_own_name() -> None:
    named = {method.name: method for method in METHODS[:6]}
    for name, method in named.items():
        stated = {"quant_method": name.lower()}
        (change,) = read_target({**TARGET, "quantization_config": stated}, None).changes
        assert method.known in change


@pytest.mark.parametrize("stated", [None, {}, [], "fp8"])
def test_what_is_no_quantisation_is_not_said(stated: object) -> None:
    assert read_target({**TARGET, "quantization_config": stated}, None).changes == ()


def test_inspect_shows_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text(
        json.dumps({**TARGET, "quantization_config": {"quant_method": "gptq"}})
    )
    (target / "adapter_config.json").write_text("{}")
    drafter = eaglectl.inspect(str(drafter_folder(tmp_path)), target=str(target)).drafter
    texts = [note.text for note in drafter.notes if note.topic == "changed-target"]
    assert [text.partition(":")[0] for text in texts] == [
        "the target is quantised (gptq)",
        "the target has a LoRA adapter beside it (adapter_config.json)",
    ]


def test_an_adapter_alone_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(RefusedError, match="give the model that it adapts"):
        open_target(str(tmp_path))
