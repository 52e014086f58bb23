"""vLLM does with tiny targets what is recorded; tests/engine/targets/README.md says how it is recorded."""

import os
from typing import Any

import pytest

from tests.engine.targets import live as again
from tests.engine.targets import records

KNOWN = records.read(records.VLLM)
# a class of vLLM's own, transformers' models, MLA, and a decoder beside a vision tower
CAPTURED = (
    "ArceeForCausalLM",
    "DeepseekV2ForCausalLM",
    "LlamaForCausalLM",
    "Qwen3VLForConditionalGeneration",
)
NAMES = (
    sorted(KNOWN) if os.environ.get("EAGLECTL_AGREEMENT_CASES") == "all" else again.sample(KNOWN, CAPTURED)
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return again.run("vllm_child", NAMES, tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_does_what_is_recorded(name: str, live: dict[str, Any]) -> None:
    assert live[name] == KNOWN[name]
