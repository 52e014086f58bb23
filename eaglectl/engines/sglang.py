"""When each fact of sglang_releases.json holds for a checkpoint, and the ids that SGLang reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from eaglectl.drafter.boundaries import to_boundaries
from eaglectl.drafter.drafter import Feature, Target
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.behaviour import Runner, behaviour
from eaglectl.engines.conditions import (
    absorbed_names,
    captured_by_one,
    captures_last_boundary,
    captures_other_layers,
    captures_unknown_layers,
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
    unread,
    when,
)
from eaglectl.engines.data import load
from eaglectl.engines.engine import Case, Condition, Engine
from eaglectl.engines.layers import IDS, adds_one
from eaglectl.engines.targets import as_seen
from eaglectl.engines.view import View
from eaglectl.errors import RefusedError, UsageError
from eaglectl.formats.format import IdsPlace
from eaglectl.text import brief

RUNNER = "default"
FLOATS = ("BF16", "F16", "F32")


def _wanted(view: View) -> str:
    return str(load("sglang")["architectures"].get(view.model_class))


def _other_architecture(view: View) -> bool:
    names = view.config.get("architectures")
    return not isinstance(names, list) or _wanted(view) not in names


def _later_input_layernorm(view: View) -> bool:
    norms = [LAYER.search(name) for name in view.names if "input_layernorm" in name]
    return any(layer and int(layer[1]) > 0 for layer in norms)


def _unused_head(view: View) -> bool:
    return bool(view.config.get("tie_word_embeddings")) and "lm_head.weight" in view.names


def _tied_to_own(view: View) -> bool:
    is_tied = bool(view.config.get("tie_word_embeddings")) and "lm_head.weight" not in view.names
    return is_tied and "embed_tokens.weight" in view.drafter.tensors


def _replaced_embedding(view: View) -> bool:
    """An embedding that is kept beside a rotated target's; of others it is not known whether they differ."""
    dims, is_own = view.drafter.dims, "embed_tokens.weight" in view.drafter.tensors
    return view.drafter.rotation is not None and is_own and dims.hidden == dims.target_hidden


def _quantised_latent(view: View) -> bool:
    tensors = view.drafter.tensors.items()
    is_quantised = any("kv_b_proj" in name and tensor.dtype not in FLOATS for name, tensor in tensors)
    return is_quantised and bool(view.config.get("quantization_config"))


def _repeated_ids(view: View) -> bool:
    ids = view.nested(IDS)
    return isinstance(ids, list) and any(ids.count(layer) > 1 for layer in ids)


def _replaced_head(view: View) -> bool:
    """The key is null; a Llama drafter without the key does not load at all."""
    is_null = "draft_vocab_size" in view.config or view.model_class == "mla"
    has_head = "lm_head.weight" in view.drafter.tensors
    return view.value("draft_vocab_size") is None and is_null and has_head


def _unfilled_head(view: View) -> bool:
    return "lm_head.weight" not in view.drafter.tensors and view.value("draft_vocab_size") is not None


def _unfilled_bias(view: View) -> bool:
    return bool(_bias_key(view)) and Feature.OUTPUT_BIAS not in view.features


def _bias_key(view: View) -> str:
    return next((key for key in ("attention_bias", "bias") if view.value(key) is True), "")


def _unused_fc(view: View) -> bool:
    dims = view.drafter.dims
    return dims.aux == 1 and dims.target_hidden == dims.hidden


def _other_state(case: Case) -> bool:
    return case.target_reading is not None and bool(case.target_reading.state)


CONDITIONS: Mapping[str, Condition] = {
    "speculators": when(lambda view: "speculators_model_type" in view.config),
    "architecture": when(_other_architecture),
    "qk-norms": has(Feature.QK_NORM),
    "residual": has(Feature.NORM_BEFORE_RESIDUAL),
    "attention-bias": has(Feature.ATTENTION_BIAS),
    "parallel": has(Feature.PARALLEL),
    "draft-vocab-size": when(lambda view: "draft_vocab_size" not in view.config),
    "tied-head": when(_unused_head),
    "d2t-missing": when(missing_map),
    "layers-overstated": when(overstated_layers),
    "mla-prefix": has_refused_prefix,
    "wrapped-names": has_refused_prefix,
    "later-input-layernorm": when(_later_input_layernorm),
    "norm-output": misread("norm_output"),
    "fc-norm": misread("fc_norm"),
    "norm-before-fc": unread("norm_before_fc"),
    "norm-before-fc-absent": has(Feature.NORM_BEFORE_FC),
    "sliding-window": has(Feature.SLIDING_WINDOW),
    "aux-layers": captures_other_layers,
    "aux-unknown": captures_unknown_layers,
    "mla-layers": has(Feature.MULTI_LAYER),
    "mla-norm-before-fc": has(Feature.NORM_BEFORE_FC),
    "mla-quantised": when(_quantised_latent),
    "aux-count": has_other_count,
    "mla-aux-count": has_other_count,
    "target-unlisted": target_is("lacks", "absent"),
    "target-unknown": target_is("unknown"),
    "target-state": _other_state,
    "unknown-tensor": when(lambda view: view.drafter.unknown),
    "fc-bias": when(lambda view: Feature.FC_BIAS in view.features and not view.config.get("bias")),
    "last-boundary": captures_last_boundary,
    "ids-empty": when(lambda view: view.nested(IDS) == []),
    "ids-twice": when(_repeated_ids),
    "ids-unsorted": when(lambda view: view.drafter.aux.order is not None),
    "head-replaced": when(_replaced_head),
    "tied-to-own": when(_tied_to_own),
    "embedding-replaced": when(_replaced_embedding),
    "head-unfilled": when(_unfilled_head),
    "biases-unfilled": when(_unfilled_bias),
    "one-state": when(_unused_fc),
    "hidden-act": when(other_activation),
    "positions": when(short_positions),
    "draft-vocab-mismatch": when(other_vocabulary),
    "null-target-hidden": when(null_target_hidden),
    "absorbed-names": when(absorbed_names),
    "mlp-bias": has(Feature.MLP_BIAS),
}


def _words(case: Case) -> Mapping[str, Any]:
    view, dims, norms = case.view, case.view.drafter.dims, case.view.drafter.norms
    return {
        **target_words(case),
        "wanted": _wanted(view),
        "architecture": view.architecture,
        "stated_layers": view.config.get("num_hidden_layers"),
        "layers": dims.layers,
        "norm_output": str(norms.norm_output).lower(),
        "norm_output_read": str(case.flag("norm_output")).lower(),
        "fc_norm": str(norms.fc_norm).lower(),
        "fc_norm_read": str(case.flag("fc_norm")).lower(),
        "window": view.drafter.carried.get("sliding_window"),
        "aux": dims.aux,
        "stated_aux": case.aux_count,
        "unknown": ", ".join(map(brief, view.drafter.unknown[:2])),
        "prefixes": " or ".join(case.refused_prefixes),
        "read": captured_by_one(case).words,
        "depth": view.drafter.target.depth,
        "stated_draft_vocab": view.config.get("draft_vocab_size", "absent"),
        "draft_vocab": dims.draft_vocab,
        "hidden_act": view.value("hidden_act"),
        "bias_key": _bias_key(view),
        "positions": view.value("max_position_embeddings"),
        "target_positions": view.target_text.get("max_position_embeddings"),
    }


ENGINE = Engine(
    "sglang",
    "SGLang",
    CONDITIONS,
    _words,
    "sglang",
    ("sglang",),
    is_default=True,
    shares_embedding=True,
)
RELEASE = ENGINE.releases[-1]


def sglang_ids(boundaries: Sequence[int], target: Target) -> tuple[int, ...]:
    """The ids with which SGLang captures `boundaries`.

    Raises RefusedError where there are none, UsageError where the target decides and is not known.
    """
    runner = behaviour("sglang", ENGINE.releases[-1]).runners[RUNNER]
    seen = as_seen("sglang", ENGINE.releases[-1], target)
    lowered = tuple(boundary - 1 for boundary in boundaries)
    for ids in (lowered, tuple(boundaries)):
        if ids[0] >= 0 and _meaning(runner, ids, seen) == tuple(boundaries):
            return ids
    if target.kinds and not seen.kinds:
        raise RefusedError(
            f"SGLang was never seen with a {target.kinds[0]} target, so what its ids mean there is not known"
        )
    if target.model_type is None and boundaries[0] > 0:
        raise UsageError(
            f"SGLang's ids for boundaries {list(boundaries)} depend on the target's model type,"
            " which is not known; pass --target"
        )
    kind = target.model_type or "known"
    raise RefusedError(f"SGLang has no ids that mean boundaries {list(boundaries)} for a {kind} target")


def ids_in(place: IdsPlace, boundaries: Sequence[int], target: Target) -> tuple[int, ...]:
    """The ids that state `boundaries` in a place of the config.

    Raises RefusedError where there are none, UsageError where the target decides and is not known.
    """
    match place.meaning:
        case "sglang":
            return sglang_ids(boundaries, target)
        case "output" if 0 in boundaries:
            text = "layers are named by their output, and boundary 0 (the embeddings) is the output of none"
            raise RefusedError(text)
        case "output":
            return tuple(boundary - 1 for boundary in boundaries)
    return tuple(boundaries)


def _meaning(runner: Runner, ids: Sequence[int], target: Target) -> tuple[int, ...] | None:
    adds = adds_one(runner, ids, target)
    return None if adds is None else to_boundaries(ids, "output" if adds else "boundary")
