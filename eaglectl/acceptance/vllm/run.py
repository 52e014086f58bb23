"""The installed vLLM as an engine, in a child process: a wrong drafter can make it hang or abort."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from eaglectl.acceptance.job import EngineJob, EngineRun, LoadResult
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.tokens import read_context_length, tokenise
from eaglectl.acceptance.vllm.process import child_environment, kill_session, last_lines, require_vllm
from eaglectl.checkpoint.scratch import scratch_folder
from eaglectl.checkpoint.target_files import code_needed, read_target_config
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError

# environment variables with which engines simulate acceptance
SYNTHETIC = ("SGLANG_SIMULATE_ACC_LEN",)


def run_vllm(job: EngineJob) -> EngineRun:
    """Run `job` in vLLM.

    Raises UnreadableError where vLLM is absent, hangs, dies or does not run the target, RefusedError where it
    rejects the drafter.
    """
    require_vllm("--engine reference")
    _check_measured()
    texts = tokenise(job, read_context_length(job.target))
    # plain decoding first, so that a target that does not run is not reported as the drafter's fault
    plain = _run_child(job, "plain", texts)
    drafted = _run_child(job, "generate", texts)
    results = tuple(
        PromptResult(prompt.set, result["drafts"], tuple(result["accepted"]), tuple(result["tokens"]))
        for prompt, result in zip(job.prompts, drafted["results"], strict=True)
    )
    return EngineRun(
        engine="vllm",
        version=drafted["version"],
        device=drafted["device"],
        dtype=drafted["dtype"],
        proves="what this vLLM release does with the checkpoint as written",
        results=results,
        plain=tuple(tuple(result["tokens"]) for result in plain["results"]),
        seconds=drafted["seconds"],
        plain_seconds=plain["seconds"],
        resolved=drafted["resolved"],
        differences=differences(job.drafter, drafted["resolved"]),
    )


def load_only(job: EngineJob) -> LoadResult:
    """What vLLM's drafter class and loader make of the files, on parameters that are NaN before.

    Raises as `run_vllm` does.
    """
    require_vllm("--engine reference")
    _check_measured()
    answer = _run_child(job, "load", [])
    return LoadResult(answer["version"], tuple(answer["unfilled"]), answer["resolved"])


def differences(drafter: Drafter, resolved: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the settings that the engine uses are not those that the checkpoint means."""
    norms, boundaries = drafter.norms, drafter.aux.boundaries
    meant = {
        "fc_norm": norms.fc_norm,
        "norm_output": norms.norm_output,
        "norm_before_fc": norms.norm_before_fc,
        "norm_before_residual": norms.norm_before_residual,
        "aux_layers": None if boundaries is None else list(boundaries),
    }
    return tuple(
        f"{key}: vLLM uses {resolved[key]}, the checkpoint means {value}"
        for key, value in meant.items()
        if value is not None and resolved.get(key) is not None and resolved[key] != value
    )


def _check_measured() -> None:
    for name in SYNTHETIC:
        if os.environ.get(name):
            raise RefusedError(f"{name} is set: acceptance would be made up, not measured; unset it")


def _run_child(job: EngineJob, mode: str, texts: list[list[int]]) -> dict[str, Any]:
    """The answer of the child process to a request of this mode: "plain", "generate" or "load"."""
    with scratch_folder() as folder:
        request, answer = folder / "request.json", folder / "answer.json"
        request.write_text(json.dumps(_request(job, mode, texts)), encoding="utf-8")
        errors, code = _wait(job, [str(request), str(answer)])
        if not answer.exists():
            raise UnreadableError(f"vLLM ended with code {code} and no answer: {last_lines(errors)}")
        document: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" not in document:
        return document
    if document.get("needs_code"):
        raise code_needed(job.target)
    version = f"vLLM {document.get('version', '')}".strip()
    if mode == "plain":
        raise UnreadableError(f"{version} does not run the target {job.target.name}: {document['error']}")
    raise RefusedError(f"{version} does not run this drafter: {document['error']}")


def _wait(job: EngineJob, arguments: list[str]) -> tuple[str, int | None]:
    """Run the child to its end: its stderr and its exit code. Raises UnreadableError after the timeout."""
    command = [sys.executable, "-m", "eaglectl.acceptance.vllm.child", *arguments]
    # in a session of its own, so that the processes that vLLM starts can be killed with it
    with subprocess.Popen(
        command,
        env=child_environment(),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            _, errors = process.communicate(timeout=job.timeout)
        except subprocess.TimeoutExpired:
            raise UnreadableError(
                f"vLLM did not finish within --timeout {job.timeout:g} s and was stopped; a drafter with"
                " another number of aux layers than its fc can make it hang"
            ) from None
        finally:
            kill_session(process)
    return errors, process.returncode


def _request(job: EngineJob, mode: str, texts: list[list[int]]) -> dict[str, Any]:
    return {
        "mode": mode,
        "target": str(job.target.resolve()),
        "drafter": str(job.folder.resolve()),
        "k": job.k,
        "max_tokens": job.max_tokens,
        "seed": job.seed,
        "temperature": job.temperature,
        "device": job.device,
        "trust_remote_code": job.trust_remote_code,
        "is_mla": job.drafter.dims.attention == "MLA",
        "is_mla_target": "kv_lora_rank" in read_target_config(job.target),
        "needs_tokenizer": job.needs_tokenizer or not texts,
        "prompts": texts,
        "context": read_context_length(job.target),
    }
