"""The layers of a target with marks: what was trained, and what engines capture."""

from collections.abc import Sequence

from msgspec import Struct

# what a mark on the target's layers means (CapturedSet.mark)
MARKS = {
    "good": "trained and captured",
    "bad": "captured, and not trained",
    "doubt": "captured, unknown whether trained",
    "missing": "trained, and not captured",
}


class CapturedSet(Struct, frozen=True):
    """Boundaries that the named engines capture, and "yes", "no" or "unknown": whether as trained."""

    engines: tuple[str, ...]
    boundaries: tuple[int, ...]
    as_trained: str

    def mark(self, boundary: int, trained: Sequence[int]) -> str:
        """What a boundary is: "good" trained and captured, "bad" or "doubt" captured, "missing" trained."""
        if boundary in self.boundaries:
            if boundary in trained:
                return "good"
            return "bad" if trained else "doubt"
        return "missing" if boundary in trained else ""


class LayerStrip(Struct, frozen=True):
    """The boundaries 0 to `end` of the target; `end` is its depth, unless that is None or exceeded.

    `undrawn` are engines of which it is not known what they capture.
    """

    end: int
    depth: int | None
    trained: tuple[int, ...]
    captured: tuple[CapturedSet, ...]
    undrawn: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """Which engines are not drawn, or ""."""
        return f"not drawn, as the target decides: {'; '.join(self.undrawn)}" if self.undrawn else ""

    @property
    def is_as_trained(self) -> bool:
        """Whether every engine captures what was trained."""
        return all(part.as_trained == "yes" for part in self.captured)
