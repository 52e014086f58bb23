"""SIGTERM and SIGHUP as exceptions while something is being written, so that it is removed before the end.

An exception can also come up inside the code that removes. So what is written registers its removal, which
runs again at the end of the process until it was not interrupted.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from eaglectl.errors import EaglectlError

STOPPING = (signal.SIGTERM, signal.SIGHUP)

Removal = Callable[[], None]
# in the order they were registered, with the process that did: a fork inherits them and must not run them
_removals: list[tuple[int, Removal]] = []


class Terminated(SystemExit):
    """The end of the process by a signal: exit code 128 + its number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Terminated for SIGTERM and SIGHUP in the main thread.

    A signal that is ignored (nohup) or that the caller handles is left as it is, and so are other threads.
    """
    handled: list[signal.Signals] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        # a second signal must not end the removal that the first one began
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if signal.getsignal(number) is signal.SIG_DFL:
                handled.append(number)
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def register_removal(remove: Removal) -> None:
    """Have `remove` called at the end of the process, unless it is unregistered before."""
    _removals.append((os.getpid(), remove))


def unregister_removal(remove: Removal) -> None:
    """Forget a registered removal; none is no error."""
    _removals[:] = [(pid, other) for pid, other in _removals if other != remove]


@atexit.register
def run_removals() -> bool:
    """Run what is registered, the last first; whether all of it could be done."""
    is_done = True
    while _removals:
        pid, remove = _removals.pop()
        if pid == os.getpid():
            try:
                remove()
            except (OSError, EaglectlError):
                is_done = False
    return is_done
