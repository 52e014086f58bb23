"""Requests to a server that the user named: bounded in time and in size, and to that server alone.

The URL alone decides where a request goes. Proxies and netrc of the environment are not read: they would send
the URL's password to another host. Only what says which certificates to trust is (SSL_CERT_FILE,
SSL_CERT_DIR). Redirects are followed where scheme, host and port stay. The transport is used without httpx's
client, whose log shows whole URLs.
"""

import base64
import re
import ssl
from collections.abc import Mapping

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from eaglectl.errors import UnreadableError, UsageError
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
    """The URL of a redirect on the same server."""
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
