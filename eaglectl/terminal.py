"""Output of a command: results on stdout, progress on stderr, colours only on a terminal.

No other module writes to either (tests/hostile/test_words.py), so text from files is made safe here.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.progress import Progress
from eaglectl.text import FIXED_WIDTH, duration, escaped, inert, masked, printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress as RichProgress

    from eaglectl.report.terminal import Console

# the least seconds of work that are announced without a terminal
LONG = 60.0
# the least bytes whose reading or writing is announced without a terminal
LARGE = 500_000_000
# an estimate that is off by this factor is printed again
WRONG = 1.5
STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
# control sequences of the Hub client's progress bars: start of the line, another line, clear the line
BAR = re.compile(r"(\r|\x1b\[[0-9;]*[AK])")


class OutputSettings(Struct):
    """The options of output that every command has."""

    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    def rich_console(self, stream: IO[str]) -> "RichConsole":
        """Return a console of rich; without a terminal no line is folded.

        Colours without a terminal are for FORCE_COLOR, which rich reads, and CLICOLOR_FORCE.
        """
        from rich.console import Console as RichConsole

        is_forced = os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0")

        return RichConsole(
            file=_unguarded(stream),
            no_color=self.no_color or None,
            force_terminal=True if is_forced else None,
            width=None if stream.isatty() else FIXED_WIDTH,
            highlight=False,
            emoji=False,
            markup=False,
            force_jupyter=False,
        )

    def show(self, paint: "Callable[[Console], None]", stream: IO[str] | None = None) -> None:
        """Print the output of `paint` to stdout or `stream`; in a file, lines do not end in spaces."""
        from eaglectl.report.terminal import Console

        stream = stream or sys.stdout
        console = self.rich_console(stream)
        with _writing(stream):  # rich writes no characters after a capture, which a full device refuses too
            with console.capture() as capture:
                paint(Console(console))
            lines = (line if stream.isatty() else line.rstrip() for line in capture.get().splitlines())
            _write((inert(_escaped_but(STYLE, line)) for line in lines), stream)

    def warn(self, text: str) -> None:
        """Print a warning to stderr."""
        self.show(lambda console: console.print(f"warning: {text}", style="yellow"), sys.stderr)


class ProgressBar:
    """An OnProgress callback that draws a bar on stderr.

    The estimated time left is shown beside the bar. Without a terminal, a line states it if it is at least
    LONG, and again if the estimate was wrong.
    """

    def __init__(self, settings: OutputSettings, *, is_on: bool) -> None:
        self.settings = settings
        self.is_on = is_on
        self.has_terminal = sys.stderr.isatty()
        self.clock = time.monotonic
        # the stage, and whether it is counted
        self.shown = ("", False)
        # the announced end of each stage
        self.announced: dict[str, float] = {}
        self.bar: RichProgress | None = None
        # several threads may report at the same time
        self.lock = threading.RLock()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, progress: Progress) -> None:
        """Show `progress`; a new stage replaces the bar, a finished stage removes it."""
        if self.is_on:
            with self.lock:
                (self._update if self.has_terminal else self._print_lines)(progress)

    def stop(self) -> None:
        """Remove the bar, at the end or for a question; the next step shows it again."""
        with self.lock:
            if self.bar is not None:
                self.bar.stop()
            self.bar = None

    def _update(self, progress: Progress) -> None:
        # each stage has its own bar, which goes when the stage is finished
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        is_finished = progress.total is not None and progress.done >= progress.total
        if self.shown != (progress.stage, progress.total is not None):
            self.stop()
        text = printable(f"{progress.stage}{progress.counted}")
        if self.bar is None and not is_finished:
            self.bar = RichProgress(
                BarColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=self.settings.rich_console(sys.stderr),
                transient=True,
                redirect_stdout=False,  # only stderr, so that notices are above the bar
            )
            self.bar.add_task(text, total=progress.total)
            self.bar.start()
        self.shown = progress.stage, progress.total is not None
        if self.bar is not None:
            self.bar.update(
                self.bar.task_ids[0], completed=progress.done, total=progress.total, description=text
            )
        if is_finished:
            self.stop()

    def _print_lines(self, progress: Progress) -> None:
        # without a bar: each large transfer once, and the time left if it is long or the estimate was wrong
        total, seconds, work = progress.total or 0, progress.seconds or 0.0, progress.whole or progress.stage
        if progress.unit == "bytes" and total >= LARGE and self.shown != (progress.stage, True):
            self.shown = progress.stage, True
            say(f"{progress.stage} {total / 1e9:.1f} GB", sys.stderr)
        now = self.clock()
        before = self.announced.get(work, now) - now
        if seconds >= LONG and (before <= 0 or not before / WRONG < seconds < before * WRONG):
            self.announced[work] = now + seconds
            say(f"{work} takes about {duration(seconds)} more", sys.stderr)


def say(text: str, stream: IO[str] | None = None) -> None:
    """Print one line to stdout or `stream`; line breaks are escaped, long text shortened, secrets masked.

    Raises UnreadableError if stdout cannot be written to.
    """
    _write([inert(printable(text))], stream or sys.stdout)


def confirm(question: str) -> bool:
    """Ask a question on stderr, and return whether the answer on stdin is yes."""
    print(f"{inert(printable(question))} [y/N] ", end="", flush=True, file=_unguarded(sys.stderr))
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def report_fault(trace: str) -> None:
    """Print the traceback of an internal error to stderr."""
    for line in trace.splitlines():
        say(line, sys.stderr)
    say("eaglectl: this is a fault of eaglectl; please report it with the lines above", sys.stderr)


def emit(document: str, *, has_commands: bool = False) -> None:
    """Print a whole document to stdout: JSON, or a CI format whose texts its renderer made safe.

    With `has_commands`, a line may be a command of a CI system. Raises UnreadableError if stdout cannot be
    written to.
    """
    lines = map(escaped, document.split("\n"))
    _write(lines if has_commands else map(inert, lines), sys.stdout)


def _write(lines: Iterable[str], stream: IO[str]) -> None:
    """Write lines; a closed pipe is not an error. Raises UnreadableError if stdout cannot be written to."""
    # a locale may lack characters of a file name
    encoding = getattr(stream, "encoding", None) or "utf-8"
    output = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    with _writing(stream):
        print(output, flush=True, file=_unguarded(stream))


@contextlib.contextmanager
def _writing(stream: IO[str]) -> Iterator[None]:
    # a closed pipe ends the writing; other errors of stdout are UnreadableErrors
    try:
        yield
    except BrokenPipeError:
        discard(stream)
    except OSError as error:
        discard(stream)
        if stream is not sys.stderr:
            raise UnreadableError(
                f"stdout cannot be written to: {error.strerror}; redirect it to a place with free space"
            ) from None


def _escaped_but(pattern: re.Pattern[str], text: str) -> str:
    return "".join(part if place % 2 else escaped(part) for place, part in enumerate(pattern.split(text)))


def discard(stream: IO[str]) -> None:
    """Send buffered output to /dev/null, as the interpreter flushes stdout again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Guard:
    """A stream for the output of libraries (warnings, logs, bars): escapes text except for line breaks."""

    def __init__(self, stream: IO[str]) -> None:
        self.unguarded = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)

    def write(self, text: str) -> int:
        """Write text with escaped control characters, except those of progress bars on a terminal."""
        lines = (
            _escaped_but(BAR, line) if self.unguarded.isatty() else escaped(line) for line in text.split("\n")
        )
        self.unguarded.write("\n".join(inert(masked(line)) for line in lines))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines as `write` does."""
        for line in lines:
            self.write(line)


def guard_streams() -> None:
    """Put a Guard around stdout and stderr; a closed stream writes to /dev/null."""
    streams = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (
        Guard(stream or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        for stream in streams
    )


def _unguarded(stream: IO[str]) -> IO[str]:
    return stream.unguarded if isinstance(stream, Guard) else stream
