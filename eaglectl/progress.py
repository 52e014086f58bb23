"""Progress of long work: one callback type for every command."""

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.text import duration, printable


class Progress(Struct, frozen=True):
    """One step of long work: `done` of `total` units of `stage`; `total` is None if unknown.

    `stage` is the name of the work in a progress bar ("writing", "before, k=3"), `unit` the counted thing
    ("bytes", "prompts", "checkpoints"). `seconds` is the time left for the stage, or for the command `whole`
    of several stages, if it was timed.
    """

    stage: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    seconds: float | None = None
    whole: str = ""

    @property
    def counted(self) -> str:
        """The part done and the time left, for text after the stage's name; "" if both are unknown."""
        text = ""
        if self.total is not None and self.unit == "bytes":
            unit, name = (1e6, "MB") if self.total >= 1e7 else (1e3, "kB")
            text = f" {self.done / unit:,.0f} of {self.total / unit:,.0f} {name}"
        elif self.total is not None:
            unit_name = "" if self.unit == self.stage else f" {self.unit}"
            text = f" {self.done:,} of {self.total:,}{unit_name}"
        return text if self.seconds is None else f"{text}, about {duration(self.seconds)} left"


OnProgress = Callable[[Progress], None]
# the stage before a target runs: finding its files and importing packages, then reading bytes
LOADING = "loading the target"
# the least seconds and share of the work before the rest is estimated, as a batch begins with its prompts
FIRST_SECONDS, FIRST_SHARE = 2.0, 0.05


class ByteCounter:
    """Adds up the bytes of one stage, and reports the sum to `on_progress` after each step."""

    def __init__(self, on_progress: OnProgress | None, stage: str, total: int) -> None:
        self.on_progress, self.stage, self.total, self.done = on_progress, stage, total, 0

    def add(self, nbytes: int) -> None:
        """Count `nbytes` more; never more than the total."""
        self.done = min(self.done + nbytes, self.total)
        if self.on_progress:
            self.on_progress(Progress(self.stage, self.done, self.total, "bytes"))


def rest_of(elapsed: float, done: float, rest: float) -> float | None:
    """Return the seconds for `rest` at the pace of `done` in `elapsed`; None before a pace is known."""
    if elapsed < FIRST_SECONDS or done < FIRST_SHARE * (done + rest):
        return None
    return elapsed * rest / done


class TimedWork:
    """Counts the `total` prompts of one stage, and estimates the time left.

    The estimate is this machine's pace since the start; each step corrects it.
    """

    def __init__(self, on_progress: OnProgress | None, stage: str, total: int) -> None:
        self.on_progress, self.stage, self.total = on_progress, stage, total
        self.done, self.began, self.is_even = 0.0, time.perf_counter(), True
        report_step(on_progress, LOADING)

    def start(self, *, is_even: bool = True) -> None:
        """Start the clock after loading, and show an empty bar.

        With `is_even`, all prompts take equally long. Otherwise, call `estimate`.
        """
        self.began, self.is_even = time.perf_counter(), is_even
        self._report(None)

    def add(self, prompts: float = 1) -> None:
        """Count finished prompts, or parts of them."""
        self.done += prompts
        share = self.done / self.total
        self._report(rest_of(time.perf_counter() - self.began, share, 1 - share) if self.is_even else None)

    def estimate(self, share: float) -> float:
        """Report and return the seconds left if this share of the work was done since `start`."""
        seconds = (time.perf_counter() - self.began) * (1 - share) / share
        self._report(seconds)
        return seconds

    def _report(self, seconds: float | None) -> None:
        if self.on_progress:
            # parts of prompts add up to whole ones but for rounding
            self.on_progress(Progress(self.stage, int(self.done + 1e-6), self.total, "prompts", seconds))


class StagedWork:
    """An OnProgress for a command of several stages: `seconds` becomes the time left for the command.

    `stages` are the possible stages in order, each with its relative duration. A stage that does not occur
    takes no time; stages that are not listed are passed on unchanged.
    """

    def __init__(
        self, on_progress: OnProgress | None, whole: str, stages: Sequence[tuple[str, float]]
    ) -> None:
        self.on_progress, self.whole, self.later = on_progress, whole, list(stages)
        self.stage, self.weight = "", 0.0  # the one that runs
        self.finished, self.share, self.began = 0.0, 0.0, 0.0

    def __call__(self, progress: Progress) -> None:
        """Report the step, with the time left for the command if it can be estimated."""
        if self.on_progress is None:
            return
        share, names = progress.done / (progress.total or 1), [name for name, _ in self.later]
        is_same = progress.stage == self.stage and share >= self.share
        if progress.total and (is_same or progress.stage in names):
            if not is_same:
                place = names.index(progress.stage)
                self.finished += self.weight
                self.stage, self.weight = self.later[place]
                self.later = self.later[place + 1 :]
            self.share = share
            self.began = self.began or time.perf_counter()
            rest = (1 - share) * self.weight + sum(weight for _, weight in self.later)
            seconds = rest_of(time.perf_counter() - self.began, self.finished + share * self.weight, rest)
            progress = replace(progress, seconds=seconds, whole=self.whole)
        self.on_progress(progress)


def report_step(on_progress: OnProgress | None, step: str) -> None:
    """Report a step that has nothing to count."""
    if on_progress:
        on_progress(Progress(step))


# seconds between two updates of a stage in a notebook: each is a message to the browser
PAUSE = 0.2
EMPTY = {"text/plain": "", "text/html": ""}
# seconds in which counted work ends without a line in a notebook: an emptied line stays in the cell
SHORT = 0.5


@contextmanager
def notebook_progress() -> Iterator[OnProgress | None]:
    """Yield a callback that shows progress in the running notebook, and clear it at the end; else None.

    It shows one line with a bar, the count of the stage and the time left, updated in place, once counted
    work takes longer than SHORT.
    """
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if not hasattr(get_shell() if get_shell else None, "kernel"):
        yield None
        return
    from html import escape  # late: its table of names

    _import_bars()
    show, line, began = import_module("IPython.display").display, None, time.monotonic()
    stage, shown_at = "", 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal line, stage, shown_at
        now = time.monotonic()
        is_short = line is None and progress.total is not None and now - began < SHORT
        if is_short or (progress.stage == stage and now - shown_at < PAUSE):
            return
        stage, shown_at = progress.stage, now
        line = line or show(EMPTY, raw=True, display_id=True)
        value = "" if progress.total is None else f' value="{progress.done}" max="{progress.total}"'
        text = f"{printable(stage)}{progress.counted}"
        bar = f"<progress{value}></progress> {escape(text)}"
        line.update({"text/plain": text, "text/html": bar}, raw=True)

    try:
        yield on_progress
    finally:
        if line is not None:
            line.update(EMPTY, raw=True)


def _import_bars() -> None:
    # tqdm, which packages import, warns on stderr that a kernel without ipywidgets shows no bars of its own
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        import_module("tqdm.auto")


# the function that receives notices, if any
_listeners: list[Callable[[str], None] | None] = [None]


def set_notices(listener: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Set the function that receives notices: lines on what a command waits for, or could not check.

    Returns the former one.
    """
    former, _listeners[0] = _listeners[0], listener
    return former


def notify(text: str) -> None:
    """Send a notice; any thread may call this."""
    if listener := _listeners[0]:
        listener(text)
