"""The HTTP client that huggingface_hub gets from eaglectl: its requests are under the policy of retries.

Imported late, as it loads huggingface_hub.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from typing import Any

import huggingface_hub
from huggingface_hub import utils
from huggingface_hub.utils._http import hf_request_event_hook

from eaglectl.files import hub_requests
from eaglectl.files.hub_requests import CALLS, XET_CODE, Retries, TransferError

# before huggingface_hub 1.30, the client's transport is httpx
TRANSPORT: Any = getattr(utils, "httpx", None) or import_module("httpx")
ERRORS = (TRANSPORT.HTTPError, TRANSPORT.StreamError, TRANSPORT.InvalidURL)
TEMPORARY = frozenset((408, 429, 500, 502, 503, 504))
# requests that may be sent again without being asked: they change nothing, or put the same bytes in one place
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT"))
RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})")
XET_TOKENS = re.compile(r"/xet-(read|write)-token/")


@cache
def install_client() -> None:
    """Have huggingface_hub make its sessions under the policy, from now on in this process."""
    hooks = {"request": [hf_request_event_hook]}
    make_client = partial(RetryingClient, event_hooks=hooks, follow_redirects=True, timeout=None)
    huggingface_hub.set_client_factory(make_client)


class RetryingClient(TRANSPORT.Client):  # type: ignore[misc]
    """A client whose requests are repeated by the policy, while a call of eaglectl runs."""

    def build_request(self, method: str, url: Any, **options: Any) -> Any:
        """A request; a file that it sends is read from where it was for each attempt."""
        request = super().build_request(method, url, **options)
        file: Any
        for file in (options.get("data"), options.get("content")):
            if hasattr(file, "seek") and hasattr(file, "tell"):
                request.extensions["rewind"] = partial(file.seek, file.tell())
        return request

    def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """The response; a streamed body that breaks off goes on with what is missing of it.

        Raises TransferError.
        """
        send = partial(super().send, stream=stream, **options)
        if not CALLS:
            return send(request)
        retries = Retries(is_repeatable=request.method in REPEATABLE or all(CALLS))
        answer = partial(_answer, send, retries=retries)
        response = answer(request)
        if stream and request.method == "GET" and response.status_code in (200, 206):
            response.stream = ContinuedStream(request, response, answer, retries)
        return response


def _answer(send: Callable[[Any], Any], request: Any, retries: Retries) -> Any:
    """The first response that is no temporary failure, of as many as are tried."""
    rewind = request.extensions.get("rewind", int)
    while True:
        rewind()
        try:
            response = send(request)
        except ERRORS as error:
            failure = _failure(error, str(request.url), request.extensions.get("timeout", {}).get("read"))
        else:
            if response.status_code not in TEMPORARY:
                return response
            failure = failed_response(response)
            response.close()
        retries.wait_after(failure)


class ContinuedStream(TRANSPORT.SyncByteStream):  # type: ignore[misc]
    """The bytes of one response, and of the responses that continue it where it broke off."""

    def __init__(self, request: Any, response: Any, answer: Callable[[Any], Any], retries: Retries) -> None:
        self.request, self.response, self.answer, self.retries = request, response, answer, retries
        self.stream = response.stream

    def __iter__(self) -> Iterator[bytes]:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.request.headers.get("range", ""))
        start, stop = (int(asked[1]), asked[2]) if asked else (0, "")
        mark = start
        while True:
            try:
                for piece in self.stream:
                    start += len(piece)
                    yield piece
                return
            except (TRANSPORT.HTTPError, TRANSPORT.StreamError) as error:
                failure = _failure(error, str(self.response.url))
            if start - mark >= hub_requests.POLICY.progress:
                mark = start
                self.retries.failures = 0  # attempts count from the first again
            if "content-encoding" in self.response.headers:
                raise failure
            self.retries.wait_after(failure)
            self.stream.close()
            self.request.headers["range"] = f"bytes={start}-{stop}"
            rest = self.answer(self.request)
            self.stream = rest.stream
            is_rest = rest.headers.get("content-range", "").startswith(f"bytes {start}-")
            is_same = rest.headers.get("etag", "") == self.response.headers.get("etag", "")
            if not (is_rest and is_same) or "content-encoding" in rest.headers:
                raise failure

    def close(self) -> None:
        """Close the connection of the newest response."""
        self.stream.close()


def _failure(error: Exception, url: str, seconds: float | None = None) -> TransferError:
    """The failure that an exception of the transport is; its text is not repeated.

    `seconds`: the time after which a silent server is given up.
    """
    is_no_address = isinstance(error, TRANSPORT.UnsupportedProtocol | TRANSPORT.InvalidURL)
    is_timeout = isinstance(error, TRANSPORT.TimeoutException)
    is_silent = is_timeout or isinstance(error, TRANSPORT.ConnectError)
    how = f"broke the answer off ({type(error).__name__})"
    if is_timeout:
        how = f"sent nothing for {seconds:.0f} seconds" if seconds else "sent nothing in time"
    elif is_silent or is_no_address:
        how = "cannot be reached"
    failure = TransferError(how, kind=type(error).__name__, url=url)
    if is_silent:
        failure.attempts = hub_requests.POLICY.silent_attempts
    if is_no_address or isinstance(error, TRANSPORT.TooManyRedirects):
        failure.attempts = 1
    return failure


def failed_response(response: Any) -> TransferError:
    """The failure that a response is, with the wait that it asks for: Retry-After, or a limit's reset."""
    status, url = int(response.status_code), str(response.url)
    code = XET_CODE if XET_TOKENS.search(url) else str(response.headers.get("x-error-code", ""))
    after = response.headers.get("retry-after", "").strip()
    reset = RESET.search(response.headers.get("ratelimit", ""))
    wait = after[:6] if after.isdecimal() else (reset[1] if reset else 0)
    return TransferError(
        f"answered {status}", status, kind="HTTPStatusError", url=url, code=code, wait=float(wait)
    )
