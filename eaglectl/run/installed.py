"""A drafter, or its target alone, in an installed engine: its arguments, its run and resolved settings.

An error is the drafter's, the engine set-up's, the caller's, or eaglectl's own. It is the drafter's only if
the engine's code for drafters raised it: its loader, its classes, its config, or its rounds.
"""

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

from msgspec import DecodeError, convert
from msgspec.json import decode
from msgspec.structs import replace

from eaglectl.drafter.drafter import Drafter
from eaglectl.engines import vllm
from eaglectl.errors import EaglectlError, RefusedError, UnreadableError, UsageError, check
from eaglectl.files.checkpoint import read_checkpoint
from eaglectl.files.source import FolderSource
from eaglectl.files.text_part import text_part
from eaglectl.progress import report_step
from eaglectl.run.job import (
    EngineJob,
    EngineRun,
    LoadResult,
    LogitsCheck,
    read_context_length,
    stop_tokens,
    tokenise,
)
from eaglectl.run.logits import compare_logits, other_logits, why_not_recorded
from eaglectl.run.measurement import LEAST_REPEATS, PromptResult, Speed, Timing, compare_timings
from eaglectl.run.process import VLLM, EngineProcess, InstalledEngine
from eaglectl.run.prompts import BATCH
from eaglectl.run.resolved import meant_settings, score_factor, unlike
from eaglectl.shell import without_secrets
from eaglectl.target.files import check_files, code_needed, read_target_config
from eaglectl.text import listed

if TYPE_CHECKING:
    import torch

    from eaglectl.reference.states import AuxStates


NAME = re.compile(r"[a-z][a-z0-9_]*")
# values that are not JSON: a string after a shell removed its quotes
TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]*")

# arguments of vLLM 0.32.0's EngineArgs and of SGLang 0.5.23's ServerArgs, by the reason to refuse them
NAMES_BY_REASON: Mapping[str, str] = {
    "it changes the target; pass another --target": (
        "model model_path model_weights hf_config_path config_format revision code_revision tokenizer"
        " tokenizer_path tokenizer_revision tokenizer_mode skip_tokenizer_init model_checksum"
        " decrypted_config_file decrypted_draft_config_file modelopt_checkpoint_restore_path is_embedding"
        " runner convert"
    ),
    "it changes the config that is tested; change the files": (
        "hf_overrides json_model_override_args model_config_parser"
    ),
    "eaglectl sets how it drafts; use -k, or another SOURCE": (
        "spec_method spec_model spec_tokens enable_multi_layer_eagle diffusion_config dllm_algorithm"
        " dllm_algorithm_config"
    ),
    "it changes which tokens are selected; use --temperature and --seed": (
        "seed random_seed generation_config override_generation_config logits_processors sampling_defaults"
        " preferred_sampling_params enable_watermark rl_on_policy_target enable_custom_logit_processor"
    ),
    "eaglectl needs its own value to count and to compare": (
        "disable_log_stats kv_transfer_config stream_interval incremental_streaming_output encoder_only"
        " enable_mis allow_auto_truncate prefill_only_disable_kv_cache use_ray"
    ),
    "it replaces the engine's code that is measured": (
        "scheduler_cls worker_cls worker_extension_cls model_class_overrides forward_hooks"
        " custom_weight_loader custom_sigquit_handler"
    ),
    "it would be printed; set it in the environment": (
        "hf_token api_key admin_api_key ssl_keyfile_password watermark_key watermark_key_b"
    ),
    "replicas would share the requests; use --tensor-parallel-size": (
        "data_parallel_size dp_size node_rank disaggregation_mode"
    ),
    "use --trust-remote-code": "trust_remote_code",
    "use --tensor-parallel-size": "tensor_parallel_size tp_size",
    "use --device": "device",
}
REFUSED = {name: reason for reason, names in NAMES_BY_REASON.items() for name in names.split()}
PREFIXES = {
    "speculative_": REFUSED["spec_method"],
    "watermark_": REFUSED["seed"],
    "disaggregation_": REFUSED["disaggregation_mode"],
}
# names whose values are secrets
SECRET = re.compile(r"(?:^|_)(?:token|key|secret|password|credential|authorization)s?(?:_|$)", re.IGNORECASE)
# only for calibration: arguments that its hidden states depend on
CALIBRATION = (
    "enable_prefix_caching",
    "max_num_seqs",
    "kv_cache_dtype",  # hidden states are kept in that cache
    "kv_cache_dtype_skip_layers",
    "kv_events_config",
    "ec_transfer_config",
)


def parse_engine_arguments(texts: Sequence[str], *, is_calibration: bool = False) -> dict[str, Any]:
    """Parse texts "KEY=VALUE", with VALUE in JSON or a plain word. Raises UsageError."""
    arguments: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().lstrip("-").replace("-", "_")
        check(
            (not equals, f"--engine-arg {text}: KEY=VALUE was expected", ("--engine-arg",)),
            (name in arguments, f"--engine-arg {name} is passed twice; pass it once", ("--engine-arg",)),
        )
        arguments[name] = _value(name, value.strip())
    check_engine_arguments(arguments, is_calibration=is_calibration)
    return arguments


def check_engine_arguments(
    arguments: Mapping[str, Any], ranks: int = 1, *, is_calibration: bool = False
) -> None:
    """Raise UsageError for an argument that would fake acceptance, or change what is tested.

    `ranks` is --tensor-parallel-size.
    """
    if ranks < 1:
        raise UsageError("--tensor-parallel-size needs to be at least 1", options=("--tensor-parallel-size",))
    for name, value in arguments.items():
        if not NAME.fullmatch(name):
            raise UsageError(
                f"--engine-arg {name}: a name of small letters, digits and _ was expected",
                options=("--engine-arg",),
            )
        reason = REFUSED.get(name) or next(
            (why for prefix, why in PREFIXES.items() if name.startswith(prefix)), None
        )
        if is_calibration and name in CALIBRATION:
            reason = "calibration needs its own value, for the unchanged hidden states of every token"
        if name == "load_format" and value in ("dummy", "remote", "remote_instance"):
            reason = "the weights would not be those of --target"
        if reason:
            raise UsageError(f"--engine-arg {name}: {reason}", options=("--engine-arg",))


def shown_arguments(arguments: Any, name: str = "") -> Any:
    """Return the arguments as results keep them: values are masked if their names mark secrets."""
    match arguments:
        case Mapping():
            return {key: shown_arguments(value, str(key)) for key, value in arguments.items()}
        case list() | tuple():
            return [shown_arguments(value, name) for value in arguments]
        case str():
            return "***" if SECRET.search(name) else without_secrets(arguments)
    return arguments


def _value(name: str, text: str) -> Any:
    with contextlib.suppress(DecodeError, UnicodeError):
        return decode(text)
    if TEXT.fullmatch(text) and text not in ("True", "False", "None", "nan", "NaN", "Infinity", "inf"):
        return text
    # names inside a text that is not JSON are not recognised
    masked_text = "***" if text[:1] in ("{", "[") else shown_arguments(text, name)
    raise UsageError(
        f"--engine-arg {name}={masked_text}: the value is not JSON; write true, null, 0.9, a"
        f" word, '\"text\"' or '{{\"key\": 1}}'",
        options=("--engine-arg",),
    )


# modules of an engine that load or run drafters alone (vLLM's config/speculative.py, v1/spec_decode,
# v1/worker/gpu/spec_decode, models/*_eagle3.py; SGLang's srt/speculative, models/*_eagle3.py)
DRAFTER_MODULE = re.compile(r"^(?:vllm|sglang)\..*(?:speculative|spec_decode|eagle)")
# messages of engines on a target that provides no hidden states for a drafter
PAIR = re.compile(r"does not support EAGLE-?3|EAGLE-?3 .*not supported|set_eagle3_layers_to_capture", re.I)
# the weight that a function of a drafter class multiplies by, where shapes do not fit
WEIGHTS = {"combine_hidden_states": "fc", "compute_logits": "lm_head"}
MEMORY = re.compile(
    r"out of memory|OutOfMemory|MemoryError|Cannot allocate memory|Not enough memory|No available memory"
    r"|Free memory on device|KV cache is needed",
    re.I,
)
# faults of the set-up by the engine's message, each with advice
SETUP: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"No module named '([\w.]+)'"), "install the package {}"),
    (re.compile("cannot open shared object file|cannot import name"), "install the engine again"),
    (
        re.compile(r"CUDA error|CUDA driver|no CUDA|NVML|NCCL|device ordinal|Failed to infer device", re.I),
        "its device cannot be used; check it with nvidia-smi, or pass --device cpu with --run-in reference",
    ),
    (
        re.compile(r"attention.?backend|No valid attention", re.I),
        "its attention backends do not fit this device; name one with --engine-arg attention_backend=NAME",
    ),
    (
        re.compile(r"InterpreterError|triton|PTXAS|no kernel image", re.I),
        "its kernels do not run on this device; take a build that is made for it",
    ),
    (re.compile(r"No space left|Read-only file system|Permission denied"), "it cannot write its files"),
    # default_loader.py 0.32.0:230 of vLLM, loader.py 0.5.23:549 of SGLang
    (
        re.compile(r"Cannot find any model weights with .*[\[*?]"),
        "it takes [, * and ? in the path of a folder for a pattern; rename the folder",
    ),
    (
        re.compile(r"world size|tensor.?parallel|number of GPUs", re.I),
        "give it another number of GPUs with --tensor-parallel-size",
    ),
)
# messages of an engine that only state that a worker process failed
IN_WORKER = re.compile(r"root cause|Worker failed|EngineCore")
WORKER_FRAME = re.compile(r'File "[^"]*?((?:vllm|sglang)/[\w/]+)\.py", line \d+, in (\w+)')
ROOT_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")


def receive_answer(process: EngineProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request that was sent. Raises the error that `fault` returns."""
    answer = process.receive()
    if "error" in answer:
        raise fault(process.engine, answer, request, process.output())
    return answer


def fault(
    engine: InstalledEngine, answer: Mapping[str, Any], request: Mapping[str, Any], output: str = ""
) -> EaglectlError:
    """Return the error to raise for a child's answer with "error".

    `output` is what the engine's processes printed: UnreadableError for its set-up or the target, UsageError
    for the user's arguments, RefusedError for the drafter, EaglectlError (exit code 70) for our own code.
    """
    if answer.get("needs_code"):
        return code_needed(Path(request["target"]))
    release = f"{engine.title} {answer.get('version', '')}".strip()
    text, frames = answer["error"], [(module, function) for module, function in answer.get("frames", ())]
    if "needs" in answer:
        return UnreadableError(f"{release}: {text}; install {answer['needs']}")
    if IN_WORKER.search(text):
        frames += [(match[1].replace("/", "."), match[2]) for match in WORKER_FRAME.finditer(output)]
        if cause := ROOT_CAUSE.search(output):
            text += f" ({cause[0][:400]})"
    if MEMORY.search(text):
        name = engine.memory_argument
        return UnreadableError(
            f"{release} could not look for lack of memory: {text}; stop other processes on the device, or"
            f" change the engine's share with --engine-arg {name}=0.5",
            options=("--engine-arg",),
        )
    fields = answer.get("fields", ())
    if named := [name for name in fields if name in request["engine_arguments"]]:
        return UsageError(f"--engine-arg {listed(named)}: {release} says {text}", options=("--engine-arg",))
    if fields:  # an argument that eaglectl sets
        frames.append(("eaglectl", f"its arguments, {listed(fields)}"))
    if frames and frames[-1][0].partition(".")[0] == "eaglectl":
        return EaglectlError(
            f"this is an error of eaglectl with {release}, and not the drafter's: {text}"
            f" ({', '.join(frames[-1])}); report it, and use --run-in reference meanwhile",
            options=("--run-in",),
        )
    return _run_fault(release, text, frames, answer, request)


def _run_fault(
    release: str,
    text: str,
    frames: Sequence[tuple[str, str]],
    answer: Mapping[str, Any],
    request: Mapping[str, Any],
) -> EaglectlError:
    # whose fault a failed run is: the set-up's, the drafter's (an error in its code), the engine's, or the
    # target's
    for pattern, advice in SETUP:
        if match := pattern.search(text):
            return UnreadableError(f"{release} could not look: {text}; {advice.format(*match.groups())}")
    place = next((frame for frame in reversed(frames) if DRAFTER_MODULE.search(frame[0])), None)
    if request["mode"] != "plain" and (place or PAIR.search(text)):
        where = ""
        if place:  # the tensor that a loader was at, or the weight of the function, and that function
            module, function = place
            tensor = answer.get("tensor") if "load" in function else WEIGHTS.get(function)
            tensor_text = f"tensor {tensor}, " if tensor else ""
            where = f" ({tensor_text}{module.rpartition('.')[2]}.py, {function})"
        return RefusedError(f"{release} does not run this drafter: {text}{where}")
    if request["mode"] == "generate":
        tried = "runs the target, but" if request.get("has_plain") else "was not run without the drafter, and"
        return UnreadableError(
            f"{release} {tried} failed with the drafter outside of its code for drafters: {text};"
            " use --run-in reference",
            options=("--run-in",),
        )
    return UnreadableError(f"{release} does not run the target {request['target']}: {text}")


# environment variables by which engines simulate acceptance, or the target's choice of experts
SYNTHETIC = (
    "SGLANG_SIMULATE_ACC_LEN",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
)
# the file with the numbers of a draft
DRAFT = "draft.safetensors"
# tables, which are compared
NOT_REPORTED = ("draft_tokens", "rope", "vocabulary")
# what an engine takes beside weights, cache and activations: its context, its kernels, and a margin
ENGINE_BYTES = 6 << 30
BATCH_TOKENS = 16384  # that vLLM takes in one batch on large GPUs
MIN_CACHE = 256 << 20


def run_installed(engine: InstalledEngine, job: EngineJob) -> EngineRun:
    """Run `job` in the engine with the drafter, and without it where the job compares.

    The two runs start side by side where memory and cores allow. Raises UnreadableError where the engine is
    absent, hangs, dies, lacks something or does not run the target, RefusedError where it rejects the
    drafter, UsageError for an argument that it does not have, and EaglectlError for an error of ours.
    """
    engine.require("--run-in reference")
    check_measured()
    plain, drafted, logits = _answers(engine, job, tokenise(job))
    resolved = dict(drafted["resolved"])
    meant = meant_settings(job.drafter, job.draft_tokens)
    different = (*unlike(engine.title, resolved, meant), *other_logits(engine.title, logits))
    logits = replace(logits, score_factor=score_factor(resolved.get("rope"), meant["rope"]))
    for key in NOT_REPORTED:
        resolved.pop(key, None)
    results = tuple(
        PromptResult(prompt.set, result["drafts"], tuple(result["accepted"]), tuple(result["tokens"]))
        for prompt, result in zip(job.prompts, drafted["results"], strict=True)
    )
    return EngineRun(
        engine=engine.name,
        version=drafted["version"],
        device=drafted["device"],
        dtype=drafted["dtype"],
        proves=f"the behaviour of this {engine.title} release with the checkpoint as written",
        results=results,
        plain=tuple(tuple(result["tokens"]) for result in plain["results"]) if plain else (),
        seconds=drafted["seconds"],
        plain_seconds=plain["seconds"] if plain else 0.0,
        resolved=resolved,
        differences=different,
        logits=logits,
        arguments=shown_arguments(
            ({"tensor_parallel_size": job.tensor_parallel_size} if job.tensor_parallel_size > 1 else {})
            | dict(job.engine_arguments)
        ),
    )


def _answers(
    engine: InstalledEngine, job: EngineJob, texts: list[list[int]]
) -> tuple[dict[str, Any] | None, dict[str, Any], LogitsCheck]:
    """Return the answers of the run without the drafter, if the job compares, and of the one with it.

    Also its logits. The plain run's answer is read first, so that the drafter is not blamed for a target that
    does not run.
    """
    if not job.compares_plain:
        with engine.started(job.timeout, job.on_progress) as process:
            request = _recording(job, process, _request(job, "generate", texts))
            process.send(request)
            return None, *_recorded(job, process, request)
    memory, plain, drafted = (_request(job, mode, texts) for mode in ("memory", "plain", "generate"))
    with (
        engine.started(job.timeout, job.on_progress) as plain_process,
        engine.started(job.timeout, job.on_progress) as drafting_process,
    ):
        for process in (plain_process, drafting_process):  # both import the engine at once
            process.send(memory)
        free = [
            receive_answer(process, memory).get("free_bytes", 0)
            for process in (plain_process, drafting_process)
        ]
        # side by side where there are cores and memory for both
        has_cores = len(os.sched_getaffinity(0)) >= 2
        is_shared = has_cores and job.tensor_parallel_size == 1 and not job.engine_arguments
        plain_process.send(plain)
        drafted = _recording(job, drafting_process, drafted)
        if is_shared and free[0] >= 2 * plain["memory_bytes"]:
            drafting_process.send(drafted)
            return receive_answer(plain_process, plain), *_recorded(job, drafting_process, drafted)
        answer = receive_answer(plain_process, plain)
        plain_process.close()  # which frees its memory
        drafting_process.send(drafted)
        return answer, *_recorded(job, drafting_process, drafted)


def _recording(job: EngineJob, process: EngineProcess, request: dict[str, Any]) -> dict[str, Any]:
    # the request, with the file for the numbers of a draft if they can be compared
    return request if why_not_recorded(job) else request | {"draft": str(process.folder / DRAFT)}


def _recorded(
    job: EngineJob, process: EngineProcess, request: Mapping[str, Any]
) -> tuple[dict[str, Any], LogitsCheck]:
    # the answer to a request, and the draft's logits beside the reference's
    answer = receive_answer(process, request)
    if (recorded := answer.get("recorded")) is None:
        return answer, LogitsCheck(gap=why_not_recorded(job) or "the engine's process records no draft")
    return answer, compare_logits(job, recorded, process.folder / DRAFT)


def check_measured() -> None:
    """Raise RefusedError where the environment makes acceptance up."""
    check(
        *(
            (os.environ.get(name), f"{name} is set: acceptance would be simulated, not measured; unset it")
            for name in SYNTHETIC
        ),
        error=RefusedError,
    )


def ask(
    engine: InstalledEngine,
    job: EngineJob,
    mode: str,
    texts: list[list[int]],
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a child process's answer in this mode ("plain" has no drafter); `more` is added to the request.

    Raises as `run_installed` does.
    """
    with engine.started(job.timeout, job.on_progress) as process:
        request = {**_request(job, mode, texts), **more, "folder": str(process.folder)}
        process.send(request)
        return receive_answer(process, request)


def _request(job: EngineJob, mode: str, texts: list[list[int]]) -> dict[str, Any]:
    # the request that a child process reads, in JSON's types
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
        "start_options": dict(job.start_options),
        "has_plain": job.compares_plain,
        "is_mla": job.drafter.dims.attention == "MLA",
        "is_parallel": job.drafter.kind == "peagle",
        "is_mla_target": "kv_lora_rank" in read_target_config(job.target),
        "needs_tokenizer": job.needs_tokenizer or not texts,
        "prompts": texts,
        "context": read_context_length(job.target),
        "cache_bytes": needed_cache(job, texts),
        "memory_bytes": needed_memory(job, texts),
    }


# vLLM with its engine in a process of its own, as `vllm serve` runs it
SERVED = replace(
    VLLM,
    environment={
        name: value for name, value in VLLM.environment.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
    },
)


def measure_speed(job: EngineJob, concurrencies: Sequence[int]) -> Speed:
    """Time vLLM on the prompts of `job` without the drafter and with it. Raises as `run_installed` does."""
    texts, answers = tokenise(job), []
    for mode, step in (("plain", "timing without the drafter"), ("generate", "timing with the drafter")):
        report_step(job.on_progress, step)
        answers.append(ask(SERVED, job, mode, texts, {"concurrencies": list(concurrencies)}))
    plain, runs = answers[0], [convert(answer["timings"], tuple[Timing, ...]) for answer in answers]
    repeats = min(len(timing.batches) for timings in runs for timing in timings)
    graphs = (
        "no CUDA graphs, because of enforce_eager"
        if plain["is_eager"]
        else "CUDA graphs as `vllm serve` has them"
    )
    how = (
        f"vLLM {plain['version']} with {graphs}, after a warm-up, without HTTP and prefix caching: each"
        f" request has {job.max_tokens} new tokens, past any end of sequence; first without, then with the"
        f" drafter; {LEAST_REPEATS} or more repeats, each with its own prompts"
    )
    if plain["device"] == "cpu":
        how = "measured on a CPU: no measure of serving"
    return Speed(
        compare_timings(job.k, runs[1], runs[0]),
        plain["device"],
        plain["card"],
        job.max_tokens,
        repeats,
        how,
    )


def load_only(job: EngineJob) -> LoadResult:
    """Load the files with vLLM's drafter class and loader, on parameters that are NaN before.

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


def needed_memory(job: EngineJob, texts: Sequence[Sequence[int]]) -> int:
    """Return the bytes of one GPU for `texts`: weights, cache, activations, and the engine's overhead."""
    config = text_part(read_target_config(job.target))
    whole = weight_bytes(job.target) + weight_bytes(job.folder) + activation_bytes(config)
    return whole // job.tensor_parallel_size + needed_cache(job, texts) + ENGINE_BYTES


def needed_cache(job: EngineJob, texts: Sequence[Sequence[int]], sequences: int = 4) -> int:
    """Return the bytes of the keys and values of `sequences` of the longest prompts, in 16 bits.

    The heads are those of the target's config, in its layers and one of the drafter.
    """
    config = text_part(read_target_config(job.target))
    hidden, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers") + 1
    heads = _size(config, "num_key_value_heads") or _size(config, "num_attention_heads")
    width = heads * (_size(config, "head_dim") or hidden // max(_size(config, "num_attention_heads"), 1))
    length = max((len(text) for text in texts), default=0) + job.max_tokens + job.k
    return max(2 * 2 * layers * (width or hidden) * sequences * length, MIN_CACHE)


def activation_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of a target's activations, for vLLM's largest batch, in 16 bits."""
    return 2 * BATCH_TOKENS * (8 * _size(config, "hidden_size") + 4 * _size(config, "intermediate_size"))


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else 0


def weight_bytes(folder: Path) -> int:
    """Return the bytes of a folder's weight files."""
    suffixes = (".safetensors", ".bin", ".pt")
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in suffixes)


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

        return load_embedding(
            read_checkpoint(FolderSource(self.target)), self.dims.vocab, self.dims.target_hidden
        )

    def answers(self, batch: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Generate `tokens` tokens greedily after each sequence, past any end of sequence."""
        return [list(answer) for answer in self._run(batch, tokens)["answers"]]

    def states(self, batch: Sequence[Sequence[int]]) -> "AuxStates":
        """Return the aux hidden states of all tokens of these sequences; vLLM's files are removed."""
        from eaglectl.reference.states import join_states, load_states

        aux = []
        for ids, file in zip(batch, map(Path, self._run(batch, 0)["files"]), strict=True):
            states = load_states(file, ids, len(self.layers), self.dims.target_hidden)
            aux.append(states[:, self.columns].flatten(1))
            file.unlink()
        return join_states(batch, aux)

    def _run(self, batch: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        return self.ask({"mode": "states", "sequences": [list(ids) for ids in batch], "tokens": tokens})


@contextlib.contextmanager
def start_vllm(job: EngineJob, length: int) -> Iterator[VllmEngine]:
    """Yield the target loaded in vLLM, for batches of sequences of at most `length` tokens.

    Loading and each batch may take the job's timeout. Raises UnreadableError if vLLM is absent, too old, or
    fails.
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
                f"vLLM {release} does not provide hidden states for calibration; install vLLM"
                f" {vllm.ENGINE.data['hidden_states']['releases']}, or use --run-in transformers",
                options=("--run-in",),
            )
        described = ask({"mode": "open states"})
        engine = {"name": "vllm", "vllm": release, "device": described["device"], "dtype": described["dtype"]}
        if job.tensor_parallel_size > 1:
            engine["tensor_parallel_size"] = str(job.tensor_parallel_size)
        if job.engine_arguments:
            engine["arguments"] = json.dumps(job.engine_arguments)
        yield VllmEngine(job, engine, ask)


def _base_request(job: EngineJob, longest: int) -> dict[str, Any]:
    # the request for a target's hidden states, with the memory that they need
    text_config = text_part(read_target_config(job.target))
    # with a margin in tokens
    length = min(longest + 16, read_context_length(job.target) or math.inf)
    # twice the cache of one sequence whose keys and values are as wide as its residual stream, in float32
    boundaries = job.drafter.aux.boundaries or ()
    layers = 2 * text_config["num_hidden_layers"] + len(boundaries)
    cache = 2 * length * layers * job.drafter.dims.target_hidden * 4
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
