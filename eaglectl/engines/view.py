"""A checkpoint as an engine reads it, in one release."""

import fnmatch
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from eaglectl.drafter.drafter import LARGEST_SCALE, Drafter, Feature
from eaglectl.engines.behaviour import Behaviour, CapturedLayers, Flag
from eaglectl.engines.targets import TargetReading, read_captures
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.files.layout import INDEX
from eaglectl.files.text_part import nested_parts, text_part
from eaglectl.formats.catalogue import prefixes
from eaglectl.formats.config_keys import CLASS_POSITIONS, POSITIONS, ROPE_TABLES, at
from eaglectl.formats.format import ModelClass
from eaglectl.formats.names import inner_wrapper, module_prefix, stored_prefix
from eaglectl.formats.reader import model_class_of
from eaglectl.text import listed

# what engines call MLA weights after loading
RUNTIME_NAMES = ("w_kc", "w_vc", "fused_qkv_a_proj_with_mqa")
ORIGINAL = "original_max_position_embeddings"
# keys of a rope that are no part of its scaling
ASIDE = ("rope_theta", "rope_type", "type", "partial_rotary_factor")
# rope scalings whose factor lengthens what engines serve
STRETCHED = ("linear", "dynamic")
# those whose original length transformers 5 takes from the top first
MOVED = ("llama3", "yarn", "longrope")
# max_position_embeddings, and kind, factor and original length of the rope scaling
Reach = tuple[int, str, float, float | None]


def rope_table_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that states the rope: rope_parameters where rope_scaling is empty."""
    tables = (config.get(name) for name in ROPE_TABLES)
    return next((table for table in tables if table and isinstance(table, Mapping)), {})


def reach_of(config: Mapping[str, Any], positions: int = 0) -> Reach:
    """Return how far a model reaches by its config; `positions` is for a config that states none."""
    table, length = rope_table_of(config), config.get(POSITIONS)
    kind = str(table.get("rope_type", table.get("type", "default")))
    at_top = {ORIGINAL: config[ORIGINAL]} if kind in MOVED and config.get(ORIGINAL) is not None else {}
    factor, original = (
        value if isinstance(value, int | float) and 0 < value < LARGEST_SCALE else None
        for value in map({**table, **at_top}.get, ("factor", ORIGINAL))
    )
    if str(config.get("model_type")).startswith("gemma3"):  # its positions are scaled already
        factor = 1
    return (length if isinstance(length, int) and length else positions), kind, factor or 1, original


class View(Struct, frozen=True, dict=True):
    """A checkpoint as an engine reads it.

    `flat` is the config after vLLM's speculators reader, if it applies. `target` is the target's config,
    empty without one. Without `files`, nothing is known of them. `runner` is the only one that counts, "" if
    that is not known.
    """

    drafter: Drafter
    config: Mapping[str, Any]
    flat: Mapping[str, Any]
    names: tuple[str, ...]
    target: Mapping[str, Any] = field(default_factory=dict)
    files: Checkpoint | None = None
    runner: str = ""

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
        """Each stored name with a prefix or an inner wrapper, and both."""
        every = [*filter(None, [module_prefix(self.names)]), *prefixes()]
        prefixes_of = ((name, stored_prefix(name, every)) for name in self.names)
        parts = ((name, prefix, inner_wrapper(name.removeprefix(prefix))) for name, prefix in prefixes_of)
        return tuple((name, prefix, inner) for name, prefix, inner in parts if prefix or inner)

    @property
    def runtime_parts(self) -> tuple[str, ...]:
        """The parts of stored names that engines give to MLA weights after loading."""
        return tuple(part for part in RUNTIME_NAMES if any(part in name for name in self.names))

    @cached_property
    def open_facts(self) -> dict[tuple[str, str], frozenset[str] | None]:
        """By engine and release, the facts that were looked up: see `Engine.verdict`."""
        return {}

    @cached_property
    def _met(self) -> dict[Callable[["View"], object], bool]:
        return {}

    def meets(self, holds: Callable[["View"], object]) -> bool:
        """Return whether `holds` is true for the checkpoint; it is asked once for all releases."""
        if holds not in self._met:
            self._met[holds] = bool(holds(self))
        return self._met[holds]

    @property
    def nested(self) -> tuple[str, ...]:
        """The keys of the config under which another config's are."""
        return nested_parts(self.config)

    @property
    def is_speculators(self) -> bool:
        """Whether the speculators reader handles this config (no model_type at the top)."""
        return "speculators_model_type" in self.config and "model_type" not in self.config

    @property
    def architecture(self) -> str:
        """The architecture that engines look up."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else "(none)"

    @property
    def rope_table(self) -> Mapping[str, Any]:
        """The object that states the rope: rope_parameters where rope_scaling is empty."""
        return rope_table_of(self.flat)

    @cached_property
    def reach(self) -> Reach:
        """How far the drafter reaches; absent positions are those of the config's class."""
        return reach_of(self.flat, CLASS_POSITIONS[self.model_class])

    @cached_property
    def target_reach(self) -> Reach:
        """How far the target reaches, with 0 positions without a target that states them."""
        return reach_of(text_part(self.target))

    @cached_property
    def target_positions(self) -> int | None:
        """The length that engines serve the target with; None without a target that states one."""
        positions, kind, factor, _ = self.target_reach
        return int(positions * (factor if kind in STRETCHED else 1)) or None

    def number(self, key: str) -> int | None:
        """Return a whole number at the top level of the config that the model class gets."""
        value = self.flat.get(key)
        return value if isinstance(value, int) else None


class Case(Struct, frozen=True, dict=True):
    """One checkpoint in one release; `captured` has the layers for each runner that the release may take."""

    view: View
    engine: str
    release: str
    behaviour: Behaviour
    captured: Mapping[str, CapturedLayers]

    def flag(self, name: str) -> bool:
        """Return a switch as the release reads it; false if the release has no such switch."""
        flag, view = self.behaviour.flags.get(name, Flag()), self.view
        if flag.any:
            return any(at(view.flat, path) for path in flag.any)
        kind = str(view.config["speculators_model_type"]) if view.is_speculators else ""
        # a default is of an absent key: null is read as it is
        defaults = {} if name in view.config else self.behaviour.speculators_defaults.get(kind, {})
        values = [*(at(view.flat, path) for path in flag.first), defaults.get(name)]
        return bool(next((value for value in values if value is not None), None))

    @property
    def aux_count(self) -> int:
        """The number of aux states that the release builds fc for."""
        counted = self.behaviour.aux_count[self.view.model_class]
        for value in (at(self.view.flat, path) for path in counted.paths):
            if isinstance(value, int) or (isinstance(value, list) and value):
                return value if isinstance(value, int) else len(value)
        return counted.otherwise

    @cached_property
    def refused_prefixes(self) -> tuple[str, ...]:
        """Beginnings of stored names that the loader of the drafter's class does not strip.

        An inner wrapper, a prefix that it does not know, or one that it leaves on some names (`unprefixed`).
        """
        removed, refused = self.behaviour.prefixes.get(self.view.model_class, ()), list[str]()
        for name, prefix, inner in self.view.prefixed_names:
            parts = [prefix + part for part in self.behaviour.unprefixed if name.startswith(prefix + part)]
            if inner:
                parts = [name.partition(inner)[0] + inner]
            refused += parts[:1] if inner or prefix in removed else [prefix]
        return tuple(dict.fromkeys(refused))

    @cached_property
    def misloaded(self) -> str:
        """How the loader fails to find the weights in the files; "" if it finds them."""
        behaviour, files = self.behaviour, self.view.files
        if not behaviour.weight_patterns or files is None or INDEX in files.names:
            return ""
        at_top = [name for name in files.names if "/" not in name]
        fitting = (fnmatch.filter(at_top, pattern) for pattern in behaviour.weight_patterns)
        first = next(filter(None, fitting), [])
        opened = [name for name in first if not name.endswith(behaviour.skipped_weights)]
        if not opened:
            patterns, place = ", ".join(behaviour.weight_patterns), listed(files.weight_files)
            return f"opens {patterns}, but the weights are in {place}"
        if files.nested:
            return f"reads the items of {files.nested} as tensors, but the tensors are inside one of them"
        others = [name for name in opened if name not in files.weight_files]
        return f"opens {listed(others)} in the same folder too" if others else ""

    @cached_property
    def target_reading(self) -> TargetReading | None:
        """The release's reading of the target; None for a target of unknown kind."""
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
