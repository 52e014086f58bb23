"""A checkpoint as an engine reads it: which keys its classes get, and what they take from them."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from eaglectl.drafter.drafter import Drafter, Feature
from eaglectl.formats.catalogue import prefixes
from eaglectl.formats.format import ModelClass
from eaglectl.formats.names import inner_wrapper, stored_prefix
from eaglectl.formats.reader import model_class_of

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
