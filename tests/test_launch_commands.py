"""The commands that serve a drafter have the options that the engines have."""

import json
import shlex
from pathlib import Path

import pytest

import eaglectl
from eaglectl.engines.data import load
from eaglectl.engines.registry import launch_commands
from tests.builders import drafter_folder

SLIDING = {"sliding_window": 64, "layer_types": ["sliding_attention"]}
TARGET = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 16, "vocab_size": 64}
AWQ = {"quantization_config": {"quant_method": "awq"}}
UNQUANTISED = "--speculative-draft-model-quantization unquant"


def commands(parent: Path, target: dict[str, object] | None = None, **config: object) -> dict[str, str]:
    folder = drafter_folder(parent, config=config)
    place = None
    if target is not None:
        place = parent / "target"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(target))
    drafter = eaglectl.inspect(folder, target=place).drafter
    return dict(launch_commands(drafter, "a/head", 3, "main"))


@pytest.mark.parametrize(("config", "target"), [({}, None), (SLIDING, None), ({}, {**TARGET, **AWQ})])
def test_each_option_is_one_that_the_engine_has(
    config: dict[str, object], target: dict[str, object] | None, tmp_path: Path
) -> None:
    printed = commands(tmp_path, target, **config)
    known = load("sglang")["speculative_options"]["names"]
    options = [word for word in shlex.split(printed["sglang"]) if word.startswith("--speculative-")]
    assert options and [word for word in options if word.removeprefix("--speculative-") not in known] == []
    stated = json.loads(shlex.split(printed["vllm"])[-1])
    assert set(stated) <= set(load("vllm")["speculative_options"]["names"])


def test_a_window_is_given_to_sglang_by_its_own_option(tmp_path: Path) -> None:
    assert "--speculative-draft-window-size 64" in commands(tmp_path, **SLIDING)["sglang"]


@pytest.mark.parametrize(
    ("target", "is_there"),
    [
        ({**TARGET, **AWQ}, True),
        ({"model_type": "llava", "text_config": {**TARGET, **AWQ}}, True),
        (TARGET, False),
        (None, False),
    ],
)
def test_a_drafter_takes_over_no_quantisation_of_its_target(
    target: dict[str, object] | None, is_there: bool, tmp_path: Path
) -> None:
    assert (UNQUANTISED in commands(tmp_path, target)["sglang"]) == is_there
