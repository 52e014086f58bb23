"""A running server as an engine: vLLM, SGLang or llama.cpp, whichever answers; and its tokens a second.

The URL alone decides where a request goes. Proxies and netrc of the environment are not read: they would send
the URL's password to another host. Only what says which certificates to trust is (SSL_CERT_FILE,
SSL_CERT_DIR). Redirects are not followed. The transport is used without httpx's client, whose log shows whole
URLs.

Answers in JSON are read strictly and held to answers.schema.json before anything uses them. vLLM and
llama.cpp are measured by their counters in /metrics before and after each prompt, SGLang by the counts of
rounds in each answer. Prometheus' text format is read strictly for the four counters that are used.
"""

import base64
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
from anyio.from_thread import start_blocking_portal
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from msgspec import Struct
from msgspec.structs import replace

from eaglectl.errors import RefusedError, UnreadableError, check
from eaglectl.files.files import is_folder
from eaglectl.files.header import parse_json
from eaglectl.progress import Progress, report_step
from eaglectl.run.job import EngineJob, EngineRun, chat_messages, check_token_ids, has_chat_template
from eaglectl.run.measurement import Batch, PromptResult, Speed, compare_timings, time_repeats
from eaglectl.run.prompts import GENERATION_PROMPT, Prompt
from eaglectl.text import escaped, masked

# no page of a server that was read for this is larger than some hundred kilobytes
MAX_BODY = 8 << 20
# seconds for a page, which no model has to run for
PAGE_TIMEOUT = 30.0
# characters of a server's text that a message repeats
MAX_TEXT = 300
SHOWN_BYTES = 4 * MAX_TEXT
BREAKS = re.compile(r"(?:\\[nrt]|\s)+")
CHECK = "check the URL of --run-in, and the server's log"


class Server(Struct, frozen=True):
    """A server: its URL without name and password, which are in `headers`, and seconds for a completion.

    `label` is the URL as messages show it, `secrets` are texts that none may show.
    """

    url: httpx2.URL
    headers: Mapping[str, str]
    context: ssl.SSLContext
    timeout: float
    label: str
    secrets: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.label

    def read(self, path: str, body: bytes | None = None, *, may_lack: bool = False) -> bytes:
        """The bytes at `path`, by POST where there is a body. Raises UnreadableError.

        With `may_lack`, none where the server says that it has nothing there (4xx).
        """
        seconds = self.timeout if body is not None else min(self.timeout, PAGE_TIMEOUT)
        try:
            # a loop of its own, as the caller may run in one; an interrupt here cancels what runs there
            with start_blocking_portal() as portal:
                status, answer = portal.call(_fetch, self, path, body, seconds)
            if status == 200:
                return answer
            if may_lack and 400 <= status < 500:
                return b""
            text = self.shown(answer.decode("utf-8", "replace")).strip()
            fault = f"answered {status}{f' ({text})' if text else ''}; {CHECK}"
        except TimeoutError:
            fault = (
                f"did not finish its answer within {seconds:g} s; see whether it hangs, or raise --timeout"
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            fault = f"cannot be reached ({self.shown(str(error))}); start the server, or {CHECK}"
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            # ValueError: what the HTTP parser itself trips over
            fault = f"broke its answer off, or it is not HTTP ({type(error).__name__}); {CHECK}"
        raise UnreadableError(f"{self}{path} {fault}")

    def shown(self, text: str) -> str:
        """A text of the server as messages and reports may show it: short, and without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        # a line break in a URL would end it
        text = BREAKS.sub(" ", masked(escaped(text)))
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def open_server(url: str, timeout: float) -> Server:
    """The server at `url`, which may hold a name and a password, or a query for every request.

    `timeout` is in seconds, for each request. Raises UsageError.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    is_url = parsed.scheme in ("http", "https") and parsed.host
    check(
        (
            # not repeated: what cannot be parsed cannot be masked
            not is_url or (parsed.port or 1) not in range(1, 1 << 16),
            "--run-in: this is no URL of a server; write it as http://HOST:PORT",
        ),
        (
            b"@" in parsed.raw_path,  # a password with a bare / or ? ends the host before it
            "--run-in: the URL has an @ after its host; write / ? # @ in a name or a password as %2F %3F %23"
            " %40",
        ),
    )
    headers = {"Accept": "application/json, text/plain", "Accept-Encoding": "identity"}
    # shorter values of a query are no secrets, and would be masked in words
    secrets = [value for _, value in parsed.params.multi_items() if len(value) >= 8]
    if parsed.userinfo:
        pair, userinfo = f"{parsed.username}:{parsed.password}", parsed.userinfo.decode("ascii", "replace")
        token = base64.b64encode(pair.encode()).decode()
        headers["Authorization"] = f"Basic {token}"
        secrets += [token, pair, userinfo, parsed.password, userinfo.partition(":")[2]]
    bare = parsed.copy_with(username=None, password=None, fragment=None)
    host = bare.netloc.decode("ascii", "replace")
    return Server(
        url=bare,
        headers=headers,
        # no redirect leaves http, and a context that trusts nobody takes no time
        context=httpx2.create_ssl_context()
        if bare.scheme == "https"
        else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        timeout=timeout,
        label=f"{bare.scheme}://{'***@' if parsed.userinfo else ''}{host}{bare.path.rstrip('/')}",
        secrets=tuple(secret for secret in dict.fromkeys(secrets) if secret),
    )


async def _fetch(server: Server, path: str, body: bytes | None, seconds: float) -> tuple[int, bytes]:
    """The answer at `path`. Raises TimeoutError after `seconds`, and UnreadableError for a redirect."""
    # the path goes after the server's own, its query before the server's own
    (base, _, own), (page, _, query) = server.url.raw_path.partition(b"?"), path.encode().partition(b"?")
    both = b"&".join(filter(None, (query, own)))
    url = server.url.copy_with(raw_path=base.rstrip(b"/") + page + (b"?" + both if both else b""))
    method, headers = "GET", dict(server.headers)
    if body is not None:
        method, headers["Content-Type"] = "POST", "application/json"
    with anyio.fail_after(seconds):
        async with httpx2.AsyncHTTPTransport(verify=server.context) as transport:
            request = httpx2.Request(method, url, headers=headers, content=body)
            response = await transport.handle_async_request(request)
            try:
                if response.status_code in (301, 302, 303, 307, 308):
                    place = server.shown(response.headers.get("location", "nowhere"))
                    raise UnreadableError(
                        f"{server}{path} redirects ({response.status_code}) to {place}, to which nothing is"
                        " sent; if that is yours, give the URL where it answers to --run-in"
                    )
                return response.status_code, await _body(f"{server}{path}", response)
            finally:
                await response.aclose()


async def _body(place: str, response: httpx2.Response) -> bytes:
    """The body, whole for 200 and its beginning otherwise."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnreadableError(f"{place} sends its answer compressed, although it was asked not to; {CHECK}")
    body, is_success = bytearray(), response.status_code == 200
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_BODY and is_success:
            raise UnreadableError(f"{place} sends more than {MAX_BODY >> 20} MiB; {CHECK}")
        if len(body) > SHOWN_BYTES and not is_success:
            break
    return bytes(body) if is_success else bytes(body[:SHOWN_BYTES])


# draft tokens in a round; no EAGLE drafter makes as many. A server may finish the last round of an answer
MAX_STEPS = 64
# 20.0 is an integer to JSON Schema, and no count here
CHECKER = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
# the number of new tokens, and the answer
Completion = tuple[int, Mapping[str, Any]]
Strict: Any = extend(Draft202012Validator, type_checker=CHECKER)  # type: ignore[no-untyped-call]


def get(
    server: Server, path: str, kind: str, body: bytes | None = None, *, may_lack: bool = False
) -> Mapping[str, Any]:
    """The JSON object at `path`, an answer of `kind` (a definition of the schema). Raises UnreadableError.

    With `may_lack`, empty where the server has none there.
    """
    raw = server.read(path, body, may_lack=may_lack)
    return parse_answer(server, path, kind, raw) if raw or not may_lack else {}


def parse_answer(server: Server, path: str, kind: str, raw: bytes) -> Mapping[str, Any]:
    """The answer of `kind` that `raw` is. Raises UnreadableError, which names the first fault."""
    place, advice = f"{server}{path}", _schema()["$defs"][kind]["title"]
    try:
        value: Mapping[str, Any] = parse_json(place, raw)
    except UnreadableError as error:
        raise UnreadableError(f"{server.shown(str(error))}; {advice}") from None
    try:
        invalid = next(iter(Strict({**_schema(), "$ref": f"#/$defs/{kind}"}).iter_errors(value)), None)
        fault = invalid and _fault(server, invalid)
    except RecursionError:
        fault = "is nested too deeply"
    if fault:
        raise UnreadableError(f"{place} {fault}; {advice}")
    return value


def _fault(server: Server, error: Any) -> str:
    names, value = [str(name) for name in error.absolute_path], error.instance
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in value)
        return f"has no {'.'.join([*names, missing])}"
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    else:
        text = json.dumps(value)
        shown = server.shown(text if len(text) <= 40 else f"{text[:40]}...")
    what = f"has {'.'.join(names)} = {shown}" if names else f"answered with {shown}"
    return f"{what}, where {error.schema['description']} was expected"


@cache
def _schema() -> Mapping[str, Any]:
    return msgspec.json.decode(
        resources.files(__package__).joinpath("answers.schema.json").read_bytes(), type=dict[str, Any]
    )


def complete(server: Server, model: str, prompt: Prompt, job: EngineJob, engine: "_Engine") -> Completion:
    """The number of new tokens for `prompt`, and the answer.

    Raises UnreadableError where the answer does not say how many, or says more than were requested.
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
            f"{server}{path} says that it made {tokens} tokens (usage.completion_tokens), of"
            f" {job.max_tokens} that were requested; its figures are not this request's: see the server's log"
        )
    return tokens, answer


def _other_drafter(folder: Path, drafter: str, shown: str) -> tuple[str, ...]:
    # of llama.cpp no place is known
    if not drafter or not is_folder(Path(drafter)) or Path(drafter).resolve() == folder.resolve():
        return ()
    return (f"the server drafts with {shown}, and the drafter under test is {folder}",)


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
        return sum(count for count, _ in self.answers)


def _read_counters(server: Server, names: CounterNames) -> Counters:
    return parse_counters(server, server.read("/metrics"), names)


def parse_counters(server: Server, raw: bytes, names: CounterNames = VLLM) -> Counters:
    """Values of a server's counters, summed over labels; those with a position are named "metric[position]".

    Raises UnreadableError for a sample that cannot be read, or positions with gaps.
    """

    def fault(text: str) -> UnreadableError:
        return UnreadableError(
            f"{server}/metrics {text}; {names.title}'s /metrics was expected: check the URL of --run-in"
        )

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fault(f"is not UTF-8 text (byte {error.start})") from None
    # how a sample of the four begins, whatever follows
    counted = names.drafts, names.accepted, names.generated, names.running
    begins = tuple(f"{name}{end}" for name in counted for end in "{ \t")
    counters: dict[str, int] = {}
    labelled: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(begins):
            continue
        sample = _sample(server, names, line)
        # the format has each sample once, and a sum would count it twice
        if sample is None or sample[0] in labelled:
            raise fault(
                f"has a line {number} that is no counter, or that repeats one: {server.shown(line[:80])}"
            )
        labelled.add(sample[0])
        counters[sample[1]] = counters.get(sample[1], 0) + sample[2]
    positions = _count_positions(counters, names)
    if positions > MAX_STEPS or {f"{names.accepted}[{n}]" for n in range(positions)} - counters.keys():
        raise fault(f"counts by positions that are not 0, 1, 2 ... up to {MAX_STEPS - 1}")
    return counters


def _sample(server: Server, names: CounterNames, line: str) -> tuple[str, str, int] | None:
    match = SAMPLE.fullmatch(line)
    if match is None:
        return None
    key, labels, text = match[1], match[2] or "", match[3]
    if names.is_rounded and "e" in text.lower():
        raise UnreadableError(
            f"{server}/metrics has {key} {server.shown(text)}: {names.title} rounds large counts;"
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
    after = _read_after(server, names, before.get(names.generated, 0), sum(count for count, _ in answers))
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
    deadline = time.monotonic() + 5.0  # until a finished request shows in its counters
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
        time.sleep(0.05)


START = "start it with --model-draft DRAFTER.gguf --spec-type draft-eagle3 --metrics"
HISTOGRAM = "spec_correct_drafts_histogram"


class _Engine(Struct, frozen=True):
    """What answers at the URL: how it counts what is sent (`most` drafts a request), and what it says of
    itself. `extra` are more keys of each request, `answers` the kind of their answers; `drafter` is its name
    as the server has it.
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
        differences=_other_drafter(job.folder, engine.drafter, server.shown(engine.drafter)),
    )


def _counted(
    server: Server, model: str, engine: _Engine, job: EngineJob, indices: Sequence[int], concurrency: int = 1
) -> Counted:
    def send(index: int) -> Completion:
        return complete(server, model, job.prompts[index], job, engine)

    def send_all() -> list[Completion]:
        if concurrency == 1:
            return [*map(send, indices)]
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(send, indices))

    return engine.count(send_all, (job.max_tokens + MAX_STEPS) * len(indices))


def _recognise(server: Server) -> tuple[str, _Engine]:
    model = str(get(server, "/v1/models", "models")["data"][0]["id"])
    for path in ("/server_info", "/get_server_info"):
        info = get(server, path, "server_info", may_lack=True)
        if "speculative_algorithm" in info:
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
        answers="rounds",
    )


def _count_rounds(server: Server, steps: int, send: Send, most: int) -> Counted:
    begin = time.perf_counter()
    answers = send()
    seconds = time.perf_counter() - begin
    drafts, accepted = 0, [0] * steps
    for _, answer in answers:
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
    check(
        (
            VLLM.drafts not in counters,
            f"{server}/metrics has no {VLLM.drafts}; the server runs no speculative decoding, or is neither"
            " vLLM, SGLang nor llama.cpp: start it with --speculative-config",
        ),
        (
            _count_positions(counters, VLLM) == 0,
            f"{server}/metrics does not count by position ({VLLM.accepted}); a newer vLLM does",
        ),
        error=UnreadableError,
    )
    # what it shows in development mode
    info = get(server, "/server_info?config_format=json", "server_info", may_lack=True).get("vllm_config")
    config = info.get("speculative_config") if isinstance(info, Mapping) else None
    config, is_shown = config or {}, bool(config)
    if config.get("rejection_sample_method") == "synthetic":
        raise RefusedError(
            f"{server} runs with rejection_sample_method: synthetic, which invents acceptance; start it"
            " without"
        )
    drafter = str(config.get("model") or "not said")
    version = get(server, "/version", "version", may_lack=True).get("version")
    # releases without the key draft greedily
    method = config.get("draft_sample_method") or ("greedy" if is_shown else "not known")
    return _Engine(
        version=f"vLLM {server.shown(version or 'of unknown version')}",
        proves="what the server at this URL does"
        + ("" if is_shown else "; which drafter that is it says only with VLLM_SERVER_DEV_MODE=1"),
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
        f" {repeats} repeats; a server has one configuration, so there is no ratio: --run-in vllm on such a"
        " card times vLLM with the drafter and without"
    )
    return Speed(compare_timings(k, timings, None), "the server's", "", job.max_tokens, repeats, how)
