"""When facts hold that several engines have: conditions on a checkpoint in a release."""

from collections.abc import Callable, Mapping
from typing import Any

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.engine import Case, Condition
from eaglectl.engines.layers import CapturedLayers
from eaglectl.engines.targets import Captures
from eaglectl.engines.view import View
from eaglectl.files.target_files import text_part
from eaglectl.text import brief


def has(feature: Feature) -> Condition:
    """Holds for drafters with a feature."""
    return lambda case: feature in case.view.features


def when(holds: Callable[[View], object]) -> Condition:
    """Holds for checkpoints of which `holds` is true, whatever the release."""
    return lambda case: bool(holds(case.view))


def misread(flag: str) -> Condition:
    """Holds where the release reads another value of a norm switch than was trained with."""
    return lambda case: getattr(case.view.drafter.norms, flag) not in (None, case.flag(flag))


def unread(flag: str) -> Condition:
    """Holds where a norm switch is on, and the release does not read that."""
    return lambda case: bool(getattr(case.view.drafter.norms, flag)) and not case.flag(flag)


def target_is(*captures: Captures) -> Condition:
    """Holds where the kind of the target is known, and the release does this with it."""
    return lambda case: case.target_reading is not None and case.target_reading.captures in captures


def captured_by_one(case: Case) -> CapturedLayers:
    """The layers that a release with one runner captures."""
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


def _short_positions(view: View) -> bool:
    theirs, ours = (
        text_part(view.target).get("max_position_embeddings"),
        view.number("max_position_embeddings"),
    )
    return isinstance(theirs, int) and ours is not None and ours < theirs


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
    "draft-vocab-mismatch": when(
        lambda view: view.number("draft_vocab_size") not in (None, view.drafter.dims.draft_vocab)
    ),
    "hidden-act": when(lambda view: view.flat.get("hidden_act") not in (None, "silu")),
    "ids-unsorted": when(lambda view: view.drafter.aux.order is not None),
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
    "partial-rotary": when(
        lambda view: view.drafter.rope.rotated_part not in (1, view.flat.get("partial_rotary_factor"))
    ),
    "positions": when(_short_positions),
    # the loader of the drafter's class does not remove it
    "prefix": lambda case: bool(case.refused_prefixes),
    "qk-norms": has(Feature.QK_NORM),
    "sliding-window": has(Feature.SLIDING_WINDOW),
    "target-unknown": target_is("unknown"),
    "target-unlisted": target_is("lacks", "absent"),
    "unknown-tensor": when(lambda view: view.drafter.unknown),
    "weight-files": lambda case: bool(case.misloaded),
}


def common_words(case: Case) -> Mapping[str, Any]:
    """The words of messages that several engines have, those on what a release does with the target too."""
    view, reading = case.view, case.target_reading
    words = {
        "architecture": view.architecture,
        "aux": view.drafter.dims.aux,
        "depth": view.drafter.target.depth,
        "draft_vocab": view.drafter.dims.draft_vocab,
        "hidden_act": view.flat.get("hidden_act"),
        "misloaded": case.misloaded,
        "layers": view.drafter.dims.layers,
        "positions": view.flat.get("max_position_embeddings"),
        "share": view.drafter.rope.rotated_part,
        "prefixes": " or ".join(case.refused_prefixes),
        "stated_aux": case.aux_count,
        "target_positions": text_part(view.target).get("max_position_embeddings"),
        "unknown": ", ".join(map(brief, view.drafter.unknown[:2])),
    }
    if reading is None:
        return words
    source = f" ({reading.source})" if reading.source else ""
    target = {"target_class": reading.target, "target_text": f"{reading.text}{source}"}
    return {**words, **target, "target_source": reading.source}
