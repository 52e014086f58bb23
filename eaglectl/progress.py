"""How long work reports its progress: one callback type for every command."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of long work: `done` of `total` units of `stage`; `total` is None where it is not known.

    `stage` is what the work is called in a progress bar ("writing", "before, k=3"), `unit` what is counted
    ("bytes", "prompts", "checkpoints").
    """

    stage: str
    done: int = 0
    total: int | None = None
    unit: str = ""


OnProgress = Callable[[Progress], None]


class ByteCounter:
    """Adds up the bytes of one stage, and reports the sum to `on_progress` after each step."""

    def __init__(self, on_progress: OnProgress | None, stage: str, total: int) -> None:
        self.on_progress = on_progress
        self.stage = stage
        self.total = total
        self.done = 0

    def add(self, nbytes: int) -> None:
        """Count `nbytes` more; never more than the total."""
        self.done = min(self.done + nbytes, self.total)
        if self.on_progress:
            self.on_progress(Progress(self.stage, self.done, self.total, "bytes"))


def report_step(on_progress: OnProgress | None, step: str) -> None:
    """Report a step that has nothing to count."""
    if on_progress:
        on_progress(Progress(step))
