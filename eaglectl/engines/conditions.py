"""When each fact of vllm_releases.json applies to a checkpoint."""

from collections.abc import Callable, Mapping

from eaglectl.drafter.drafter import Feature
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.engine import Reading
from eaglectl.engines.view import View, assumed_head_dim, data, dimensions, is_within, stated_aux, stated_theta

RUNTIME_NAMES = ("w_kc", "w_vc", "fused_qkv_a_proj_with_mqa")
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id", "dflash_config")

Condition = Callable[[View, str, Reading], bool]


def _has(feature: Feature) -> Condition:
    return lambda view, release, reading: feature in view.drafter.features()


def _unknown_architecture(view: View, release: str, reading: Reading) -> bool:
    if view.is_speculators:
        return False
    specifier = data()["architectures"].get(view.architecture)
    return specifier is None or not is_within(specifier, release)


def _class_mismatch(view: View, release: str, reading: Reading) -> bool:
    if view.is_speculators:
        return False
    built = "mla" if "Deepseek" in view.architecture else "qwen3" if "Qwen3For" in view.architecture else "llama"
    family = (
        "mla"
        if view.drafter.dims.attention == "MLA"
        else "qwen3"
        if Feature.QK_NORM in view.drafter.features()
        else "llama"
    )
    return built != family


def _later_hidden_norm(view: View) -> bool:
    later = [name for name in view.names if (m := LAYER.search(name)) and int(m[1]) > 0]
    return any(n.endswith("hidden_norm.weight") for n in later) and not any(
        n.endswith("input_layernorm.weight") for n in later
    )


def _partial_biases(view: View) -> bool:
    has = {Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS} & view.drafter.features()
    return view.says("attention_bias") is True and len(has) == 1


def _spells_norm_before_fc(view: View) -> tuple[object, object]:
    return view.says("norm_before_fc"), view.nested("norm_before_fc")


def _unstated_biases(view: View) -> bool:
    features = view.drafter.features()
    attention = bool({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS} & features) and not view.says("attention_bias")
    return attention or (Feature.MLP_BIAS in features and not view.says("mlp_bias")) or Feature.FC_BIAS in features


def _number(view: View, key: str) -> int | None:
    value = view.says(key)
    return value if isinstance(value, int) else None


def _layers(view: View) -> bool:
    stated = view.says("num_hidden_layers")
    return isinstance(stated, int) and stated > view.drafter.dims.layers


def _plain_rope(view: View) -> bool:
    return view.drafter.rope.scaling is None


def _residual(view: View) -> bool:
    seen = view.says("norm_before_residual")
    default = view.is_speculators and view.config.get("speculators_model_type") == "eagle3"
    return bool(default if seen is None else seen) != view.drafter.norms.norm_before_residual


def _unstated(flag: str, trained: Callable[[View], bool | None]) -> Condition:
    return lambda view, release, reading: (
        bool(trained(view)) and not view.says(flag) and not (view.is_speculators and not is_within(">=0.25.0", release))
    )


CONDITIONS: Mapping[str, Condition] = {
    "no-class-mla": lambda v, r, a: True,
    "no-class-qwen3": lambda v, r, a: True,
    "architecture": _unknown_architecture,
    "mla-model-type": lambda v, r, a: v.says("model_type") in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa"),
    "prefix": lambda v, r, a: any(name.startswith("model.") for name in v.names),
    "unknown-tensor": lambda v, r, a: bool(v.drafter.unknown),
    "null-target-hidden": lambda v, r, a: not v.is_speculators and "target_hidden_size" in v.config and v.config["target_hidden_size"] is None,
    "identity-d2t": lambda v, r, a: not v.drafter.has_reduced_vocabulary and any("d2t" in name for name in v.names),
    "d2t-missing": lambda v, r, a: v.drafter.has_reduced_vocabulary and "d2t" not in v.drafter.tensors,
    "no-draft-vocab-size": lambda v, r, a: v.drafter.has_reduced_vocabulary and v.says("draft_vocab_size") is None,
    "mla-plain-rope": lambda v, r, a: _plain_rope(v),
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
    "bias-overstated": lambda v, r, a: v.says("attention_bias") is True and Feature.ATTENTION_BIAS not in v.drafter.features(),
    "layers-overstated": lambda v, r, a: _layers(v),
    "head-dim-unstated": lambda v, r, a: assumed_head_dim(v) > v.drafter.dims.head_dim,
    "head-dim-smaller": lambda v, r, a: assumed_head_dim(v) < v.drafter.dims.head_dim,
    "parallel-absent": _has(Feature.PARALLEL),
    "sliding-window-qwen3": _has(Feature.SLIDING_WINDOW),
    "quantised-absent": _has(Feature.QUANTISED),
    "aux-layers": lambda v, r, a: a.same_as(v.drafter.aux) is False,
    "aux-unknown": lambda v, r, a: a.same_as(v.drafter.aux) is None and v.drafter.aux.convention is not None,
    "speculators-unknown": lambda v, r, a: v.is_speculators,
    "speculators-norm-before-fc": lambda v, r, a: v.is_speculators and v.drafter.norms.norm_before_fc,
    "speculators-norm-output": lambda v, r, a: v.is_speculators and bool(v.drafter.norms.norm_output),
    "speculators-fc-norm": lambda v, r, a: v.is_speculators and v.drafter.norms.fc_norm,
    "speculators-peagle": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and bool(v.drafter.norms.norm_output),
    "speculators-peagle-fc-norm": lambda v, r, a: v.config.get("speculators_model_type") == "peagle" and v.drafter.norms.fc_norm,
    "absorbed-names": lambda v, r, a: any(part in name for name in v.names for part in RUNTIME_NAMES),
    "class-mismatch": _class_mismatch,
    "later-hidden-norm": lambda v, r, a: _later_hidden_norm(v),
    "mask-token": lambda v, r, a: Feature.PARALLEL in v.drafter.features() and not any(key in v.config for key in MASK_KEYS),
    "verifier-tensors": lambda v, r, a: any(name.startswith("verifier_") for name in v.names),
    "rope-base": lambda v, r, a: stated_theta(v) != v.drafter.rope.theta,
    "dimension-above": lambda v, r, a: any(stated > size for _, stated, size in dimensions(v)),
    "dimension-below": lambda v, r, a: any(stated < size for _, stated, size in dimensions(v)),
    "layers-understated": lambda v, r, a: 0 < (_number(v, "num_hidden_layers") or 0) < v.drafter.dims.layers,
    "layers-unstated": lambda v, r, a: v.says("num_hidden_layers") is None,
    "ids-unsorted": lambda v, r, a: v.drafter.aux.order is not None,
    "draft-vocab-mismatch": lambda v, r, a: _number(v, "draft_vocab_size") not in (None, v.drafter.dims.draft_vocab),
    "hidden-act": lambda v, r, a: v.says("hidden_act") not in (None, "silu"),
    "tied-head": lambda v, r, a: v.says("tie_word_embeddings") is True and not any(name.endswith("lm_head.weight") for name in v.names),
    "mlp-bias-overstated": lambda v, r, a: v.says("mlp_bias") is True and Feature.MLP_BIAS not in v.drafter.features(),
    "biases-partial": lambda v, r, a: _partial_biases(v),
    "biases-without-place": lambda v, r, a: bool({Feature.OUTPUT_BIAS, Feature.MLP_BIAS} & v.drafter.features()),
}  # fmt: skip
