"""A drafter in an installed engine: the runs with and without it, and what the engine resolved."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from eaglectl.acceptance.engine_arguments import unknown_argument
from eaglectl.acceptance.job import EngineJob, EngineRun, LoadResult
from eaglectl.acceptance.measurement import PromptResult
from eaglectl.acceptance.process import SGLANG, VLLM, InstalledEngine
from eaglectl.acceptance.tokens import read_context_length, stop_tokens, tokenise
from eaglectl.checkpoint.target_files import code_needed, read_target_config
from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.text import listed

# environment variables with which engines simulate acceptance, or the target's choice of experts
SYNTHETIC = (
    "SGLANG_SIMULATE_ACC_LEN",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
)
# made for every layer, and used by the first one alone (SGLang 0.5.23, llama_eagle3.py:95-103)
UNUSED = re.compile(r"layers\.[1-9]\d*\.input_layernorm\.weight")
HANG = "a drafter with another number of aux layers than its fc can make it hang"


def run_installed(engine: InstalledEngine, job: EngineJob) -> EngineRun:
    """Run `job` in the engine, twice: without the drafter, then with it.

    Raises UnreadableError where the engine is absent, hangs, dies or does not run the target, RefusedError
    where it rejects the drafter, UsageError for an argument that it does not have.
    """
    engine.require("--engine reference")
    check_measured()
    texts = tokenise(job, read_context_length(job.target))
    # plain decoding first, so that a target that does not run is not reported as the drafter's fault
    plain = ask(engine, job, "plain", texts)
    drafted = ask(engine, job, "generate", texts)
    results = tuple(
        PromptResult(prompt.set, result["drafts"], tuple(result["accepted"]), tuple(result["tokens"]))
        for prompt, result in zip(job.prompts, drafted["results"], strict=True)
    )
    return EngineRun(
        engine=engine.name,
        version=drafted["version"],
        device=drafted["device"],
        dtype=drafted["dtype"],
        proves=f"what this {engine.title} release does with the checkpoint as written",
        results=results,
        plain=tuple(tuple(result["tokens"]) for result in plain["results"]),
        seconds=drafted["seconds"],
        plain_seconds=plain["seconds"],
        resolved=drafted["resolved"],
        differences=differences(engine, job.drafter, drafted["resolved"]),
        arguments=job.arguments,
    )


def differences(engine: InstalledEngine, drafter: Drafter, resolved: Mapping[str, Any]) -> tuple[str, ...]:
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
        f"{key}: {engine.title} uses {resolved[key]}, the checkpoint means {value}"
        for key, value in meant.items()
        if value is not None and resolved.get(key) is not None and resolved[key] != value
    )


def check_measured() -> None:
    """Raise RefusedError where the environment makes acceptance up."""
    for name in SYNTHETIC:
        if os.environ.get(name):
            raise RefusedError(f"{name} is set: acceptance would be made up, not measured; unset it")


def ask(engine: InstalledEngine, job: EngineJob, mode: str, texts: list[list[int]]) -> dict[str, Any]:
    """The answer of the child process in this mode ("plain" has no drafter). Raises as `run_installed`."""
    document = engine.answer(_request(job, mode, texts), job.timeout, HANG)
    if "error" not in document:
        return document
    if document.get("needs_code"):
        raise code_needed(job.target)
    if "unknown" in document:
        raise unknown_argument(engine.title, document)
    version = f"{engine.title} {document.get('version', '')}".strip()
    if "needs" in document:  # a release that cannot be measured
        raise UnreadableError(f"{version}: {document['error']}; install {document['needs']}")
    if mode == "plain":
        raise UnreadableError(f"{version} does not run the target {job.target}: {document['error']}")
    raise RefusedError(f"{version} does not run this drafter: {document['error']}")


def _request(job: EngineJob, mode: str, texts: list[list[int]]) -> dict[str, Any]:
    return {
        "mode": mode,
        "target": str(job.target.resolve()),
        "drafter": str(job.folder.resolve()),
        "k": job.k,
        "max_tokens": job.max_tokens,
        "seed": job.seed,
        "temperature": job.temperature,
        "ignore_eos": job.ignores_eos,
        "stop": sorted(stop_tokens(job)) if texts else [],
        "device": job.device,
        "trust_remote_code": job.trust_remote_code,
        "tensor_parallel_size": job.tensor_parallel_size,
        "engine_arguments": dict(job.engine_arguments),
        "is_mla": job.drafter.dims.attention == "MLA",
        "is_mla_target": "kv_lora_rank" in read_target_config(job.target),
        "needs_tokenizer": job.needs_tokenizer or not texts,
        "prompts": texts,
        "context": read_context_length(job.target),
    }


def load_only(job: EngineJob) -> LoadResult:
    """What vLLM's drafter class and loader make of the files, on parameters that are NaN before.

    Raises as `run_installed` does.
    """
    VLLM.require("--engine reference")
    check_measured()
    answer = ask(VLLM, job, "load", [])
    return LoadResult(answer["version"], tuple(answer["unfilled"]), answer["resolved"])


def run_sglang(job: EngineJob) -> EngineRun:
    """Run `job` in SGLang. Raises as `run_installed` does."""
    run = run_installed(SGLANG, job)
    resolved = dict(run.resolved)
    used = resolved.pop("draft_tokens", None)
    more = (*_other_tokens(used, job.draft_tokens), *_unfilled(resolved.get("unfilled") or []))
    return replace(run, resolved=resolved, differences=(*run.differences, *more))


def _other_tokens(used: Sequence[int] | None, meant: Sequence[int] | None) -> Iterator[str]:
    """Where SGLang takes draft tokens for other tokens of the target than the checkpoint means."""
    if used is None or meant is None or list(used) == list(meant):
        return
    if len(used) != len(meant):
        yield f"d2t: SGLang uses {len(used)} draft tokens, the checkpoint has {len(meant)}"
        return
    number = sum(mine != theirs for mine, theirs in zip(used, meant, strict=True))
    place = next(place for place, pair in enumerate(zip(used, meant, strict=True)) if pair[0] != pair[1])
    yield (
        f"d2t: SGLang takes {number} of {len(meant)} draft tokens for others, the first is {place}: it uses"
        f" token {used[place]}, the checkpoint means {meant[place]}"
    )


def _unfilled(names: Sequence[str]) -> Iterator[str]:
    """Parameters that SGLang uses and nothing fills."""
    if used := [name for name in names if not UNUSED.search(name)]:
        yield f"SGLang uses {listed(used)}, which neither the file nor the target fills"
