"""Which classes of vLLM's sources keep aux states, and hand them over the stages of a pipeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools.scan import vllm_sources
from tools.scan.sources import Sources

REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "AForCausalLM": ("a", "AForCausalLM"),
    "BForCausalLM": ("b", "BForCausalLM"),
    "CForCausalLM": ("b", "CForCausalLM"),
    "DForCausalLM": ("b", "DForCausalLM"),
    "EForCausalLM": ("b", "EForCausalLM"),
    "FForCausalLM": ("b", "FForCausalLM"),
}
"""
A = """
class AModel(nn.Module):
    supports_aux_hidden_states_over_pp = True

    def __init__(self):
        self.aux_hidden_state_layers = ()

class AForCausalLM(nn.Module, SupportsEagle3):
    def __init__(self):
        self.model = self._init_model(prefix="model")

    def _init_model(self, prefix):
        return AModel(prefix)
"""
B = """
class BModel(AModel):
    supports_aux_hidden_states_over_pp: bool = False

class BForCausalLM(AForCausalLM):
    def _init_model(self, prefix):
        return BModel(prefix)

class CForCausalLM(nn.Module, SupportsEagle3):
    model_cls = AModel

    def __init__(self):
        self.model = self.model_cls(1)

class DForCausalLM(nn.Module, SupportsEagle3):
    def __init__(self):
        self.language_model = AForCausalLM(1)

class EForCausalLM(nn.Module):
    def __init__(self):
        self.model = AModel(1)

class FModel(nn.Module):
    supports_aux_hidden_states_over_pp = True

class FForCausalLM(AForCausalLM):
    def __init__(self):
        self.language_model = GForCausalLM(1)

class GForCausalLM(nn.Module):
    def __init__(self):
        self.model = FModel(1)
"""


@pytest.fixture
def rows(tmp_path: Path) -> Mapping[str, Any]:
    files = {
        "vllm/__init__.py": "",
        "vllm/model_executor/models/registry.py": REGISTRY,
        "vllm/model_executor/models/interfaces.py": "class SupportsEagle3:\n    pass\n",
        "vllm/model_executor/models/a.py": A,
        "vllm/model_executor/models/b.py": B,
        "vllm-0.32.0.dist-info/METADATA": "Name: vllm\nVersion: 0.32.0\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return vllm_sources.PARTS["targets"](Sources(tmp_path))


def test_the_nearest_statement_of_a_decoder_counts(rows: Mapping[str, Any]) -> None:
    relays = {name for name, row in rows.items() if row.get("relays")}
    assert relays == {"AForCausalLM", "CForCausalLM", "DForCausalLM"}


def test_an_inherited_interface_whose_layers_no_decoder_reads_captures_nothing(
    rows: Mapping[str, Any],
) -> None:
    unread = {name for name, row in rows.items() if row.get("state")}
    assert unread == {"FForCausalLM"} and rows["FForCausalLM"]["captures"] is False
