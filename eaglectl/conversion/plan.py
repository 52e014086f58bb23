"""A conversion as a value: every tensor's way, every key's change, what is left behind. Printing it changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Absorbed, Computed, Segment

if TYPE_CHECKING:
    from eaglectl.conversion.recipe import Recipe
    from eaglectl.conversion.target_head import TargetHead


@dataclass(frozen=True, slots=True)
class Derived:
    """A small tensor made while planning (d2t, t2d): its bytes, and what they were made of."""

    data: bytes
    how: str


@dataclass(frozen=True, slots=True)
class Cast:
    """A float tensor rewritten in another dtype, from `stored` bytes in dtype `before`; asked for by name."""

    segments: tuple[Segment, ...]
    before: str


Way = tuple[Segment, ...] | Derived | Absorbed | Computed | Cast


@dataclass(frozen=True, slots=True)
class Step:
    """One tensor of the output and the way its bytes come there; `is_whole`: it is one stored tensor, all of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    way: Way
    origin: tuple[str, ...]
    is_whole: bool = False

    @property
    def how(self) -> str | None:
        """What a derived or computed tensor was made by; several steps in order."""
        match self.way:
            case Derived(how=how):
                return how
            case Computed():
                return "; ".join(_steps(self.way))
        return None

    @property
    def action(self) -> str:
        """kept, renamed, split, joined, reordered, selected, repeated, derived, rearranged, computed or cast."""
        match self.way:
            case Derived():
                return "derived"
            case Absorbed():
                return "rearranged"
            case Computed():
                return "computed"
            case Cast():
                return "cast"
            case (segment,) if self.is_whole:
                return "kept" if self.name == segment.stored else "renamed"
            case (_,):
                return "split"
        if len(self.origin) > 1:
            return "joined"
        assert isinstance(self.way, tuple)
        spans = sorted((segment.start, segment.stop) for segment in self.way)
        if any(start < stop for (_, stop), (start, _) in pairwise(spans)):
            return "repeated"
        return "selected" if any(start > stop for (_, stop), (start, _) in pairwise(spans)) else "reordered"


def _steps(computed: Computed) -> Iterator[str]:
    for source in computed.sources:
        if isinstance(source.origin, Computed):
            yield from _steps(source.origin)
    yield computed.how


@dataclass(frozen=True, slots=True)
class Left:
    """A tensor, key or file of the source that the output does not have, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A config key ("object.key" inside an object) that is not the same before and after; None where it is not there."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """What `convert` will write. `record` goes into eaglectl.json: how another version was come by, and what a gate measured."""

    source: str
    drafter: Drafter
    layout: str
    steps: tuple[Step, ...]
    config: Mapping[str, Any]
    metadata: Mapping[str, str]
    changes: tuple[KeyChange, ...]
    left_tensors: tuple[Left, ...]
    left_files: tuple[Left, ...]
    copied_files: tuple[str, ...]
    notes: tuple[Note, ...]
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data in the output."""
        return sum(step.nbytes for step in self.steps)


@dataclass(frozen=True, slots=True)
class Pruning:
    """A draft vocabulary to be cut down to `size` tokens by the counts in a file; `kept` stay whatever was counted (None: not known)."""

    size: int
    counts: Path
    kept: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants written: layout, version (None: as it is) and how to get there, engine names, dtype, tensors that may be dropped.

    `record`: what eaglectl.json is to hold beside the plan. `attention` (mha), `rope_style` and `has_query_lora`: how attention is
    to be rewritten. `has_target_head`: the target's lm_head becomes the drafter's own; `head` is that, once it was found.
    """

    layout: str = "vllm"
    version: str | None = None
    engines: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    dtype: str | None = None
    recipe: "Recipe | None" = None
    record: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    rope_style: str | None = None
    has_query_lora: bool = False
    pruning: Pruning | None = None
    has_target_head: bool = False
    head: "TargetHead | None" = None
