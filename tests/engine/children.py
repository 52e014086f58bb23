"""Children of tests, each in a session of its own, of which nothing outlives the time that it has."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import FIXTURES


def run_child(module: str, *arguments: object, patience: float, log: Path, **variables: str) -> None:
    """Run a module with these arguments and variables, its words in `log`; it must end well.

    Raises subprocess.TimeoutExpired after `patience` seconds.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    environment = {**os.environ, **variables}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=FIXTURES.parent, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(patience)
        finally:
            end(process)
    assert code == 0, log.read_text(errors="replace")[-2000:]


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill a process that leads a session, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
