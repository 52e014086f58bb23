"""Side files of each kind, and the limit of what a command may take for them."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    # the name of a socket is short, wherever the tests run
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "device": link_to_device,
    "socket": unix_socket,
    "folder": Path.mkdir,
    "nothing": lambda path: None,
}


@contextmanager
def no_more_than(seconds: int) -> Iterator[None]:
    """End the process with a trace where something blocks."""
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
