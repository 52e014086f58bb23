"""When each fact of llama.cpp_releases.json holds for a checkpoint.

llama.cpp has no releases of its own here: they are those of llama-cpp-python, which holds its source.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.conditions import (
    captured_by_one,
    captures_last_boundary,
    captures_other_layers,
    captures_unknown_layers,
    has,
    has_refused_prefix,
    misread,
    missing_map,
    other_activation,
    target_is,
    target_words,
    tied_head,
    unread,
    when,
)
from eaglectl.engines.data import load
from eaglectl.engines.engine import Case, Condition, Engine
from eaglectl.engines.view import View, assumed_head_dim, dimensions
from eaglectl.text import brief

RUNNER = "default"
BIASES = frozenset({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS, Feature.FC_BIAS})


def _other_architecture(view: View) -> bool:
    return view.architecture not in load("llama.cpp")["architectures"]


def _other_count(case: Case) -> bool:
    ids = captured_by_one(case).ids
    return case.view.drafter.dims.aux != 3 or (ids is not None and len(ids) != 3)


def _misstated_layers(view: View) -> bool:
    return view.drafter.dims.layers == 1 and view.value("num_hidden_layers") != 1


def _other_rope(view: View) -> bool:
    return _rope_type(view) not in load("llama.cpp")["rope_types"]


def _rope_type(view: View) -> str:
    return str((view.drafter.rope.scaling or {}).get("rope_type", "default"))


def _other_shapes(view: View) -> bool:
    return bool(tuple(_shapes(view)))


def _shapes(view: View) -> Iterator[str]:
    """Sizes that the config states and the tensors do not have."""
    for key, stated, size in dimensions(view):
        yield f"{key} {stated}, and the tensors have {size}"
    if (assumed := assumed_head_dim(view)) != view.drafter.dims.head_dim:
        yield f"head_dim {assumed:g}, and the tensors have {view.drafter.dims.head_dim}"


def _unmapped(view: View) -> tuple[str, ...]:
    verifiers = tuple(name for name in view.names if name.startswith("verifier_"))
    return (*view.drafter.unknown, *verifiers)


def _last_boundary(case: Case) -> bool:
    kind = (case.view.drafter.target.model_type or "").removesuffix("_text")
    return captures_last_boundary(case) and kind not in load("llama.cpp")["last_state_targets"]


CONDITIONS: Mapping[str, Condition] = {
    "mla": lambda case: True,
    "qk-norms": has(Feature.QK_NORM),
    "architecture": when(_other_architecture),
    "draft-vocab-size": when(lambda view: "draft_vocab_size" not in view.flat),
    "multi-layer": has(Feature.MULTI_LAYER),
    "layers-misstated": when(_misstated_layers),
    "aux-count": _other_count,
    "fc-norm": has(Feature.FC_NORM),
    "norm-output": has(Feature.NORM_OUTPUT),
    "norm-before-fc": unread("norm_before_fc"),
    "residual": misread("norm_before_residual"),
    "biases": when(lambda view: BIASES & view.features),
    "parallel": has(Feature.PARALLEL),
    "sliding-window": has(Feature.SLIDING_WINDOW),
    "hidden-act": when(other_activation),
    "rope-type": when(_other_rope),
    "unknown-tensor": when(_unmapped),
    "prefix": has_refused_prefix,
    "d2t-missing": when(missing_map),
    "shapes": when(_other_shapes),
    "target-unlisted": target_is("lacks", "absent"),
    "target-unknown": target_is("unknown"),
    "last-boundary": _last_boundary,
    "quantised": has(Feature.QUANTISED),
    "tied-head": when(lambda view: tied_head(view) and "embed_tokens.weight" in view.drafter.tensors),
    "aux-layers": captures_other_layers,
    "aux-unknown": captures_unknown_layers,
}


def _words(case: Case) -> Mapping[str, Any]:
    view, drafter = case.view, case.view.drafter
    return {
        **target_words(case),
        "architecture": view.architecture,
        "layers": drafter.dims.layers,
        "stated_layers": view.flat.get("num_hidden_layers", "absent"),
        "aux": drafter.dims.aux if drafter.dims.aux != 3 else len(captured_by_one(case).ids or ()),
        "residual": str(drafter.norms.norm_before_residual).lower(),
        "residual_read": str(case.flag("norm_before_residual")).lower(),
        "biases": ", ".join(sorted(BIASES & view.features)),
        "hidden_act": view.value("hidden_act"),
        "rope_type": _rope_type(view),
        "unknown": ", ".join(map(brief, _unmapped(view)[:2])),
        "prefixes": " or ".join(case.refused_prefixes),
        "shapes": "; ".join(_shapes(view)),
        "depth": drafter.target.depth,
        "read": captured_by_one(case).words,
    }


def _merged_as_read(config: Mapping[str, Any], flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config as llama.cpp's converter reads it: a speculators layer's keys go before those at the top."""
    layer = config.get("transformer_layer_config")
    return {**config, **layer} if isinstance(layer, Mapping) else config


ENGINE = Engine(
    "llama.cpp", "llama.cpp", CONDITIONS, _words, "llama_cpp", ("llama-cpp-python",), reads=_merged_as_read
)
