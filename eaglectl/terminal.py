"""How a call talks to people: results on stdout, a bar on stderr, colours only where they are seen."""

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglectl.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console


@dataclass(slots=True)
class Face:
    """How this call talks: quietly or not, in colour or not."""

    quiet: bool = False
    verbose: bool = False
    no_color: bool = False

    def console(self, *, stderr: bool = False) -> "Console":
        """A rich console; of fixed width where there is no terminal, so that pipelines see stable lines."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else 160
        return Console(
            stderr=stderr, no_color=self.no_color or None, width=width, highlight=False, emoji=False, markup=False
        )

    def show(self, paint: "Callable[[Console], None]") -> None:
        """Print to stdout what `paint` draws; without the padding at line ends where no terminal shows it."""
        console = self.console()
        with console.capture() as captured:
            paint(console)
        lines = (
            captured.get().splitlines()
            if console.is_terminal
            else [line.rstrip() for line in captured.get().splitlines()]
        )
        emit("\n".join(lines))


# bytes that take seconds to hash
LARGE = 500_000_000


class Bar:
    """A bar on stderr while bytes move or prompts run; where stderr is no terminal, nothing, or a line for what takes long."""

    def __init__(self, face: Face, *, is_on: bool) -> None:
        self.is_on = is_on and sys.stderr.isatty()
        self.has_lines = is_on and not self.is_on
        self.face = face
        self.bar: Any = None
        self.task: Any = None
        self.staged = ""

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start(self, plan: Any) -> None:
        """Count the bytes of a plan from here on."""
        from rich.progress import DownloadColumn, TransferSpeedColumn

        self._start("writing", plan.nbytes, DownloadColumn(), TransferSpeedColumn())

    def prompts(self, done: int, total: int) -> None:
        """Show how many prompts are done, and how long the others will take."""
        self._count("prompts", done, total)

    def checkpoints(self, done: int, total: int) -> None:
        """Show how many checkpoints are judged, and how long the others will take."""
        self._count("checkpoints", done, total)

    def reading(self, done: int, total: int) -> None:
        """Show how many bytes of the weights are read."""
        if self.bar is None and self.is_on:
            from rich.progress import DownloadColumn, TransferSpeedColumn

            self._start("reading", total, DownloadColumn(), TransferSpeedColumn())
        if self.bar:
            self.bar.update(self.task, completed=done)

    def hashing(self, done: int, total: int) -> None:
        """Show how many bytes are hashed; the bar goes when all are, as others print after it. A line where there is no terminal."""
        if self.has_lines and total >= LARGE:
            self.has_lines = False
            print(f"hashing {total / 1e9:.1f} GB", file=sys.stderr)
        if self.bar is None and self.is_on and done < total:
            from rich.progress import DownloadColumn, TransferSpeedColumn

            self._start("hashing", total, DownloadColumn(), TransferSpeedColumn())
        if self.bar:
            self.bar.update(self.task, completed=done)
            if done >= total:
                self._stop()

    def _stop(self) -> None:
        if self.bar:
            self.bar.stop()
        self.bar = None

    def _count(self, what: str, done: int, total: int) -> None:
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn

        if self.bar is None:
            self._start(what, total, MofNCompleteColumn(), TimeRemainingColumn())
        if self.bar:
            self.bar.update(self.task, completed=done)

    def stage(self, what: str, done: int, total: int) -> None:
        """Show how far one of several stages is; the next one takes the bar over."""
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn

        if self.bar is None:
            self._start("", total, MofNCompleteColumn(), TimeRemainingColumn())
        if self.bar and self.staged != what:
            self.staged = what
            self.bar.reset(self.task, total=total, description=what)
        if self.bar:
            self.bar.update(self.task, completed=done, total=total)

    def advance(self, nbytes: int) -> None:
        """Count bytes written."""
        if self.bar:
            self.bar.advance(self.task, nbytes)

    def _start(self, what: str, total: int, *columns: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        if self.is_on:
            console = self.face.console(stderr=True)
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), *columns, console=console, transient=True
            )
            self.task = self.bar.add_task(what, total=total)
            self.bar.start()


STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


def emit(text: str) -> None:
    """Print to stdout, names from files made harmless; a reader that went away is no fault of anybody."""
    lines = (
        "".join(part if STYLE.fullmatch(part) else printable(part) for part in STYLE.split(line))
        for line in text.split("\n")
    )
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        # the interpreter flushes once more at its end, and must find somebody listening
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
