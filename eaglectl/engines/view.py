"""A checkpoint as an engine reads it, in one release, and conditions on it: when facts hold."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.engines.behaviour import Behaviour, Flag
from eaglectl.engines.layers import CapturedLayers, value_at
from eaglectl.engines.targets import Captures, TargetReading, read_captures
from eaglectl.files.layout import INDEX
from eaglectl.files.target_files import text_part
from eaglectl.formats.catalogue import prefixes
from eaglectl.formats.format import ModelClass
from eaglectl.formats.names import inner_wrapper, stored_prefix
from eaglectl.formats.reader import model_class_of
from eaglectl.text import brief, listed

# what engines call MLA weights after loading
RUNTIME_NAMES = ("w_kc", "w_vc", "fused_qkv_a_proj_with_mqa")


class WeightFiles(Struct, frozen=True):
    """The files of a checkpoint, those of its weights, and one whose tensors are inside of another item."""

    names: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    nested: str = ""


NO_FILES = WeightFiles()


class View(Struct, frozen=True, dict=True):
    """A checkpoint as an engine reads it.

    `flat` is the config after vLLM's speculators reader, where that applies; `target` is the target's config,
    empty where none was given. Without `files` nothing is known of them.
    """

    drafter: Drafter
    config: Mapping[str, Any]
    flat: Mapping[str, Any]
    names: tuple[str, ...]
    target: Mapping[str, Any] = field(default_factory=dict)
    files: WeightFiles = NO_FILES

    @cached_property
    def features(self) -> frozenset[Feature]:
        """All that the drafter needs beyond plain EAGLE-3."""
        return self.drafter.features()

    @cached_property
    def model_class(self) -> ModelClass:
        """The kind of class that the drafter needs."""
        return model_class_of(self.drafter.tensors, self.drafter.dims)

    @cached_property
    def prefixed_names(self) -> tuple[tuple[str, str, str], ...]:
        """Each stored name that has a prefix or a wrapper in its middle, with both."""
        prefixes_of = ((name, stored_prefix(name, prefixes())) for name in self.names)
        found = ((name, prefix, inner_wrapper(name.removeprefix(prefix))) for name, prefix in prefixes_of)
        return tuple((name, prefix, inner) for name, prefix, inner in found if prefix or inner)

    @cached_property
    def runtime_parts(self) -> tuple[str, ...]:
        """The parts of stored names that engines give to MLA weights after loading."""
        return tuple(part for part in RUNTIME_NAMES if any(part in name for name in self.names))

    @cached_property
    def open_facts(self) -> dict[tuple[str, str], frozenset[str] | None]:
        """By engine and release, the facts that were looked up: see `Engine.verdict`."""
        return {}

    @property
    def is_speculators(self) -> bool:
        """Whether the speculators reader handles this config (no model_type at the top)."""
        return "speculators_model_type" in self.config and "model_type" not in self.config

    @property
    def architecture(self) -> str:
        """The architecture that engines look up."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "(none)"

    def number(self, key: str) -> int | None:
        """A whole number at the top level of the config that the model class gets."""
        value = self.flat.get(key)
        return value if isinstance(value, int) else None


def dimensions(view: View) -> Iterator[tuple[str, int, int]]:
    """Dimensions in which config and tensors differ: (key, stated, measured)."""
    dims = view.drafter.dims
    measured = {"hidden_size": dims.hidden, "intermediate_size": dims.intermediate}
    if dims.attention != "MLA":
        measured["num_key_value_heads"] = dims.kv_heads
    for key, size in measured.items():
        stated = view.flat.get(key)
        if key == "num_key_value_heads" and stated is None:
            stated = dims.heads
        if isinstance(stated, int) and stated != size:
            yield key, stated, size


def assumed_head_dim(view: View) -> float:
    """head_dim as vLLM takes it: stated, or hidden_size/num_attention_heads."""
    stated = view.number("head_dim")
    return stated if stated is not None else view.drafter.dims.hidden / (view.drafter.dims.heads or 1)


def stated_theta(view: View) -> object:
    """The rope base that the config states, in either spelling; 10000 where it states none."""
    nested = view.flat.get("rope_parameters")
    inner = nested.get("rope_theta") if isinstance(nested, Mapping) else None
    stated = (theta for theta in (view.flat.get("rope_theta"), inner) if theta is not None)
    return next(stated, 10000.0)


class Case(Struct, frozen=True, dict=True):
    """One checkpoint in one release; `captured` has the layers for each runner that the release may take."""

    view: View
    engine: str
    release: str
    behaviour: Behaviour
    captured: Mapping[str, CapturedLayers]

    def flag(self, name: str) -> bool:
        """A switch as the release reads it; false where it knows no such switch."""
        flag = self.behaviour.flags.get(name, Flag())
        if flag.any:
            return any(value_at(self.view.flat, path) for path in flag.any)
        values = (value_at(self.view.flat, path) for path in flag.first)
        first = next((value for value in values if value is not None), None)
        if first is None and self.view.is_speculators:
            kind = self.view.config["speculators_model_type"]
            first = self.behaviour.speculators_defaults.get(str(kind), {}).get(name)
        return bool(first)

    @property
    def aux_count(self) -> int:
        """The number of aux states that the release builds fc for."""
        counted = self.behaviour.aux_count[self.view.model_class]
        for path in counted.paths:
            match value_at(self.view.flat, path):
                case int(count):
                    return count
                case [*ids] if ids:
                    return len(ids)
        return counted.otherwise

    @cached_property
    def refused_prefixes(self) -> tuple[str, ...]:
        """Beginnings of stored names with prefixes that the loader of the drafter's class does not remove."""
        removed, refused = self.behaviour.prefixes.get(self.view.model_class, ()), []
        for name, prefix, inner in self.view.prefixed_names:
            if inner:
                refused.append(name.partition(inner)[0] + inner)
            elif prefix not in removed:
                refused.append(prefix)
            else:
                parts = (prefix + part for part in self.behaviour.unprefixed)
                refused += [part for part in parts if name.startswith(part)][:1]
        return tuple(dict.fromkeys(refused))

    @cached_property
    def misloaded(self) -> str:
        """What the loader makes of files that are not what it takes for weights; "" of those that are."""
        known, files = self.behaviour, self.view.files
        if not known.weight_patterns or not files.names or INDEX in files.names:
            return ""
        at_top = [name for name in files.names if "/" not in name]
        fitting = (fnmatch.filter(at_top, pattern) for pattern in known.weight_patterns)
        first = next(filter(None, fitting), [])
        opened = [name for name in first if not name.endswith(known.skipped_weights)]
        if not opened:
            return f"opens {', '.join(known.weight_patterns)}, and the weights are in {listed(files.weights)}"
        if files.nested:
            return f"takes the items of {files.nested} for tensors, and they are inside of one"
        others = [name for name in opened if name not in files.weights]
        return f"opens {listed(others)} in the same folder too" if others else ""

    @cached_property
    def target_reading(self) -> TargetReading | None:
        """What the release does with the target; None where nothing names its kind."""
        return read_captures(self.engine, self.release, self.view.drafter.target)

    @cached_property
    def sameness(self) -> set[bool | None]:
        """Whether the captured layers are those trained on, for the runners that the release may take.

        Empty for a target of which it captures none; without None for one that was never looked at.
        """
        captures = self.target_reading.captures if self.target_reading else "captures"
        if captures in ("lacks", "absent"):
            return set()
        same = {captured.same_as(self.view.drafter.aux) for captured in self.captured.values()}
        return same - {None} if captures == "unknown" else same


Condition = Callable[[Case], bool]


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
