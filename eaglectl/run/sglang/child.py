"""Run in the child process: SGLang. What is taken of it stands in engines/interface.json.

At the end, what runs in SGLang's scheduler process: the scheduler, with a report of what it resolved or why
it ended. Written against SGLang 0.5.23. Parameters of the drafter are NaN while its files are read, and get
back what they had where nothing filled them, so that the engine runs as it does without the report.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from eaglectl.run.process import ANSWER as ANSWER_FILE
from eaglectl.run.process import (
    SGLANG,
    OldReleaseError,
    error_answer,
    machine_memory,
    report_phase,
    serve_requests,
)
from eaglectl.run.resolved import RECORDED, Recorder
from eaglectl.run.sglang.resolved import describe, record_draft, watched_loading
from eaglectl.target.files import until_end

HISTOGRAM = "spec_correct_drafts_histogram"
# variables that name the file of the child's answer, for an error, that of the report, and that of a draft
ANSWER, REPORT, DRAFT = "EAGLECTL_ANSWER", "EAGLECTL_SCHEDULER_REPORT", "EAGLECTL_DRAFT"
RECORD = "EAGLECTL_DRAFT_RECORD"
RELEASES = "sglang 0.5.13 or newer"
CPU_CACHE = 8192  # tokens


def main() -> None:
    """Answer requests until the parent sends no more."""
    answer = str(Path(sys.argv[1]) / ANSWER_FILE)
    os.environ |= {ANSWER: answer, REPORT: f"{answer}.scheduler"}
    # on GPUs it takes a share of what is free at its start
    serve_requests(
        "sglang",
        {
            "memory": lambda request: machine_memory() if _is_cpu(request) else {},
            "generate": generate,
            "plain": generate,
        },
    )


def _is_cpu(request: dict[str, Any]) -> bool:
    import torch

    return request["device"] == "cpu" or not torch.cuda.is_available()


def _chain(request: dict[str, Any]) -> dict[str, Any]:
    # the arguments of a chain of k draft tokens
    return {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": request["drafter"],
        "speculative_num_steps": request["k"],
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": request["k"] + 1,
    }


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """Generate after each prompt on its own, and read the counts of its rounds.

    In "plain" mode, without a drafter.
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
        arguments |= _chain(request)
        if path := request.get("draft"):
            os.environ |= {DRAFT: path, RECORD: f"{path}.json"}
    report_phase("loading")
    engine = engine_class()(**arguments)
    phase = f"prompts {'without' if is_plain else 'with'} the drafter"
    try:
        report_phase("warming up")
        if "draft" in request:  # the next request ends the record of this one
            short = {"temperature": 0.0, "max_new_tokens": 2, "ignore_eos": True}
            engine.generate(input_ids=request["prompts"][0][:RECORDED], sampling_params=short)
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
        report = _read(REPORT)
    finally:
        engine.shutdown()
    return {
        "results": results,
        "seconds": seconds,
        "resolved": {} if is_plain else report.get("resolved", {}),
        "recorded": _read(RECORD) or None,
        "device": report.get("device", str(arguments.get("device", "auto"))),
        "dtype": report.get("dtype", str(arguments["dtype"])),
    }


def engine_class() -> Any:
    """Return SGLang's engine, with a scheduler that reports what it resolved."""
    from sglang.srt.entrypoints.engine import Engine

    if not hasattr(Engine, "run_scheduler_process_func"):
        raise OldReleaseError("it has no engine whose scheduler can be asked what it resolved", RELEASES)
    # by the module's name, which is __main__ here: the scheduler's process imports it
    run = staticmethod(import_module(SGLANG.child).report_and_run)
    return type("ReportingEngine", (Engine,), {"run_scheduler_process_func": run})


def answer(output: dict[str, Any], request: dict[str, Any]) -> list[int]:
    """Return the new tokens through the one that ends them, which a release may leave out or go past.

    SGLang 0.5.23 ends output_ids with it (Req.output_ids_through_stop).
    """
    tokens, stop = [*output["output_ids"]], {*request["stop"]}
    matched = (output["meta_info"].get("finish_reason") or {}).get("matched")
    if isinstance(matched, int):
        stop.add(matched)
        tokens += [] if matched in tokens else [matched]
    return until_end(tokens[: request["max_tokens"]], frozenset(stop))


def rounds(info: dict[str, Any], k: int) -> tuple[int, list[int]]:
    """Return the number of rounds of one request, and in how many each draft position was accepted."""
    if not info.get("spec_verify_ct"):
        return 0, [0] * k  # one token needs no round
    if HISTOGRAM not in info:
        raise OldReleaseError("it does not count accepted draft tokens by position", RELEASES)
    histogram: list[int] = info[HISTOGRAM]
    return sum(histogram), [sum(histogram[position + 1 :]) for position in range(k)]


def server_arguments(request: dict[str, Any], length: int) -> dict[str, Any]:
    """Return SGLang's arguments that load the target for `length` tokens; those of the user go last."""
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
    arguments |= request.get("start_options", {})
    if _is_cpu(request):
        arguments |= {"device": "cpu", "dtype": "float32", "max_total_tokens": max(CPU_CACHE, 2 * length)}
    return {**arguments, **request["engine_arguments"]}


def report_and_run(*arguments: Any, **named: Any) -> None:
    """Run SGLang's own function of the scheduler process, watched."""
    from sglang.srt.managers import scheduler

    watch(scheduler.Scheduler)
    scheduler.run_scheduler_process(*arguments, **named)


def watch(cls: Any) -> None:
    """Make the scheduler class report once it stands, and where it fails."""
    initialise, run = cls.__init__, cls.run_event_loop
    seen: dict[str, Any] = {}

    def reporting_init(self: Any, *arguments: Any, **named: Any) -> None:
        with reported(), watched_loading(seen):
            initialise(self, *arguments, **named)
        _write(REPORT, describe(self, seen))
        if DRAFT in os.environ and "model" in seen:
            record_draft(seen["model"], _write_draft)

    def reporting_run(self: Any, *arguments: Any, **named: Any) -> Any:
        with reported():
            return run(self, *arguments, **named)

    cls.__init__, cls.run_event_loop = reporting_init, reporting_run


@contextmanager
def reported() -> Iterator[None]:
    """Write what is raised as the child's answer: SGLang kills the child then."""
    import sglang

    try:
        yield
    except Exception as error:
        if not Path(os.environ[ANSWER]).exists():  # what follows from an error is not the cause
            _write(ANSWER, {"version": str(sglang.__version__), **error_answer(error)})
        raise


def _write_draft(recorder: Recorder) -> None:
    # not a second time, where the record ended in an error
    if not Path(os.environ[RECORD]).exists():
        _write(RECORD, recorder.write(os.environ[DRAFT]))


def _read(variable: str) -> dict[str, Any]:
    path = Path(os.environ.get(variable, os.devnull))
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return read


def _write(variable: str, document: dict[str, Any]) -> None:
    """Write the file that the variable names, which is there whole or not at all."""
    path = Path(os.environ[variable])
    whole = path.with_name(f"{path.name}.{os.getpid()}")
    whole.write_text(json.dumps(document), encoding="utf-8")
    whole.replace(path)


if __name__ == "__main__":
    main()
