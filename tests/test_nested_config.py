"""Drafters whose config has objects of a multimodal one: where their keys are read, and what is written."""

import json
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import ABSENT, HIDDEN, MLP, call, drafter_config, drafter_folder, target_of

TOP = ("architectures", "model_type", "eagle_aux_hidden_state_layer_ids", "eagle_config", "torch_dtype")


def converted(parent: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The config that convert writes of a drafter with this one, which its engines then run."""
    folder, target = drafter_folder(parent, config=config), target_of(parent / "target")
    assert call("convert", folder, "--target", target, "-o", parent / "out").code == 0
    judged = eaglectl.inspect(str(parent / "out"), target=str(target), engines=["vllm", "sglang"])
    assert [verdict.outcome for verdict in judged.requested] == ["as trained", "as trained"]
    written: dict[str, Any] = json.loads((parent / "out/config.json").read_text())
    return written


@pytest.mark.parametrize("key", ["text_config", "thinker_config", "model"])
def test_a_drafters_nested_keys_are_read_and_written_at_the_top(key: str, tmp_path: Path) -> None:
    layer = {name: value for name, value in drafter_config().items() if name not in TOP}
    nested = {"text_config": layer} if key == "thinker_config" else layer
    written = converted(tmp_path, {**dict.fromkeys(layer, ABSENT), key: nested})
    assert (written["intermediate_size"], written["hidden_size"]) == (MLP, HIDDEN)
    assert key not in written


@pytest.mark.parametrize("key", ["text_config", "llm_config"])
def test_another_models_object_gives_a_drafter_nothing(key: str, tmp_path: Path) -> None:
    others = {"hidden_size": 4096, "head_dim": 256, "num_attention_heads": 32, "rope_theta": 1e7}
    written = converted(tmp_path, {"head_dim": ABSENT, key: others})
    assert (written["head_dim"], written["rope_theta"]) == (8, 500000.0)
    assert key not in written


def test_a_note_names_the_object(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path, config={"text_config": {"num_attention_heads": 32}})
    notes = eaglectl.inspect(str(folder)).drafter.notes
    assert any("text_config in config.json is another model's" in note.text for note in notes)
