"""A drafter in an installed engine: the runs with and without it, and what the engine resolved."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter
from eaglectl.errors import RefusedError
from eaglectl.files.target_files import read_target_config
from eaglectl.run.engine_arguments import shown_arguments
from eaglectl.run.faults import receive_answer
from eaglectl.run.job import EngineJob, EngineRun, LoadResult
from eaglectl.run.measurement import PromptResult
from eaglectl.run.memory import needed_cache, needed_memory
from eaglectl.run.process import SGLANG, VLLM, EngineProcess, InstalledEngine
from eaglectl.run.tokens import read_context_length, stop_tokens, tokenise
from eaglectl.text import listed

# environment variables with which engines simulate acceptance, or the target's choice of experts
SYNTHETIC = (
    "SGLANG_SIMULATE_ACC_LEN",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
)
# made for every layer, and used by the first one alone (SGLang 0.5.23, llama_eagle3.py:95-103)
UNUSED = re.compile(r"layers\.[1-9]\d*\.input_layernorm\.weight")
HANG = "give it more time; a drafter with another number of aux layers than its fc can make it hang too"
LEAST_SHARED_CORES = 2  # that two engines need to run side by side


def run_installed(engine: InstalledEngine, job: EngineJob) -> EngineRun:
    """Run `job` in the engine with the drafter, and without it where the job compares.

    The two runs start side by side where memory and cores allow. Raises UnreadableError where the engine is
    absent, hangs, dies, lacks something or does not run the target, RefusedError where it rejects the
    drafter, UsageError for an argument that it does not have, and EaglectlError for an error of ours.
    """
    engine.require("--run-in reference")
    check_measured()
    texts = tokenise(job)
    plain, drafted = _answers(engine, job, texts)
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
        plain=tuple(tuple(result["tokens"]) for result in plain["results"]) if plain else (),
        seconds=drafted["seconds"],
        plain_seconds=plain["seconds"] if plain else 0.0,
        resolved=drafted["resolved"],
        differences=differences(engine, job.drafter, drafted["resolved"]),
        arguments=shown_arguments(job.arguments),
    )


def _answers(
    engine: InstalledEngine, job: EngineJob, texts: list[list[int]]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The answers of the run without the drafter, where the job compares, and of the one with it.

    The plain one is looked at first, so that a target that does not run is not taken for the drafter's fault.
    """
    if not job.compares_plain:
        return None, ask(engine, job, "generate", texts)
    with (
        engine.started(job.timeout, job.on_progress) as one,
        engine.started(job.timeout, job.on_progress) as two,
    ):
        runs = [(one, _request(job, "plain", texts)), (two, _request(job, "generate", texts))]
        for process, _ in runs:  # both import the engine at once
            process.send(_request(job, "memory", []))
        memory, _ = (_checked(process, request) for process, request in runs)
        if not _fit_together(memory, runs[0][1]):
            plain = _answer(*runs[0])
            one.close()  # which frees its memory
            return plain, _answer(*runs[1])
        for process, request in runs:
            process.send(request)
        plain, drafted = (_checked(process, request) for process, request in runs)
        return plain, drafted


def _fit_together(memory: Mapping[str, int], request: Mapping[str, Any]) -> bool:
    """Whether two such runs have room on the device at once, and a core each."""
    has_cores = len(os.sched_getaffinity(0)) >= LEAST_SHARED_CORES
    is_shared = request["tensor_parallel_size"] == 1 and not request["engine_arguments"]
    return is_shared and has_cores and memory.get("free_bytes", 0) >= 2 * request["memory_bytes"]


def _answer(process: EngineProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    process.send(request)
    return _checked(process, request)


def _checked(process: EngineProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request that was sent, of which a drafter can make the engine hang."""
    if request["mode"] == "generate":
        process.remark = HANG
    return receive_answer(process, request)


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


def ask(
    engine: InstalledEngine,
    job: EngineJob,
    mode: str,
    texts: list[list[int]],
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The answer of a child process in this mode ("plain" has no drafter); `more` goes into the request.

    Raises as `run_installed` does.
    """
    with engine.started(job.timeout, job.on_progress) as process:
        return _answer(process, {**_request(job, mode, texts), **more, "folder": str(process.folder)})


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
        "has_plain": job.compares_plain,
        "is_mla": job.drafter.dims.attention == "MLA",
        "is_mla_target": "kv_lora_rank" in read_target_config(job.target),
        "needs_tokenizer": job.needs_tokenizer or not texts,
        "prompts": texts,
        "context": read_context_length(job.target),
        "cache_bytes": needed_cache(job, texts),
        "memory_bytes": needed_memory(job, texts),
    }


def load_only(job: EngineJob) -> LoadResult:
    """What vLLM's drafter class and loader make of the files, on parameters that are NaN before.

    Raises as `run_installed` does.
    """
    VLLM.require("--run-in reference")
    check_measured()
    answer = ask(VLLM, job, "load", [])
    fitting = {name for name, fits in _shared_parameters(job.drafter).items() if fits}
    unfilled = [*answer["unfilled"], *(name for name in answer["shared"] if name not in fitting)]
    shared = tuple(name for name in answer["shared"] if name in fitting)
    return LoadResult(answer["version"], tuple(sorted(unfilled)), answer["resolved"], shared=shared)


def _shared_parameters(drafter: Drafter) -> Mapping[str, bool]:
    """Whether the target's embedding and head, which vLLM gives a drafter without its own, fit this one.

    A head over another vocabulary is given all the same, and drafts wrong tokens (llm_base_proposer.py,
    _maybe_share_lm_head); an embedding of another width is not.
    """
    dims = drafter.dims
    return {
        "model.embed_tokens.weight": dims.hidden == dims.target_hidden,
        "lm_head.weight": dims.draft_vocab == dims.vocab and dims.hidden == dims.target_hidden,
    }


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
