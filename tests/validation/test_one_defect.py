"""One defect gives one finding, also where several rules could see it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import eaglectl
from tests.builders import HIDDEN, floats
from tests.conftest import FIXTURES
from tests.validation.patches import Patch, check

PATCHES = (
    Patch(
        "an embedding cut short leaves d2t as good as it was",
        ("EGL114",),
        tensors={"embed_tokens.weight": floats("e", 48, HIDDEN)},
    ),
    Patch(
        "shorter than the draft vocabulary",
        ("EGL114",),
        tensors={"embed_tokens.weight": floats("e", 20, HIDDEN)},
    ),
    Patch(
        "vocab_size too small, and no embedding to tell",
        ("EGL302",),
        config={"vocab_size": 48},
        tensors={"embed_tokens.weight": None},
    ),
    Patch("a type that is a list", ("EGL112",), config={"torch_dtype": ["bfloat16"]}),
    Patch("a type that is none", ("EGL112",), config={"torch_dtype": "bf16"}),
    Patch("a null that reading needs", ("EGL104",), config={"num_attention_heads": None}),
)

NESTED: tuple[tuple[str, str, Any, str], ...] = (
    ("modelopt/hf", "eagle_config.use_aux_hidden_state", [1], "EGL112"),
    ("torchspec/mla", "eagle_config.use_aux_hidden_state", "yes", "EGL112"),
    ("torchspec/mla", "num_attention_heads", None, "EGL104"),
    ("speculators/eagle3.1", "transformer_layer_config", [1], "EGL112"),
    ("speculators/eagle3.1", "transformer_layer_config.num_attention_heads", None, "EGL104"),
)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.why)
def test_a_defect_is_said_once(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)


@pytest.mark.parametrize(("fixture", "key", "value", "rule"), NESTED)
def test_a_bad_value_is_said_once(fixture: str, key: str, value: Any, rule: str, tmp_path: Path) -> None:
    before = _errors(FIXTURES / "producers" / fixture)
    folder = tmp_path / "drafter"
    shutil.copytree(FIXTURES / "producers" / fixture, folder)
    config = json.loads((folder / "config.json").read_text())
    *path, last = key.split(".")
    inner = config
    for part in path:
        inner = inner[part]
    inner[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    assert [one for one in _errors(folder) if one not in before] == [rule]


def _errors(folder: Path) -> list[str]:
    found = eaglectl.validate(str(folder), eaglectl.ValidateOptions(headers_only=True)).findings
    return [one.rule.id for one in found if one.severity != "note"]
