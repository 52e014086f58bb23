"""When facts hold that several engines have: conditions on a checkpoint in a release."""

from collections.abc import Callable, Mapping

from eaglectl.drafter.drafter import Feature
from eaglectl.engines.engine import Case, Condition
from eaglectl.engines.layers import CapturedLayers
from eaglectl.engines.targets import Captures
from eaglectl.engines.view import View


def has(feature: Feature) -> Condition:
    """Holds for drafters with a feature."""
    return lambda case: feature in case.view.features


def when(holds: Callable[[View], object]) -> Condition:
    """Holds for checkpoints of which `holds` is true, whatever the release."""

    def holds_for(case: Case) -> bool:
        judged = case.view.judged
        if holds not in judged:
            judged[holds] = bool(holds(case.view))
        return judged[holds]

    return holds_for


def misread(flag: str) -> Condition:
    """Holds where the release reads another value of a norm switch than was trained with."""

    def holds(case: Case) -> bool:
        trained = getattr(case.view.drafter.norms, flag)
        return trained is not None and case.flag(flag) != trained

    return holds


def unread(flag: str) -> Condition:
    """Holds where a norm switch is on, and the release does not read that."""
    return lambda case: bool(getattr(case.view.drafter.norms, flag)) and not case.flag(flag)


def target_is(*captures: Captures) -> Condition:
    """Holds where the kind of the target is known, and the release does this with it."""

    def holds(case: Case) -> bool:
        return case.target_reading is not None and case.target_reading.captures in captures

    return holds


def target_words(case: Case) -> Mapping[str, str]:
    """The words for what a release does with the target."""
    reading = case.target_reading
    if reading is None:
        return {}
    source = f" ({reading.source})" if reading.source else ""
    return {
        "target_class": reading.target,
        "target_text": f"{reading.text}{source}",
        "target_source": reading.source,
    }


def has_refused_prefix(case: Case) -> bool:
    """Whether names have a prefix that the loader of the drafter's class does not remove."""
    return bool(case.refused_prefixes)


def captures_other_layers(case: Case) -> bool:
    """Whether every runner that the release may take captures other layers than were trained on."""
    return case.sameness == {False}


def captures_unknown_layers(case: Case) -> bool:
    """Whether the target, which is not known, decides if the release captures the trained layers."""
    return None in case.sameness and case.view.drafter.aux.boundaries is not None


def captured_by_one(case: Case) -> CapturedLayers:
    """The layers that a release with one runner captures."""
    (captured,) = case.captured.values()
    return captured


def captures_last_boundary(case: Case) -> bool:
    """Whether the state after the target's last layer is among the captured ones."""
    depth, boundaries = case.view.drafter.target.depth, captured_by_one(case).boundaries
    return depth is not None and boundaries is not None and depth in boundaries


def has_other_count(case: Case) -> bool:
    """Whether the release builds fc for another number of aux states."""
    return case.aux_count != case.view.drafter.dims.aux


def null_target_hidden(view: View) -> bool:
    """Whether the config states target_hidden_size: null."""
    is_null = "target_hidden_size" in view.config and view.config["target_hidden_size"] is None
    return is_null and not view.is_speculators


def missing_map(view: View) -> bool:
    """Whether a reduced vocabulary has no d2t."""
    return view.drafter.has_reduced_vocabulary and "d2t" not in view.drafter.tensors


def other_vocabulary(view: View) -> bool:
    """Whether the config states another number of draft tokens than lm_head has rows."""
    return view.number("draft_vocab_size") not in (None, view.drafter.dims.draft_vocab)


def absorbed_names(view: View) -> bool:
    """Whether MLA weights have the names that engines give them after loading."""
    return bool(view.runtime_parts)


def tied_head(view: View) -> bool:
    """Whether the config ties the head to the embedding and the file has none."""
    has_head = any(name.endswith("lm_head.weight") for name in view.names)
    return view.value("tie_word_embeddings") is True and not has_head


def other_activation(view: View) -> bool:
    """Whether the config states another activation than silu."""
    return view.value("hidden_act") not in (None, "silu")


def overstated_layers(view: View) -> bool:
    """Whether the config states more decoder layers than the file has."""
    return (view.number("num_hidden_layers") or 0) > view.drafter.dims.layers


def short_positions(view: View) -> bool:
    """Whether the drafter's config states fewer positions than the target's."""
    theirs, ours = view.target_text.get("max_position_embeddings"), view.number("max_position_embeddings")
    return isinstance(theirs, int) and ours is not None and ours < theirs
