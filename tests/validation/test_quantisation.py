"""Rules on quantised drafters: every bad case is a quantised drafter, a patch, and exactly the findings it
must give.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from eaglectl.judge.rule import Policy
from tests.builders import Stored, drafter_tensors, floats
from tests.validation.patches import Patch, check

MODULES = tuple(
    f"layers.0.{part}_proj"
    for part in ("mlp.down", "mlp.gate", "mlp.up", "self_attn.k", "self_attn.o", "self_attn.q", "self_attn.v")
)
LEFT = ["fc", "lm_head"]
FAMILY = {"given": {"select": ["EGL8"]}}


def scaled(*modules: str) -> dict[str, Stored]:
    """These modules in float8 with a scale each."""
    found = {}
    for module in modules:
        _, shape, _ = drafter_tensors()[f"{module}.weight"]
        found[f"{module}.weight"] = ("F8_E4M3", shape, bytes(range(64, 72)) * (shape[0] * shape[1] // 8))
        found[f"{module}.weight_scale"] = floats(module, dtype="F32")
    return found


def modelopt(*left_out: str, algorithm: str | None = "FP8") -> dict[str, Any]:
    """A ModelOpt config."""
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": list(left_out)}
    return {"quantization_config": {"producer": {"name": "modelopt"}, "quantization": quantization}}


def compressed(*left_out: str, targets: tuple[str, ...] = ("Linear",), **changes: Any) -> dict[str, Any]:
    """A compressed-tensors config."""
    groups = {"group_0": {"targets": list(targets), "weights": {"num_bits": 8, "type": "float"}}}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": groups,
            "ignore": list(left_out),
            **changes,
        }
    }


# ModelOpt's exporter writes this beside drafters that it did not quantise
UNQUANTISED = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "exclude_modules": []}}
GOOD = (
    Patch(
        "a side file that says that nothing is quantised",
        (),
        files={"hf_quant_config.json": json.dumps(UNQUANTISED).encode()},
        **FAMILY,
    ),
    Patch("a config that says so", (), {"quantization_config": UNQUANTISED}, **FAMILY),
    Patch("a config of ModelOpt that says so", (), {"quantization_config": {"quant_algo": None}}, **FAMILY),
    Patch("ModelOpt", (), config=modelopt(*LEFT), tensors=scaled(*MODULES), **FAMILY),
    Patch(
        "ModelOpt with globs and its own prefix",
        (),
        config=modelopt("eagle_module.lm_head", "*fc*"),
        tensors=scaled(*MODULES),
        **FAMILY,
    ),
    Patch(
        "ModelOpt with the norms by name and by glob",
        (),
        config=modelopt(*LEFT, "midlayer.hidden_norm", "*midlayer.input_layernorm", "model.norm", "*norm"),
        tensors=scaled(*MODULES),
        **FAMILY,
    ),
    Patch(
        "compressed-tensors", (), config=compressed("lm_head", "re:.*fc"), tensors=scaled(*MODULES), **FAMILY
    ),
    Patch(
        "compressed-tensors that names its modules",
        (),
        config=compressed(targets=(r"re:.*mlp\..*",)),
        tensors=scaled(*MODULES[:3]),
        **FAMILY,
    ),
    Patch(
        "fp8 with a list",
        (),
        config={"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": LEFT}},
        tensors=scaled(*MODULES),
        **FAMILY,
    ),
)
BAD = (
    Patch(
        "scales beside a config that says that nothing is quantised",
        ("EGL801",),
        modelopt(*LEFT, algorithm=None),
        tensors=scaled(*MODULES),
        says="scales and no quantization_config",
        **FAMILY,
    ),
    Patch(
        "the target's quantisation config",
        ("EGL801",),
        config=compressed("lm_head"),
        says="no quantised weight",
    ),
    Patch(
        "scales and no config", ("EGL801",), tensors=scaled(*MODULES), **FAMILY, says="no quantization_config"
    ),
    Patch(
        "a module with scales that is left out",
        ("EGL802",),
        config=compressed(*LEFT, "re:.*down_proj"),
        tensors=scaled(*MODULES),
        **FAMILY,
        says="mlp.down_proj has scales, and the config leaves it out",
    ),
    Patch(
        "a module without scales that is not left out",
        ("EGL802",),
        config=modelopt("lm_head"),
        tensors=scaled(*MODULES),
        **FAMILY,
        says="fc has no scales",
    ),
    Patch(
        "no method",
        ("EGL803",),
        config={"quantization_config": {"ignore": LEFT}},
        tensors=scaled(*MODULES),
        **FAMILY,
        says="neither quant_method nor quant_algo",
    ),
    Patch(
        "an unknown method",
        ("EGL803",),
        config=compressed(*LEFT, quant_method="bitpacking"),
        tensors=scaled(*MODULES),
        **FAMILY,
        says="'bitpacking', which vLLM does not know",
    ),
    Patch(
        "an unknown algorithm",
        ("EGL803",),
        config=modelopt(*LEFT, algorithm="INT3"),
        tensors=scaled(*MODULES),
        **FAMILY,
        says="'INT3'",
    ),
    Patch(
        "a quantised fc",
        ("EGL804",),
        config=modelopt("lm_head"),
        tensors=scaled(*MODULES, "fc"),
        **FAMILY,
        says="fc is quantised",
    ),
    Patch(
        "names of another model's modules",
        ("EGL805",),
        config=compressed(*LEFT, "model.vision_tower.patch"),
        tensors=scaled(*MODULES),
        **FAMILY,
        says="model.vision_tower.patch is left out",
    ),
    Patch(
        "a way that the policy does not allow",
        ("EGL806",),
        config=compressed(*LEFT),
        tensors=scaled(*MODULES),
        given={"select": ["EGL8"], "policy": Policy(allowed={"quantisation": ("modelopt*",)})},
        says="compressed-tensors is not among modelopt*",
    ),
    Patch(
        "a list that is none",
        (),
        config=compressed(ignore="lm_head"),
        tensors=scaled(*MODULES),
        **FAMILY,
        blind=("EGL802", "EGL805"),
    ),
    Patch(
        "a broken pattern",
        (),
        config=compressed("re:("),
        tensors=scaled(*MODULES),
        **FAMILY,
        blind=("EGL802", "EGL805"),
    ),
)


@pytest.mark.parametrize("patch", GOOD + BAD, ids=lambda patch: patch.why)
def test_quantisation_gives_exactly_its_findings(patch: Patch, tmp_path: Path) -> None:
    check(patch, tmp_path)
