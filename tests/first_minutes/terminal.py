"""A pseudo-terminal: what a process shows on one, and what it does with the keys that are typed."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

# the process leads a session whose terminal is the pseudo-terminal, as shells need for their keys, and heeds
# Ctrl-C where this process ignores it
LEAD = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
ROOT = Path(__file__).parents[2]
SECONDS = 60


def environment(**more: str) -> dict[str, str]:
    """Variables of a user who has just installed eaglectl: nothing of this process but where Python is."""
    folder = Path(sys.executable).parent
    return {
        "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
        "HF_HUB_OFFLINE": "1",
        **more,
    }


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, columns: int = 80):
        self.folder = folder
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, columns))
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", LEAD, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=env,
            cwd=folder,
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def type(self, keys: str) -> None:
        """Send what somebody types."""
        os.write(self.ours, keys.encode())

    def read(self, mark: str | None = None) -> str:
        """What is shown until `mark`, by default until the process ends. AssertionError if never."""
        shown, end = b"", time.monotonic() + SECONDS
        while mark is None or mark.encode() not in shown:
            assert time.monotonic() < end, shown
            if not select.select([self.ours], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(self.ours, 65536)
            except OSError:  # nobody has the terminal open any more
                assert mark is None, shown
                break
        return shown.decode("utf-8", "replace")


def shown(command: Sequence[str], env: Mapping[str, str], folder: Path, columns: int = 80) -> tuple[int, str]:
    """Exit code of a command, and what it shows, lines ended by line feeds."""
    with Terminal(command, env, folder, columns) as terminal:
        text = terminal.read()
        return terminal.process.wait(SECONDS), text.replace("\r\n", "\n")
