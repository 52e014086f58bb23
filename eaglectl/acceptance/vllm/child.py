"""Run in the child process: uses vLLM, and writes one JSON answer. Written against vLLM 0.32.0."""

import dataclasses
import sys
import time
from typing import Any, get_args

from eaglectl.acceptance.child import OldReleaseError, answer_request

COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "accepted": "vllm:spec_decode_num_accepted_tokens_per_pos",
}
KV_CACHE_BYTES = 256 << 20
DRAFTING = "draft_sample_method"
LOST_TEMPERATURE = (
    "its CPU build loses the temperature where it judges drafts, so acceptance above 0 means nothing"
)
KEPT_TEMPERATURE = "a release that keeps it, run on a GPU, or leave --temperature out"
MARGIN = 16  # tokens of context beyond those of the longest prompt


def main() -> None:
    """Read the request in the file of the first argument and write the answer to the second."""
    answer_request({"generate": generate, "plain": generate, "load": load}, version, argument_names)


def version() -> str:
    """vLLM's release."""
    import vllm

    return str(vllm.__version__)


def argument_names() -> list[str]:
    """The arguments of vLLM's engine."""
    from vllm.engine.arg_utils import EngineArgs

    return [field.name for field in dataclasses.fields(EngineArgs)]


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """Generate after each prompt on its own, and read the speculation counters after each.

    Without a drafter in "plain" mode.
    """
    from vllm import LLM, SamplingParams

    prompts: list[list[int]] = request["prompts"]
    longest = max(map(len, prompts)) + request["max_tokens"] + request["k"] + MARGIN
    longest = min(longest, request["context"] or longest)
    is_plain = request["mode"] == "plain"
    arguments = llm_arguments(request, longest)
    if not is_plain:
        arguments["speculative_config"] = speculative_config(request)
    llm = LLM(**arguments, disable_log_stats=False)
    if request["temperature"] > 0 and not all(llm.collective_rpc(keeps_temperature)):
        raise OldReleaseError(LOST_TEMPERATURE, KEPT_TEMPERATURE)
    params = SamplingParams(
        temperature=request["temperature"],
        seed=request["seed"],
        max_tokens=request["max_tokens"],
        ignore_eos=request["ignore_eos"],
        stop_token_ids=request["stop"],
        detokenize=False,
    )
    # a warm-up: the first run includes what vLLM prepares once
    llm.generate([{"prompt_token_ids": prompts[0]}], params, use_tqdm=False)
    results, seconds, before = [], 0.0, _counters(llm, request["k"], is_plain)
    for ids in prompts:
        begin = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        seconds += time.perf_counter() - begin
        now = _counters(llm, request["k"], is_plain)
        results.append(
            {
                "tokens": list(outputs[0].outputs[0].token_ids),
                "drafts": now[0] - before[0],
                "accepted": [end - start for end, start in zip(now[1], before[1], strict=True)],
            }
        )
        before = now
    config = llm.llm_engine.vllm_config
    # asked in the workers, which may be processes of their own
    resolved = {} if is_plain else llm.collective_rpc(resolved_in_worker)[0]
    if resolved and request["temperature"] > 0:
        resolved[DRAFTING] = getattr(config.speculative_config, DRAFTING, "greedy")
    return {
        "results": results,
        "seconds": seconds,
        "resolved": resolved,
        "device": config.device_config.device_type,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }


def keeps_temperature(worker: Any) -> bool:
    """Whether drafts are judged at the temperature that is given, which is not so in CPU builds of 0.32.0.

    Their kernel that spreads it over the draft tokens writes into a copy (cpu_triton_utils.py,
    _expand_kernel_impl), so logits are divided by what was in memory, and hardly a draft is accepted.
    """
    import torch
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    ends = torch.tensor([3], dtype=torch.int32)

    def is_kept(temperature: float) -> bool:
        spread = expand_batch_to_tokens(torch.tensor([temperature]), ends, 3)
        return bool(spread.tolist() == [temperature] * 3)

    # memory may hold one of them by chance
    return torch.cuda.is_available() or (is_kept(0.25) and is_kept(0.75))


def sampled_drafting() -> str | None:
    """The draft_sample_method that samples drafts: "gumbel" in 0.21.0, "probabilistic" later; None before."""
    from vllm.config import speculative

    methods = get_args(getattr(speculative, "DraftSampleMethod", None))
    return next((method for method in methods if method != "greedy"), None)


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Load the drafter alone, over parameters that are NaN, and list those that the files do not fill."""
    import torch
    from vllm.config import replace, set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import base_loader, get_model
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.utils import get_draft_load_config

    if not torch.cuda.is_available():
        from vllm.v1.worker import cpu_model_runner

        cpu_model_runner._set_torch_accelerator_to_noop()
    arguments = llm_arguments(request, 256) | {"speculative_config": speculative_config(request)}
    config = EngineArgs(**arguments).create_engine_config()
    unfilled: dict[str, list[str]] = {"unfilled": []}
    initialize, load_weights = base_loader.initialize_model, DefaultModelLoader.load_weights

    def initialize_with_nan(*arguments: Any, **named: Any) -> Any:
        model = initialize(*arguments, **named)
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.data.copy_(torch.full_like(parameter.data, float("nan"), dtype=torch.float32))
        return model

    def load_and_list_nan(self: Any, model: Any, model_config: Any) -> Any:
        result = load_weights(self, model, model_config)
        unfilled["unfilled"] = [
            name
            for name, parameter in model.named_parameters()
            if parameter.dtype.is_floating_point and bool(torch.isnan(parameter.float()).any())
        ]
        return result

    base_loader.initialize_model = initialize_with_nan
    DefaultModelLoader.load_weights = load_and_list_nan
    draft_config = config.speculative_config.draft_model_config
    backend = config.speculative_config.attention_backend
    config = replace(config, attention_config=replace(config.attention_config, backend=backend))
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{sys.argv[2]}.group", 0, "gloo")
        initialize_model_parallel(1, 1)
        load_config = get_draft_load_config(config)
        model = get_model(vllm_config=config, model_config=draft_config, load_config=load_config)
    return unfilled | {"resolved": resolved_flags(model)}


def resolved_flags(model: Any) -> dict[str, Any]:
    """The settings that vLLM's drafter class reads from the checkpoint."""
    inner = model.model
    fc = getattr(inner, "fc", None)
    residual = getattr(inner.layers[0], "_residual_norm", None)
    return {
        "class": type(model).__name__,
        "layers": len(inner.layers),
        "fc_norm": getattr(inner, "fc_norm", None) is not None,
        "norm_output": bool(getattr(inner, "norm_output", False)),
        "norm_before_fc": bool(getattr(inner, "norm_before_fc", False)),
        "norm_before_residual": None if residual is None else residual.__name__ == "_norm_before_residual",
        "fc": None if fc is None else [fc.output_size, fc.input_size],  # its weight may be repacked by now
        "own_embed_tokens": bool(getattr(model, "has_own_embed_tokens", False)),
        "own_lm_head": bool(getattr(model, "has_own_lm_head", False)),
    }


def resolved_in_worker(worker: Any) -> dict[str, Any]:
    """What the model runner of one worker resolved."""
    runner = worker.model_runner
    flags = resolved_flags(runner.drafter.model)
    return flags | {"aux_layers": _aux_layers(runner), "runner": type(runner).__name__}


def _aux_layers(runner: Any) -> list[int] | None:
    inner = getattr(runner.model, "model", runner.model)
    layers = getattr(inner, "aux_hidden_state_layers", None)
    return sorted(layers) if layers else None


def _counters(llm: Any, k: int, is_plain: bool) -> tuple[int, list[int]]:
    """Drafts so far, and how many of them had each position accepted."""
    metrics = {} if is_plain else {metric.name: metric for metric in llm.get_metrics()}
    if COUNTERS["drafts"] not in metrics:
        return 0, [0] * k
    accepted = [int(value) for value in metrics[COUNTERS["accepted"]].values]
    return int(metrics[COUNTERS["drafts"]].value), accepted


def llm_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Arguments of vLLM's LLM that load the target for sequences of `length` tokens; the user's go last."""
    given: dict[str, Any] = request.get("engine_arguments", {})
    return own_arguments(request, length) | given


def own_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Those of them that the user did not give."""
    import torch

    arguments: dict[str, Any] = {
        "model": request["target"],
        "trust_remote_code": request.get("trust_remote_code", False),
        "enforce_eager": True,
        "max_model_len": length,
        "max_num_seqs": 4,
        "tensor_parallel_size": request.get("tensor_parallel_size", 1),
        "seed": request["seed"],
        "skip_tokenizer_init": not request.get("needs_tokenizer", True),
    }
    if torch.cuda.is_available() and request["device"] != "cpu":
        return arguments | {"dtype": "auto"}
    arguments |= {
        "dtype": "float32",
        "max_num_batched_tokens": max(length, 256),
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
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
    if request["is_mla"] and request["is_mla_target"]:
        config["attention_backend"] = "CPU_MLA"
    if request.get("temperature", 0) > 0 and (method := sampled_drafting()):
        config[DRAFTING] = method
    return config


if __name__ == "__main__":
    main()
