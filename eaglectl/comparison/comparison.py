"""A comparison as a value: facts, tensors and spelling of two drafters, A and B."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from eaglectl.base import Result
from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.drafter import Drafter, Target
from eaglectl.formats.catalogue import by_name
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

SAME = (TensorState.EQUAL, TensorState.ZEROS, TensorState.NOT_COMPARED)


class Side(Struct, frozen=True):
    """A or B: the source as given, its headers, its drafter, its config without nesting, and the target
    that it was read with.
    """

    source: str
    checkpoint: Checkpoint
    drafter: Drafter
    flat: Mapping[str, Any]
    target: Target

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, whose names, number types and order of rows are its own."""
        return bool(by_name(self.drafter.producer).gguf_names)


class Fact(Struct, frozen=True):
    """A property of the drafters, in A and in B; `why` explains a state that the values do not show."""

    name: str
    a: Any
    b: Any
    state: FactState
    why: str = ""


class TensorSide(Struct, frozen=True):
    """A canonical tensor of A or B.

    `origin` are the names of the stored tensors that it is made of; `sha256` None: it was not read.
    """

    dtype: str
    shape: tuple[int, ...]
    origin: tuple[str, ...]
    sha256: str | None = None


class Numbers(Struct, frozen=True):
    """How far two tensors of one shape are apart.

    `max_abs` and `relative_rms` (the RMS of A - B over the RMS of A) are over finite numbers, and None for
    integers and where they cannot be computed. `not_finite` counts places where A or B is NaN or infinite.
    """

    count: int
    differing: int
    max_abs: float | None = None
    relative_rms: float | None = None
    not_finite: int = 0


class TensorPair(Struct, frozen=True):
    """A canonical tensor in A and in B. ZEROS: a bias on one side only that adds nothing."""

    name: str
    state: TensorState
    a: TensorSide | None
    b: TensorSide | None
    numbers: Numbers | None = None
    remark: str = ""

    @property
    def differs(self) -> bool:
        """Whether this tensor makes two drafters of A and B."""
        return self.state not in SAME


class KeyPair(Struct, frozen=True):
    """A config key that differs; None where it is absent or null, which mean the same."""

    key: str
    a: Any
    b: Any


class NamePair(Struct, frozen=True):
    """A canonical tensor whose names in the files differ."""

    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]


class Remark(Struct, frozen=True):
    """Another difference in how the files are written, in words."""

    about: str
    a: str
    b: str


class Spelling(Struct, frozen=True):
    """How the files of A and B differ; none of it makes them different drafters."""

    remarks: tuple[Remark, ...]
    names: tuple[NamePair, ...]
    keys: tuple[KeyPair, ...]

    @property
    def differs(self) -> bool:
        """Whether anything is written differently."""
        return bool(self.remarks or self.names or self.keys)


class Comparison(Result, frozen=True):
    """The result of `diff`. `has_values`: whether tensor data was compared."""

    a: Side
    b: Side
    facts: tuple[Fact, ...]
    tensors: tuple[TensorPair, ...]
    spelling: Spelling
    has_values: bool
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> DiffVerdict:
        """The outcome; SAME_HEADERS: nothing differs, and no tensor data was compared."""
        states = {fact.state for fact in self.facts}
        if FactState.DIFFERS in states or any(pair.differs for pair in self.tensors):
            return DiffVerdict.DIFFERS
        if FactState.UNKNOWN in states:
            return DiffVerdict.COULD_NOT_LOOK
        return DiffVerdict.EQUAL if self.has_values else DiffVerdict.SAME_HEADERS
