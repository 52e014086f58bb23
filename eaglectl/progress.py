"""How long work reports its progress: one callback type for every command."""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace


class Progress(Struct, frozen=True):
    """One step of long work: `done` of `total` units of `stage`; `total` is None where it is not known.

    `stage` is what the work is called in a progress bar ("writing", "before, k=3"), `unit` what is counted
    ("bytes", "prompts", "checkpoints"). `seconds` is how long the rest of the stage takes, or of the command
    `whole` of several stages, where it was timed.
    """

    stage: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    seconds: float | None = None
    whole: str = ""


OnProgress = Callable[[Progress], None]
# the stage before a target runs: its files are found and Python's packages loaded, then bytes are counted
LOADING = "loading the target"
# seconds and share of the work by which the rest is estimated: a batch begins with its prompts
FIRST_SECONDS, FIRST_SHARE = 2.0, 0.05


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


def rest_of(elapsed: float, done: float, rest: float) -> float | None:
    """Seconds that the `rest` takes where `done` took `elapsed`; None before there is a pace to go by."""
    if elapsed < FIRST_SECONDS or done < FIRST_SHARE * (done + rest):
        return None
    return elapsed * rest / done


class TimedWork:
    """Counts the prompts of one stage, `total` of them, and says how long the others take.

    The estimate is this machine's own pace, by its first seconds, and each step corrects it.
    """

    def __init__(self, on_progress: OnProgress | None, stage: str, total: int) -> None:
        self.on_progress = on_progress
        self.stage = stage
        self.total = total
        self.done = 0.0
        self.began = time.perf_counter()
        self.is_even = True
        report_step(on_progress, LOADING)

    def start(self, *, is_even: bool = True) -> None:
        """Show an empty bar and start the clock: what came before was loading.

        `is_even`: each prompt takes as long as the others. Otherwise `estimate` has to be called.
        """
        self.began = time.perf_counter()
        self.is_even = is_even
        self._report(None)

    def add(self, prompts: float = 1) -> None:
        """Count prompts that are done, or parts of them."""
        self.done += prompts
        share = self.done / self.total
        self._report(rest_of(time.perf_counter() - self.began, share, 1 - share) if self.is_even else None)

    def estimate(self, share: float) -> None:
        """Say how long the rest takes where this share of the work was done since `start`."""
        self._report((time.perf_counter() - self.began) * (1 - share) / share)

    def _report(self, seconds: float | None) -> None:
        if self.on_progress:
            # parts of prompts add up to whole ones but for rounding
            self.on_progress(Progress(self.stage, int(self.done + 1e-6), self.total, "prompts", seconds))


class StagedWork:
    """An OnProgress for a command of several stages: `seconds` becomes the time that all the rest takes.

    `stages` are those that may come, in their order, each with how long it takes beside the others. One that
    does not come takes no time; others are passed on as they are.
    """

    def __init__(
        self, on_progress: OnProgress | None, whole: str, stages: Sequence[tuple[str, float]]
    ) -> None:
        self.on_progress, self.whole, self.stages = on_progress, whole, tuple(stages)
        self.place = -1
        self.finished = 0.0
        self.share = 0.0
        self.began: float | None = None

    def __call__(self, progress: Progress) -> None:
        """Report the step, with how long the rest of the command takes where that can be told."""
        if self.on_progress is None:
            return
        if progress.total and self._enter(progress):
            now = time.perf_counter()
            self.began = now if self.began is None else self.began
            done = self.finished + self.share * self.stages[self.place][1]
            rest = (1 - self.share) * self.stages[self.place][1]
            rest += sum(weight for _, weight in self.stages[self.place + 1 :])
            elapsed = now - self.began
            progress = replace(progress, seconds=rest_of(elapsed, done, rest), whole=self.whole)
        self.on_progress(progress)

    def _enter(self, progress: Progress) -> bool:
        """Go on to the stage of this step; whether it is one of those that were to come."""
        share = progress.done / (progress.total or 1)
        is_same = self.place >= 0 and self.stages[self.place][0] == progress.stage and share >= self.share
        if not is_same:
            later = range(self.place + 1, len(self.stages))
            place = next((place for place in later if self.stages[place][0] == progress.stage), None)
            if place is None:
                return False
            self.finished += self.stages[self.place][1] if self.place >= 0 else 0.0
            self.place = place
        self.share = share
        return True


def report_step(on_progress: OnProgress | None, step: str) -> None:
    """Report a step that has nothing to count."""
    if on_progress:
        on_progress(Progress(step))


class _Notices:
    """Who gets notices; None: nobody."""

    listener: Callable[[str], None] | None = None


def set_notices(listener: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Let `listener` have each notice: a line on what a command waits for, or could not check.

    Returns who had them before.
    """
    former, _Notices.listener = _Notices.listener, listener
    return former


def notify(text: str) -> None:
    """Give a notice; any thread may."""
    if listener := _Notices.listener:
        listener(text)
