"""When each fact of sglang_releases.json holds for a checkpoint, and the ids that SGLang reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from eaglectl.drafter.drafter import Feature, Target, to_boundaries
from eaglectl.drafter.tensors import LAYER
from eaglectl.engines.behaviour import NESTED, adds_one
from eaglectl.engines.conditions import (
    COMMON,
    Condition,
    captured_by_one,
    captures_last_boundary,
    common_words,
    factor_words,
    has,
    is_short,
    lacks_rows,
    misread,
    misread_factor,
    trained_kind,
    when,
)
from eaglectl.engines.data import load
from eaglectl.engines.engine import Engine
from eaglectl.engines.quantised import BY_WORDS, FLOATS, method_of, misbuilt, refused_settings, untargeted
from eaglectl.engines.targets import as_seen
from eaglectl.engines.view import Case, View
from eaglectl.errors import RefusedError, UsageError
from eaglectl.files.text_part import quantisation_key, text_part
from eaglectl.formats.config_keys import POSITIONS, at
from eaglectl.formats.format import IdsPlace

RUNNER = "default"
# what is read before max_position_embeddings for the context (hf_transformers/common.py 0.5.23:668-674)
LENGTHS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length")
# rope scalings that it builds for a Llama drafter (layers/rotary_embedding/factory.py 0.5.23:200-438)
SCALINGS = ("default", "mrope", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
# types of configs whose classes in transformers have a decoder's keys at the top, and no objects
FLAT = ("llama", "qwen3", "deepseek_v2", "deepseek_v3", "kimi_k2")
EMBEDDING = "embed_tokens.weight"
# keys of yarn that its class for mrope_section does not take
MROPE_LACKS = frozenset({"mscale", "mscale_all_dim"})


def _registered_class(view: View) -> str:
    return str(load("sglang")["architectures"].get(view.model_class))


def _other_architecture(view: View) -> bool:
    names = view.config.get("architectures")
    return not isinstance(names, list) or _registered_class(view) not in names


def _later_input_layernorm(view: View) -> bool:
    norms = [LAYER.search(name) for name in view.names if "input_layernorm" in name]
    return any(layer and int(layer[1]) > 0 for layer in norms)


def _replaced_embedding(view: View) -> bool:
    # the drafter's own embedding for a rotated target; whether others differ from the target's is unknown
    dims, has_embedding = view.drafter.dims, EMBEDDING in view.drafter.tensors
    return view.drafter.rotation is not None and has_embedding and dims.hidden == dims.target_hidden


def _quantised_latent(view: View) -> bool:
    tensors, is_stated = view.drafter.tensors.items(), bool(view.config.get(quantisation_key(view.config)))
    return is_stated and any("kv_b_proj" in name and tensor.dtype not in FLOATS for name, tensor in tensors)


def _repeated_ids(view: View) -> bool:
    ids = at(view.flat, NESTED)
    return isinstance(ids, list) and any(ids.count(layer) > 1 for layer in ids)


def _replaced_head(view: View) -> bool:
    # a Llama drafter without the key does not load at all
    is_null = "draft_vocab_size" in view.config or view.model_class == "mla"
    return view.flat.get("draft_vocab_size") is None and is_null and view.drafter.has_head


def _bias_key(view: View) -> str:
    return next((key for key in ("attention_bias", "bias") if view.flat.get(key) is True), "")


def _context_length(case: Case) -> float:
    """Return the drafter's context in SGLang (get_context_length, hf_transformers/common.py 0.5.23)."""
    positions, kind, factor, original = case.view.reach
    lengths = (case.view.number(key) for key in (*LENGTHS, POSITIONS))
    first = next((length for length in lengths if length is not None), positions)
    return first * (1 if original or kind == "llama3" else factor)


def window_option(size: int) -> int:
    """Return --speculative-draft-window-size for a window of `size` tokens with the token itself.

    SGLang counts the earlier ones alone (torch_native_backend.py 0.5.23:48, gemma3_causal.py:64-65).
    """
    return size - 1


def _window(view: View) -> int:
    """Return the option for the window of every layer; 0 if the layers differ, or for none."""
    size = view.drafter.carried.get("sliding_window")
    windows = set(view.drafter.windows) if type(size) is int and size > 1 else set()
    return window_option(windows.pop()) if len(windows) == 1 and 0 not in windows else 0


def _served_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype of a model with --dtype auto (_get_and_verify_dtype, model_config.py 0.5.23:2284)."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    whole = "bfloat16" if str(config.get("model_type")).startswith("gemma") else "float16"
    return {"half": "float16", "float": whole, "float32": whole}.get(dtype, dtype)


def _lacks_marlin(view: View) -> bool:
    """Whether Marlin has no kernel for the weights of GPTQ or AWQ (check_marlin_supported, on CUDA)."""
    table = view.drafter.quantisation or {}
    has_bits = table.get("bits") in (4, 8) and table.get("group_size") in (-1, 32, 64, 128)
    is_symmetric = method_of(table) == "awq" or table.get("sym") is True
    return method_of(table) in BY_WORDS and not (has_bits and is_symmetric)


def _has_other_dtype(view: View) -> bool:
    # a target without a dtype in the part that SGLang reads is not judged
    target = text_part(view.target)
    has_dtype = bool(target.get("dtype") or target.get("torch_dtype"))
    return has_dtype and _served_dtype(target) != _served_dtype(view.config)


def _has_mrope_scales(view: View) -> bool:
    # video_rope has a class of its own
    scaling = view.drafter.rope.scaling or {}
    is_mrope = scaling.get("rope_type") == "yarn" and "mrope_section" in scaling
    return is_mrope and not scaling.get("video_rope") and not MROPE_LACKS.isdisjoint(scaling)


def _table_length(case: Case) -> float:
    """Return the positions of yarn's table before it is lengthened (yarn.py 0.5.20:137)."""
    _, _, factor, original = case.view.reach
    return (original or 0) * factor


def _is_nested(view: View) -> object:
    # whether the drafter's keys are in an object that the class of its model_type does not know
    return "num_attention_heads" not in view.config and view.nested and view.config.get("model_type") in FLAT


CONDITIONS: Mapping[str, Condition] = {
    **COMMON,
    # of every layer (run: utils.py 0.5.23:144)
    "quantised-names": lambda case: bool(misbuilt(case)),
    "quantised-targets": when(
        lambda view: untargeted(view, "model.fc" if view.model_class == "mla" else "model.self_attn.q_proj")
    ),
    "yarn-mrope": when(_has_mrope_scales),
    "draft-dtype": when(_has_other_dtype),
    "quantised-dtype": lambda case: (
        _served_dtype(case.view.config) != "float16"
        and case.view.meets(_lacks_marlin)
        and not refused_settings(case)
    ),
    "yarn-past-table": lambda case: (
        case.view.reach[1] == "yarn" and 0 < _table_length(case) < (case.view.target_positions or 0)
    ),
    "yarn-factor": misread_factor(takes_zeros=True),
    "rope-kind": when(lambda view: trained_kind(view) not in SCALINGS),
    "rope-fourier": when(lambda view: view.reach[1] == "default" and view.rope_table.get("use_fope")),
    "speculators": when(lambda view: "speculators_model_type" in view.config),
    "architecture": when(_other_architecture),
    "positions": is_short(_context_length),
    "residual": has(Feature.NORM_BEFORE_RESIDUAL),
    "attention-bias": has(Feature.ATTENTION_BIAS),
    "draft-vocab-size": when(lambda view: "draft_vocab_size" not in view.config),
    "tied-head": when(lambda view: view.config.get("tie_word_embeddings") and "lm_head.weight" in view.names),
    "mla-prefix": COMMON["prefix"],
    "wrapped-names": COMMON["prefix"],
    "later-input-layernorm": when(_later_input_layernorm),
    "norm-output": misread("norm_output"),
    "fc-norm": misread("fc_norm"),
    "mla-layers": has(Feature.MULTI_LAYER),
    "mla-norm-before-fc": has(Feature.NORM_BEFORE_FC),
    "mla-quantised": when(_quantised_latent),
    "mla-aux-count": COMMON["aux-count"],
    "target-state": lambda case: case.target_reading is not None and bool(case.target_reading.state),
    "fc-bias": when(lambda view: Feature.FC_BIAS in view.features and not view.config.get("bias")),
    # only some classes capture the state after the last layer
    "last-boundary": lambda case: (
        captures_last_boundary(case) and not (case.target_reading and case.target_reading.last)
    ),
    "ids-empty": when(lambda view: at(view.flat, NESTED) == []),
    "ids-twice": when(_repeated_ids),
    "head-replaced": when(_replaced_head),
    "tied-to-own": when(
        lambda view: (
            view.config.get("tie_word_embeddings")
            and "lm_head.weight" not in view.names
            and EMBEDDING in view.drafter.tensors
        )
    ),
    "embedding-replaced": when(_replaced_embedding),
    # it keeps the drafter's own only for another width
    "embedding-short": when(
        lambda view: lacks_rows(view) and view.drafter.dims.hidden != view.drafter.dims.target_hidden
    ),
    "nested-config": when(_is_nested),
    "nested-beside": when(lambda view: view.nested and not _is_nested(view)),
    "head-unfilled": when(
        lambda view: not view.drafter.has_head and view.flat.get("draft_vocab_size") is not None
    ),
    "biases-unfilled": when(lambda view: _bias_key(view) and Feature.OUTPUT_BIAS not in view.features),
    "one-state": when(
        lambda view: (
            view.drafter.dims.aux == 1 and view.drafter.dims.target_hidden == view.drafter.dims.hidden
        )
    ),
    "mlp-bias": has(Feature.MLP_BIAS),
}


def _words(case: Case) -> Mapping[str, Any]:
    # the values that texts of SGLang's facts may name in braces
    view, norms = case.view, case.view.drafter.norms
    return {
        **common_words(case),
        **factor_words(case, takes_zeros=True),
        "positions": int(_context_length(case)),
        "table": int(_table_length(case)),
        "wanted": _registered_class(view),
        "stated_layers": view.config.get("num_hidden_layers"),
        "norm_output": str(norms.norm_output).lower(),
        "norm_output_read": str(case.flag("norm_output")).lower(),
        "fc_norm": str(norms.fc_norm).lower(),
        "fc_norm_read": str(case.flag("fc_norm")).lower(),
        "window": _window(view),
        "draft_dtype": _served_dtype(view.config),
        "target_dtype": _served_dtype(text_part(view.target)),
        "read": captured_by_one(case).words,
        "stated_draft_vocab": view.config.get("draft_vocab_size", "absent"),
        "bias_key": _bias_key(view),
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
    # its MLA class does not read the option
    helps={"sliding-window": when(lambda view: view.model_class != "mla")},
)
RELEASE = ENGINE.releases[-1]


def sglang_ids(boundaries: Sequence[int], target: Target) -> tuple[int, ...]:
    """Return the ids with which SGLang captures `boundaries`.

    Raises RefusedError if there are none, UsageError if they depend on an unknown target.
    """
    runner, seen = ENGINE.behaviour(RELEASE).runners[RUNNER], as_seen("sglang", RELEASE, target)
    for ids in (tuple(boundary - 1 for boundary in boundaries), tuple(boundaries)):
        adds = adds_one(runner, ids, seen) if ids[0] >= 0 else None
        if adds is not None and to_boundaries(ids, "output" if adds else "boundary") == tuple(boundaries):
            return ids
    if target.kinds and not seen.kinds:
        raise RefusedError(
            f"SGLang was never examined with a {target.kinds[0]} target, so the meaning of its ids is unknown"
        )
    if target.model_type is None and boundaries[0] > 0:
        raise UsageError(
            f"SGLang's ids for boundaries {list(boundaries)} depend on the target's model type,"
            " which is unknown; pass --target",
            options=("--target",),
        )
    raise RefusedError(
        f"SGLang has no ids that mean boundaries {list(boundaries)} for a {target.model_type or 'known'}"
        " target"
    )


def ids_in(place: IdsPlace, boundaries: Sequence[int], target: Target) -> tuple[int, ...]:
    """Return the ids that state `boundaries` in a place of the config.

    Raises RefusedError if there are none, UsageError if they depend on an unknown target.
    """
    match place.meaning:
        case "sglang":
            return sglang_ids(boundaries, target)
        case "output" if 0 in boundaries:
            raise RefusedError(
                "these ids name layer outputs, but boundary 0 (the embeddings) is not the output of a layer"
            )
        case "output":
            return tuple(boundary - 1 for boundary in boundaries)
    return tuple(boundaries)
