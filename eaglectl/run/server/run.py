"""A running server as an engine: vLLM, SGLang or llama.cpp, whichever answers; and its tokens a second.

vLLM and llama.cpp are measured by their counters in /metrics before and after each prompt, SGLang by the
counts of rounds in each answer. Prometheus' text format is read strictly for the four counters that are used.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError
from eaglectl.progress import Progress, report_step
from eaglectl.run.job import EngineJob, EngineRun
from eaglectl.run.measurement import PromptResult
from eaglectl.run.server.client import (
    MAX_STEPS,
    Completion,
    Server,
    answer_text,
    complete,
    get,
    get_optional,
    hold,
    most_tokens,
    open_server,
    other_drafter,
)
from eaglectl.run.speed import NO_RATIO, Speed, compare_timings
from eaglectl.run.timing import Batch, time_repeats
from eaglectl.run.tokens import check_token_ids

PATH = "/metrics"

METRICS_TIMEOUT, METRICS_INTERVAL = 5.0, 0.05  # seconds to wait for the counters of a finished request


class CounterNames(Struct, frozen=True):
    """How a server calls the counters of drafts, of drafts accepted by position, of tokens, of requests.

    `is_rounded`: it prints large counts with six digits, which are then no counts.
    """

    title: str
    drafts: str
    accepted: str
    generated: str
    running: str
    is_rounded: bool = False

    @property
    def every(self) -> tuple[str, ...]:
        """All four names."""
        return self.drafts, self.accepted, self.generated, self.running


VLLM = CounterNames(
    "vLLM",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:generation_tokens_total",
    "vllm:num_requests_running",
)
# tools/server/server-task.cpp, llama-cpp-python 0.3.36
LLAMACPP = CounterNames(
    "llama.cpp",
    "llamacpp:spec_decode_num_drafts_total",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:requests_processing",
    is_rounded=True,
)
# name{labels} value [timestamp]; quotes in the value of a label are escaped
SAMPLE = re.compile(
    r'([a-z_:]++)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?[ \t]++(\S++)(?:[ \t]++-?[0-9]{1,20})?[ \t\r]*+'
)
POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,4})"')
# the server prints counters as floats
COUNT = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+?[0-9]{1,2})?", re.IGNORECASE)
MOST = 2.0**53

Counters = Mapping[str, int]
Send = Callable[[], Sequence[Completion]]


class Counted(Struct, frozen=True):
    """Requests that were sent together: their answers, the seconds, the drafts, and those with each position
    accepted.
    """

    answers: Sequence[Completion]
    seconds: float
    drafts: int
    accepted: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """The new tokens."""
        return sum(count for count, _, _ in self.answers)


def _read_counters(server: Server, names: CounterNames) -> Counters:
    return parse_counters(server, server.read(PATH), names)


def parse_counters(server: Server, raw: bytes, names: CounterNames = VLLM) -> Counters:
    """Values of a server's counters, summed over labels; those with a position are named "metric[position]".

    Raises UnreadableError for a sample that cannot be read, or positions with gaps.
    """

    def fault(text: str) -> UnreadableError:
        expected = f"{names.title}'s /metrics was expected: check the URL of --run-in"
        return UnreadableError(f"{server}{PATH} {text}; {expected}")

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fault(f"is not UTF-8 text (byte {error.start})") from None
    # how a sample of the four begins, whatever follows
    begins = tuple(f"{name}{end}" for name in names.every for end in "{ \t")
    counters: dict[str, int] = {}
    labelled: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(begins):
            continue
        sample = _sample(server, names, line)
        # the format has each sample once, and a sum would count it twice
        if sample is None or sample[0] in labelled:
            shown = server.shown(line[:80])
            raise fault(f"has a line {number} that is no counter, or that repeats one: {shown}")
        labelled.add(sample[0])
        counters[sample[1]] = counters.get(sample[1], 0) + sample[2]
    positions = _count_positions(counters, names)
    if positions > MAX_STEPS or {f"{names.accepted}[{n}]" for n in range(positions)} - counters.keys():
        raise fault(f"counts by positions that are not 0, 1, 2 ... up to {MAX_STEPS - 1}")
    return counters


def _sample(server: Server, names: CounterNames, line: str) -> tuple[str, str, int] | None:
    """Name with labels, key and value of a sample; None where it is no count. Raises for a rounded one."""
    match = SAMPLE.fullmatch(line)
    if match is None:
        return None
    key, labels, text = match[1], match[2] or "", match[3]
    if names.is_rounded and "e" in text.lower():
        raise UnreadableError(
            f"{server}{PATH} has {key} {server.shown(text)}: {names.title} rounds large counts;"
            " restart the server"
        )
    if key == names.accepted:
        position = POSITION.search(labels)
        key += f"[{int(position[1])}]" if position else ""
    value = float(text) if COUNT.fullmatch(text) and key != names.accepted else -1.0
    return (f"{match[1]}{labels}", key, int(value)) if (0 <= value <= MOST and value.is_integer()) else None


def _count_positions(counters: Counters, names: CounterNames) -> int:
    return sum(key.startswith(f"{names.accepted}[") for key in counters)


def count_requests(server: Server, names: CounterNames, send: Send, most: int) -> Counted:
    """What `send` sent, and the growth of the counters over it, with at most `most` drafts.

    Raises UnreadableError for counters that contradict themselves, RefusedError for other traffic.
    """
    before = _read_counters(server, names)
    if before.get(names.running, 0) > 0:
        raise RefusedError(
            f"{server} is serving other requests, whose drafts would be counted as ours; run against a"
            " server without traffic"
        )
    begin = time.perf_counter()
    answers = send()
    seconds = time.perf_counter() - begin
    tokens = sum(count for count, _, _ in answers)
    after = _read_after(server, names, before.get(names.generated, 0), tokens)
    positions = _count_positions(after, names)
    keys = [names.drafts, *(f"{names.accepted}[{position}]" for position in range(positions))]
    growth = [after.get(key, 0) - before.get(key, 0) for key in keys]
    is_possible = all(0 <= count <= bound for count, bound in zip(growth, [most, *growth], strict=False))
    # llama.cpp counts no position before its first draft
    if not is_possible or _count_positions(before, names) not in (0, positions):
        raise UnreadableError(
            f"{server}/metrics contradicts itself: our requests grew {names.drafts} by {growth[0]} and"
            f" {names.accepted} by {growth[1:]}, of which none may exceed the one before, or {most};"
            " see the server's log, and run against one without traffic"
        )
    return Counted(answers, seconds, growth[0], tuple(growth[1:]))


def _read_after(server: Server, names: CounterNames, generated: int, tokens: int) -> Counters:
    deadline = time.monotonic() + METRICS_TIMEOUT
    while True:
        after = _read_counters(server, names)
        grown = after.get(names.generated, 0) - generated
        if grown == tokens:
            return after
        if grown > tokens:
            raise RefusedError(
                f"{server} generated {grown} tokens while ours were {tokens}; other traffic shows in its"
                " counters: run against a server of your own"
            )
        if time.monotonic() > deadline:
            raise UnreadableError(
                f"{server}/metrics shows {grown} of the {tokens} tokens that the server sent; its counters"
                " stand still: see the server's log"
            )
        time.sleep(METRICS_INTERVAL)


START = "start it with --model-draft DRAFTER.gguf --spec-type draft-eagle3 --metrics"
HISTOGRAM = "spec_correct_drafts_histogram"


class _Engine(Struct, frozen=True):
    """What answers at the URL: how it counts what is sent (`most` drafts a request), and what it says of
    itself. `extra` are more keys of each request, `drafter` its name as the server has it.
    """

    version: str
    proves: str
    count: Callable[[Send, int], Counted]
    resolved: Mapping[str, Any]
    extra: Mapping[str, Any] = {}
    drafter: str = ""


def run_server(job: EngineJob, url: str) -> EngineRun:
    """Run `job` on the server at `url`, one prompt after the other.

    Raises UsageError for no URL, UnreadableError where it does not answer, answers nonsense or runs no
    speculative decoding, RefusedError where its counts would not be those of this drafter.
    """
    check_token_ids(job)
    server = open_server(url, job.timeout)
    model, engine = _recognise(server)
    results, seconds = list[PromptResult](), 0.0
    for index, prompt in enumerate(job.prompts):
        counted = _counted(server, model, engine, job, [index])
        seconds += counted.seconds
        text = answer_text(counted.answers[0][2])
        tokens = (0,) * counted.tokens
        results.append(PromptResult(prompt.set, counted.drafts, counted.accepted, tokens, text=text))
        if job.on_progress:
            job.on_progress(Progress("measuring", index + 1, len(job.prompts), "prompts"))
    if not any(result.drafts for result in results) and engine.version.startswith("llama.cpp"):
        raise UnreadableError(f"{server} drafted nothing; {START}")
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
        differences=other_drafter(job.folder, engine.drafter, server.shown(engine.drafter)),
    )


def _counted(
    server: Server, model: str, engine: _Engine, job: EngineJob, indices: Sequence[int], concurrency: int = 1
) -> Counted:
    """The prompts of these indices, with `concurrency` requests in flight until the last ones."""

    def send(index: int) -> Completion:
        return complete(server, model, job.prompts[index], job, engine.extra)

    def send_all() -> list[Completion]:
        if concurrency == 1:
            return [*map(send, indices)]
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(send, indices))

    return engine.count(send_all, most_tokens(job) * len(indices))


def _recognise(server: Server) -> tuple[str, _Engine]:
    model = str(get(server, "/v1/models", "models")["data"][0]["id"])
    for path in ("/server_info", "/get_server_info"):
        info = get_optional(server, path, "server_info")
        if "speculative_algorithm" in info:
            return model, _sglang(server, model, info)
    props = get_optional(server, "/props", "props")
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
    if LLAMACPP.drafts not in _read_counters(server, LLAMACPP):
        raise UnreadableError(
            f"{server}/metrics has no {LLAMACPP.drafts}; llama.cpp of llama-cpp-python 0.3.36 counts drafts:"
            " run that or a later one"
        )
    return _Engine(
        version=f"llama.cpp {server.shown(props['build_info'])}",
        proves=(
            "what the server at this URL does, in the rounds that drafted (with --spec-draft-p-min some do"
            " not); which drafter that is, and whether acceptance is made up (--spec-synth-len), it does not"
            " say"
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
            f"{server}/server_info does not say how many steps it drafts (speculative_num_steps); start it"
            " with --speculative-num-steps"
        )
    drafter = str(info.get("speculative_draft_model_path") or "not said")
    return _Engine(
        version=f"SGLang {server.shown(info.get('version') or 'of unknown version')}",
        proves=(
            "what the server at this URL does; acceptance simulated by its environment"
            " (SGLANG_SIMULATE_ACC_LEN) could not be seen from here"
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
    )


def _count_rounds(server: Server, steps: int, send: Send, most: int) -> Counted:
    """What `send` sent, and the rounds that its answers state, of at most `most` in all."""
    begin = time.perf_counter()
    answers = send()
    seconds = time.perf_counter() - begin
    drafts, accepted = 0, [0] * steps
    for _, path, answer in answers:
        hold(server, path, "rounds", answer)
        histogram: list[int] = answer["sglext"]["spec_tokens_details"][HISTOGRAM]
        rounds = sum(histogram)
        if rounds > most // len(answers) or any(histogram[steps + 1 :]):
            raise UnreadableError(
                f"{server} says that {rounds} rounds accepted up to {len(histogram) - 1} draft tokens"
                f" ({HISTOGRAM}); at most {most // len(answers)} rounds of {steps} were possible: see the"
                " server's log"
            )
        drafts += rounds
        accepted = [count + sum(histogram[place + 1 :]) for place, count in enumerate(accepted)]
    return Counted(answers, seconds, drafts, tuple(accepted))


def _vllm(server: Server, model: str) -> _Engine:
    counters = _read_counters(server, VLLM)
    if VLLM.drafts not in counters:
        raise UnreadableError(
            f"{server}/metrics has no {VLLM.drafts}; the server runs no speculative decoding, or is neither"
            " vLLM, SGLang nor llama.cpp: start it with --speculative-config"
        )
    if _count_positions(counters, VLLM) == 0:
        raise UnreadableError(
            f"{server}/metrics does not count by position ({VLLM.accepted}); a newer vLLM does"
        )
    # what it shows in development mode
    info = get_optional(server, "/server_info?config_format=json", "server_info").get("vllm_config")
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    config, is_shown = config or {}, bool(config)
    if config.get("rejection_sample_method") == "synthetic":
        raise RefusedError(
            f"{server} runs with rejection_sample_method: synthetic, which invents acceptance; start it"
            " without"
        )
    drafter = str(config.get("model") or "not said")
    version = get_optional(server, "/version", "version").get("version")
    # releases without the key draft greedily
    method = config.get("draft_sample_method") or ("greedy" if is_shown else "not known")
    unknown = "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"
    return _Engine(
        version=f"vLLM {server.shown(version or 'of unknown version')}",
        proves=f"what the server at this URL does{'' if is_shown else unknown}",
        count=partial(count_requests, server, VLLM),
        resolved={
            "model": server.shown(model),
            "drafter": server.shown(drafter),
            "draft_sample_method": server.shown(method),
        },
        drafter=drafter,
    )


def measure_server(job: EngineJob, url: str, k: int, concurrencies: Sequence[int]) -> Speed:
    """Time the server at `url`, which drafts `k` tokens, on the prompts of `job`. Raises as `run_server`."""
    server, job = open_server(url, job.timeout), replace(job, ignores_eos=True)
    report_step(job.on_progress, "timing the server")
    model, engine = _recognise(server)

    def run(concurrency: int, indices: Sequence[int]) -> Batch:
        counted = _counted(server, model, engine, job, indices, concurrency)
        return Batch(counted.tokens, counted.seconds, counted.drafts, sum(counted.accepted))

    timings = time_repeats(run, concurrencies, len(job.prompts))
    repeats = min(len(timing.batches) for timing in timings)
    how = (
        f"this server over HTTP, warm, so many requests in flight, each of {job.max_tokens} new tokens where"
        " it takes ignore_eos; prompts come again, and their prefixes may be in its cache;"
        f" {repeats} repeats; {NO_RATIO}"
    )
    return Speed(compare_timings(k, timings, None), "the server's", "", job.max_tokens, repeats, how)
