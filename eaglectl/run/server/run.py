"""A running server as an engine: vLLM, SGLang or llama.cpp, whichever answers; and its tokens a second.

vLLM and llama.cpp are measured by their counters in /metrics before and after each prompt, SGLang by the
counts of rounds in each answer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.progress import report_step
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.measurement import PromptResult
from eaglectl.run.server.answers import (
    Completion,
    answer_text,
    complete,
    first_model,
    get_optional,
    hold,
    most_tokens,
    other_drafter,
)
from eaglectl.run.server.http import Server, open_server
from eaglectl.run.server.metrics import (
    LLAMACPP,
    VLLM,
    CounterNames,
    Counters,
    count_positions,
    count_requests,
    measured,
    read_counters,
)
from eaglectl.run.speed import NO_RATIO, Speed, compare_timings
from eaglectl.run.timing import Batch, RunBatch, time_repeats
from eaglectl.run.tokens import check_token_ids

START = "start it with --model-draft DRAFTER.gguf --spec-type draft-eagle3 --metrics"

HISTOGRAM = "spec_correct_drafts_histogram"
# the completion of the prompt with this number
Send = Callable[[int], Completion]


def run_server(job: EngineJob, url: str) -> EngineRun:
    """Run `job` on the server at `url`, one prompt after the other.

    Raises UsageError for no URL, UnreadableError where it does not answer, answers nonsense or runs no
    speculative decoding, RefusedError where its counts would not be those of this drafter.
    """
    check_token_ids(job)
    server = open_server(url, job.timeout)
    model = first_model(server)
    info = sglang_info(server)
    if info is not None:
        return run_sglang_server(job, server, model, info)
    props = llamacpp_props(server)
    if props is not None:
        return run_llamacpp_server(job, server, model, props)
    return run_vllm_server(job, server, model)


# llama-cpp-python 0.3.36, run by tests/engine/llamacpp: tools/server/server-context.cpp (a round is counted
# when its drafts are verified; one that drafted nothing is not), server-task.cpp (/metrics)
def llamacpp_props(server: Server) -> Mapping[str, Any] | None:
    """/props of a llama-server; None where the server is another. Raises UnreadableError."""
    props = get_optional(server, "/props", "props")
    return props if "build_info" in props and "default_generation_settings" in props else None


def run_llamacpp_server(job: EngineJob, server: Server, model: str, props: Mapping[str, Any]) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server does not count or never drafted, RefusedError for other traffic.
    """
    if props.get("endpoint_metrics") is False:
        raise UnreadableError(
            f"{server} is a llama-server without /metrics, which counts the drafts; {START}"
        )
    if LLAMACPP.drafts not in read_counters(server, LLAMACPP):
        raise UnreadableError(
            f"{server}/metrics has no {LLAMACPP.drafts}; llama.cpp of llama-cpp-python 0.3.36 counts drafts:"
            " run that or a later one"
        )
    # a cached prompt would be neither evaluated nor drafted behind anew
    results, seconds = measured(job, server, model, LLAMACPP, extra={"cache_prompt": False})
    if not any(result.drafts for result in results):
        raise UnreadableError(f"{server} drafted nothing; {START}")
    return EngineRun(
        engine="server",
        version=f"llama.cpp {server.shown(props['build_info'])}",
        device="the server's",
        dtype="the server's",
        proves=(
            "what the server at this URL does, in the rounds that drafted (with --spec-draft-p-min some do"
            " not); which drafter that is, and whether acceptance is made up (--spec-synth-len), it does not"
            " say"
        ),
        results=results,
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={"model": server.shown(props.get("model_path") or model), "drafter": "not said"},
        differences=(),
    )


# SGLang 0.5.23: entrypoints/openai/protocol.py (return_spec_tokens_details, sglext), http_server.py
# (/server_info), managers/scheduler_components/batch_result_processor.py (the histogram counts rounds by the
# number of accepted draft tokens, without the bonus token)
def sglang_info(server: Server) -> Mapping[str, Any] | None:
    """/server_info of an SGLang server; None where the server is another. Raises UnreadableError."""
    for path in ("/server_info", "/get_server_info"):
        info = get_optional(server, path, "server_info")
        if "speculative_algorithm" in info:
            return info
    return None


def run_sglang_server(job: EngineJob, server: Server, model: str, info: Mapping[str, Any]) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count, RefusedError where
    its algorithm is not EAGLE3.
    """
    steps = speculative_steps(server, info)
    results, seconds = [], 0.0
    for prompt in job.prompts:
        begin = time.perf_counter()
        tokens, path, answer = complete(server, model, prompt, job, {"return_spec_tokens_details": True})
        seconds += time.perf_counter() - begin
        hold(server, path, "rounds", answer)
        drafts, accepted = count_rounds(server, answer, steps, most_tokens(job))
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens, text=answer_text(answer)))
        job.report_progress(len(results))
    drafter = str(info.get("speculative_draft_model_path") or "not said")
    return EngineRun(
        engine="server",
        version=f"SGLang {server.shown(info.get('version') or 'of unknown version')}",
        device="the server's",
        dtype="the server's",
        proves=(
            "what the server at this URL does; acceptance simulated by its environment"
            " (SGLANG_SIMULATE_ACC_LEN) could not be seen from here"
        ),
        results=tuple(results),
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "steps": steps,
            "topk": info.get("speculative_eagle_topk"),
        },
        differences=other_drafter(job.folder, drafter, server.shown(drafter)),
    )


def speculative_steps(server: Server, info: Mapping[str, Any]) -> int:
    """speculative_num_steps of a server that runs EAGLE3."""
    algorithm, steps = info["speculative_algorithm"], info.get("speculative_num_steps")
    if not algorithm:
        raise UnreadableError(
            f"{server} runs no speculative decoding; start it with --speculative-algorithm EAGLE3"
        )
    if algorithm != "EAGLE3":
        raise RefusedError(
            f"{server} runs --speculative-algorithm {server.shown(algorithm)}, under which an EAGLE-3"
            " head accepts nothing; use EAGLE3"
        )
    if not isinstance(steps, int):
        raise UnreadableError(
            f"{server}/server_info does not say how many steps it drafts (speculative_num_steps); start it"
            " with --speculative-num-steps"
        )
    return steps


def count_rounds(
    server: Server, answer: Mapping[str, Any], steps: int, most: int
) -> tuple[int, tuple[int, ...]]:
    """The number of rounds of one request, at most `most`, and in how many each position was accepted."""
    histogram: list[int] = answer["sglext"]["spec_tokens_details"][HISTOGRAM]
    rounds = sum(histogram)
    if rounds > most or any(histogram[steps + 1 :]):
        raise UnreadableError(
            f"{server} says that {rounds} rounds accepted up to {len(histogram) - 1} draft tokens"
            f" ({HISTOGRAM}); at most {most} rounds of {steps} were possible: see the server's log"
        )
    return rounds, tuple(sum(histogram[position + 1 :]) for position in range(steps))


def run_vllm_server(job: EngineJob, server: Server, model: str) -> EngineRun:
    """Run `job` on `model`, one prompt after the other.

    Raises UnreadableError where the server runs no speculative decoding or does not count by position,
    RefusedError for other traffic and for synthetic acceptance.
    """
    positions = _positions(server, read_counters(server))
    config = _speculative_config(server)
    version = get_optional(server, "/version", "version").get("version")
    results, seconds = measured(job, server, model, VLLM, positions)
    drafter = str(config.get("model") or "not said")
    proves = "what the server at this URL does"
    if not config:
        proves += "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"
    return EngineRun(
        engine="server",
        version=f"vLLM {server.shown(version or 'of unknown version')}",
        device="the server's",
        dtype="the server's",
        proves=proves,
        results=results,
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved={
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "draft_sample_method": _drafting(server, config),
        },
        differences=other_drafter(job.folder, drafter, server.shown(drafter)),
    )


def _drafting(server: Server, config: Mapping[str, Any]) -> str:
    """The server's draft_sample_method; releases without one draft greedily."""
    return server.shown(config.get("draft_sample_method") or "greedy") if config else "not known"


def _positions(server: Server, counters: Counters) -> int:
    """The number of positions that the server counts."""
    if VLLM.drafts not in counters:
        raise UnreadableError(
            f"{server}/metrics has no {VLLM.drafts}; the server runs no speculative decoding, or is neither"
            " vLLM, SGLang nor llama.cpp: start it with --speculative-config"
        )
    positions = count_positions(counters)
    if positions == 0:
        raise UnreadableError(
            f"{server}/metrics does not count by position ({VLLM.accepted}); a newer vLLM does"
        )
    return positions


def _speculative_config(server: Server) -> Mapping[str, Any]:
    """The server's speculative_config, which it shows in development mode; empty elsewhere.

    Raises RefusedError where its acceptance is synthetic.
    """
    info = get_optional(server, "/server_info?config_format=json", "server_info").get("vllm_config")
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    if not isinstance(config, Mapping):
        return {}
    if (method := config.get("rejection_sample_method")) == "synthetic":
        raise RefusedError(
            f"{server} runs with rejection_sample_method: {method}, which invents acceptance; start it"
            " without"
        )
    return config


def measure_server(job: EngineJob, url: str, k: int, concurrencies: Sequence[int]) -> Speed:
    """Time the server at `url`, which drafts `k` tokens, on the prompts of `job`. Raises as `run_server`."""
    server = open_server(url, job.timeout)
    report_step(job.on_progress, "timing the server")
    run = _make_runner(replace(job, ignores_eos=True), server, first_model(server))
    timings = time_repeats(run, concurrencies, len(job.prompts))
    repeats = min(len(timing.batches) for timing in timings)
    how = (
        f"this server over HTTP, warm, so many requests in flight, each of {job.max_tokens} new tokens where"
        " it takes ignore_eos; prompts come again, and their prefixes may be in its cache;"
        f" {repeats} repeats; {NO_RATIO}"
    )
    return Speed(compare_timings(k, timings, None), "the server's", "", job.max_tokens, repeats, how)


def _make_runner(job: EngineJob, server: Server, model: str) -> RunBatch:
    """What runs a batch on the server, and counts as that kind of server does."""
    most = most_tokens(job)

    def send(extra: Mapping[str, Any], index: int) -> Completion:
        return complete(server, model, job.prompts[index], job, extra)

    info = sglang_info(server)
    if info is not None:
        steps = speculative_steps(server, info)
        send_counted = partial(send, {"return_spec_tokens_details": True})
        return partial(_run_sglang, server, steps, most, send_counted)
    if llamacpp_props(server) is not None:
        # as acceptance is measured: a cached prompt would not be evaluated anew
        return partial(_run_counted, server, LLAMACPP, most, partial(send, {"cache_prompt": False}))
    return partial(_run_counted, server, VLLM, most, partial(send, {}))


def _run_counted(
    server: Server, names: CounterNames, most: int, send: Send, concurrency: int, indices: Sequence[int]
) -> Batch:
    """A batch on a server that counts in /metrics. Raises RefusedError for other traffic."""
    send_all = partial(_send_all, send, concurrency, indices)
    tokens, seconds, drafts, accepted = count_requests(server, names, send_all, most * len(indices))
    return Batch(tokens, seconds, drafts, sum(accepted))


def _run_sglang(
    server: Server, steps: int, most: int, send: Send, concurrency: int, indices: Sequence[int]
) -> Batch:
    """A batch on a server that counts in each answer."""
    begin = time.perf_counter()
    answers = _send_all(send, concurrency, indices)
    seconds = time.perf_counter() - begin
    drafts = accepted = 0
    for _, path, answer in answers:
        hold(server, path, "rounds", answer)
        rounds, by_position = count_rounds(server, answer, steps, most)
        drafts, accepted = drafts + rounds, accepted + sum(by_position)
    return Batch(sum(count for count, _, _ in answers), seconds, drafts, accepted)


def _send_all(send: Send, concurrency: int, indices: Sequence[int]) -> list[Completion]:
    """The answers, with `concurrency` requests in flight until the last ones."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(send, indices))
