"""Output of one command: results on stdout, progress on stderr, colours only on a terminal."""

import contextlib
import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglectl.errors import UnreadableError
from eaglectl.progress import Progress
from eaglectl.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID

# columns of output that goes to a file or a pipe
FIXED_WIDTH = 160
# bytes that take seconds to hash
LARGE = 500_000_000
STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


@dataclass(slots=True)
class OutputSettings:
    """The options of output that every command has."""

    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    def console(self, *, stderr: bool = False) -> "Console":
        """Return a rich console; of fixed width without a terminal, so that lines are stable in pipelines."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        return Console(
            stderr=stderr,
            no_color=self.no_color or None,
            width=None if stream.isatty() else FIXED_WIDTH,
            highlight=False,
            emoji=False,
            markup=False,
        )

    def show(self, paint: "Callable[[Console], None]") -> None:
        """Print to stdout what `paint` writes to a console; outside a terminal, without trailing spaces."""
        console = self.console()
        with console.capture() as capture:
            paint(console)
        lines = capture.get().splitlines()
        if not console.is_terminal:
            lines = [line.rstrip() for line in lines]
        emit("\n".join(lines))


class ProgressBar:
    """An OnProgress callback that draws a bar on stderr; without a terminal, one line for large amounts."""

    def __init__(self, settings: OutputSettings, *, is_on: bool) -> None:
        self.settings = settings
        self.is_on = is_on
        self.has_terminal = sys.stderr.isatty()
        self.stage_shown = ""
        self.bar: RichProgress | None = None
        self.task: TaskID | None = None
        # several threads may report at the same time
        self.lock = threading.Lock()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, progress: Progress) -> None:
        """Show `progress`; a new stage replaces the bar, a finished stage removes it."""
        if not self.is_on:
            return
        with self.lock:
            if self.has_terminal:
                self._update(progress)
            else:
                self._print_line(progress)

    def _update(self, progress: Progress) -> None:
        is_finished = progress.total is not None and progress.done >= progress.total
        if self.stage_shown != progress.stage:
            self._stop()
        if self.bar is None and not is_finished:
            self._start(progress)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=progress.done, total=progress.total)
        if is_finished:
            self._stop()

    def _start(self, progress: Progress) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            *_columns(progress.unit),
            console=self.settings.console(stderr=True),
            transient=True,
        )
        self.task = self.bar.add_task(progress.stage, total=progress.total)
        self.stage_shown = progress.stage
        self.bar.start()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.bar = self.task = None

    def _print_line(self, progress: Progress) -> None:
        """Print a line as a stage begins whose bytes take seconds."""
        total = progress.total or 0
        if progress.unit == "bytes" and total >= LARGE and self.stage_shown != progress.stage:
            self.stage_shown = progress.stage
            print(f"{progress.stage} {total / 1e9:.1f} GB", file=sys.stderr)

    def start(self, plan: Any) -> None:
        """Count the bytes of a plan from here on."""
        self.plan_bytes, self.written = plan.nbytes, 0

    def advance(self, nbytes: int) -> None:
        """Count bytes written."""
        self.written += nbytes
        self(Progress("writing", self.written, self.plan_bytes, "bytes"))


def _columns(unit: str) -> "list[ProgressColumn]":
    """Return the columns after the bar: bytes as sizes and a rate, all else as counts."""
    from rich.progress import DownloadColumn, MofNCompleteColumn, TimeRemainingColumn, TransferSpeedColumn

    if unit == "bytes":
        return [DownloadColumn(), TransferSpeedColumn()]
    return [MofNCompleteColumn(), TimeRemainingColumn()]


def emit(text: str) -> None:
    """Print to stdout, with control characters in names escaped; a closed pipe is not an error.

    Raises UnreadableError where stdout cannot be written to.
    """
    lines = ("".join(map(_safe, STYLE.split(line))) for line in text.split("\n"))
    # a locale may have no character for what a file is named
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    output = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(output, flush=True)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise UnreadableError(
            f"stdout cannot be written to: {error.strerror}; give it a place that has room"
        ) from None


def discard_stdout() -> None:
    """Send what is buffered nowhere, as the interpreter flushes stdout once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _safe(part: str) -> str:
    return part if STYLE.fullmatch(part) else printable(part)
