"""Rules on quantised drafters: bad cases, each with exactly its findings."""

import json
from typing import Any

from eaglectl.judge.rule import AllowTable, Policy
from tests.builders import Stored, drafter_tensors, floats
from tests.validation.patches import Patch, add, exact, only, store

MODULES = tuple(
    f"layers.0.{part}_proj"
    for part in ("mlp.down", "mlp.gate", "mlp.up", "self_attn.k", "self_attn.o", "self_attn.q", "self_attn.v")
)
LEFT = ["fc", "lm_head"]
NORMS = ("midlayer.hidden_norm", "*midlayer.input_layernorm", "model.norm", "*norm")
FP8 = {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": LEFT}}
ALLOW = {"select": ["EGL8"], "policy": Policy(allow=AllowTable(quantisation=("modelopt*",)))}
FAMILY: dict[str, Any] = {"given": {"select": ["EGL8"]}}


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
    stated = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": list(left_out)}
    return {"quantization_config": {**stated, **changes}}


def quantised(
    why: str, finds: str, config: dict[str, Any], says: str = "", blind: tuple[str, ...] | None = None
) -> Patch:
    """A drafter whose layer is quantised, with this config, under the rules of the family."""
    return Patch(why, finds, config, says, scaled(*MODULES), given=only("EGL8"), blind=blind)


# ModelOpt's exporter writes this beside drafters that it did not quantise
UNQUANTISED = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "exclude_modules": []}}
GOOD = (
    add("a side file that says no", "", {"hf_quant_config.json": json.dumps(UNQUANTISED).encode()}, **FAMILY),
    Patch("a config that says so", "", {"quantization_config": UNQUANTISED}, **FAMILY),
    Patch("a config of ModelOpt that says so", "", {"quantization_config": {"quant_algo": None}}, **FAMILY),
    quantised("ModelOpt", "", modelopt(*LEFT)),
    quantised("ModelOpt with globs and its own prefix", "", modelopt("eagle_module.lm_head", "*fc*")),
    quantised("ModelOpt with norms by name and by glob", "", modelopt(*LEFT, *NORMS)),
    quantised("compressed-tensors", "", compressed("lm_head", "re:.*fc")),
    Patch("by name", "", compressed(targets=(r"re:.*mlp\..*",)), tensors=scaled(*MODULES[:3]), **FAMILY),
    quantised("fp8 by list", "", FP8),
)
BAD = (
    quantised("scales, not quantised", "EGL801", modelopt(*LEFT, algorithm=None), "no quantization_config"),
    Patch("the target's quantisation config", "EGL801", compressed("lm_head"), "no quantised weight"),
    store("scales and no config", "EGL801", scaled(*MODULES), "no quantization_config", **FAMILY),
    Patch(
        "scales lost",
        " ".join(["EGL802"] * len(MODULES)),
        compressed("lm_head", "re:.*fc"),
        "has no scales",
        {name: stored for name, stored in scaled(*MODULES).items() if not name.endswith("scale")},
        **FAMILY,
    ),
    quantised("scales left out", "EGL802", compressed(*LEFT, "re:.*down_proj"), "the config excludes it"),
    quantised("no scales, and not left out", "EGL802", modelopt("lm_head"), "fc has no scales"),
    quantised("no method", "EGL803", {"quantization_config": {"ignore": LEFT}}, "neither quant_method"),
    quantised("an unknown method", "EGL803", compressed(*LEFT, quant_method="bitpacking"), "'bitpacking'"),
    quantised("an unknown algorithm", "EGL803", modelopt(*LEFT, algorithm="INT3"), "'INT3'"),
    Patch("fc too", "EGL804", modelopt("lm_head"), "fc is quantised", scaled(*MODULES, "fc"), **FAMILY),
    quantised(
        "another's",
        "EGL805",
        compressed(*LEFT, "model.vision_tower.patch"),
        "excludes model.vision_tower.patch from",
    ),
    Patch("denied", "EGL806", compressed(*LEFT), "is not among modelopt*", scaled(*MODULES), given=ALLOW),
    quantised("a list that is none", "", compressed(ignore="lm_head"), blind=("EGL802", "EGL805")),
    quantised("a broken pattern", "", compressed("re:("), blind=("EGL802", "EGL805")),
)

test_quantisation_gives_exactly_its_findings = exact(GOOD + BAD)
