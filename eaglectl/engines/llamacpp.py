"""When each fact of llama.cpp_releases.json holds for a checkpoint.

llama.cpp has no releases of its own here: they are those of llama-cpp-python, which holds its source.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.data import load
from eaglectl.engines.engine import Case, Condition, Engine, captures_other_layers, target_is, target_words
from eaglectl.engines.layers import CapturedLayers
from eaglectl.engines.view import View, assumed_head_dim, dimensions
from eaglectl.engines.vllm_conditions import has, missing_map, other_activation, tied_head, when
from eaglectl.text import brief

RUNNER = "default"
BIASES = frozenset({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS, Feature.FC_BIAS})


def _captured(case: Case) -> CapturedLayers:
    return case.captured[RUNNER]


def _other_architecture(view: View) -> bool:
    return view.architecture not in load("llama.cpp")["architectures"]


def _other_count(case: Case) -> bool:
    ids = _captured(case).ids
    return case.view.drafter.dims.aux != 3 or (ids is not None and len(ids) != 3)


def _misstated_layers(view: View) -> bool:
    return view.drafter.dims.layers == 1 and view.value("num_hidden_layers") != 1


def _skips_input_norm(case: Case) -> bool:
    return case.view.drafter.norms.norm_before_fc and not case.flag("norm_before_fc")


def _other_residual(case: Case) -> bool:
    return case.flag("norm_before_residual") != case.view.drafter.norms.norm_before_residual


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
    target, boundaries = case.view.drafter.target, _captured(case).boundaries
    is_last = target.depth is not None and boundaries is not None and target.depth in boundaries
    kind = (target.model_type or "").removesuffix("_text")
    return is_last and kind not in load("llama.cpp")["last_state_targets"]


def _unknown_layers(case: Case) -> bool:
    return None in case.sameness and case.view.drafter.aux.boundaries is not None


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
    "norm-before-fc": _skips_input_norm,
    "residual": _other_residual,
    "biases": when(lambda view: BIASES & view.features),
    "parallel": has(Feature.PARALLEL),
    "sliding-window": has(Feature.SLIDING_WINDOW),
    "hidden-act": when(other_activation),
    "rope-type": when(_other_rope),
    "unknown-tensor": when(_unmapped),
    "prefix": lambda case: bool(case.refused_prefixes),
    "d2t-missing": when(missing_map),
    "shapes": when(_other_shapes),
    "target-unlisted": target_is("lacks", "absent"),
    "target-unknown": target_is("unknown"),
    "last-boundary": _last_boundary,
    "quantised": has(Feature.QUANTISED),
    "tied-head": when(lambda view: tied_head(view) and "embed_tokens.weight" in view.drafter.tensors),
    "aux-layers": captures_other_layers,
    "aux-unknown": _unknown_layers,
}


def _words(case: Case) -> Mapping[str, Any]:
    view, drafter = case.view, case.view.drafter
    return {
        **target_words(case),
        "architecture": view.architecture,
        "layers": drafter.dims.layers,
        "stated_layers": view.flat.get("num_hidden_layers", "absent"),
        "aux": drafter.dims.aux if drafter.dims.aux != 3 else len(_captured(case).ids or ()),
        "residual": str(drafter.norms.norm_before_residual).lower(),
        "residual_read": str(case.flag("norm_before_residual")).lower(),
        "biases": ", ".join(sorted(BIASES & view.features)),
        "hidden_act": view.value("hidden_act"),
        "rope_type": _rope_type(view),
        "unknown": ", ".join(map(brief, _unmapped(view)[:2])),
        "prefixes": " or ".join(case.refused_prefixes),
        "shapes": "; ".join(_shapes(view)),
        "depth": drafter.target.depth,
        "read": _captured(case).words,
    }


ENGINE = Engine("llama.cpp", "llama.cpp", CONDITIONS, _words, "llama_cpp", ("llama-cpp-python",))
