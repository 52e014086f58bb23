"""A server of an engine in a process of its own, for as long as a test talks to it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.engine.children import end

# of vLLM's server, for a small pair
SETTINGS = (
    "--dtype float32 --enforce-eager --max-model-len 128 --max-num-seqs 4 --max-num-batched-tokens 256"
    f" --kv-cache-memory-bytes {64 << 20} --seed 0"
).split()


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


def running_vllm(
    target: Path, drafter: Path | None, log: Path, patience: float, *more: str
) -> AbstractContextManager[str]:
    """The address of a vLLM server that drafts three tokens a round; without a drafter, none."""
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(target), *SETTINGS]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    words = (*more, *(["--speculative-config", json.dumps(speculation)] if drafter else []))
    return running([*command, *words], log, patience, environment)


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
