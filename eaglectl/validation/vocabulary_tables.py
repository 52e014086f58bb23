"""The tables of a draft vocabulary, d2t and t2d, read once for all rules."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from eaglectl.checkpoint.checkpoint import Checkpoint
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import EaglectlError
from eaglectl.validation.rule import CannotLook

if TYPE_CHECKING:
    from eaglectl.drafter.vocabulary import Fault, Ids

TABLES = {"d2t", "t2d"}
# up to which number a dtype holds every whole number exactly
EXACT: Mapping[str, int] = {
    "I64": 2**63,
    "U64": 2**64,
    "I32": 2**31,
    "U32": 2**32,
    "I16": 2**15,
    "U16": 2**16,
    "I8": 2**7,
    "U8": 2**8,
    "BOOL": 2,
    "F64": 2**53,
    "F32": 2**24,
    "F16": 2**11,
    "BF16": 2**8,
}


class VocabularyTables(Struct, frozen=True, eq=False, dict=True):
    """The tables of one checkpoint. A property that needs tensor data raises CannotLook without it.

    `weights` is the checkpoint, or why it may not be read.
    """

    drafter: Drafter
    stated_vocab: object
    weights: Checkpoint | str

    @property
    def target_size(self) -> int:
        """The size of the target's vocabulary.

        Without t2d it is the larger of vocab_size and the embedding's rows: EGL114 reports an embedding cut
        short.
        """
        size = self.drafter.dims.vocab
        if type(self.stated_vocab) is int and "t2d" not in self.drafter.tensors:
            return max(size, self.stated_vocab)
        return size

    @property
    def is_rounded(self) -> bool:
        """Whether d2t has a dtype that cannot hold every token id of the target."""
        d2t = self.drafter.tensors.get("d2t")
        return d2t is not None and EXACT.get(d2t.dtype, 0) < self.drafter.dims.vocab

    @cached_property
    def tables(self) -> tuple["Ids | None", "Ids | None"]:
        """d2t and t2d as engines read them; None for a table that the file does not have."""
        if not TABLES & set(self.drafter.tensors):
            return None, None
        if self.is_rounded:
            dtype = self.drafter.tensors["d2t"].dtype
            raise CannotLook(f"d2t is {dtype}, which cannot hold the vocabulary's numbers")
        if isinstance(self.weights, str):  # before numpy is loaded
            raise CannotLook(self.weights)
        d2t = self.drafter.tensors.get("d2t")
        if d2t is not None and d2t.shape != (self.drafter.dims.draft_vocab,):
            raise CannotLook(f"d2t is {list(d2t.shape)}, which is no map of the draft vocabulary")
        return self._table("d2t", self.weights), self._table("t2d", self.weights)

    def _table(self, name: str, weights: Checkpoint) -> "Ids | None":
        from eaglectl.drafter.vocabulary import as_engines_read

        tensor = self.drafter.tensors.get(name)
        if tensor is None:
            return None
        try:
            return as_engines_read(name, tensor.dtype, weights.read(tensor.stored[0]))
        except EaglectlError as error:
            raise CannotLook(str(error)) from None

    @cached_property
    def repair(self) -> str:
        """How one table repairs the other; "" where none does, or it cannot be known."""
        if isinstance(self.weights, str):
            return ""
        from eaglectl.conversion.tensor_steps import table_readings

        readings = table_readings(self.weights, self.drafter)
        lines = [f"run `eaglectl convert SOURCE --fix-reading {reading}`" for reading in readings]
        if len(lines) < 2:
            return f"{lines[0]}, as that table is whole." if lines else ""
        return (
            "run `eaglectl diagnose SOURCE --target TARGET`, which measures which of them lm_head was trained"
            f" with; if it is t2d, {lines[0]}; if it is d2t, {lines[1]}."
        )

    @cached_property
    def faults(self) -> tuple["Fault", ...]:
        """What is wrong with the tables; empty where the draft vocabulary is larger than the target's."""
        draft_size = self.drafter.dims.draft_vocab
        if not TABLES & set(self.drafter.tensors) or draft_size > self.target_size:
            return ()
        d2t, t2d = self.tables
        from eaglectl.drafter.vocabulary import faults

        return faults(d2t, t2d, draft_size, self.target_size)
