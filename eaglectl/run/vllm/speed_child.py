"""Run in the child process: times vLLM at several concurrencies, started as `vllm serve` starts it."""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from msgspec import to_builtins

from eaglectl.run.child import report_phase, serve_requests
from eaglectl.run.timing import Batch, time_repeats
from eaglectl.run.vllm.child import argument_names, sequence_length, version
from eaglectl.run.vllm.starting import (
    check_device,
    gpu_memory,
    is_cpu,
    llm_arguments,
    speculative_config,
)

DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"
# sequences that `vllm serve` makes room for; from their number vLLM takes the sizes of its CUDA graphs
SERVED_SEQUENCES = 256
SERVED_SHARE = 0.9  # of the GPU's memory that is free, as `vllm serve` takes of all
# of our short runs, not of serving
SHORT_RUN = ("enforce_eager", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens")


def main() -> None:
    """Answer requests until the parent closes stdin."""
    serve_requests({"generate": measure, "plain": measure}, version, argument_names)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time requests of equal forced length with the drafter, or without it in "plain" mode.

    `timings` of the answer are `Timing` records.
    """
    from vllm import LLM, SamplingParams

    prompts: list[list[int]] = request["prompts"]
    check_device(request)
    report_phase("loading")
    arguments = serving_arguments(request, sequence_length(request))
    is_plain = request["mode"] == "plain"
    if not is_plain:
        arguments["speculative_config"] = speculative_config(request)
    llm = LLM(**arguments, disable_log_stats=False)
    params = SamplingParams(
        temperature=request["temperature"],
        max_tokens=request["max_tokens"],
        ignore_eos=True,
        detokenize=False,
    )

    numbers = count()

    def run(concurrency: int, indices: Sequence[int]) -> Batch:
        before, begin = count_drafts(llm), time.perf_counter()
        requests = [(str(next(numbers)), prompts[index]) for index in indices]
        tokens = run_requests(llm.llm_engine, requests, params, concurrency)
        seconds, after = time.perf_counter() - begin, count_drafts(llm)
        return Batch(tokens, seconds, after[0] - before[0], after[1] - before[1])

    report_phase("timing")
    timings = time_repeats(run, request["concurrencies"], len(prompts))
    config = llm.llm_engine.vllm_config
    device = config.device_config.device_type
    return {
        "timings": to_builtins(timings),
        "device": device,
        "card": card_name(device),
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


def count_drafts(llm: Any) -> tuple[int, int]:
    """Drafts and accepted draft tokens so far; 0 where vLLM does not count them."""
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    drafts, accepted = (getattr(metrics.get(name), "value", 0) for name in (DRAFTS, ACCEPTED))
    return int(drafts), int(accepted)


def card_name(device: str) -> str:
    """The name of the GPU; "" of another device."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else ""


def serving_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Arguments of vLLM's LLM that time serving on a GPU; on a CPU those of a short run. The user's go last.

    Prompts are used several times, and their prefixes are not kept, as those of different users would not be.
    """
    given: dict[str, Any] = request["engine_arguments"]
    widest = max(request["concurrencies"])
    arguments = llm_arguments(request, length) | {"max_num_seqs": widest, "enable_prefix_caching": False}
    if not is_cpu():
        served = {name: value for name, value in arguments.items() if name not in SHORT_RUN}
        if memory := gpu_memory():
            share = SERVED_SHARE * memory["free_bytes"] / memory["total_bytes"]
            served["gpu_memory_utilization"] = round(share, 4)
        return served | {"max_num_seqs": max(widest, SERVED_SEQUENCES)} | given
    # a step verifies all drafts of all sequences
    tokens = max(arguments.get("max_num_batched_tokens", 0), widest * (request["k"] + 1))
    return arguments | {"max_num_batched_tokens": tokens} | given


if __name__ == "__main__":
    main()
