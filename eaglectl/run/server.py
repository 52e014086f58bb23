"""A running server (vLLM, SGLang or llama.cpp) as an engine, and its tokens a second.

vLLM and llama.cpp are measured by their counters in /metrics, SGLang by the counts of rounds in each answer.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError, check
from eaglectl.files.files import is_folder
from eaglectl.progress import Progress, report_step
from eaglectl.run.counters import (
    LLAMACPP,
    VLLM,
    Counted,
    Send,
    count_positions,
    count_requests,
    read_counters,
    timed,
)
from eaglectl.run.http import MAX_STEPS, Completion, Server, get, open_server
from eaglectl.run.job import EngineJob, EngineRun, chat_messages, check_token_ids, has_chat_template
from eaglectl.run.measurement import Batch, PromptResult, Speed, Timing, compare_timings, time_repeats
from eaglectl.run.prompts import GENERATION_PROMPT, Prompt


def complete(server: Server, model: str, prompt: Prompt, job: EngineJob, engine: "_Engine") -> Completion:
    """Request an answer to `prompt`; return the number of new tokens, and the answer.

    Raises UnreadableError if the answer has no number of new tokens, or more than were requested.
    """
    path = "/v1/completions"
    content: dict[str, Any] = {"prompt": list(prompt.token_ids) or prompt.text}
    if prompt.messages or (prompt.is_chat and has_chat_template(job.target)):
        path, content = "/v1/chat/completions", {"messages": list(chat_messages(prompt))}
        if prompt.tools:
            content["tools"] = list(prompt.tools)
        arguments = dict(prompt.template_arguments)
        if GENERATION_PROMPT in arguments:
            content[GENERATION_PROMPT] = arguments.pop(GENERATION_PROMPT)
        if arguments:
            content["chat_template_kwargs"] = arguments
    request = {
        "model": model,
        **content,
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "ignore_eos": job.ignores_eos,
        **engine.extra,
    }
    answer = get(server, path, engine.answers, json.dumps(request).encode())
    tokens: int = answer["usage"]["completion_tokens"]
    if tokens > job.max_tokens + MAX_STEPS:
        raise UnreadableError(
            f"{server}{path} reports {tokens} new tokens (usage.completion_tokens), but {job.max_tokens} were"
            " requested; the figures are not those of this request: see the server's log"
        )
    return tokens, answer


def _other_drafter(folder: Path, drafter: str, shown_drafter: str) -> tuple[str, ...]:
    # llama.cpp does not report a path
    if not drafter or not is_folder(Path(drafter)) or Path(drafter).resolve() == folder.resolve():
        return ()
    return (f"the server drafts with {shown_drafter}, but the tested drafter is {folder}",)


START = "start it with --model-draft DRAFTER.gguf --spec-type draft-eagle3 --metrics"
HISTOGRAM = "spec_correct_drafts_histogram"


class _Engine(Struct, frozen=True):
    """The engine at a URL: a function that sends requests and counts their drafts, and reported settings.

    `extra` are further keys of each request, `answers` the kind of the answers; `drafter` is the drafter's
    name on the server.
    """

    version: str
    proves: str
    count: Callable[[Send, int], Counted]
    resolved: Mapping[str, Any]
    extra: Mapping[str, Any] = {}
    drafter: str = ""
    answers: str = "completion"


def run_server(job: EngineJob, url: str) -> EngineRun:
    """Run `job` on the server at `url`, one prompt after the other.

    Raises UsageError for an invalid URL, UnreadableError if the server does not answer, answers invalid data
    or runs no speculative decoding, RefusedError if its counts would not be those of this drafter.
    """
    check_token_ids(job)
    server = open_server(url, job.timeout)
    model, engine = _recognise(server)
    results, seconds = list[PromptResult](), 0.0
    for index, prompt in enumerate(job.prompts):
        counted = _send_and_count(server, model, engine, job, [index])
        seconds += counted.seconds
        match counted.answers[0][1].get("choices"):
            case [{"text": str(text)}, *_] | [{"message": {"content": str(text)}}, *_]:
                pass
            case _:
                text = ""
        results.append(
            PromptResult(prompt.set, counted.drafts, counted.accepted, (0,) * counted.tokens, text=text)
        )
        if job.on_progress:
            job.on_progress(Progress("measuring", index + 1, len(job.prompts), "prompts"))
    if not any(result.drafts for result in results) and engine.version.startswith("llama.cpp"):
        raise UnreadableError(f"{server} drafted no tokens; {START}")
    most = max((len(result.accepted) for result in results), default=0)
    return EngineRun(
        engine="server",
        version=engine.version,
        device="the server's",
        dtype="the server's",
        proves=engine.proves,
        results=tuple(
            replace(result, accepted=(*result.accepted, *[0] * (most - len(result.accepted))))
            for result in results
        ),
        plain=(),
        seconds=seconds,
        plain_seconds=0.0,
        resolved=engine.resolved,
        differences=_other_drafter(job.folder, engine.drafter, server.shown(engine.drafter)),
    )


def _send_and_count(
    server: Server, model: str, engine: _Engine, job: EngineJob, indices: Sequence[int], concurrency: int = 1
) -> Counted:
    # send the prompts at `indices`, and count the drafts of the server over them
    def send(index: int) -> Completion:
        return complete(server, model, job.prompts[index], job, engine)

    def send_all() -> list[Completion]:
        if concurrency == 1:
            return [*map(send, indices)]
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(send, indices))

    return engine.count(send_all, (job.max_tokens + MAX_STEPS) * len(indices))


def _model(server: Server) -> str:
    return str(get(server, "/v1/models", "models")["data"][0]["id"])


def _sglang_info(server: Server) -> Mapping[str, Any]:
    # the settings of an SGLang server, under the path of its release; nothing of another engine's
    infos = (get(server, path, "server_info", may_lack=True) for path in ("/server_info", "/get_server_info"))
    return next((info for info in infos if "speculative_algorithm" in info), {})


def _recognise(server: Server) -> tuple[str, _Engine]:
    # the model's name, and the engine of a server by the endpoints that it has
    model = _model(server)
    if info := _sglang_info(server):
        return model, _sglang(server, model, info)
    props = get(server, "/props", "props", may_lack=True)
    if "build_info" in props and "default_generation_settings" in props:
        return model, _llamacpp(server, model, props)
    return model, _vllm(server, model)


# llama-cpp-python 0.3.36, run by tests/engine/llamacpp: tools/server/server-context.cpp (a round is counted
# when its drafts are verified; one that drafted nothing is not), server-task.cpp (/metrics)
def _llamacpp(server: Server, model: str, props: Mapping[str, Any]) -> _Engine:
    if props.get("endpoint_metrics") is False:
        raise UnreadableError(
            f"{server} is a llama-server without /metrics, which counts the drafts; {START}"
        )
    if LLAMACPP.drafts not in read_counters(server, LLAMACPP):
        raise UnreadableError(
            f"{server}/metrics has no {LLAMACPP.drafts}; llama.cpp counts drafts since llama-cpp-python"
            " 0.3.36: run that or a later release"
        )
    return _Engine(
        version=f"llama.cpp {server.shown(props['build_info'])}",
        proves=(
            "the behaviour of the server at this URL, in the rounds with drafts (with --spec-draft-p-min some"
            " have none); it does not report its drafter, nor whether it simulates acceptance"
            " (--spec-synth-len)"
        ),
        count=partial(count_requests, server, LLAMACPP),
        resolved={"model": server.shown(props.get("model_path") or model), "drafter": "not said"},
        extra={"cache_prompt": False},  # a cached prompt would be neither evaluated nor drafted behind anew
    )


# SGLang 0.5.23: entrypoints/openai/protocol.py (return_spec_tokens_details, sglext), http_server.py
# (/server_info), managers/scheduler_components/batch_result_processor.py (the histogram counts rounds by the
# number of accepted draft tokens, without the bonus token)
def _sglang(server: Server, model: str, info: Mapping[str, Any]) -> _Engine:
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
            f"{server}/server_info does not report speculative_num_steps; start it with"
            " --speculative-num-steps"
        )
    drafter = str(info.get("speculative_draft_model_path") or "not said")
    return _Engine(
        version=f"SGLang {server.shown(info.get('version') or 'of unknown version')}",
        proves=(
            "the behaviour of the server at this URL; it does not report whether its environment simulates"
            " acceptance (SGLANG_SIMULATE_ACC_LEN)"
        ),
        count=partial(_count_rounds, server, steps),
        resolved={
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "steps": steps,
            "topk": info.get("speculative_eagle_topk"),
        },
        extra={"return_spec_tokens_details": True},
        drafter=drafter,
        answers="rounds",
    )


def _count_rounds(server: Server, steps: int, send: Send, most: int) -> Counted:
    # rounds and accepted tokens by position, by the histograms in SGLang's answers
    answers, seconds = timed(send)
    drafts, accepted = 0, [0] * steps
    for _, answer in answers:
        histogram: list[int] = answer["sglext"]["spec_tokens_details"][HISTOGRAM]
        rounds = sum(histogram)
        if rounds > most // len(answers) or any(histogram[steps + 1 :]):
            raise UnreadableError(
                f"{server} reports {rounds} rounds with up to {len(histogram) - 1} accepted draft tokens"
                f" ({HISTOGRAM}); at most {most // len(answers)} rounds of {steps} are possible: see the"
                " server's log"
            )
        drafts += rounds
        accepted = [count + sum(histogram[place + 1 :]) for place, count in enumerate(accepted)]
    return Counted(answers, seconds, drafts, tuple(accepted))


def _vllm(server: Server, model: str) -> _Engine:
    # what a vLLM server shows of its drafter; raises if it counts no speculative decoding
    counters = read_counters(server, VLLM)
    check(
        (
            VLLM.drafts not in counters,
            f"{server}/metrics has no {VLLM.drafts}; the server runs no speculative decoding, or is neither"
            " vLLM, SGLang nor llama.cpp: start it with --speculative-config",
        ),
        (
            count_positions(counters, VLLM) == 0,
            f"{server}/metrics has no counts by position ({VLLM.accepted}); use a newer vLLM",
        ),
        error=UnreadableError,
    )
    # what it shows in development mode
    info = get(server, "/server_info?config_format=json", "server_info", may_lack=True).get("vllm_config")
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    config, is_shown = config or {}, bool(config)
    if config.get("rejection_sample_method") == "synthetic":
        raise RefusedError(
            f"{server} runs with rejection_sample_method: synthetic, which simulates acceptance; start it"
            " without that"
        )
    drafter = str(config.get("model") or "not said")
    version = get(server, "/version", "version", may_lack=True).get("version")
    # releases without the key draft greedily
    method = config.get("draft_sample_method") or ("greedy" if is_shown else "not known")
    return _Engine(
        version=f"vLLM {server.shown(version or 'of unknown version')}",
        proves="the behaviour of the server at this URL"
        + ("" if is_shown else "; it reports its drafter only with VLLM_SERVER_DEV_MODE=1"),
        count=partial(count_requests, server, VLLM),
        resolved={
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "draft_sample_method": server.shown(method),
        },
        drafter=drafter,
    )


def measure_server(
    job: EngineJob, url: str, k: int, concurrencies: Sequence[int], baseline: str | None = None
) -> Speed:
    """Time the server at `url`, which drafts `k` tokens, on the prompts of `job`.

    `baseline` is the URL of a server of the same target without a drafter, for the ratios. Raises UsageError
    for an invalid URL, UnreadableError if a server does not answer or answers invalid data, or if that at
    `url` runs no speculative decoding, RefusedError if its counts would not be those of this drafter, or if
    the baseline drafts too.
    """
    server, job = open_server(url, job.timeout), replace(job, ignores_eos=True)
    other = None if baseline is None else open_server(baseline, job.timeout)
    report_step(job.on_progress, "timing the server")
    model, engine = _recognise(server)
    plain = None if other is None else _undrafted(other, engine)
    timings = _timings(server, model, engine, job, concurrencies)
    others = None
    if other is not None and plain is not None:
        report_step(job.on_progress, "timing the server without a drafter")
        baseline_model, baseline_engine = plain
        others = _timings(other, baseline_model, baseline_engine, job, concurrencies)
    repeats = min(len(timing.batches) for timing in (*timings, *(others or ())))
    ratio = (
        f"the ratio is that to {other}, whose engine, card and options are taken to be the same"
        if other is not None
        else "one server has one configuration, so there is no ratio: pass --baseline-url with a server of"
        " the same target without a drafter"
    )
    how = (
        f"this server over HTTP, after a warm-up, with {job.max_tokens} new tokens for each request if it"
        " supports ignore_eos; prompts are repeated, and their prefixes may be in its cache;"
        f" {repeats} repeats; {ratio}"
    )
    return Speed(
        rows=compare_timings(k, timings, others),
        device="the server's",
        card="",
        max_tokens=job.max_tokens,
        repeats=repeats,
        how=how,
    )


def _timings(
    server: Server, model: str, engine: _Engine, job: EngineJob, concurrencies: Sequence[int]
) -> tuple[Timing, ...]:
    def run(concurrency: int, indices: Sequence[int]) -> Batch:
        counted = _send_and_count(server, model, engine, job, indices, concurrency)
        return Batch(counted.tokens, counted.seconds, counted.drafts, sum(counted.accepted))

    return time_repeats(run, concurrencies, len(job.prompts))


def _undrafted(server: Server, drafting: _Engine) -> tuple[str, _Engine]:
    """Return the model and the engine of a server without a drafter; requests are those of `drafting`.

    Raises RefusedError if it drafts.
    """
    model, drafts = _model(server), _sglang_info(server).get("speculative_algorithm")
    with suppress(UnreadableError):  # without metrics, which a baseline does not need
        drafts = drafts or VLLM.drafts in read_counters(server, VLLM)
    if drafts:
        about = f"--baseline-url {server}: this server drafts too; start one without a drafter"
        raise RefusedError(about, options=("--baseline-url",))

    def count(send: Send, most: int) -> Counted:
        return Counted(*timed(send), 0, ())

    extra = {name: value for name, value in drafting.extra.items() if name != "return_spec_tokens_details"}
    return model, _Engine("", "", count, {}, extra)
