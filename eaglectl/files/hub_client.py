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

from eaglectl.files.hub_retries import (
    REPEATABLE,
    TEMPORARY,
    Retries,
    TransferError,
    failed_response,
    failure_of,
)

# before huggingface_hub 1.30, the client's transport is httpx
TRANSPORT: Any = getattr(utils, "httpx", None) or import_module("httpx")
ERRORS = (TRANSPORT.HTTPError, TRANSPORT.StreamError, TRANSPORT.InvalidURL)
# the calls of eaglectl that run now: whether a POST of them may be repeated
CALLS: list[bool] = []


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
    seconds = request.extensions.get("timeout", {}).get("read")
    while True:
        rewind()
        try:
            response = send(request)
        except ERRORS as error:
            failure = failure_of(error, TRANSPORT, str(request.url), seconds)
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
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        self.start, self.stop = (int(asked[1]), asked[2]) if asked else (0, "")

    def __iter__(self) -> Iterator[bytes]:
        received, mark = 0, 0
        while True:
            try:
                for piece in self.stream:
                    received += len(piece)
                    yield piece
                return
            except (TRANSPORT.HTTPError, TRANSPORT.StreamError) as error:
                failure = failure_of(error, TRANSPORT, str(self.response.url))
            if received - mark >= self.retries.policy.progress:
                mark = received
                self.retries.failures = 0  # attempts count from the first again
            if "content-encoding" in self.response.headers:
                raise failure
            self.retries.wait_after(failure)
            self._continue(self.start + received, failure)

    def _continue(self, start: int, failure: TransferError) -> None:
        """Ask for the bytes from `start` on. Raises `failure` where the server does not send these."""
        self.stream.close()
        self.request.headers["range"] = f"bytes={start}-{self.stop}"
        rest = self.answer(self.request)
        self.stream = rest.stream
        is_rest = rest.status_code == 206 and rest.headers.get("content-range", "").startswith(
            f"bytes {start}-"
        )
        is_same = rest.headers.get("etag", "") == self.response.headers.get("etag", "")
        if not (is_rest and is_same) or "content-encoding" in rest.headers:
            raise failure

    def close(self) -> None:
        """Close the connection of the newest response."""
        self.stream.close()
