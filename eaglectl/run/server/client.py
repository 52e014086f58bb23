"""Requests to a server that the user named: bounded in time and in size, and to that server alone.

The URL alone decides where a request goes. Proxies and netrc of the environment are not read: they would send
the URL's password to another host. Only what says which certificates to trust is (SSL_CERT_FILE,
SSL_CERT_DIR). Redirects are followed where scheme, host and port stay. The transport is used without httpx's
client, whose log shows whole URLs.

Above that the OpenAI-compatible API of a server: its model, and completions. Its answers in JSON are read
strictly and held to answers.schema.json before anything uses them.
"""

import base64
import json
import re
import ssl
from collections.abc import Mapping
from functools import cache
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

from eaglectl.errors import UnreadableError, UsageError
from eaglectl.files.header import parse_json
from eaglectl.run.job import EngineJob
from eaglectl.run.prompts import GENERATION_PROMPT, Prompt
from eaglectl.run.tokens import chat_messages, has_chat_template
from eaglectl.text import escaped, masked

# no page of a server that was read for this is larger than some hundred kilobytes
MAX_BODY = 8 << 20
# seconds for a page, which no model has to run for
PAGE_TIMEOUT = 30.0
MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
# those after which a request with a body is sent again as it was
KEEPING = (307, 308)
# characters of a server's text that a message repeats
MAX_TEXT = 300
SHOWN_BYTES = 4 * MAX_TEXT
# shorter values of a query are no secrets, and would be masked in words
SECRET_LENGTH = 8
BREAKS = re.compile(r"(?:\\[nrt]|\s)+")
CHECK = "check the URL of --run-in, and the server's log"


class _AnswerError(Exception):
    """Why an answer is not read; the text goes after the URL."""


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
        status, answer = self._answer(path, body)
        if status == 200:
            return answer
        if may_lack and 400 <= status < 500:
            return b""
        text = self.shown(answer.decode("utf-8", "replace")).strip()
        raise UnreadableError(f"{self}{path} answered {status}{f' ({text})' if text else ''}; {CHECK}")

    def shown(self, text: str) -> str:
        """A text of the server as messages and reports may show it: short, and without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        # a line break in a URL would end it
        text = BREAKS.sub(" ", masked(escaped(text)))
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

    def _answer(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Status and body; of an answer that is no success, the beginning of its body."""
        seconds = self.timeout if body is not None else min(self.timeout, PAGE_TIMEOUT)
        try:
            # a loop of its own, as the caller may run in one; an interrupt here cancels what runs there
            with start_blocking_portal() as portal:
                return portal.call(_fetch, self, path, body, seconds)
        except TimeoutError:
            fault = (
                f"did not finish its answer within {seconds:g} s; see whether it hangs, or raise --timeout"
            )
        except _AnswerError as error:
            fault = f"{error}; {CHECK}"
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            fault = f"cannot be reached ({self.shown(str(error))}); start the server, or {CHECK}"
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            # ValueError: what the HTTP parser itself trips over
            fault = f"broke its answer off, or it is not HTTP ({type(error).__name__}); {CHECK}"
        raise UnreadableError(f"{self}{path} {fault}")


def open_server(url: str, timeout: float) -> Server:
    """The server at `url`, which may hold a name and a password, or a query for every request.

    `timeout` is in seconds, for each request. Raises UsageError.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    is_url = parsed.scheme in ("http", "https") and parsed.host
    if not is_url or (parsed.port or 1) not in range(1, 1 << 16):
        # not repeated: what cannot be parsed cannot be masked
        raise UsageError("--run-in: this is no URL of a server; write it as http://HOST:PORT")
    # a password with a bare / or ? ends the host before it
    if b"@" in parsed.raw_path:
        raise UsageError(
            "--run-in: the URL has an @ after its host; write / ? # @ in a name or a password as %2F %3F %23"
            " %40"
        )
    headers = {"Accept": "application/json, text/plain", "Accept-Encoding": "identity"}
    secrets = [value for _, value in parsed.params.multi_items() if len(value) >= SECRET_LENGTH]
    if parsed.userinfo:
        pair = f"{parsed.username}:{parsed.password}"
        token = base64.b64encode(pair.encode()).decode()
        headers["Authorization"] = f"Basic {token}"
        userinfo = parsed.userinfo.decode("ascii", "replace")
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
    """The answer at `path`, after redirects on the server itself. Raises TimeoutError after `seconds`."""
    # the path goes after the server's own, its query before the server's own
    base, _, own = server.url.raw_path.partition(b"?")
    page, _, query = path.encode().partition(b"?")
    both = b"&".join(part for part in (query, own) if part)
    url = server.url.copy_with(raw_path=base.rstrip(b"/") + page + (b"?" + both if both else b""))
    method, headers = "GET", dict(server.headers)
    if body is not None:
        method, headers["Content-Type"] = "POST", "application/json"
    with anyio.fail_after(seconds):
        async with httpx2.AsyncHTTPTransport(verify=server.context) as transport:
            for _ in range(MAX_REDIRECTS + 1):
                request = httpx2.Request(method, url, headers=headers, content=body)
                response = await transport.handle_async_request(request)
                try:
                    if response.status_code not in REDIRECTS:
                        return response.status_code, await _body(response)
                    url = _redirect(server, url, response, has_body=body is not None)
                finally:
                    await response.aclose()
    raise _AnswerError(f"redirects more than {MAX_REDIRECTS} times")


async def _body(response: httpx2.Response) -> bytes:
    """The body, whole for 200 and its beginning otherwise."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise _AnswerError("sends its answer compressed, although it was asked not to")
    body, is_success = bytearray(), response.status_code == 200
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_BODY and is_success:
            raise _AnswerError(f"sends more than {MAX_BODY >> 20} MiB")
        if len(body) > SHOWN_BYTES and not is_success:
            break
    return bytes(body) if is_success else bytes(body[:SHOWN_BYTES])


def _redirect(server: Server, url: httpx2.URL, response: httpx2.Response, *, has_body: bool) -> httpx2.URL:
    status = response.status_code
    try:
        target = url.join(response.headers["location"])
    except (KeyError, httpx2.InvalidURL, ValueError):
        raise _AnswerError(f"redirects ({status}) to no URL") from None
    if (target.scheme, target.host, target.port) != (url.scheme, url.host, url.port):
        place = server.shown(f"{target.scheme}://{target.netloc.decode('ascii', 'replace')}")
        raise _AnswerError(
            f"redirects ({status}) to another server, {place}, to which nothing is sent; if that is yours,"
            " give it to --run-in"
        )
    if has_body and status not in KEEPING:
        raise _AnswerError(f"redirects ({status}) a request that has a body")
    return target.copy_with(username=None, password=None, fragment=None)


# draft tokens in a round; no EAGLE drafter makes as many
MAX_STEPS = 64
SCHEMA = "answers.schema.json"
# 20.0 is an integer to JSON Schema, and no count here
CHECKER = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
# the number of new tokens, the path, and the answer
Completion = tuple[int, str, Mapping[str, Any]]
Strict: Any = extend(Draft202012Validator, type_checker=CHECKER)  # type: ignore[no-untyped-call]


def get(server: Server, path: str, kind: str, body: bytes | None = None) -> Mapping[str, Any]:
    """The JSON object at `path`, an answer of `kind` (a definition of the schema). Raises UnreadableError."""
    return parse_answer(server, path, kind, server.read(path, body))


def get_optional(server: Server, path: str, kind: str) -> Mapping[str, Any]:
    """The JSON object at `path`; empty where the server has none there. Raises UnreadableError."""
    raw = server.read(path, may_lack=True)
    return parse_answer(server, path, kind, raw) if raw else {}


def parse_answer(server: Server, path: str, kind: str, raw: bytes) -> Mapping[str, Any]:
    """The answer of `kind` that `raw` is. Raises UnreadableError, which names the first fault."""
    place, advice = f"{server}{path}", _schema()["$defs"][kind]["title"]
    try:
        value: Mapping[str, Any] = parse_json(place, raw)
    except UnreadableError as error:
        raise UnreadableError(f"{server.shown(str(error))}; {advice}") from None
    hold(server, path, kind, value)
    return value


def hold(server: Server, path: str, kind: str, value: object) -> None:
    """Raise UnreadableError where `value` is no answer of `kind`."""
    try:
        error = next(iter(_validator(kind).iter_errors(value)), None)
        fault = error and _fault(server, error)
    except RecursionError:
        fault = "is nested too deeply"
    if fault:
        raise UnreadableError(f"{server}{path} {fault}; {_schema()['$defs'][kind]['title']}")


def _fault(server: Server, error: Any) -> str:
    """What is wrong, and where, in words that hold little of the answer."""
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
        resources.files(__package__).joinpath(SCHEMA).read_bytes(), type=dict[str, Any]
    )


@cache
def _validator(kind: str) -> Any:
    return Strict({**_schema(), "$ref": f"#/$defs/{kind}"})


def complete(
    server: Server, model: str, prompt: Prompt, job: EngineJob, extra: Mapping[str, Any]
) -> Completion:
    """The number of new tokens for `prompt`, the path, and the answer; `extra` are more keys of the request.

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
        **extra,
    }
    answer = get(server, path, "completion", json.dumps(request).encode())
    tokens: int = answer["usage"]["completion_tokens"]
    if tokens > most_tokens(job):
        raise UnreadableError(
            f"{server}{path} says that it made {tokens} tokens (usage.completion_tokens), of"
            f" {job.max_tokens} that were requested; its figures are not this request's: see the server's log"
        )
    return tokens, path, answer


def answer_text(answer: Mapping[str, Any]) -> str:
    """The text of a completion, or of a chat's message; "" where the server sent none."""
    match answer.get("choices"):
        case [{"text": str(text)}, *_] | [{"message": {"content": str(text)}}, *_]:
            return text
    return ""


def most_tokens(job: EngineJob) -> int:
    """The most new tokens of a request, and the most rounds: a server may finish the last round."""
    return job.max_tokens + MAX_STEPS


def other_drafter(folder: Path, drafter: str, shown: str) -> tuple[str, ...]:
    """A difference where the server's drafter is a folder of this machine and not the one under test."""
    served = Path(drafter)
    try:
        if not served.is_dir() or served.resolve() == folder.resolve():
            return ()
    except (OSError, ValueError):  # a name that no folder of this machine can have
        return ()
    return (f"the server drafts with {shown}, and the drafter under test is {folder}",)
