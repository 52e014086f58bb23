"""SGLang does with tiny targets what is recorded; tests/engine/targets/README.md says how it is recorded."""

from typing import Any

import pytest

from tests.engine.targets import records

KNOWN = records.read(records.SGLANG)
# a decoder, one with experts, one whose captured states are no boundary, and one beside a vision tower
CAPTURED = ("Gemma3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM", "Qwen3VLForConditionalGeneration")
NAMES = records.sample(KNOWN, CAPTURED)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return records.run("sglang_child", NAMES, tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_does_what_is_recorded(name: str, live: dict[str, Any]) -> None:
    assert live[name] == KNOWN[name]
