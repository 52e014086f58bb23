"""A drafter, or its target alone, in an installed engine: what is run, and what the engine resolved."""

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines import vllm
from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.files.target_files import check_files, read_target_config, text_part
from eaglectl.run.engine_arguments import shown_arguments
from eaglectl.run.faults import receive_answer
from eaglectl.run.job import EngineJob, EngineRun, LoadResult
from eaglectl.run.measurement import PromptResult
from eaglectl.run.process import VLLM, InstalledEngine
from eaglectl.run.prompts import BATCH
from eaglectl.run.tokens import read_context_length, stop_tokens, tokenise
from eaglectl.text import listed

if TYPE_CHECKING:
    import torch

    from eaglectl.reference.states import AuxStates

# environment variables with which engines simulate acceptance, or the target's choice of experts
SYNTHETIC = (
    "SGLANG_SIMULATE_ACC_LEN",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
)
# made for every layer, and used by the first one alone (SGLang 0.5.23, llama_eagle3.py:95-103)
UNUSED = re.compile(r"layers\.[1-9]\d*\.input_layernorm\.weight")
# what an engine takes beside weights, cache and activations: its context, its kernels, and a margin
ENGINE_BYTES = 6 << 30
BATCH_TOKENS = 16384  # that vLLM takes in one batch on large GPUs
MIN_CACHE = 256 << 20
LEAST_SHARED_CORES = 2  # that two engines need to run side by side


def run_installed(engine: InstalledEngine, job: EngineJob) -> EngineRun:
    """Run `job` in the engine with the drafter, and without it where the job compares.

    The two runs start side by side where memory and cores allow. Raises UnreadableError where the engine is
    absent, hangs, dies, lacks something or does not run the target, RefusedError where it rejects the
    drafter, UsageError for an argument that it does not have, and EaglectlError for an error of ours.
    """
    engine.require("--run-in reference")
    check_measured()
    plain, drafted = _answers(engine, job, tokenise(job))
    resolved = dict(drafted["resolved"])
    different = differences(engine, job.drafter, resolved)
    different += _other_tokens(resolved.pop("draft_tokens", None), job.draft_tokens)
    if unfilled := [name for name in resolved.get("unfilled") or () if not UNUSED.search(name)]:
        different += (f"SGLang uses {listed(unfilled)}, which neither the file nor the target fills",)
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
        resolved=resolved,
        differences=different,
        arguments=shown_arguments(
            ({"tensor_parallel_size": job.tensor_parallel_size} if job.tensor_parallel_size > 1 else {})
            | dict(job.engine_arguments)
        ),
    )


def _answers(
    engine: InstalledEngine, job: EngineJob, texts: list[list[int]]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The answers of the run without the drafter, where the job compares, and of the one with it.

    The plain one is looked at first, so that a target that does not run is not taken for the drafter's fault.
    """
    if not job.compares_plain:
        return None, ask(engine, job, "generate", texts)
    memory, plain, drafted = (_request(job, mode, texts) for mode in ("memory", "plain", "generate"))
    with (
        engine.started(job.timeout, job.on_progress) as one,
        engine.started(job.timeout, job.on_progress) as two,
    ):
        for process in (one, two):  # both import the engine at once
            process.send(memory)
        free = [receive_answer(process, memory).get("free_bytes", 0) for process in (one, two)]
        has_cores = len(os.sched_getaffinity(0)) >= LEAST_SHARED_CORES
        is_shared = has_cores and job.tensor_parallel_size == 1 and not job.engine_arguments
        one.send(plain)
        if is_shared and free[0] >= 2 * plain["memory_bytes"]:
            two.send(drafted)
            return receive_answer(one, plain), receive_answer(two, drafted)
        answer = receive_answer(one, plain)
        one.close()  # which frees its memory
        two.send(drafted)
        return answer, receive_answer(two, drafted)


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
        request = {**_request(job, mode, texts), **more, "folder": str(process.folder)}
        process.send(request)
        return receive_answer(process, request)


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


def _other_tokens(used: Sequence[int] | None, meant: Sequence[int] | None) -> tuple[str, ...]:
    if used is None or meant is None or list(used) == list(meant):
        return ()
    if len(used) != len(meant):
        return (f"d2t: SGLang uses {len(used)} draft tokens, the checkpoint has {len(meant)}",)
    places = [place for place, pair in enumerate(zip(used, meant, strict=True)) if pair[0] != pair[1]]
    first = places[0]
    return (
        f"d2t: SGLang takes {len(places)} of {len(meant)} draft tokens for others, the first is {first}: it"
        f" uses token {used[first]}, the checkpoint means {meant[first]}",
    )


def needed_memory(job: EngineJob, texts: Sequence[Sequence[int]]) -> int:
    """Bytes of one GPU for `texts`: weights, cache, activations, and what the engine takes beside them."""
    config = text_part(read_target_config(job.target))
    whole = weight_bytes(job.target) + weight_bytes(job.folder) + activation_bytes(config)
    return whole // job.tensor_parallel_size + needed_cache(job, texts) + ENGINE_BYTES


def needed_cache(job: EngineJob, texts: Sequence[Sequence[int]], sequences: int = 4) -> int:
    """Bytes of the keys and values of `sequences` of the longest prompts, in 16 bits.

    Of as many heads as the target's config states, in its layers and one of the drafter.
    """
    config = text_part(read_target_config(job.target))
    hidden, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers") + 1
    heads = _size(config, "num_key_value_heads") or _size(config, "num_attention_heads")
    width = heads * (_size(config, "head_dim") or hidden // max(_size(config, "num_attention_heads"), 1))
    length = max((len(text) for text in texts), default=0) + job.max_tokens + job.k
    return max(2 * 2 * layers * (width or hidden) * sequences * length, MIN_CACHE)


def activation_bytes(config: Mapping[str, Any]) -> int:
    """Bytes that a target of this config works on, for the largest batch that vLLM takes, in 16 bits."""
    return 2 * BATCH_TOKENS * (8 * _size(config, "hidden_size") + 4 * _size(config, "intermediate_size"))


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else 0


def weight_bytes(folder: Path) -> int:
    """Bytes of a folder's weight files."""
    files = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt")]
    return sum(path.stat().st_size for path in files)


MARGIN = 16  # tokens of context beyond the longest sequence
FLOAT32_BYTES = 4


class VllmEngine:
    """The target in vLLM; a `TargetEngine` (reference/states.py)."""

    def __init__(
        self,
        job: EngineJob,
        engine: Mapping[str, str],
        ask: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self.engine, self.ask = engine, ask
        self.target, self.dims = job.target, job.drafter.dims
        boundaries = job.drafter.aux.boundaries or ()
        # vLLM's ids are boundaries, and it captures each once, in order
        self.layers = sorted(set(boundaries))
        self.columns = [self.layers.index(boundary) for boundary in boundaries]

    @functools.cached_property
    def embedding(self) -> "torch.Tensor":
        """The target's input embedding [vocab, hidden] from its files, for drafters that share it."""
        from eaglectl.reference.states import load_embedding

        target = read_checkpoint(FolderSource(self.target))
        return load_embedding(target, self.dims.vocab, self.dims.target_hidden)

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        answers = self._run(batch, tokens)["answers"]
        if [len(answer) for answer in answers] != [tokens] * len(batch):
            lengths = sorted({*map(len, answers)})
            raise UnreadableError(f"vLLM gave answers of {lengths} tokens where {tokens} were asked for")
        return [list(answer) for answer in answers]

    def states(self, batch: Sequence[Sequence[int]]) -> "AuxStates":
        """Aux hidden states of all tokens of these sequences; vLLM's files are removed."""
        from eaglectl.reference.states import join_states, load_states

        files = [Path(file) for file in self._run(batch, 0)["files"]]
        aux = []
        for ids, file in zip(batch, files, strict=True):
            states = load_states(file, ids, len(self.layers), self.dims.target_hidden)
            aux.append(states[:, self.columns].flatten(1))
            file.unlink()
        return join_states(batch, aux)

    def _run(self, batch: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        return self.ask({"mode": "states", "sequences": [list(ids) for ids in batch], "tokens": tokens})


@contextlib.contextmanager
def start_vllm(job: EngineJob, length: int) -> Iterator[VllmEngine]:
    """The target loaded in vLLM, for batches of sequences of at most `length` tokens.

    Loading and each batch may take the job's timeout. Raises UnreadableError where vLLM is absent, too old,
    or fails.
    """
    VLLM.require("--run-in transformers")
    check_files(job.target)
    with VLLM.started(job.timeout) as process:
        base = _base_request(job, length) | {"folder": str(process.folder)}

        def ask(request: Mapping[str, Any]) -> dict[str, Any]:
            whole = {**base, **request}
            process.send(whole)
            return receive_answer(process, whole)

        release = str(ask({"mode": "memory"})["version"])
        if not vllm.extracts_states(release):
            raise UnreadableError(
                f"vLLM {release} does not give hidden states as calibration asks for them; install vLLM"
                f" {vllm.ENGINE.data['hidden_states']['releases']}, or use --run-in transformers"
            )
        described = ask({"mode": "open states"})
        engine = {"name": "vllm", "vllm": release, "device": described["device"], "dtype": described["dtype"]}
        if job.tensor_parallel_size > 1:
            engine["tensor_parallel_size"] = str(job.tensor_parallel_size)
        if job.engine_arguments:
            engine["arguments"] = json.dumps(job.engine_arguments)
        yield VllmEngine(job, engine, ask)


def _base_request(job: EngineJob, longest: int) -> dict[str, Any]:
    text_config = text_part(read_target_config(job.target))
    length = min(longest + MARGIN, read_context_length(job.target) or math.inf)
    # twice the cache of one sequence whose keys and values are as wide as its residual stream
    boundaries = job.drafter.aux.boundaries or ()
    layers = 2 * text_config["num_hidden_layers"] + len(boundaries)
    cache = 2 * length * layers * job.drafter.dims.target_hidden * FLOAT32_BYTES
    weights = weight_bytes(job.target) // job.tensor_parallel_size
    return {
        "target": str(job.target.resolve()),
        "boundaries": sorted(set(boundaries)),
        "length": length,
        "batch": BATCH,
        "device": job.device,
        "tensor_parallel_size": job.tensor_parallel_size,
        "engine_arguments": dict(job.engine_arguments),
        "seed": 0,
        "trust_remote_code": job.trust_remote_code,
        "needs_tokenizer": job.needs_tokenizer,
        "is_mla_target": "kv_lora_rank" in text_config,
        "cache_bytes": max(cache, MIN_CACHE),
        "memory_bytes": weights + BATCH * cache + activation_bytes(text_config) + ENGINE_BYTES,
    }
