"""A conversion as a value: every tensor's way, every key's change, what is left behind. Printing it changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eaglectl.drafter.drafter import Drafter, Note
from eaglectl.drafter.tensors import Absorbed, Computed, Segment

if TYPE_CHECKING:
    from eaglectl.conversion.upgrade import Recipe


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
        """What a derived or computed tensor was made by."""
        return self.way.how if isinstance(self.way, Derived | Computed) else None

    @property
    def action(self) -> str:
        """kept, renamed, split, joined, reordered, derived, rearranged, computed or cast."""
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
        return "joined" if len(self.origin) > 1 else "reordered"


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
class Wish:
    """What the user wants written: layout, version (None: as it is) and how to get there, engine names, dtype, tensors that may be dropped.

    `record`: what eaglectl.json is to hold beside the plan.
    """

    layout: str = "vllm"
    version: str | None = None
    engines: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    dtype: str | None = None
    recipe: "Recipe | None" = None
    record: Mapping[str, Any] = field(default_factory=dict)
