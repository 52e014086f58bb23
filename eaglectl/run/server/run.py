"""A running server as an engine: vLLM, SGLang or llama.cpp, whichever answers.

vLLM and llama.cpp are measured by their counters in /metrics before and after each prompt, SGLang by the
counts of rounds in each answer.
"""

import time
from collections.abc import Mapping
from typing import Any

from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.measurement import PromptResult
from eaglectl.run.server.answers import (
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
    Counters,
    count_positions,
    measured,
    read_counters,
)
from eaglectl.run.tokens import check_token_ids

START = "start it with --model-draft DRAFTER.gguf --spec-type draft-eagle3 --metrics"

HISTOGRAM = "spec_correct_drafts_histogram"


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
        results.append(PromptResult(prompt.set, drafts, accepted, (0,) * tokens))
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
