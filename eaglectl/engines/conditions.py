"""When each fact of vllm_releases.json holds for a checkpoint."""

from collections.abc import Callable, Mapping

from eaglectl.drafter.drafter import Feature
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.engine import Reading
from eaglectl.engines.facts import Condition, is_within, load
from eaglectl.engines.view import View, assumed_head_dim, dimensions, stated_aux, stated_theta

RUNTIME_NAMES = ("w_kc", "w_vc", "fused_qkv_a_proj_with_mqa")
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id", "dflash_config")


def _has(feature: Feature) -> Condition:
    return lambda view, release, readings: feature in view.features


def _unknown_architecture(view: View, release: str, readings: tuple[Reading, ...]) -> bool:
    if view.is_speculators:
        return False
    specifier = load("vllm")["architectures"].get(view.architecture)
    return specifier is None or not is_within(specifier, release)


def _class_mismatch(view: View, release: str, readings: tuple[Reading, ...]) -> bool:
    if view.is_speculators or _unknown_architecture(view, release, readings):
        return False
    built = "mla" if "Deepseek" in view.architecture else "qwen3" if "Qwen3For" in view.architecture else "llama"
    return built != view.family


def _later_hidden_norm(view: View) -> bool:
    later = [name for name in view.names if (m := LAYER.search(name)) and int(m[1]) > 0]
    return any(n.endswith("hidden_norm.weight") for n in later) and not any(
        n.endswith("input_layernorm.weight") for n in later
    )


ATTENTION = frozenset({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS})
# fc has a bias in no class, o_proj and the MLP in the Llama class only
PLACELESS = {
    "llama": frozenset({Feature.FC_BIAS}),
    "qwen3": frozenset({Feature.FC_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS}),
    "mla": frozenset({Feature.FC_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS}),
}


def _partial_biases(view: View) -> bool:
    return view.says("attention_bias") is True and len(ATTENTION & view.features) == 1


def _placeless_biases(view: View) -> bool:
    return bool(PLACELESS[view.family] & view.features)


def _spells_norm_before_fc(view: View) -> tuple[object, object]:
    return view.says("norm_before_fc"), view.nested("norm_before_fc")


def _unstated_biases(view: View) -> bool:
    placed = view.features - PLACELESS[view.family]
    attention = bool(ATTENTION & placed) and not view.says("attention_bias")
    return attention or (Feature.MLP_BIAS in placed and not view.says("mlp_bias"))


def _layers(view: View) -> bool:
    return (view.number("num_hidden_layers") or 0) > view.drafter.dims.layers


def _residual(view: View) -> bool:
    seen = view.says("norm_before_residual")
    default = view.is_speculators and view.config.get("speculators_model_type") == "eagle3"
    return bool(default if seen is None else seen) != view.drafter.norms.norm_before_residual


def _unstated(flag: str, trained: Callable[[View], bool | None]) -> Condition:
    return lambda view, release, readings: (
        bool(trained(view)) and not view.says(flag) and not (view.is_speculators and not is_within(">=0.25.0", release))
    )


def _only_rope_parameters(view: View) -> bool:
    stated = view.says("rope_parameters")
    if not isinstance(stated, Mapping) or view.says("rope_theta") is not None:
        return False
    return view.drafter.rope.theta != 10000 or view.drafter.rope.scaling is not None


def _positions(view: View) -> bool:
    theirs, ours = view.target_text.get("max_position_embeddings"), view.number("max_position_embeddings")
    return isinstance(theirs, int) and ours is not None and ours < theirs


def _headless(view: View) -> bool:
    return "lm_head.weight" not in view.drafter.tensors


def _is_multimodal(view: View) -> bool:
    names = view.target.get("architectures")
    return isinstance(names, list) and any("ForConditionalGeneration" in str(name) for name in names)


def _unlisted(view: View, release: str) -> bool:
    kind = view.drafter.target.model_type
    listed = [part for first, part in load("vllm")["targets"] if is_within(f">={first}", release)]
    return kind is not None and not any(part in kind for part in listed)


def _rewritten(view: View, release: str) -> bool:
    kind = view.says("model_type")
    releases = load("vllm")["rewritten_model_types"].get(kind) if isinstance(kind, str) else None
    return not view.is_speculators and releases is not None and is_within(releases, release)


def _layer_model_type(view: View) -> bool:
    layer = view.config.get("transformer_layer_config")
    if not view.is_speculators or not isinstance(layer, Mapping):
        return False
    # a layer without one is a Llama's (algos.py)
    return layer.get("model_type", "llama") not in ("llama", "qwen3")


def _sames(view: View, readings: tuple[Reading, ...]) -> set[bool | None]:
    """Whether the readings are what was trained on, each of them."""
    return {reading.same_as(view.drafter.aux) for reading in readings}


CONDITIONS: Mapping[str, Condition] = {
    "no-class-mla": lambda v, r, a: True,
    "no-class-qwen3": lambda v, r, a: True,
    "architecture": _unknown_architecture,
    "model-type": lambda v, r, a: _rewritten(v, r),
    "prefix": lambda v, r, a: any(name.startswith("model.") for name in v.names),
    "unknown-tensor": lambda v, r, a: bool(v.drafter.unknown),
    "null-target-hidden": lambda v, r, a: not v.is_speculators and "target_hidden_size" in v.config and v.config["target_hidden_size"] is None,
    "identity-d2t": lambda v, r, a: not v.drafter.has_reduced_vocabulary and any("d2t" in name for name in v.names),
    "d2t-missing": lambda v, r, a: v.drafter.has_reduced_vocabulary and "d2t" not in v.drafter.tensors,
    "no-draft-vocab-size": lambda v, r, a: v.drafter.has_reduced_vocabulary and v.says("draft_vocab_size") is None,
    "mla-plain-rope": lambda v, r, a: v.drafter.rope.scaling is None,
    "multi-layer": _has(Feature.MULTI_LAYER),
    "aux-count": _has(Feature.AUX_COUNT),
    "aux-count-unstated": lambda v, r, a: stated_aux(v) != v.drafter.dims.aux,
    "fc-norm-absent": _has(Feature.FC_NORM),
    "fc-norm-dropped": _has(Feature.FC_NORM),
    "fc-norm-not-applied": _has(Feature.FC_NORM),
    "fc-norm-unstated": _unstated("fc_norm", lambda v: v.drafter.norms.fc_norm),
    "norm-output-absent": _has(Feature.NORM_OUTPUT),
    "norm-output-unstated": _unstated("norm_output", lambda v: v.drafter.norms.norm_output),
    "norm-output-overstated": lambda v, r, a: v.drafter.norms.norm_output is False and v.says("norm_output") is True,
    "norm-before-fc-absent": _has(Feature.NORM_BEFORE_FC),
    "norm-before-fc-nested": lambda v, r, a: v.drafter.norms.norm_before_fc and not _spells_norm_before_fc(v)[0] and bool(_spells_norm_before_fc(v)[1]),
    "norm-before-fc-unstated": lambda v, r, a: v.drafter.norms.norm_before_fc and not any(_spells_norm_before_fc(v)),
    "norm-before-fc-mla": _has(Feature.NORM_BEFORE_FC),
    "residual-absent": _has(Feature.NORM_BEFORE_RESIDUAL),
    "residual-unstated": lambda v, r, a: _residual(v),
    "attention-bias-absent": _has(Feature.ATTENTION_BIAS),
    "bias-unstated": lambda v, r, a: _unstated_biases(v),
    "bias-overstated": lambda v, r, a: v.says("attention_bias") is True and not ATTENTION & v.features,
    "layers-overstated": lambda v, r, a: _layers(v),
    "head-dim-unstated": lambda v, r, a: assumed_head_dim(v) > v.drafter.dims.head_dim,
    "head-dim-smaller": lambda v, r, a: assumed_head_dim(v) < v.drafter.dims.head_dim,
    "parallel-absent": _has(Feature.PARALLEL),
    "sliding-window-qwen3": _has(Feature.SLIDING_WINDOW),
    "quantised-absent": _has(Feature.QUANTISED),
    "aux-layers": lambda v, r, a: _sames(v, a) == {False},
    "aux-unknown": lambda v, r, a: None in _sames(v, a) and v.drafter.aux.convention is not None,
    "speculators-unknown": lambda v, r, a: v.is_speculators,
    "speculators-norm-before-fc": lambda v, r, a: v.is_speculators and v.drafter.norms.norm_before_fc,
    "speculators-norm-output": lambda v, r, a: v.is_speculators and bool(v.drafter.norms.norm_output),
    "speculators-fc-norm": lambda v, r, a: v.is_speculators and v.drafter.norms.fc_norm,
    "speculators-peagle": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and bool(v.drafter.norms.norm_output),
    "speculators-peagle-fc-norm": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and v.drafter.norms.fc_norm,
    "absorbed-names": lambda v, r, a: any(part in name for name in v.names for part in RUNTIME_NAMES),
    "class-mismatch": _class_mismatch,
    "later-hidden-norm": lambda v, r, a: _later_hidden_norm(v),
    "mask-token": lambda v, r, a: Feature.PARALLEL in v.features and not any(key in v.config for key in MASK_KEYS),
    "verifier-tensors": lambda v, r, a: any(name.startswith("verifier_") for name in v.names),
    "rope-base": lambda v, r, a: stated_theta(v) != v.drafter.rope.theta,
    "dimension-above": lambda v, r, a: any(stated > size for _, stated, size in dimensions(v)),
    "dimension-below": lambda v, r, a: any(stated < size for _, stated, size in dimensions(v)),
    "layers-understated": lambda v, r, a: 0 < (v.number("num_hidden_layers") or 0) < v.drafter.dims.layers,
    "layers-unstated": lambda v, r, a: v.says("num_hidden_layers") is None,
    "ids-unsorted": lambda v, r, a: v.drafter.aux.order is not None,
    "draft-vocab-mismatch": lambda v, r, a: v.number("draft_vocab_size") not in (None, v.drafter.dims.draft_vocab),
    "hidden-act": lambda v, r, a: v.says("hidden_act") not in (None, "silu"),
    "tied-head": lambda v, r, a: v.says("tie_word_embeddings") is True and not any(name.endswith("lm_head.weight") for name in v.names),
    "mlp-bias-overstated": lambda v, r, a: v.says("mlp_bias") is True and Feature.MLP_BIAS not in v.features,
    "biases-partial": lambda v, r, a: _partial_biases(v),
    "biases-without-place": lambda v, r, a: _placeless_biases(v),
    "unknown-tensor-early": lambda v, r, a: bool(v.drafter.unknown),
    "unknown-tensor-dropped": lambda v, r, a: bool(v.drafter.unknown),
    "bias-refused": lambda v, r, a: _unstated_biases(v) or _placeless_biases(v),
    "head-absent": lambda v, r, a: _headless(v),
    "embedding-replaced": lambda v, r, a: "embed_tokens.weight" in v.drafter.tensors and v.drafter.dims.hidden == v.drafter.dims.target_hidden,
    "mla-rope-base": lambda v, r, a: v.drafter.rope.scaling is None and v.drafter.rope.theta != 10000,
    "positions": lambda v, r, a: _positions(v),
    "quantised-target": lambda v, r, a: "quantization_config" in v.target and Feature.QUANTISED not in v.features,
    "head-of-multimodal": lambda v, r, a: _headless(v) and _is_multimodal(v) and any("V2" in reading.engine for reading in a),
    "speculators-mla": lambda v, r, a: v.is_speculators,
    "speculators-model-type": lambda v, r, a: _layer_model_type(v),
    "target-unlisted": lambda v, r, a: _unlisted(v, r),
    "aux-ids-unread": lambda v, r, a: _sames(v, a) == {False},
    "aux-runner": lambda v, r, a: {True, False} <= _sames(v, a),
    "rope-parameters-unread": lambda v, r, a: _only_rope_parameters(v),
    "rope-parameters-by-chance": lambda v, r, a: _only_rope_parameters(v),
}  # fmt: skip
