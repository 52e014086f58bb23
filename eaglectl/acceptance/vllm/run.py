"""The installed vLLM as an engine, in a child process: a wrong drafter can make it hang or abort."""

from eaglectl.acceptance.installed import ask, check_measured, run_installed
from eaglectl.acceptance.job import EngineJob, EngineRun, LoadResult
from eaglectl.acceptance.vllm.process import VLLM


def run_vllm(job: EngineJob) -> EngineRun:
    """Run `job` in vLLM. Raises as `run_installed` does."""
    return run_installed(VLLM, job)


def load_only(job: EngineJob) -> LoadResult:
    """What vLLM's drafter class and loader make of the files, on parameters that are NaN before.

    Raises as `run_installed` does.
    """
    VLLM.require("--engine reference")
    check_measured()
    answer = ask(VLLM, job, "load", [])
    return LoadResult(answer["version"], tuple(answer["unfilled"]), answer["resolved"])
