"""The HTTP client that eaglectl gives to huggingface_hub: it repeats requests by the retry policy.

Imported late, as it loads huggingface_hub.
"""

import re
from collections.abc import Iterator, Mapping
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
# causes of a missing response: its description, and the policy's number of attempts
UNANSWERED: Mapping[Any, tuple[str, str]] = {
    TRANSPORT.TimeoutException: ("sent nothing in time", "silent_attempts"),
    TRANSPORT.ConnectError: ("cannot be reached", "silent_attempts"),
    TRANSPORT.UnsupportedProtocol: ("cannot be reached", "hopeless_attempts"),
    TRANSPORT.InvalidURL: ("cannot be reached", "hopeless_attempts"),
    TRANSPORT.TooManyRedirects: ("redirects without an end", "hopeless_attempts"),
}
TEMPORARY = frozenset((408, 429, 500, 502, 503, 504))
# methods that can always be repeated: they change nothing, or put the same bytes in one place
REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS", "PUT"))
RESET = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})")
XET_TOKENS = re.compile(r"/xet-(read|write)-token/")


@cache
def install_client() -> None:
    """Make huggingface_hub create its sessions with this retry policy, from now on in this process."""
    options = {"event_hooks": {"request": [hf_request_event_hook]}, "follow_redirects": True, "timeout": None}
    huggingface_hub.set_client_factory(partial(_RetryingClient, **options))


class _RetryingClient(TRANSPORT.Client):  # type: ignore[misc]
    """A client whose requests are repeated by the policy, while a call of eaglectl runs."""

    def build_request(self, method: str, url: Any, **options: Any) -> Any:
        # each attempt sends a file from its original position
        request = super().build_request(method, url, **options)
        file: Any
        for file in (options.get("data"), options.get("content")):
            if hasattr(file, "seek") and hasattr(file, "tell"):
                request.extensions["rewind"] = partial(file.seek, file.tell())
        return request

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request and return its response. Raises TransferError."""
        if not CALLS:
            return super().send(request, **options)
        retries = Retries(is_repeatable=request.method in REPEATABLE or all(CALLS))
        while True:
            request.extensions.get("rewind", int)()
            try:
                response = super().send(request, **options)
            except ERRORS as error:
                failure = _failure(error, str(request.url))
            else:
                if response.status_code not in TEMPORARY:
                    response.stream = _Body(response)
                    return response
                failure = failed_response(response)
                response.close()
            retries.wait_after(failure)


class _Body(TRANSPORT.SyncByteStream):  # type: ignore[misc]
    """The bytes of a response; huggingface_hub repeats what breaks off for ever, but no TransferError."""

    def __init__(self, response: Any) -> None:
        self.stream, self.url = response.stream, str(response.url)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.stream
        except ERRORS as error:
            raise _failure(error, self.url, is_body=True) from None

    def close(self) -> None:
        self.stream.close()


def _failure(error: Exception, url: str, *, is_body: bool = False) -> TransferError:
    """Return the failure that an exception of the transport stands for, without its text."""
    kind = type(error).__name__
    how, attempts = f"broke the answer off ({kind})", "attempts"
    for cause, unanswered in UNANSWERED.items():
        if isinstance(error, cause):
            how, attempts = unanswered
    most = getattr(hub_requests.POLICY, attempts)
    return TransferError(how, kind=kind, url=url, attempts=most, is_body=is_body)


def failed_response(response: Any) -> TransferError:
    """Return the failure of a response, with the wait that Retry-After or a rate limit asks for."""
    status, url, headers = int(response.status_code), str(response.url), response.headers
    code = XET_CODE if XET_TOKENS.search(url) else str(headers.get("x-error-code", ""))
    after, reset = headers.get("retry-after", "").strip(), RESET.search(headers.get("ratelimit", ""))
    wait = float(after[:6] if after.isdecimal() else (reset[1] if reset else 0))
    return TransferError(f"answered {status}", status, kind="HTTPStatusError", url=url, code=code, wait=wait)
