"""Requests to a running server, and its answers in JSON, read strictly.

Only the URL decides where a request goes. Proxies and netrc of the environment are not used: they would send
the URL's password to another host. Of the environment, only the trusted certificates (SSL_CERT_FILE,
SSL_CERT_DIR) and the server's bearer token are read. Redirects are not followed. The transport is used
without httpx's client, whose log shows whole URLs. Answers are validated against answers.schema.json first.
"""

import base64
import json
import os
import re
import ssl
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import anyio
import httpx2
import msgspec
from anyio.from_thread import start_blocking_portal
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from msgspec import Struct

from eaglectl.errors import UnreadableError, check
from eaglectl.files.header import parse_json
from eaglectl.text import escaped, masked

# the pages of servers that are read here have at most some hundred kilobytes
MAX_BODY = 8 << 20
# seconds for a page, for which no model runs; a busy server with few cores has taken more than 30
PAGE_TIMEOUT = 120.0
# characters of a server's text that a message repeats
MAX_TEXT = 300
SHOWN_BYTES = 4 * MAX_TEXT
# of the environment: the bearer token of a server, ours before vLLM's own
TOKENS = ("EAGLECTL_SERVER_TOKEN", "VLLM_API_KEY")
BREAKS = re.compile(r"(?:\\[nrt]|\s)+")
CHECK = "check this URL, and the server's log"


class Server(Struct, frozen=True):
    """A server: its URL without name and password, which are in `headers`, and seconds for a completion.

    `label` is the URL for messages, `secrets` are texts that no message may show.
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
        """Read the bytes at `path`, by POST if there is a body. Raises UnreadableError.

        With `may_lack`, return b"" if the server has no such page (4xx).
        """
        seconds = self.timeout if body is not None else min(self.timeout, PAGE_TIMEOUT)
        try:
            # a separate event loop, as the caller may run in one; an interrupt cancels the request
            with start_blocking_portal() as portal:
                status, answer = portal.call(_fetch, self, path, body, seconds)
            if status == 200:
                return answer
            if may_lack and 400 <= status < 500:
                return b""
            text = self.shown(answer.decode("utf-8", "replace")).strip()
            advice = f"set {TOKENS[0]} to its API key" if status == 401 else CHECK
            fault = f"answered {status}{f' ({text})' if text else ''}; {advice}"
        except TimeoutError:
            advice = "raise --timeout" if seconds == self.timeout else "try again when it is less busy"
            fault = f"did not finish its answer within {seconds:g} s; check whether it hangs, or {advice}"
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            fault = f"cannot be reached ({self.shown(str(error))}); start the server, or {CHECK}"
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            # ValueError: an error of the HTTP parser
            fault = f"sent an incomplete answer, or one that is not HTTP ({type(error).__name__}); {CHECK}"
        raise UnreadableError(f"{self}{path} {fault}")

    def shown(self, text: str) -> str:
        """Return a text of the server for messages and reports: short, and without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        # a line break in a URL would end it
        text = BREAKS.sub(" ", masked(escaped(text)))
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def open_server(url: str, timeout: float) -> Server:
    """Return the server at `url`, which may hold a name and a password, or a query for every request.

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
            "--run-in: this is not a server's URL; write it as http://HOST:PORT",
            ("--run-in",),
        ),
        (
            b"@" in parsed.raw_path,  # a password with a bare / or ? ends the host before it
            "--run-in: the URL has an @ after its host; write / ? # @ in a name or a password as %2F %3F %23"
            " %40",
            ("--run-in",),
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
    elif bearer := _bearer_token():
        headers["Authorization"] = f"Bearer {bearer}"
        secrets.append(bearer)
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


def _bearer_token() -> str:
    """Return the token in the environment, "" without one. Raises UsageError for one that no header holds."""
    name = next((name for name in TOKENS if os.environ.get(name)), "")
    token = os.environ.get(name, "")
    check((not re.fullmatch(r"[!-~]*", token), f"{name}: a token is ASCII without spaces; set it again"))
    return token


async def _fetch(server: Server, path: str, body: bytes | None, seconds: float) -> tuple[int, bytes]:
    """Fetch the answer at `path`. Raises TimeoutError after `seconds`, and UnreadableError for a redirect."""
    # the path goes after the server's own, its query before the server's own
    (base, _, suffix), (page, _, query) = (
        server.url.raw_path.partition(b"?"),
        path.encode().partition(b"?"),
    )
    both = b"&".join(filter(None, (query, suffix)))
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
                        f"{server}{path} redirects ({response.status_code}) to {place}; eaglectl follows no"
                        " redirects: if you trust it, pass its URL",
                        options=("--run-in",),
                    )
                return response.status_code, await _body(f"{server}{path}", response)
            finally:
                await response.aclose()


async def _body(place: str, response: httpx2.Response) -> bytes:
    """Read the body: completely for status 200, else its beginning."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnreadableError(
            f"{place} sends a compressed answer, although identity encoding was requested; {CHECK}",
            options=("--run-in",),
        )
    body, is_success = bytearray(), response.status_code == 200
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_BODY and is_success:
            raise UnreadableError(
                f"{place} sends more than {MAX_BODY >> 20} MiB; {CHECK}", options=("--run-in",)
            )
        if len(body) > SHOWN_BYTES and not is_success:
            break
    return bytes(body) if is_success else bytes(body[:SHOWN_BYTES])


# the most draft tokens in a round, more than any EAGLE drafter's; a server may finish an answer's last round
MAX_STEPS = 64
# 20.0 is an integer in JSON Schema, but not a count here
CHECKER = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
# the number of new tokens, and the answer
Completion = tuple[int, Mapping[str, Any]]
Strict: Any = extend(Draft202012Validator, type_checker=CHECKER)  # type: ignore[no-untyped-call]


def get(
    server: Server, path: str, kind: str, body: bytes | None = None, *, may_lack: bool = False
) -> Mapping[str, Any]:
    """Read the JSON object at `path`, of `kind` (a definition of the schema). Raises UnreadableError.

    With `may_lack`, empty if the server has none there.
    """
    raw = server.read(path, body, may_lack=may_lack)
    return parse_answer(server, path, kind, raw) if raw or not may_lack else {}


def parse_answer(server: Server, path: str, kind: str, raw: bytes) -> Mapping[str, Any]:
    """Parse `raw` as an answer of `kind`. Raises UnreadableError with the first fault."""
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
    # how an answer differs from its schema, in words
    names, value = [str(name) for name in error.absolute_path], error.instance
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in value)
        return f"has no {'.'.join([*names, missing])}"
    if isinstance(value, dict | list):
        value_text = "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    else:
        text = json.dumps(value)
        value_text = server.shown(text if len(text) <= 40 else f"{text[:40]}...")
    what = f"has {'.'.join(names)} = {value_text}" if names else f"answered with {value_text}"
    return f"{what}, where {error.schema['description']} was expected"


@cache
def _schema() -> Mapping[str, Any]:
    return msgspec.json.decode(
        resources.files(__package__).joinpath("answers.schema.json").read_bytes(), type=dict[str, Any]
    )
