"""Conditions on a checkpoint as an engine reads it: when facts hold that several engines have."""

import json
from collections.abc import Callable, Iterator, Mapping
from math import isclose
from typing import Any

from eaglectl.drafter.drafter import ENGINE_FACTORS, TRANSFORMERS_FACTORS, Feature, yarn_factor
from eaglectl.engines.behaviour import CapturedLayers, is_within
from eaglectl.engines.data import load, read
from eaglectl.engines.quantised import (
    KINDS,
    lacks_method,
    method_words,
    misbuilt,
    reads_unlooked,
    refused_settings,
    unbuilt,
)
from eaglectl.engines.targets import Captures
from eaglectl.engines.view import ASIDE, ORIGINAL, Case, View
from eaglectl.formats.vocabulary import PADDING
from eaglectl.text import brief, listed


def dimensions(view: View) -> Iterator[tuple[str, int, int]]:
    """Yield the dimensions in which config and tensors differ: (key, stated, measured)."""
    dims = view.drafter.dims
    measured = {"hidden_size": dims.hidden, "intermediate_size": dims.intermediate}
    measured |= {} if dims.attention == "MLA" else {"num_key_value_heads": dims.kv_heads}
    # without a number of key heads there are as many as heads
    flat = {"num_key_value_heads": dims.heads, **{k: v for k, v in view.flat.items() if v is not None}}
    for key, size in measured.items():
        if isinstance(flat.get(key), int) and flat[key] != size:
            yield key, flat[key], size


def assumed_head_dim(view: View) -> float:
    """Return head_dim as vLLM takes it: stated, or hidden_size/num_attention_heads."""
    head_dim = view.number("head_dim")
    return head_dim if head_dim is not None else view.drafter.dims.hidden / (view.drafter.dims.heads or 1)


def stated_theta(view: View) -> object:
    """Return the rope base that the config states; 10000 if it states none.

    That of an object comes before the key at the top (transformers 5.19.0 modeling_rope_utils.py:752-771).
    """
    bases = (view.rope_table.get("rope_theta"), view.flat.get("rope_theta"))
    return next((theta for theta in bases if theta is not None), 10000.0)


Condition = Callable[[Case], bool]


def always(case: Case) -> bool:
    """Return True: the condition holds for every checkpoint."""
    return True


def has(feature: Feature) -> Condition:
    """Return a condition that holds for drafters with a feature."""
    return lambda case: feature in case.view.features


def when(holds: Callable[[View], object]) -> Condition:
    """Return a condition that holds for checkpoints with `holds` true, whatever the release."""
    return lambda case: case.view.meets(holds)


def misread(flag: str) -> Condition:
    """Return a condition that holds if the release reads a norm switch differently than trained."""
    return lambda case: getattr(case.view.drafter.norms, flag) not in (None, case.flag(flag))


def unread(flag: str) -> Condition:
    """Return a condition that holds if a norm switch is on and the release does not read it."""
    return lambda case: bool(getattr(case.view.drafter.norms, flag)) and not case.flag(flag)


def target_is(*captures: Captures) -> Condition:
    """Return a condition that holds if the release treats the target's known kind in this way."""
    return lambda case: case.target_reading is not None and case.target_reading.captures in captures


def captured_by_one(case: Case) -> CapturedLayers:
    """Return the layers that a release with one runner captures."""
    (captured,) = case.captured.values()
    return captured


def captures_last_boundary(case: Case) -> bool:
    """Whether the state after the target's last layer is among the captured ones."""
    depth, boundaries = case.view.drafter.target.depth, captured_by_one(case).boundaries
    return depth is not None and boundaries is not None and depth in boundaries


def tied_head(view: View) -> bool:
    """Whether the config ties the head to the embedding and the file has none."""
    has_head = any(name.endswith("lm_head.weight") for name in view.names)
    return view.flat.get("tie_word_embeddings") is True and not has_head


def _embedding_rows(view: View) -> int:
    embedding = view.drafter.tensors.get("embed_tokens.weight")
    return 0 if embedding is None else embedding.shape[0]


def lacks_rows(view: View) -> bool:
    """Whether the target's tokenizer gives ids beyond the rows of the drafter's own embedding."""
    return 0 < _embedding_rows(view) < (view.drafter.target.tokens or 0)


def lacks_padded_rows(view: View) -> bool:
    """Whether it gives ids beyond these rows after they are padded to a multiple of PADDING."""
    padded = -(-_embedding_rows(view) // PADDING) * PADDING
    return lacks_rows(view) and padded < (view.drafter.target.tokens or 0)


def is_short(positions: Callable[[Case], float]) -> Condition:
    """Return a condition that holds if the drafter gets fewer positions than the target's."""
    return lambda case: positions(case) < (case.view.target_positions or 0)


def trained_part(view: View) -> float:
    """Return the part of each head that was rotated in training; 1 while that is an open question."""
    is_asked = any(note.topic == "partial-rotary" for note in view.drafter.notes_at("question"))
    return 1 if is_asked else view.drafter.rope.rotated_part


def _scaling_keys(case: Case, topic: str) -> tuple[str, ...]:
    """Return the keys of a rope scaling that the release reads for a topic of the engine's data."""
    paths: Mapping[str, str] = load(case.engine)["keys"][topic]
    return tuple(
        path.rpartition(".")[2] for path, releases in paths.items() if is_within(releases, case.release)
    )


def misread_factor(*, takes_zeros: bool = False) -> Condition:
    """Return a condition that holds if the release computes another factor of yarn than was trained."""

    def is_misread(case: Case) -> bool:
        rope = case.view.drafter.rope
        factor = yarn_factor(rope.scaling, _scaling_keys(case, "factor of yarn"), takes_zeros=takes_zeros)
        return not isclose(factor, rope.attention_factor, rel_tol=1e-3)

    return is_misread


def factor_words(case: Case, *, takes_zeros: bool = False) -> Mapping[str, Any]:
    """Return what a misread factor of yarn does to attention scores, and why."""
    rope, keys = case.view.drafter.rope, _scaling_keys(case, "factor of yarn")
    stored = {key for key, value in (rope.scaling or {}).items() if value is not None}
    unread = [key for key in TRANSFORMERS_FACTORS if key in stored.difference(keys)]
    read = [key for key in (*ENGINE_FACTORS, *TRANSFORMERS_FACTORS) if key in stored.intersection(keys)]
    names, outcome = (unread, "not read") if unread else (read, "read, and training does not read them so")
    factor = yarn_factor(rope.scaling, keys, takes_zeros=takes_zeros)
    return {
        "scores": f"{(factor / rope.attention_factor) ** 2:#.3g}",
        "factor_cause": f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} {outcome}",
        "yarn_keys": " and ".join(yarn_keys(case)),
    }


def yarn_keys(case: Case) -> tuple[str, ...]:
    """Return the keys of a yarn scaling that the release reads, and with another effect than in training."""
    rope, is_mla = case.view.drafter.rope, case.view.model_class == "mla"
    scaling = rope.scaling or {}
    if scaling.get("rope_type") != "yarn":
        return ()
    topics = ("ramp of yarn", "factor of MLA") if is_mla else ("ramp of yarn",)
    # each value without an effect; two keys leave mscale squared out of MLA's softmax scale
    is_scaled, shares = rope.mla_factors[1] != 1, ("attn_factor", "extrapolation_factor")
    omits = {"apply_yarn_scaling": False, "attention_factor": 1} if is_scaled else {}
    keys = [key for topic in topics for key in _scaling_keys(case, topic) if scaling.get(key) is not None]
    return tuple(
        key for key in keys if (key in shares and scaling[key] != 1) or scaling[key] == omits.get(key)
    )


def in_stages(view: View) -> bool:
    """Whether the engine is to split the target's layers into stages of a pipeline."""
    return (view.drafter.target.pipeline_parallel or 1) > 1


def layer_types(view: View) -> list[Any] | None:
    """Return layer_types of the config; None where it is no list."""
    return types if isinstance(types := view.flat.get("layer_types"), list) else None


def trained_kind(view: View) -> str:
    """Return the name of the rope scaling that was trained."""
    return str((view.drafter.rope.scaling or {}).get("rope_type", "default"))


def misreads_scaling(view: View) -> bool:
    """Whether the config states another rope scaling than was trained, apart from the rotated part.

    transformers 5 takes the original length at the top before that of the object (5.19.0
    modeling_rope_utils.py:811-820).
    """
    trained, written = (
        {key: value for key, value in table.items() if value is not None and key not in ASIDE}
        for table in (view.drafter.rope.scaling or {}, view.rope_table)
    )
    if (original := view.flat.get(ORIGINAL)) is not None:
        written[ORIGINAL] = original
        trained.setdefault(ORIGINAL, original)
    return (trained_kind(view), trained) != (view.reach[1], written)


def other_scaling(view: View) -> bool:
    """Whether the drafter was trained with a rope scaling other than yarn."""
    return trained_kind(view) not in ("default", "yarn")


def per_layer_keys(view: View) -> list[str]:
    """Return the keys by which transformers since 5.14 takes values of single layers, or stops."""
    layers = view.flat.get("per_layer_config")
    has_values = any(layers.values()) if isinstance(layers, Mapping) else layers is not None
    has_key = {"per_layer_config": has_values, "is_heterogeneous": "is_heterogeneous" in view.flat}
    return [key for key, is_there in has_key.items() if is_there]


# by the class of a value, as config_types.json names it
TYPE_NAMES = {"NoneType": "null"}


def mistyped_keys(view: View) -> list[str]:
    """Return what config.json says in a type that transformers' class of its model type does not take."""
    types = read("config_types.json")["types"].get(str(view.config.get("model_type")), {})
    values = {key: view.config[key] for key in types if key in view.config}
    names = {key: type(value).__name__ for key, value in values.items()}
    return [
        f"{key}: {brief(json.dumps(value))}"
        for key, value in values.items()
        if TYPE_NAMES.get(names[key], names[key]) not in types[key]
    ]


def d2t_dtype(view: View) -> str:
    """Return the dtype of d2t as stored; "" without one."""
    table = view.drafter.tensors.get("d2t")
    return table.dtype if table else ""


# of facts that several engines have, by the fact's id
COMMON: Mapping[str, Condition] = {
    # the release builds fc for another number of aux states
    "aux-count": lambda case: case.aux_count != case.view.drafter.dims.aux,
    "absorbed-names": when(lambda view: view.runtime_parts),
    # every runner that the release may take captures other layers than were trained on
    "aux-layers": lambda case: case.sameness == {False},
    # the target, which is not known, decides if the release captures the trained layers
    "aux-unknown": lambda case: None in case.sameness and case.view.drafter.aux.boundaries is not None,
    "d2t-missing": when(
        lambda view: view.drafter.has_reduced_vocabulary and "d2t" not in view.drafter.tensors
    ),
    "d2t-unsigned": when(lambda view: d2t_dtype(view) in ("U16", "U32", "U64")),
    "embedding-short": when(lacks_rows),
    "draft-vocab-mismatch": when(
        lambda view: view.number("draft_vocab_size") not in (None, view.drafter.dims.draft_vocab)
    ),
    "hidden-act": when(lambda view: view.flat.get("hidden_act") not in (None, "silu")),
    "ids-unsorted": when(lambda view: view.drafter.aux.order is not None),
    "mla-scaling": when(other_scaling),
    "yarn-keys": lambda case: bool(yarn_keys(case)),
    "layers-overstated": when(
        lambda view: (view.number("num_hidden_layers") or 0) > view.drafter.dims.layers
    ),
    "multi-layer": has(Feature.MULTI_LAYER),
    "norm-before-fc": unread("norm_before_fc"),
    "norm-before-fc-absent": has(Feature.NORM_BEFORE_FC),
    "null-target-hidden": when(
        lambda view: not view.is_speculators and view.config.get("target_hidden_size", "absent") is None
    ),
    "parallel": has(Feature.PARALLEL),
    "per-layer": when(per_layer_keys),
    "config-types": when(mistyped_keys),
    "pipeline": when(in_stages),
    "partial-rotary": when(
        lambda view: trained_part(view) not in (1, view.flat.get("partial_rotary_factor"))
    ),
    # the loader of the drafter's class does not remove it
    "prefix": lambda case: bool(case.refused_prefixes),
    "qk-norms": has(Feature.QK_NORM),
    "quantised-method": lacks_method,
    "quantised-settings": lambda case: bool(refused_settings(case)),
    "quantised-unread": reads_unlooked,
    "quantised-module": lambda case: bool(unbuilt(case.engine, case.release, case.view.drafter)),
    "rope-scaling": when(misreads_scaling),
    "linear-factor": when(lambda view: view.reach[1] == "linear" and isinstance(view.reach[2], int)),
    "layer-types": when(
        lambda view: (
            (types := layer_types(view)) is not None
            and view.number("num_hidden_layers") not in (None, len(types))
        )
    ),
    "heads-uneven": when(
        lambda view: (
            view.flat.get("model_type") in ("llama", "deepseek_v2")
            and (view.number("hidden_size") or 0) % (view.number("num_attention_heads") or 1)
        )
    ),
    "rope-base-null": when(
        lambda view: view.flat.get("rope_theta", 0) is None and view.rope_table.get("rope_theta") is None
    ),
    "dynamic-factor": when(lambda view: view.reach[1] == "dynamic" and not view.rope_table.get("factor")),
    "sliding-window": has(Feature.SLIDING_WINDOW),
    "target-unknown": target_is("unknown"),
    "target-unlisted": target_is("lacks", "absent"),
    "unknown-tensor": when(lambda view: view.drafter.unknown),
    "weight-files": lambda case: bool(case.misloaded),
}


def common_words(case: Case) -> Mapping[str, Any]:
    """Return the words of messages that several engines have, also on how a release treats the target."""
    view, reading = case.view, case.target_reading
    parts = unbuilt(case.engine, case.release, view.drafter)
    words = {
        "nested": listed(view.nested),
        "d2t_dtype": d2t_dtype(view),
        "per_layer_keys": listed(per_layer_keys(view)),
        "mistyped": listed(mistyped_keys(view)),
        "model_type": view.flat.get("model_type"),
        "misbuilt": listed(f"{name} {KINDS[is_built]}" for name, is_built in misbuilt(case).items()),
        "unbuilt": listed(parts),
        "method": " ".join(map(str, method_words(view.drafter.quantisation or {}))),
        "settings": listed(refused_settings(case)),
        "them": "them" if len(parts) > 1 else "it",
        "architecture": view.architecture,
        "aux": view.drafter.dims.aux,
        "depth": view.drafter.target.depth,
        "draft_vocab": view.drafter.dims.draft_vocab,
        "hidden_act": view.flat.get("hidden_act"),
        "misloaded": case.misloaded,
        "layers": view.drafter.dims.layers,
        "share": view.drafter.rope.rotated_part,
        "prefixes": " or ".join(case.refused_prefixes),
        "stated_aux": case.aux_count,
        "target_positions": view.target_positions,
        "unknown": ", ".join(map(brief, view.drafter.unknown[:2])),
        "rope_kind": trained_kind(view),
        "rope_factor": view.reach[2],
        "stated_types": len(layer_types(view) or ()),
        "stated_layers": view.flat.get("num_hidden_layers"),
        "rows": _embedding_rows(view),
        "last_id": (view.drafter.target.tokens or 0) - 1,
    }
    if reading is not None:
        source = f" ({reading.source})" if reading.source else ""
        words |= {
            "target_class": reading.target,
            "target_text": f"{reading.text}{source}",
            "target_source": reading.source,
        }
    return words
