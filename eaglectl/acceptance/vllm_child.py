"""Run inside the child process: drives vLLM as its own users do, and writes one JSON answer. Written against vLLM 0.32.0."""

import json
import sys
import time
from pathlib import Path
from typing import Any

COUNTERS = {"drafts": "vllm:spec_decode_num_drafts", "accepted": "vllm:spec_decode_num_accepted_tokens_per_pos"}
KV_CACHE_BYTES = 256 << 20
MARGIN = 16
KEPT_LINES = 2


def main() -> None:
    """Read the order named by the first argument and write the answer to the second."""
    order = json.loads(Path(sys.argv[1]).read_text())
    answer: dict[str, Any] = {}
    try:
        import vllm

        answer["version"] = vllm.__version__
        answer |= {"generate": generate, "plain": generate, "load": load}[order["mode"]](order)
    except Exception as error:
        answer["error"] = worded(error)
    Path(sys.argv[2]).write_text(json.dumps(answer))


def worded(error: Exception) -> str:
    """What an exception says, in a line; pydantic says what is wrong in the second one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:KEPT_LINES])[:400] or '(no message)'}"


def generate(order: dict[str, Any]) -> dict[str, Any]:
    """Every prompt on its own, with the speculation counters read between them; without a drafter in "plain" mode."""
    from vllm import LLM, SamplingParams

    prompts: list[list[int]] = order["prompts"]
    longest = max(map(len, prompts)) + order["max_tokens"] + order["k"] + MARGIN
    longest = min(longest, order["context"] or longest)
    is_plain = order["mode"] == "plain"
    speculative = {} if is_plain else {"speculative_config": _speculative(order)}
    llm = LLM(**settings(order, longest), disable_log_stats=False, **speculative)
    params = SamplingParams(
        temperature=order["temperature"],
        seed=order["seed"],
        max_tokens=order["max_tokens"],
        ignore_eos=True,
        detokenize=False,
    )
    llm.generate([{"prompt_token_ids": prompts[0]}], params, use_tqdm=False)  # the first run pays for what is made once
    results, seconds, before = [], 0.0, _counters(llm, order["k"], is_plain)
    for ids in prompts:
        begin = time.perf_counter()
        found = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        seconds += time.perf_counter() - begin
        now = _counters(llm, order["k"], is_plain)
        results.append(
            {
                "tokens": list(found[0].outputs[0].token_ids),
                "drafts": now[0] - before[0],
                "accepted": [a - b for a, b in zip(now[1], before[1], strict=True)],
            }
        )
        before = now
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    config = llm.llm_engine.vllm_config
    resolved = (
        {}
        if is_plain
        else resolved_flags(runner.drafter.model) | {"aux_layers": _aux_layers(runner), "runner": type(runner).__name__}
    )
    return {
        "results": results,
        "seconds": seconds,
        "resolved": resolved,
        "device": config.device_config.device_type,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }


def load(order: dict[str, Any]) -> dict[str, Any]:
    """vLLM's drafter class and loader alone: parameters are NaN before loading, so what the file does not fill shows."""
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
    config = EngineArgs(**settings(order, 256), speculative_config=_speculative(order)).create_engine_config()
    unfilled: dict[str, list[str]] = {"unfilled": []}
    make, fill = base_loader.initialize_model, DefaultModelLoader.load_weights

    def poisoned(*arguments: Any, **named: Any) -> Any:
        model = make(*arguments, **named)
        for parameter in model.parameters():
            if parameter.dtype.is_floating_point:
                parameter.data.copy_(torch.full_like(parameter.data, float("nan"), dtype=torch.float32))
        return model

    def watched(self: Any, model: Any, model_config: Any) -> Any:
        found = fill(self, model, model_config)
        unfilled["unfilled"] = [
            name
            for name, p in model.named_parameters()
            if p.dtype.is_floating_point and bool(torch.isnan(p.float()).any())
        ]
        return found

    base_loader.initialize_model, DefaultModelLoader.load_weights = poisoned, watched
    draft = config.speculative_config.draft_model_config
    own = replace(
        config, attention_config=replace(config.attention_config, backend=config.speculative_config.attention_backend)
    )
    with set_current_vllm_config(own):
        init_distributed_environment(1, 0, f"file://{sys.argv[2]}.group", 0, "gloo")
        initialize_model_parallel(1, 1)
        model = get_model(vllm_config=own, model_config=draft, load_config=get_draft_load_config(own))
    return unfilled | {"resolved": resolved_flags(model)}


def resolved_flags(model: Any) -> dict[str, Any]:
    """What vLLM's drafter class made of the checkpoint."""
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


def _aux_layers(runner: Any) -> list[int] | None:
    inner = getattr(runner.model, "model", runner.model)
    found = getattr(inner, "aux_hidden_state_layers", None)
    return sorted(found) if found else None


def _counters(llm: Any, k: int, is_plain: bool) -> tuple[int, list[int]]:
    found = {} if is_plain else {metric.name: metric for metric in llm.get_metrics()}
    if COUNTERS["drafts"] not in found:
        return 0, [0] * k
    return int(found[COUNTERS["drafts"]].value), [int(value) for value in found[COUNTERS["accepted"]].values]


def settings(order: dict[str, Any], length: int) -> dict[str, Any]:
    """Arguments of vLLM's LLM that load the target for sequences of `length` tokens."""
    import torch

    found: dict[str, Any] = {
        "model": order["target"],
        "enforce_eager": True,
        "max_model_len": length,
        "max_num_seqs": 4,
        "seed": order["seed"],
    }
    if torch.cuda.is_available() and order["device"] != "cpu":
        return found | {"dtype": "auto"}
    found |= {
        "dtype": "float32",
        "max_num_batched_tokens": max(length, 256),
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
    }
    if order["is_mla_target"]:
        # the wheel's rotary op is wrong for MLA's layout on CPUs, and AMX hosts pick a bfloat16-only backend
        found |= {
            "block_size": 16,
            "attention_config": {"backend": "CPU_MLA"},
            "compilation_config": {"custom_ops": ["-rotary_embedding"]},
        }
    return found


def _speculative(order: dict[str, Any]) -> dict[str, Any]:
    config = {"method": "eagle3", "model": order["drafter"], "num_speculative_tokens": order["k"]}
    return config | ({"attention_backend": "CPU_MLA"} if order["is_mla"] and order["is_mla_target"] else {})


if __name__ == "__main__":
    main()
