"""Progress in a notebook, where no terminal shows it: one line with a bar, updated in place."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import Any

from eaglectl.progress import OnProgress, Progress
from eaglectl.text import duration, printable

# seconds between two updates of a stage: each is a message to the browser
PAUSE = 0.2


@contextmanager
def notebook_progress() -> Iterator[OnProgress | None]:
    """Yield what shows progress in the notebook that runs this, and clear it at the end; None elsewhere."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    if not hasattr(get_shell() if get_shell else None, "kernel"):
        yield None
        return
    line = NotebookProgress()
    try:
        yield line
    finally:
        line.show("", "")


class NotebookProgress:
    """An OnProgress callback that shows the stage, its count and the time left."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.stage, self.shown = "", 0.0

    def __call__(self, progress: Progress) -> None:
        """Show a step, unless the stage's last one was shown just now."""
        now = time.monotonic()
        if progress.stage == self.stage and now - self.shown < PAUSE:
            return
        self.stage, self.shown = progress.stage, now
        count = "" if progress.total is None else f" {progress.done:,} of {progress.total:,} {progress.unit}"
        left = "" if progress.seconds is None else f", about {duration(progress.seconds)} left"
        value = "" if progress.total is None else f' value="{progress.done}" max="{progress.total}"'
        text = f"{printable(progress.stage)}{count}{left}"
        self.show(text, f"<progress{value}></progress> {escape(text)}")

    def show(self, text: str, html: str) -> None:
        """Replace what is shown."""
        display = import_module("IPython.display").display
        data = {"text/plain": text, "text/html": html}
        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)
