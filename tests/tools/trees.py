"""Source trees of engines for the scanner, what was found in releases, and its command line."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from eaglectl.engines import vllm
from tests.builders import Outcome, write_package
from tools.scan.__main__ import main

SCANS = sorted(Path(__file__).parent.glob("scans/vllm-*.json"))


def call_scan(*arguments: str | Path) -> Outcome:
    """Run `python -m tools.scan` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def scan(path: Path) -> dict[str, Any]:
    """What is kept of the scan of a release."""
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def drafter(extra: str = "pass") -> str:
    """A drafter class as the scanner reads one."""
    return f"""
class Layer:
    def __init__(self, config):
        bias = getattr(config, "attention_bias", False)
        if getattr(config, "norm_before_residual", False):
            pass
class Model:
    def __init__(self):
        eagle_config = getattr(self.config, "eagle_config", None) or {{}}
        self.use_aux_hidden_state = eagle_config["use_aux_hidden_state"]
        self.norm_before_fc = \
            eagle_config.get("norm_before_fc", getattr(self.config, "norm_before_fc", False))
        count = range(self.config.num_hidden_layers)
        n = getattr(self.config, "num_aux_hidden_states", None)
        ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
        n = len(ids) if ids else 3
        norm = getattr(self.config, "fc_norm", False)
        self.norm_output = getattr(self.config, "norm_output", False)
        {extra}
    def load_weights(self, weights):
        return AutoWeightsLoader(self).load_weights(weights)
class Outer:
    def __init__(self):
        if self.config.draft_vocab_size != target_vocab_size:
            self.draft_id_to_target_id = nn.Parameter(zeros)
    def combine_hidden_states(self, hidden_states):
        return self.model.fc_norm(self.model.input_norm(hidden_states))
    def load_weights(self, weights):
        for name, weight in weights:
            if "t2d" in name:
                continue
            if "mask_hidden" in name:
                continue
            name = "model." + name
        loader = AutoWeightsLoader(self)
        loader.load_weights(weights)
"""


MLA = (
    drafter()
    .replace('"norm_before_fc"', '"other"')
    .replace("self.model.input_norm(hidden_states)", "hidden_states")
    .replace("mask_hidden", "other")
)


def module_of(name: str) -> str:
    """The module that vLLM registers an architecture with."""
    if "Qwen3For" in name:
        return "qwen3_eagle3"
    return "deepseek_eagle3" if "Deepseek" in name else "llama_eagle3"


CLASSES = [name for name in vllm.ENGINE.data["architectures"] if "Eagle3" in name]
REGISTERED = {name: (module_of(name), "X") for name in CLASSES}


TREE = {
    "__init__.py": "raise SystemExit('the scanner must not import this')",
    "model_executor/models/registry.py": f"M = {REGISTERED}",
    "model_executor/models/llama_eagle3.py": drafter(),
    "model_executor/models/deepseek_eagle3.py": MLA,
    "model_executor/models/qwen3_eagle3.py": drafter(
        'a = getattr(self.config, "eagle_aux_hidden_state_layer_ids"), self.config.layer_types'
    ),
    "model_executor/models/interfaces.py": (
        "def get_eagle3_default_aux_hidden_state_layers(self):\n"
        "    return (2, num_layers // 2, num_layers - 3)\n"
        "def f(): return tuple(sorted(set(layers)))"
    ),
    "model_executor/models/utils.py": (
        "class AutoWeightsLoader:\n"
        "    def __init__(self):\n"
        "        self.ignore_unexpected_suffixes.append('.bias')"
    ),
    "model_executor/model_loader/default_loader.py": "track = loaded_weights is not None",
    "config/vllm.py": (
        "class V:\n"
        "    def use_v2_model_runner(self):\n"
        "        return True\n"
        "    def _get_v2_model_runner_unsupported_features(self):\n"
        "        a.append('parallel drafting for EAGLE speculative decoding')"
    ),
    "config/speculative.py": "def hf_config_override(hf_config):\n    return hf_config.model_type in "
    + str((*vllm.ENGINE.data["rewritten_model_types"],))
    + "\ndef _maybe_override_draft_max_position_embeddings(): pass",
    "v1/worker/gpu_model_runner.py": (
        "def _get_eagle3_aux_layers_from_config(self):\n"
        "    ids = getattr(hf_config, 'eagle_aux_hidden_state_layer_ids', None)\n"
        "    dflash_config = getattr(hf_config, 'dflash_config', None)\n"
        "    eagle_config = getattr(hf_config, 'eagle_config', None)\n"
        "    ids = dflash_config.get('target_layer_ids')\n"
        "    ids = eagle_config.get('eagle_aux_hidden_state_layer_ids')"
    ),
    "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py": (
        "def get_eagle3_aux_layers_from_config(c):\n"
        "    ids = getattr(hf_config, 'eagle_aux_hidden_state_layer_ids', None)\n"
        "    dflash_config = getattr(hf_config, 'dflash_config', None)\n"
        "    ids = dflash_config.get('target_layer_ids')\n"
        "    ids = getattr(hf_config, 'target_layer_ids', None)\n"
        "    for name in ('dflash_config', 'eagle_config'):\n"
        "        inner = getattr(hf_config, name, None)\n"
        "        ids = inner.get('layer_ids')"
    ),
    "transformers_utils/configs/speculators/algos.py": """
@register_speculator("eagle3")
def update_eagle3(config_dict, pre_trained_config):
    pre_trained_config["norm_before_residual"] = config_dict.get("norm_before_residual", True)
    pre_trained_config["norm_before_fc"] = config_dict.get("norm_before_fc", False)
    pre_trained_config["fc_norm"] = config_dict.get("fc_norm", False)
    pre_trained_config["norm_output"] = config_dict.get("norm_output", False)
    raise ValueError("Unsupported model_type")
""",
}


def tree(parent: Path, **changed: tuple[str, str]) -> Path:
    """The synthetic package, in some files with one text in place of another."""
    return write_package(parent / "vllm", TREE, changed).parent
