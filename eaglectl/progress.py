"""How long work reports its progress: one callback type for every command."""

import time
from collections.abc import Callable

from msgspec import Struct


class Progress(Struct, frozen=True):
    """One step of long work: `done` of `total` units of `stage`; `total` is None where it is not known.

    `stage` is what the work is called in a progress bar ("writing", "before, k=3"), `unit` what is counted
    ("bytes", "prompts", "checkpoints"). `seconds` is how long the rest of the stage takes, where it was
    timed.
    """

    stage: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    seconds: float | None = None


OnProgress = Callable[[Progress], None]
# the stage before a target runs: its files are found and Python's packages loaded, then bytes are counted
LOADING = "loading the target"


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


class TimedWork:
    """Counts the prompts of one stage, `total` of them; after the first it says how long the others take."""

    def __init__(self, on_progress: OnProgress | None, stage: str, total: int) -> None:
        self.on_progress = on_progress
        self.stage = stage
        self.total = total
        self.done = 0
        self.began = time.perf_counter()
        self.is_estimated = False
        report_step(on_progress, LOADING)

    def start(self, *, is_even: bool = True) -> None:
        """Show an empty bar and start the clock: what came before was loading.

        `is_even`: each prompt takes as long as the first ones. Otherwise `estimate` has to be called.
        """
        self.began = time.perf_counter()
        self.is_estimated = not is_even
        self._report(None)

    def add(self, prompts: int = 1) -> None:
        """Count prompts that are done."""
        self.done += prompts
        if self.is_estimated:
            self._report(None)
        else:
            self.estimate(self.done / self.total)

    def estimate(self, share: float) -> None:
        """Say how long the rest takes where this share of the work was done since `start`."""
        self.is_estimated = True
        self._report((time.perf_counter() - self.began) * (1 - share) / share)

    def _report(self, seconds: float | None) -> None:
        if self.on_progress:
            self.on_progress(Progress(self.stage, self.done, self.total, "prompts", seconds))


def report_step(on_progress: OnProgress | None, step: str) -> None:
    """Report a step that has nothing to count."""
    if on_progress:
        on_progress(Progress(step))


class _Notices:
    """Who gets notices; None: nobody."""

    listener: Callable[[str], None] | None = None


def set_notices(listener: Callable[[str], None] | None) -> None:
    """Let `listener` have each notice: a line on what a command waits for, or could not check."""
    _Notices.listener = listener


def notify(text: str) -> None:
    """Give a notice; any thread may."""
    if listener := _Notices.listener:
        listener(text)
