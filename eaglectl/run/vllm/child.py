"""Run in the child process: vLLM. What is taken of it stands in engines/interface.json."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglectl.run.child import OldReleaseError, report_phase, serve_requests
from eaglectl.run.vllm import states
from eaglectl.run.vllm.starting import (
    DRAFTING,
    check_device,
    describe,
    free_memory,
    is_cpu,
    llm_arguments,
    speculative_config,
    start_engine,
)

COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "accepted": "vllm:spec_decode_num_accepted_tokens_per_pos",
}
# the attribute of each model runner that drafts, whose `model` is the drafter
PROPOSERS = {"V2": "speculator", "V1": "drafter"}
RELEASES = "vllm 0.22.0 or newer"
LOST_TEMPERATURE = (
    "its CPU build loses the temperature where it judges drafts, so acceptance above 0 means nothing"
)
KEPT_TEMPERATURE = "a release that keeps it, run on a GPU, or leave --temperature out"
MARGIN = 16  # tokens of context beyond those of the longest prompt
# what the drafter's classes read while their files are loaded; of vLLM's own names of parameters
SHARED = {"has_own_embed_tokens": "model.embed_tokens.weight", "has_own_lm_head": "lm_head.weight"}


def main() -> None:
    """Answer requests until the parent closes stdin."""
    modes = {
        "memory": memory,
        "generate": generate,
        "plain": generate,
        "load": load,
        "open states": states.open_target,
        "states": states.run,
    }
    serve_requests(modes, version, argument_names)


def version() -> str:
    """vLLM's release."""
    import vllm

    return str(vllm.__version__)


def argument_names() -> list[str]:
    """The arguments of vLLM's engine."""
    from vllm.engine.arg_utils import EngineArgs

    return [field.name for field in dataclasses.fields(EngineArgs)]


def memory(request: dict[str, Any]) -> dict[str, Any]:
    """Bytes that are free, and all, of the device; none where they are not known."""
    return free_memory()


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """Generate after each prompt on its own, and read the speculation counters after each.

    Without a drafter in "plain" mode.
    """
    from vllm import SamplingParams

    prompts: list[list[int]] = request["prompts"]
    is_plain = request["mode"] == "plain"
    length = sequence_length(request)
    arguments: dict[str, Any] = {} if is_plain else {"speculative_config": speculative_config(request)}
    llm = start_engine(request, length, arguments)
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
    report_phase("warming up")
    # the first run includes what vLLM prepares once
    llm.generate([{"prompt_token_ids": prompts[0]}], params, use_tqdm=False)
    results, seconds, before = [], 0.0, _counters(llm, request["k"], is_plain)
    for number, ids in enumerate(prompts):
        report_phase(phase_name(request), number, len(prompts))
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
    report_phase(phase_name(request), len(prompts), len(prompts))
    # asked in the workers, which may be processes of their own
    resolved = {} if is_plain else llm.collective_rpc(resolved_in_worker)[0]
    if resolved and request["temperature"] > 0:
        config = llm.llm_engine.vllm_config.speculative_config
        resolved[DRAFTING] = getattr(config, DRAFTING, "greedy")
    return {"results": results, "seconds": seconds, "resolved": resolved, **describe(llm)}


def phase_name(request: dict[str, Any]) -> str:
    """What the prompts of this request are run for."""
    return "prompts without the drafter" if request["mode"] == "plain" else "prompts with the drafter"


def sequence_length(request: dict[str, Any]) -> int:
    """Tokens of the longest prompt with its answer and drafts, within the target's context."""
    longest: int = max(map(len, request["prompts"])) + request["max_tokens"] + request["k"] + MARGIN
    return min(longest, request["context"] or longest)


def keeps_temperature(worker: Any) -> bool:
    """Whether drafts are judged at the temperature that is given, which is not so in CPU builds of 0.32.0.

    Their kernel that spreads it over the draft tokens writes into a copy (cpu_triton_utils.py,
    _expand_kernel_impl), so logits are divided by what was in memory, and hardly a draft is accepted.
    """
    if not is_cpu():
        return True
    import torch
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    ends = torch.tensor([3], dtype=torch.int32)

    def is_kept(temperature: float) -> bool:
        spread = expand_batch_to_tokens(torch.tensor([temperature]), ends, 3)
        return bool(spread.tolist() == [temperature] * 3)

    # memory may hold one of them by chance
    return is_kept(0.25) and is_kept(0.75)


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Load the drafter alone, over parameters that are NaN, and list those that the files do not fill.

    What the engine takes from the target instead is no such parameter, and "shared" lists it.
    """
    from vllm.config import replace, set_current_vllm_config
    from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    check_device(request)
    if is_cpu():
        from vllm.v1.worker import cpu_model_runner

        cpu_model_runner._set_torch_accelerator_to_noop()
    report_phase("loading")
    arguments = llm_arguments(request, 256) | {"speculative_config": speculative_config(request)}
    config = EngineArgs(**arguments).create_engine_config()
    draft = config.speculative_config
    attention = replace(config.attention_config, backend=draft.attention_backend)
    # as get_draft_load_config of 0.31.0 and newer for the formats that smoke takes
    config = replace(
        config, attention_config=attention, load_config=draft.draft_load_config or config.load_config
    )
    with loaded_over_nan() as unfilled, set_current_vllm_config(config):
        group = Path(request["folder"]) / "group"
        init_distributed_environment(1, 0, f"file://{group}", 0, "gloo")
        initialize_model_parallel(1, 1)
        model = get_model(vllm_config=config, model_config=draft.draft_model_config)
    shared = {name for flag, name in SHARED.items() if not getattr(model, flag, False)}
    return {
        "unfilled": [name for name in unfilled if name not in shared],
        "shared": [name for name in unfilled if name in shared],
        "resolved": resolved_flags(model),
    }


@contextmanager
def loaded_over_nan() -> Iterator[list[str]]:
    """While a model is made: its parameters are NaN before its files are read; gives those that stay NaN."""
    import torch
    from vllm.model_executor.model_loader import base_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    initialize, load_weights = base_loader.initialize_model, DefaultModelLoader.load_weights
    unfilled: list[str] = []

    def initialize_with_nan(*arguments: Any, **named: Any) -> Any:
        model = initialize(*arguments, **named)
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.data.copy_(torch.full_like(parameter.data, float("nan"), dtype=torch.float32))
        return model

    def load_and_list_nan(loader: Any, model: Any, model_config: Any) -> Any:
        result = load_weights(loader, model, model_config)
        unfilled[:] = [
            name
            for name, parameter in model.named_parameters()
            if parameter.dtype.is_floating_point and bool(torch.isnan(parameter.float()).any())
        ]
        return result

    base_loader.initialize_model = initialize_with_nan
    DefaultModelLoader.load_weights = load_and_list_nan
    try:
        yield unfilled
    finally:
        base_loader.initialize_model, DefaultModelLoader.load_weights = initialize, load_weights


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
    """What the model runner of one worker resolved; the drafter's settings are absent where it shows none."""
    runner = worker.model_runner
    version, drafter = next(
        ((version, getattr(runner, name)) for version, name in PROPOSERS.items() if hasattr(runner, name)),
        ("", None),
    )
    flags = {} if drafter is None else resolved_flags(drafter.model)
    name = f"{version} ({type(runner).__name__})".strip()
    return flags | {"aux_layers": captured_layers(runner.get_model()), "runner": name}


def captured_layers(target: Any) -> list[int] | None:
    """The layer ids whose hidden states the target hands to the drafter; None where it shows none."""
    for module in target.modules():
        if layers := getattr(module, "aux_hidden_state_layers", None):
            return sorted(layers)
    return None


def _counters(llm: Any, k: int, is_plain: bool) -> tuple[int, list[int]]:
    """Drafts so far, and how many of them had each position accepted."""
    if is_plain:
        return 0, [0] * k
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    if missing := COUNTERS.values() - metrics.keys():
        raise OldReleaseError(f"it does not count drafts ({', '.join(sorted(missing))})", RELEASES)
    accepted = [int(value) for value in metrics[COUNTERS["accepted"]].values]
    return int(metrics[COUNTERS["drafts"]].value), accepted


if __name__ == "__main__":
    main()
