"""How eaglectl compares names in a quantisation config, beside SGLang's own functions."""

import json
import subprocess
import sys
from typing import Any

import pytest

from eaglectl.engines.data import load
from eaglectl.engines.quantised import COMPARED

pytest.importorskip("sglang")

NAMES = ("lm_head", "model.qkv_proj", "model.self_attn.o_proj", "model.gate_up_proj", "model.down_proj")
# the matrices of a joined one, which FP8's lists name
SHARDS = {
    "model.qkv_proj": ("model.q_proj", "model.k_proj", "model.v_proj"),
    "model.gate_up_proj": ("model.gate_proj", "model.up_proj"),
}
LISTS = (
    *(["lm_head"], ["o_proj"], ["self_attn"], ["qkv_proj", "gate_up_proj"], ["q_proj", "k_proj", "v_proj"]),
    *(["re:.*self_attn.*"], ["re:.*proj"], ["*self_attn*"], ["q*_proj"], ["self_attn.o_proj"]),
    *(["eagle_module.lm_head"], ["model.layers.0.self_attn.q_proj"], ["model"]),
)


def excluded_by_sglang(method: str, patterns: list[str], name: str) -> bool:
    from sglang.srt.layers.quantization.compressed_tensors.utils import should_ignore_layer
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp8Config
    from sglang.srt.layers.quantization.utils import is_layer_skipped

    table: dict[str, Any] = {"quant_method": method, "activation_scheme": "dynamic", "quant_algo": "FP8"}
    match method:
        case "fp8":
            config = Fp8Config.from_config({**table, "modules_to_not_convert": patterns})
            return bool(is_layer_skipped(name, config.ignored_layers, config.packed_modules_mapping))
        case "modelopt":
            return bool(ModelOptFp8Config.from_config({**table, "ignore": patterns}).is_layer_excluded(name))
    return bool(should_ignore_layer(name, patterns))


def all_excluded(method: str) -> list[bool]:
    """Whether SGLang excludes each name by each list."""
    return [excluded_by_sglang(method, patterns, name) for patterns in LISTS for name in NAMES]


# SGLang is imported beside stubs, which no other test may see
CHILD = """
import json, sys
from tests.engine.sglang import stubs
stubs.install()
from tests.engine.sglang.test_names_sglang import all_excluded
print(json.dumps(all_excluded(sys.argv[1])))
"""


@pytest.mark.parametrize("method", ["compressed-tensors", "fp8", "modelopt"])
def test_names_are_compared_as_sglang_does(method: str) -> None:
    rows = load("sglang")["quantised"]["compared"][method]
    ways = [COMPARED[way] for releases, way in rows if not releases.startswith("<")]
    shards = SHARDS if method == "fp8" else {}
    ours = [
        all(
            any(way(pattern, shard) for pattern in patterns for way in ways)
            for shard in shards.get(name, (name,))
        )
        for patterns in LISTS
        for name in NAMES
    ]
    done = subprocess.run([sys.executable, "-c", CHILD, method], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert ours == json.loads(done.stdout.splitlines()[-1])
    assert {*ours} == {True, False}
