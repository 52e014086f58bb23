"""A server of an engine in a process of its own, for as long as a test talks to it."""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engine.pairs import end


@contextmanager
def running(
    command: Sequence[str], log: Path, patience: float, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of the server that `command` starts, once its /health answers; its output is in `log`."""
    port = free_port()
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env=os.environ | (environment or {}),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait(f"http://127.0.0.1:{port}/health", process, log, patience)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait(url: str, process: "subprocess.Popen[bytes]", log: Path, patience: float) -> None:
    """Return once the address answers; fail with the end of the log where it does not."""
    deadline = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")
