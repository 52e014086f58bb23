"""When each fact of llama.cpp_releases.json holds for a checkpoint.

The releases of llama.cpp are those of llama-cpp-python, which contains its source.
"""

from collections.abc import Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.conditions import (
    COMMON,
    Condition,
    always,
    assumed_head_dim,
    captured_by_one,
    captures_last_boundary,
    common_words,
    dimensions,
    has,
    misread,
    tied_head,
    trained_part,
    when,
)
from eaglectl.engines.data import load
from eaglectl.engines.engine import Engine
from eaglectl.engines.view import Case, View
from eaglectl.files.text_part import text_part
from eaglectl.text import brief

RUNNER = "default"
BIASES = frozenset({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS, Feature.FC_BIAS})


def _aux_count(case: Case) -> int:
    # the number of aux states or of ids, whichever is not 3
    aux, ids = case.view.drafter.dims.aux, captured_by_one(case).ids
    return len(ids) if aux == 3 and ids is not None else aux


def _rope_type(view: View) -> str:
    return str((view.drafter.rope.scaling or {}).get("rope_type", "default"))


def _other_shapes(view: View) -> tuple[str, ...]:
    value = [f"{key} {value}, and the tensors have {size}" for key, value, size in dimensions(view)]
    if (assumed := assumed_head_dim(view)) != view.drafter.dims.head_dim:
        value.append(f"head_dim {assumed:g}, and the tensors have {view.drafter.dims.head_dim}")
    return tuple(value)


def _unmapped(view: View) -> tuple[str, ...]:
    return (*view.drafter.unknown, *(name for name in view.names if name.startswith("verifier_")))


def _last_boundary(case: Case) -> bool:
    kind = (case.view.drafter.target.model_type or "").removesuffix("_text")
    return captures_last_boundary(case) and kind not in load("llama.cpp")["last_state_targets"]


CONDITIONS: Mapping[str, Condition] = {
    **COMMON,
    "mla": always,
    "architecture": when(lambda view: view.architecture not in load("llama.cpp")["architectures"]),
    "draft-vocab-size": when(lambda view: "draft_vocab_size" not in view.flat),
    "layers-misstated": when(
        lambda view: view.drafter.dims.layers == 1 and view.flat.get("num_hidden_layers") != 1
    ),
    "aux-layers-early": COMMON["aux-layers"],
    "aux-count": lambda case: _aux_count(case) != 3,
    "fc-norm": has(Feature.FC_NORM),
    "norm-output": has(Feature.NORM_OUTPUT),
    "residual": misread("norm_before_residual"),
    "biases": when(lambda view: BIASES & view.features),
    "partial-rotary": when(lambda view: trained_part(view) != 1),
    "rope-type": when(lambda view: _rope_type(view) not in load("llama.cpp")["rope_types"]),
    "unknown-tensor": when(_unmapped),
    "shapes": when(_other_shapes),
    "last-boundary": _last_boundary,
    "quantised": has(Feature.QUANTISED),
    "tied-head": when(lambda view: tied_head(view) and "embed_tokens.weight" in view.drafter.tensors),
}


def _words(case: Case) -> Mapping[str, Any]:
    # the values that texts of llama.cpp's facts may name in braces
    view = case.view
    return {
        **common_words(case),
        "stated_layers": view.flat.get("num_hidden_layers", "absent"),
        "aux": _aux_count(case),
        "residual": str(view.drafter.norms.norm_before_residual).lower(),
        "residual_read": str(case.flag("norm_before_residual")).lower(),
        "biases": ", ".join(sorted(BIASES & view.features)),
        "rope_type": _rope_type(view),
        "unknown": ", ".join(map(brief, _unmapped(view)[:2])),
        "shapes": "; ".join(_other_shapes(view)),
        "read": captured_by_one(case).words,
    }


def _merged_as_read(config: Mapping[str, Any], flat: Mapping[str, Any]) -> Mapping[str, Any]:
    # as the converter reads it (conversion/base.py 0.3.36:1290, 1354): the keys of a speculators layer and of
    # text_config go before those at the top
    layer = config.get("transformer_layer_config")
    return {**config, **(layer if isinstance(layer, Mapping) else text_part(config))}


ENGINE = Engine(
    "llama.cpp", "llama.cpp", CONDITIONS, _words, "llama_cpp", ("llama-cpp-python",), reads=_merged_as_read
)
