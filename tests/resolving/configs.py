"""Configs that state layer ids in every place where a runner of vLLM may look, and in several at once."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from eaglectl.engines.behaviour import IDS

DEPTH = 8
ABSENT = object()
TOP: tuple[Any, ...] = (ABSENT, None, [], [1, 3, 6], [6, 1, 3], "1,3,6")
NESTED: tuple[Any, ...] = (
    ABSENT, None, {}, {IDS: [2, 3, 7]}, {"layer_ids": [2, 4, 7]}, {IDS: [2, 3, 7], "layer_ids": [2, 4, 7]},
    {IDS: [], "layer_ids": [7, 4, 4]},
)  # fmt: skip
OTHER: tuple[Any, ...] = (ABSENT, [], [0, 3, 5])
# as parallel drafters may state their mask token beside
DFLASH: Mapping[str, Mapping[str, Any]] = {
    "dflash": {"dflash_config": {"target_layer_ids": [0, 1, 2]}},
    "dflash and eagle_config": {"dflash_config": {"target_layer_ids": [0, 1, 2]}, "eagle_config": {"a": 1}},
    "dflash layer_ids": {"dflash_config": {"layer_ids": [0, 1, 2]}},
}
# of drafters of another method, which eaglectl's data leaves out: recorded, and not compared
OTHER_METHODS: Mapping[str, Mapping[str, Any]] = {
    "dspark": {"dspark_target_layer_ids": [0, 1, 2]},
}


def _stated(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not ABSENT}


def _native() -> dict[str, dict[str, Any]]:
    """Configs in vLLM's own layout, by a name that says what they state."""
    found = {}
    for top, nested, other in product(TOP, NESTED, OTHER):
        config = _stated({IDS: top, "eagle_config": nested, "target_layer_ids": other})
        found[", ".join(f"{key} {value}" for key, value in config.items()) or "nothing"] = config
    return found


def _speculators() -> dict[str, dict[str, Any]]:
    """Configs in the speculators format; ids beside the layer's config, inside it, or both."""
    found = {}
    for kind, top, inner in product(("eagle3", "peagle"), TOP[:4], (ABSENT, [2, 3, 7])):
        layer = _stated({"model_type": "llama", IDS: inner})
        nested = {IDS: [2, 4, 7], "layer_ids": [2, 4, 7]}
        config = _stated({IDS: top, "eagle_config": nested, "target_layer_ids": [0, 3, 5]})
        name = f"{kind}: {'' if top is ABSENT else top}, in the layer {'' if inner is ABSENT else inner}"
        found[name] = {
            "speculators_model_type": kind,
            "mask_token_id": 3,
            "transformer_layer_config": layer,
            **config,
        }
    return found


NATIVE: Mapping[str, Mapping[str, Any]] = _native()
SPECULATORS: Mapping[str, Mapping[str, Any]] = _speculators()
CONFIGS: Mapping[str, Mapping[str, Any]] = {**NATIVE, **SPECULATORS, **DFLASH, **OTHER_METHODS}
