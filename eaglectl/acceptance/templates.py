"""A target's chat template, which is a program of others, rendered within a time and a size."""

import ctypes
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# a template takes milliseconds; a text of a million tokens has some MB
SECONDS = 10.0
MAX_TEXT = 16 << 20
# address space that rendering may take beyond what the process has
MAX_MEMORY = 2 << 30


class TemplateLimitError(Exception):
    """A template that takes longer, or writes more, than any template needs."""

    def __init__(self, text: str = f"it takes more than {SECONDS:g} s") -> None:
        super().__init__(text)


def rendered(render: Callable[[], str]) -> str:
    """What a template writes.

    Raises TemplateLimitError, MemoryError where it needs more than MAX_MEMORY, and whatever `render` raises.
    """
    with within_time(), _within_memory():
        text = render()
    if len(text) > MAX_TEXT:
        raise TemplateLimitError(f"it writes {len(text)} characters, and at most {MAX_TEXT} are taken")
    return text


def within_time() -> AbstractContextManager[None]:
    """Raise TemplateLimitError in this thread once the time is over: the sandbox of jinja bounds no loops."""
    is_main = threading.current_thread() is threading.main_thread()
    is_free = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and not any(
        signal.getitimer(signal.ITIMER_REAL)
    )
    return _within_alarm() if is_main and is_free else _within_timer()


@contextmanager
def _within_alarm() -> Iterator[None]:
    """By a signal, which ends long arithmetic (9 ** 99999999) and regular expressions too."""

    def end(*_: object) -> None:
        raise TemplateLimitError

    signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def _within_timer() -> Iterator[None]:
    """By a thread, where the signal is not ours: between two steps of Python alone.

    An exception that was set and is not raised yet comes up at the call of `cancel`. It is not taken back:
    CPython 3.11 would look for one at every call from then on, and hang where it traces.
    """
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def end() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TemplateLimitError))

    timer = threading.Timer(SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()
        timer.join()


@contextmanager
def _within_memory() -> Iterator[None]:
    """Bound the address space of the process, where the system tells how much there is."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        yield
        return
    most = pages * resource.getpagesize() + MAX_MEMORY
    if limits[0] == resource.RLIM_INFINITY or most < limits[0]:
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
