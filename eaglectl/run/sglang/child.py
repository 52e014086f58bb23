"""Run in the child process: SGLang. What is taken of it stands in engines/interface.json."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from eaglectl.files.target_files import until_end
from eaglectl.run.child import ANSWER as ANSWER_FILE
from eaglectl.run.child import OldReleaseError, machine_memory, report_phase, serve_requests
from eaglectl.run.sglang.scheduler import ANSWER, REPORT, report_and_run

HISTOGRAM = "spec_correct_drafts_histogram"
RELEASES = "sglang 0.5.13 or newer"
CPU_CACHE = 8192  # tokens


def main() -> None:
    """Answer requests until the parent has no more."""
    answer = str(Path(sys.argv[1]) / ANSWER_FILE)
    os.environ |= {ANSWER: answer, REPORT: f"{answer}.scheduler"}
    serve_requests({"memory": _memory, "generate": generate, "plain": generate}, _version, _argument_names)


def _version() -> str:
    import sglang

    return str(sglang.__version__)


def _argument_names() -> list[str]:
    from sglang.srt.server_args import ServerArgs

    return [*(getattr(ServerArgs, "__struct_fields__", None) or ServerArgs.__dataclass_fields__)]


def _memory(request: dict[str, Any]) -> dict[str, int]:
    """Bytes that are free, and all; none on GPUs, where SGLang takes a share of what is free at its start."""
    return machine_memory() if _is_cpu(request) else {}


def _is_cpu(request: dict[str, Any]) -> bool:
    import torch

    return request["device"] == "cpu" or not torch.cuda.is_available()


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """Generate after each prompt on its own, and read the counts of its rounds.

    Without a drafter in "plain" mode.
    """
    is_plain = request["mode"] == "plain"
    params = {
        "temperature": request["temperature"],
        "max_new_tokens": request["max_tokens"],
        "ignore_eos": request["ignore_eos"],
        "stop_token_ids": request["stop"],
    }
    arguments = server_arguments(request, max(map(len, request["prompts"])) + request["max_tokens"])
    if not is_plain:
        # a chain of k draft tokens
        arguments |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": request["drafter"],
            "speculative_num_steps": request["k"],
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": request["k"] + 1,
        }
    report_phase("loading")
    engine = engine_class(arguments)(**arguments)
    phase = f"prompts {'without' if is_plain else 'with'} the drafter"
    try:
        report_phase("warming up")
        # the first run includes what SGLang prepares once
        engine.generate(input_ids=request["prompts"][0], sampling_params=params)
        results, seconds = [], 0.0
        for number, ids in enumerate(request["prompts"], 1):
            begin = time.perf_counter()
            output = engine.generate(input_ids=ids, sampling_params=params)
            seconds += time.perf_counter() - begin
            drafts, accepted = (
                (0, [0] * request["k"]) if is_plain else rounds(output["meta_info"], request["k"])
            )
            results.append({"tokens": answer(output, request), "drafts": drafts, "accepted": accepted})
            report_phase(phase, number, len(request["prompts"]))
        path = Path(os.environ[REPORT])
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    finally:
        engine.shutdown()
    return {
        "results": results,
        "seconds": seconds,
        "resolved": {} if is_plain else report.get("resolved", {}),
        "device": report.get("device", str(arguments.get("device", "auto"))),
        "dtype": report.get("dtype", str(arguments["dtype"])),
    }


def engine_class(arguments: dict[str, Any]) -> Any:
    """SGLang's engine, whose scheduler reports what it resolved; with `use_ray` its actors do not."""
    if arguments.get("use_ray"):
        from sglang.srt.ray.engine import RayEngine

        return RayEngine
    from sglang.srt.entrypoints.engine import Engine

    if not hasattr(Engine, "run_scheduler_process_func"):
        raise OldReleaseError("it has no engine whose scheduler can be asked what it resolved", RELEASES)
    return type("ReportingEngine", (Engine,), {"run_scheduler_process_func": staticmethod(report_and_run)})


def answer(output: dict[str, Any], request: dict[str, Any]) -> list[int]:
    """The new tokens through the one that ends them, whether a release leaves it out or goes past it.

    SGLang 0.5.23 ends output_ids with it (Req.output_ids_through_stop).
    """
    tokens, stop = [*output["output_ids"]], {*request["stop"]}
    matched = (output["meta_info"].get("finish_reason") or {}).get("matched")
    if isinstance(matched, int):
        stop.add(matched)
        tokens += [] if matched in tokens else [matched]
    return until_end(tokens[: request["max_tokens"]], frozenset(stop))


def rounds(info: dict[str, Any], k: int) -> tuple[int, list[int]]:
    """The number of rounds of one request, and in how many each draft position was accepted."""
    if not info.get("spec_verify_ct"):
        return 0, [0] * k  # one token needs no round
    if HISTOGRAM not in info:
        raise OldReleaseError("it does not count accepted draft tokens by position", RELEASES)
    histogram: list[int] = info[HISTOGRAM]
    return sum(histogram), [sum(histogram[position + 1 :]) for position in range(k)]


def server_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Arguments of SGLang's engine that load the target for `length` tokens; those of the user go last."""
    arguments: dict[str, Any] = {
        "model_path": request["target"],
        "trust_remote_code": request["trust_remote_code"],
        "tp_size": request["tensor_parallel_size"],
        "random_seed": request["seed"],
        "skip_tokenizer_init": True,
        "max_running_requests": 4,
        "disable_cuda_graph": True,
        "disable_radix_cache": True,
        "log_level": "error",
        "dtype": "auto",
    }
    if _is_cpu(request):
        arguments |= {"device": "cpu", "dtype": "float32", "max_total_tokens": max(CPU_CACHE, 2 * length)}
    return {**arguments, **request["engine_arguments"]}


if __name__ == "__main__":
    main()
