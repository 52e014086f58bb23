"""The JSON document of `diff`."""

from typing import Annotated, Literal

from msgspec import Meta, field

from eaglectl.base import Count
from eaglectl.comparison.comparison import Fact, Spelling, TensorPair
from eaglectl.verdicts import DiffVerdict
from schemas.parts.document import INLINE, Document, Part
from schemas.parts.parts import Version


class IdentityPart(Part, frozen=True):
    """Whose drafter it is, and its version."""

    producer: str
    version: Version = field(name="eagle")


class WeightsPart(Part, frozen=True):
    """The files of the tensors."""

    weight_files: tuple[str, ...] = field(name="files")
    nbytes: Count = field(name="bytes")


class SidePart(Part, frozen=True):
    """A or B."""

    source: str
    drafter: IdentityPart = field(name=INLINE)
    checkpoint: WeightsPart = field(name="weights")


class DiffDocument(Document, frozen=True, tag="eaglectl/diff/1"):
    """What eaglectl diff --json prints."""

    verdict: Annotated[
        DiffVerdict,
        Meta(
            description="By meaning and tensors, never by spelling. same-headers: nothing differs, and no"
            " tensor data was looked at. could-not-look: nothing that is known differs, and some fact is"
            " not known"
        ),
    ]
    values: Annotated[
        Literal["compared", "not-compared"], Meta(description="Whether tensor data was looked at")
    ]
    is_written_alike: Annotated[bool, Meta(description="Whether nothing is spelled differently")]
    a: SidePart
    b: SidePart
    facts: tuple[Fact, ...]
    served: Annotated[
        tuple[Fact, ...],
        Meta(description="What the newest release of each engine does with A and with B"),
    ]
    tensors: tuple[TensorPair, ...]
    spelling: Spelling
    notes: tuple[str, ...]
