"""SGLang: when each fact of sglang_releases.json holds for a checkpoint, and its words (formats.md, 3.2)."""

from collections.abc import Callable, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.engine import Reading, aux_readings
from eaglectl.engines.facts import Condition, Engine, load
from eaglectl.engines.view import View


def _has(feature: Feature) -> Condition:
    return lambda view, release, readings: feature in view.features


def _when(holds: Callable[[View], object]) -> Condition:
    return lambda view, release, readings: bool(holds(view))


def _wanted(view: View) -> str:
    return str(load("sglang")["architectures"].get(view.family))


def _lacks_architecture(view: View) -> bool:
    names = view.config.get("architectures")
    return not isinstance(names, list) or _wanted(view) not in names


def _layers_overstated(view: View) -> bool:
    stated = view.config.get("num_hidden_layers")
    return isinstance(stated, int) and stated > view.drafter.dims.layers


def _later_input_layernorm(view: View) -> bool:
    return any("input_layernorm" in name and (layer := LAYER.search(name)) and int(layer[1]) > 0 for name in view.names)


def _flag(view: View, flag: str) -> bool:
    return bool(view.config.get(flag) or (flag == "fc_norm" and view.config.get("use_aux_norm")))


def _misread(flag: str) -> Condition:
    def holds(view: View, release: str, readings: tuple[Reading, ...]) -> bool:
        trained = getattr(view.drafter.norms, flag)
        return trained is not None and _flag(view, flag) != trained

    return holds


def _skips_input_norm(view: View) -> bool:
    nested = view.config.get("eagle_config")
    stated = view.config.get("norm_before_fc") or (isinstance(nested, Mapping) and nested.get("norm_before_fc"))
    return view.drafter.norms.norm_before_fc and not stated


def _stated_aux(view: View) -> int:
    """The number of aux states that fc is built for (llama_eagle3.py:172-177)."""
    stated = view.config.get("num_aux_hidden_states")
    nested = view.config.get("eagle_config")
    ids = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, Mapping) else None
    return stated if isinstance(stated, int) else len(ids) if isinstance(ids, list) and ids else 3


def _same(view: View, readings: tuple[Reading, ...]) -> bool | None:
    return readings[0].same_as(view.drafter.aux)


CONDITIONS: Mapping[str, Condition] = {
    "speculators": _when(lambda v: "speculators_model_type" in v.config),
    "architecture": _when(_lacks_architecture),
    "qk-norms": _has(Feature.QK_NORM),
    "residual": _has(Feature.NORM_BEFORE_RESIDUAL),
    "attention-bias": _has(Feature.ATTENTION_BIAS),
    "parallel": _has(Feature.PARALLEL),
    "draft-vocab-size": _when(lambda v: "draft_vocab_size" not in v.config),
    "tied-head": _when(lambda v: v.config.get("tie_word_embeddings") and "lm_head.weight" in v.names),
    "d2t-missing": _when(lambda v: v.drafter.has_reduced_vocabulary and "d2t" not in v.drafter.tensors),
    "layers-overstated": _when(_layers_overstated),
    "mla-prefix": _when(lambda v: any(name.startswith("model.") for name in v.names)),
    "later-input-layernorm": _when(_later_input_layernorm),
    "norm-output": _misread("norm_output"),
    "fc-norm": _misread("fc_norm"),
    "norm-before-fc": _when(_skips_input_norm),
    "sliding-window": _has(Feature.SLIDING_WINDOW),
    "aux-layers": lambda v, r, a: _same(v, a) is False,
    "aux-unknown": lambda v, r, a: _same(v, a) is None and v.drafter.aux.boundaries is not None,
    "mla-layers": _has(Feature.MULTI_LAYER),
    "mla-norm-before-fc": _has(Feature.NORM_BEFORE_FC),
    "mla-quantised": _when(lambda v: any("kv_b_proj" in n and t.dtype not in ("BF16", "F16", "F32") for n, t in v.drafter.tensors.items())),
    "aux-count": _when(lambda v: _stated_aux(v) != v.drafter.dims.aux),
    "unknown-tensor": _when(lambda v: v.drafter.unknown),
    "fc-bias": _when(lambda v: Feature.FC_BIAS in v.features and not v.config.get("bias")),
    "mlp-bias": _has(Feature.MLP_BIAS),
}  # fmt: skip


def _readings(view: View, release: str) -> tuple[Reading, ...]:
    return tuple(one for one in aux_readings(view.config, view.drafter.target) if one.engine == "SGLang")


def _words(view: View, readings: tuple[Reading, ...]) -> Mapping[str, Any]:
    dims, norms, reading = view.drafter.dims, view.drafter.norms, readings[0]
    known = f"boundaries {list(reading.boundaries)}" if reading.boundaries else f"ids {list(reading.ids or ())}"
    return {
        "wanted": _wanted(view), "architecture": view.architecture, "stated_layers": view.config.get("num_hidden_layers"), "layers": dims.layers,
        "norm_output": str(norms.norm_output).lower(), "norm_output_read": str(_flag(view, "norm_output")).lower(),
        "fc_norm": str(norms.fc_norm).lower(), "fc_norm_read": str(_flag(view, "fc_norm")).lower(),
        "window": view.drafter.carried.get("sliding_window"), "aux": dims.aux, "stated_aux": _stated_aux(view), "unknown": ", ".join(view.drafter.unknown[:2]),
        "read": "its default layers" if reading.is_default and not reading.boundaries else known,
    }  # fmt: skip


ENGINE = Engine("sglang", "SGLang", CONDITIONS, _readings, _words)
RELEASE = ENGINE.releases[-1]
