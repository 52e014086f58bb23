"""A comparison as a value: facts, tensors and spelling of two drafters, A and B."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from eaglectl.base import Count, Digest, Result
from eaglectl.drafter.drafter import Drafter, Target
from eaglectl.files.checkpoint import Checkpoint
from eaglectl.formats.format import Answers
from eaglectl.verdicts import DiffVerdict, FactState, TensorState

# rows of lm_head in A and in B that are of one token
SharedRows = Sequence[tuple[int, int]]
SAME = (TensorState.EQUAL, TensorState.ZEROS, TensorState.NOT_COMPARED)


class Side(Struct, frozen=True):
    """A or B: the source as given, its headers, its drafter, its config without nesting, the target that it
    was read with, and the answers that its files needed.
    """

    source: str
    checkpoint: Checkpoint
    drafter: Drafter
    flat: Mapping[str, Any]
    target: Target
    answers: Answers


class Fact(Struct, frozen=True):
    """A property of the drafters, in A and in B; `why` explains a state that the values do not show."""

    name: str
    a: Annotated[Any, Meta(description="What A means, of any type; null where there is none")]
    b: Annotated[Any, Meta(description="What B means")]
    state: FactState
    why: str = ""


class TensorSide(Struct, frozen=True):
    """A canonical tensor of A or B.

    `origin` are the names of the stored tensors that it is made of; digests None: it was not read.
    """

    dtype: str
    shape: tuple[Count, ...]
    origin: Annotated[tuple[str, ...], Meta(description="Names in the file that the tensor is made of")] = (
        field(name="from")
    )
    sha256: Annotated[
        Digest | None,
        Meta(
            description="Of the tensor's data; null where it was not read: with --headers-only, or in files"
            " that are known to be the same on both sides"
        ),
    ] = None
    blake3: Annotated[Digest | None, Meta(description="The same, as eaglectl.json states it")] = None


class Numbers(Struct, frozen=True):
    """How far two tensors of one shape are apart.

    `max_abs` and `relative_rms` (the RMS of A - B over the RMS of A) are over finite numbers, and None for
    integers and where they cannot be computed. `not_finite` counts places where A or B is NaN or infinite.
    """

    count: Count
    differing: Count
    max_abs: Annotated[
        float | None,
        Meta(
            description="The largest |A - B| of finite numbers; null for whole numbers",
            extra_json_schema={"minimum": 0},
        ),
    ] = None
    relative_rms: Annotated[
        float | None,
        Meta(
            description="RMS of A - B over RMS of A, of finite numbers; null for whole numbers and where A is"
            " zeros",
            extra_json_schema={"minimum": 0},
        ),
    ] = None
    not_finite: Annotated[Count, Meta(description="Places where A or B is NaN or infinite")] = 0


class TensorPair(Struct, frozen=True):
    """A canonical tensor in A and in B. ZEROS: a bias on one side only that adds nothing."""

    name: Annotated[
        str, Meta(description="The canonical name; for a tensor without a place in a drafter its own")
    ]
    state: Annotated[
        TensorState,
        Meta(description="zeros: a bias on one side only that adds nothing, which is no difference"),
    ]
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
    a: Annotated[Any, Meta(description="null where the key is absent, or null")]
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
    keys: tuple[KeyPair, ...] = field(name="config")

    @property
    def differs(self) -> bool:
        """Whether anything is written differently."""
        return bool(self.remarks or self.names or self.keys)


class Comparison(Result, frozen=True):
    """The result of `diff`. `has_values`: whether tensor data was compared.

    `served` are what the newest release of each engine does with A and with B as stored; `errors` are the
    faults of A's and of B's tensors for which no engine accepts what is drafted.
    """

    a: Side
    b: Side
    facts: tuple[Fact, ...]
    tensors: tuple[TensorPair, ...]
    spelling: Spelling
    has_values: bool
    notes: tuple[str, ...] = ()
    served: tuple[Fact, ...] = ()
    errors: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def verdict(self) -> DiffVerdict:
        """The outcome; SAME_HEADERS: nothing differs, and no tensor data was compared."""
        a, b = ({fault.partition(" ")[0] for fault in faults} for faults in self.errors)
        is_same = self.meaning in (DiffVerdict.EQUAL, DiffVerdict.SAME_HEADERS)
        return DiffVerdict.DIFFERS if is_same and a != b else self.meaning

    @property
    def meaning(self) -> DiffVerdict:
        """The outcome of what both mean, whether or not an engine reads it."""
        states = {fact.state for fact in self.facts}
        if FactState.DIFFERS in states or any(pair.differs for pair in self.tensors):
            return DiffVerdict.DIFFERS
        if FactState.UNKNOWN in states:
            return DiffVerdict.COULD_NOT_LOOK
        return DiffVerdict.EQUAL if self.has_values else DiffVerdict.SAME_HEADERS
